//! The size of a pot: it grows with answers, and shrinks by losses and by congestion notifications. If it is larger than the
//! receiver's buffer throughput collapses, so pots start small.

/// Smallest window, bytes: a few full packets.
const MIN_WINDOW: u32 = 16 * 1024;
/// Bytes that a window above the last failed size grows by with each window acknowledged: two large packets.
const STEP: u32 = 8192;
/// The unit of `Congestion::share`: this value is the whole.
const ALL: u32 = 1024;
/// One window counts one part in this many in the estimate of congestion (1/g of RFC 8257).
const GAIN: u32 = 16;
/// Steps of recovery after a notification. Each gives back half of what is still missing (DCQCN's fast recovery).
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

/// The estimate of congestion from notifications. DCQCN (Zhu et al., SIGCOMM 2015) has a rate and timers. Here the window takes
/// the place of the rate, and a window of acknowledged bytes that of the timer, as in DCTCP (RFC 8257), because nothing paces the
/// packets of a socket.
#[derive(Debug)]
struct Congestion {
    /// DCQCN's alpha, in units of `ALL`. A notification reduces the size by half of this share.
    share: u32,
    /// The size before the last notification.
    target: u32,
    /// Steps towards the target that are left.
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

    /// Whether there is no bound. Then nothing shrinks it: such a configuration limits what is sent in another way.
    const fn is_unbounded(&self) -> bool {
        self.max == u32::MAX
    }

    fn least(&self) -> u32 {
        self.max.min(MIN_WINDOW)
    }

    /// `cost` bytes were answered. Below the last failed size it grows by as much, above it slowly.
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

    /// The peer reports that packets arrive marked (a CNP). It shrinks by up to half, at most once in a window.
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

    /// With each window acknowledged it shrinks again if a notification came meanwhile; otherwise it moves towards the old size.
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

    /// Packets were lost. The window shrinks by three tenths (as CUBIC's, RFC 9438, 4.6), at most once in half a window of
    /// answers.
    pub(super) fn lost(&mut self) {
        if self.is_unbounded() || self.acked_since_cut < self.size / 2 {
            return;
        }
        self.size = (self.size - self.size / 10 * 3).max(self.least());
        self.threshold = self.size;
        self.acked_since_cut = 0;
        self.congestion.steps = 0;
    }

    /// Nothing came back for long. It starts at the least size, and grows quickly to the size after a loss.
    pub(super) fn silent(&mut self) {
        self.lost();
        if !self.is_unbounded() {
            self.size = self.least();
            self.congestion.steps = 0;
        }
    }
}
