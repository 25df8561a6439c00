//! Service levels and virtual lanes, and the DSCPs that stand for them on Ethernet.

/// Number of service levels (IBTA vol. 1, 7.6.5).
pub const SL_COUNT: usize = 16;
/// Virtual lanes for data: 0 to 14 (IBTA vol. 1, 7.6.1).
pub const VL_COUNT: usize = 15;
/// The value instead of a lane for a service level whose packets are not carried (IBTA vol. 1, 7.6.6).
pub const VL_NONE: u8 = 15;

/// From service levels to virtual lanes to DSCP.
///
/// A switch of an InfiniBand fabric finds the lane by the service level of each packet. RoCE packets carry no service
/// level: switches and `tc` find their queue by the DSCP, which is the upper six bits of the traffic class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lanes {
    sl2vl: [u8; SL_COUNT],
    dscp: [u8; VL_COUNT],
}

impl Default for Lanes {
    fn default() -> Self {
        Self { sl2vl: Self::DEFAULT_SL2VL, dscp: Self::DEFAULT_DSCP }
    }
}

impl Lanes {
    /// OpenSM's table: each service level has its own lane, and level 15 shares that of level 7.
    pub const DEFAULT_SL2VL: [u8; SL_COUNT] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 7];
    /// Lanes 0 to 7 have the class selectors CS0 to CS7, which switches and cards take for the priorities 0 to 7 (DSCP / 8).
    /// Lanes 8 to 14 have four more than lanes 0 to 6: the same priority, and still told apart in a capture.
    pub const DEFAULT_DSCP: [u8; VL_COUNT] = [0, 8, 16, 24, 32, 40, 48, 56, 4, 12, 20, 28, 36, 44, 52];

    /// Lanes by tables: lane 0 to 15 of each service level (15 for none), and DSCP 0 to 63 of each lane. `None` if a
    /// number is larger.
    #[must_use]
    pub fn new(sl2vl: [u8; SL_COUNT], dscp: [u8; VL_COUNT]) -> Option<Self> {
        let fits = sl2vl.iter().all(|vl| *vl <= VL_NONE) && dscp.iter().all(|dscp| *dscp < 64);
        fits.then_some(Self { sl2vl, dscp })
    }

    /// The lane of a service level; `None` if its packets are not carried, or there is no such level.
    #[must_use]
    pub fn vl(&self, sl: u8) -> Option<u8> {
        self.sl2vl.get(usize::from(sl)).copied().filter(|vl| usize::from(*vl) < VL_COUNT)
    }

    /// The traffic class (IPv4 TOS) of a lane: its DSCP, and no ECN bits. 0 if there is no such lane.
    #[must_use]
    pub fn traffic_class(&self, vl: u8) -> u8 {
        self.dscp.get(usize::from(vl)).map_or(0, |dscp| dscp << 2)
    }

    /// The lane of each service level, 15 for none.
    #[must_use]
    pub const fn sl2vl(&self) -> &[u8; SL_COUNT] {
        &self.sl2vl
    }

    /// The same with other DSCPs. `None` if one is above 63.
    #[must_use]
    pub fn with_dscp(&self, dscp: [u8; VL_COUNT]) -> Option<Self> {
        Self::new(self.sl2vl, dscp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_lanes_and_lanes_have_classes() {
        let lanes = Lanes::default();
        assert_eq!((lanes.vl(3), lanes.vl(15), lanes.vl(16)), (Some(3), Some(7), None));
        assert_eq!((lanes.traffic_class(3), lanes.traffic_class(8)), (0x60, 0x10));
        let mut classes: Vec<u8> = (0..VL_COUNT as u8).map(|vl| lanes.traffic_class(vl)).collect();
        classes.sort_unstable();
        classes.dedup();
        assert_eq!(classes.len(), VL_COUNT, "a receiver knows the lane by the class");
        let none = Lanes::new([VL_NONE; SL_COUNT], Lanes::DEFAULT_DSCP).unwrap();
        assert_eq!(none.vl(0), None);
        assert_eq!(lanes.with_dscp([64; VL_COUNT]), None);
        assert_eq!(Lanes::new([16; SL_COUNT], Lanes::DEFAULT_DSCP), None);
    }
}
