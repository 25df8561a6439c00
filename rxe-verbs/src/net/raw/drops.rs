//! Counts received frames that hold no packet for this process, by reason.

macro_rules! drops {
    ($($(#[doc = $doc:literal])* $field:ident = $name:literal),* $(,)?) => {
        /// Frames that the raw link has thrown away, by reason.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct RawDrops { $($(#[doc = $doc])* pub $field: u64),* }

        impl RawDrops {
            /// Each counter with its name in `rxe stat`.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$(($name, self.$field)),*].into_iter()
            }

            /// The sum of both.
            #[must_use]
            pub const fn and(self, other: Self) -> Self {
                Self { $($field: self.$field + other.$field),* }
            }
        }
    };
}

drops!(
    /// For another station: a wrong MAC address.
    other_station = "dropped_other_station",
    /// For a VLAN that this host has no interface of.
    other_vlan = "dropped_other_vlan",
    /// Shorter than their headers.
    short = "dropped_short_frame",
    /// With another length than a header of theirs says: RoCEv1's GRH, IP or UDP. (What is longer has Ethernet's padding.)
    length = "dropped_frame_length",
    /// Of another form than RoCE packets have: IP options, other versions, another next header than a BTH, a loopback address as
    /// the source of what came from outside.
    foreign = "dropped_foreign_frame",
    /// Pieces of IP packets.
    fragments = "dropped_fragment",
    /// Several packets in one frame of a sender on this host, and the kernel does not say where one ends: switch off its
    /// segmentation (`ethtool -K DEVICE tx-udp-segmentation off`).
    merged = "dropped_merged_frame",
);

/// Why a frame holds no usable packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unusable {
    /// Shorter than its headers.
    Short,
    /// Shorter than a header says, or longer than its contents can be.
    Length,
    /// Of another protocol, port or version, with options, or from a loopback address, but not by the loopback.
    Foreign,
    /// A piece of an IP packet.
    Fragment,
    /// Several packets in one frame, and nothing says where one ends.
    Merged,
}

impl RawDrops {
    pub(super) const fn count(&mut self, why: Unusable) {
        match why {
            Unusable::Short => self.short += 1,
            Unusable::Length => self.length += 1,
            Unusable::Foreign => self.foreign += 1,
            Unusable::Fragment => self.fragments += 1,
            Unusable::Merged => self.merged += 1,
        }
    }
}
