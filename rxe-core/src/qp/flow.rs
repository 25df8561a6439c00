//! How much may be in flight: an adaptive window per destination socket, and a budget for READ responses, which all land
//! in our own socket's buffer. Beyond a receiver's buffer throughput falls off a cliff, so both start small.

/// Smallest window, bytes: a few full packets.
const MIN_WINDOW: u32 = 16 * 1024;
/// What each request packet counts besides its payload: headers and the receiver's bookkeeping.
pub(crate) const PACKET_COST: u32 = 64;

/// The window to one destination socket, shared by all queue pairs to that address and slot.
#[derive(Debug)]
pub(crate) struct Window {
    in_flight: u32,
    limit: u32,
    max: u32,
    threshold: u32,
    acked_since_cut: u32,
}

impl Window {
    pub(crate) const fn new(start: u32, max: u32) -> Self {
        Self { in_flight: 0, limit: start, max, threshold: max, acked_since_cut: u32::MAX }
    }

    /// Whether `cost` more bytes may leave; one packet always may.
    pub(crate) const fn allows(&self, cost: u32) -> bool {
        self.in_flight == 0 || self.in_flight.saturating_add(cost) <= self.limit
    }

    /// Present size, bytes.
    pub(crate) const fn limit(&self) -> u32 {
        self.limit
    }

    pub(crate) const fn sent(&mut self, cost: u32) {
        self.in_flight = self.in_flight.saturating_add(cost);
    }

    /// Bytes that are no longer in flight, for whatever reason.
    pub(crate) const fn left(&mut self, cost: u32) {
        self.in_flight = self.in_flight.saturating_sub(cost);
    }

    /// Bytes the peer acknowledged: the window grows, quickly below the last size that failed, slowly above.
    pub(crate) fn acknowledged(&mut self, cost: u32) {
        self.left(cost);
        self.acked_since_cut = self.acked_since_cut.saturating_add(cost);
        let growth = if self.limit < self.threshold {
            cost
        } else {
            u32::try_from(u64::from(cost) * 1024 / u64::from(self.limit)).unwrap_or(0)
        };
        self.limit = self.limit.saturating_add(growth).min(self.max);
    }

    /// Packets were lost: the window shrinks, at most once a window.
    pub(crate) fn lost(&mut self) {
        if self.acked_since_cut >= self.limit / 2 {
            self.limit = (self.limit / 2).max(MIN_WINDOW);
            self.threshold = self.limit;
            self.acked_since_cut = 0;
        }
    }
}

/// READ responses that may be on their way to this endpoint at once.
#[derive(Debug)]
pub(crate) struct ReadBudget {
    in_flight: u32,
    limit: u32,
}

impl ReadBudget {
    pub(crate) const fn new(limit: u32) -> Self {
        Self { in_flight: 0, limit }
    }

    /// Bytes a READ request may ask for now, at least `packet` if nothing is on its way.
    pub(crate) const fn available(&self, packet: u32) -> u32 {
        let left = self.limit.saturating_sub(self.in_flight);
        if self.in_flight == 0 && left < packet { packet } else { left }
    }

    /// Whether nothing is on its way.
    pub(crate) const fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    pub(crate) const fn asked(&mut self, bytes: u32) {
        self.in_flight = self.in_flight.saturating_add(bytes);
    }

    pub(crate) const fn left(&mut self, bytes: u32) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }
}

/// Both limits as a requester meets them.
pub(crate) struct Flow<'a> {
    pub window: &'a mut Window,
    pub reads: &'a mut ReadBudget,
}
