//! How large a pot is: it grows with what is answered, and shrinks by losses and by what congested routers say. Beyond a
//! receiver's buffer throughput falls off a cliff, so pots start small.

/// Smallest window, bytes: a few full packets.
const MIN_WINDOW: u32 = 16 * 1024;
/// What a window above the last size that failed grows by, when all of it was acknowledged: two large packets.
const STEP: u32 = 8192;
/// A share in units of `ALL`.
const ALL: u32 = 1024;
/// What one window with or without a notification counts in the estimate of congestion (RFC 8257's g).
const GAIN: u32 = 16;
/// Windows in which half of what a notification took is given back each time (DCQCN's fast recovery).
const RECOVERY: u8 = 5;

/// An adaptive number of bytes.
#[derive(Debug)]
pub(super) struct Limit {
    /// The present size.
    pub size: u32,
    /// The largest size.
    pub max: u32,
    threshold: u32,
    acked_since_cut: u32,
    congestion: Congestion,
}

/// What notifications of congestion tell. DCQCN (Zhu et al., SIGCOMM 2015) has a rate, and timers; here the window takes
/// the rate's place and a window's worth of acknowledgements the timer's, as in DCTCP (RFC 8257), because nothing paces
/// the packets of a socket.
#[derive(Debug)]
struct Congestion {
    /// How much of the path's congestion is ours, in units of `ALL`: what a notification takes, twice over.
    share: u32,
    /// The size before the last notification.
    target: u32,
    /// Steps towards the target left.
    steps: u8,
    /// Bytes acknowledged since the last step.
    acked: u32,
    /// A notification came since the last step.
    heard: bool,
}

impl Limit {
    pub(super) const fn new(start: u32, max: u32) -> Self {
        let congestion = Congestion { share: ALL, target: 0, steps: 0, acked: u32::MAX, heard: false };
        Self { size: start, max, threshold: max, acked_since_cut: u32::MAX, congestion }
    }

    /// Whether it stands for no bound at all, which nothing shrinks: whoever asks for it paces in another way.
    const fn is_unbounded(&self) -> bool {
        self.max == u32::MAX
    }

    fn least(&self) -> u32 {
        self.max.min(MIN_WINDOW)
    }

    /// `cost` bytes were answered: it grows, quickly below the last size that failed, by a little above.
    pub(super) fn acknowledged(&mut self, cost: u32) {
        self.acked_since_cut = self.acked_since_cut.saturating_add(cost);
        if self.size < self.max {
            let growth = if self.size < self.threshold {
                cost
            } else {
                u32::try_from(u64::from(cost) * u64::from(STEP) / u64::from(self.size.max(1))).unwrap_or(0)
            };
            self.size = self.size.saturating_add(growth).min(self.max);
        }
        if self.congestion.target != 0 {
            self.step(cost);
        }
    }

    /// The peer says that packets reach it marked: it shrinks by up to half, at most once a window.
    pub(super) fn notified(&mut self) {
        if self.is_unbounded() {
            return;
        }
        self.congestion.heard = true;
        if self.congestion.acked >= self.size {
            self.cut();
        }
    }

    fn cut(&mut self) {
        let least = self.least();
        let congestion = &mut self.congestion;
        congestion.share += (ALL - congestion.share) / GAIN;
        congestion.target = self.size;
        self.size = (self.size - self.size / (2 * ALL) * congestion.share).max(least);
        self.threshold = self.size;
        (congestion.steps, congestion.acked, congestion.heard) = (RECOVERY, 0, false);
    }

    /// With each window acknowledged: smaller again if a notification came meanwhile, else nearer to where it was.
    fn step(&mut self, cost: u32) {
        let congestion = &mut self.congestion;
        congestion.acked = congestion.acked.saturating_add(cost);
        if congestion.acked < self.size {
            return;
        }
        if congestion.heard {
            self.cut();
            return;
        }
        congestion.share -= congestion.share / GAIN;
        congestion.acked = 0;
        if let Some(left) = congestion.steps.checked_sub(1) {
            congestion.steps = left;
            self.size = self.size.max(self.size.midpoint(congestion.target)).min(self.max);
            self.threshold = self.size;
        }
    }

    /// Packets were lost: the window shrinks by three tenths (as CUBIC's, RFC 9438, 4.6), at most once a window.
    pub(super) fn lost(&mut self) {
        if self.is_unbounded() || self.acked_since_cut < self.size / 2 {
            return;
        }
        self.size = (self.size - self.size / 10 * 3).max(self.least());
        self.threshold = self.size;
        self.acked_since_cut = 0;
        self.congestion.steps = 0;
    }

    /// Nothing came back for long: it starts anew, and grows quickly to where it would be after a loss.
    pub(super) fn silent(&mut self) {
        self.lost();
        if !self.is_unbounded() {
            self.size = self.least();
            self.congestion.steps = 0;
        }
    }
}
