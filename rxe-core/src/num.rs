//! The protocol's numbers: each has a type of its own, so that 24-bit arithmetic and byte order are written once.

use core::{cmp::Ordering, fmt};

const MASK24: u32 = 0x00ff_ffff;

/// A number of 24 bits, and how it is shown.
macro_rules! number24 {
    ($(#[$about:meta])* $name:ident, $shown:literal) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(u32);

        impl $name {
            /// Takes the low 24 bits of `value`.
            #[must_use]
            pub const fn new(value: u32) -> Self {
                Self(value & MASK24)
            }

            /// The number, 0 to 2^24 - 1.
            #[must_use]
            pub const fn value(self) -> u32 {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $shown, self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $shown, self.0)
            }
        }
    };
}

number24! {
    /// A packet sequence number: 24 bits, modular (IBTA vol. 1, 9.7.1).
    Psn, "{:06x}"
}

number24! {
    /// A message sequence number: 24 bits. It counts the messages that a responder has completed (IBTA vol. 1, 9.7.7.1).
    Msn, "{}"
}

number24! {
    /// A queue pair number: 24 bits. On rxe's hosts the top byte is the slot (the process), and the rest an index in it.
    #[derive(PartialOrd, Ord)]
    Qpn, "{:#08x}"
}

impl Psn {
    /// Half of the number space. A PSN that is ahead by this much counts as behind.
    pub const HALF: u32 = 1 << 23;

    /// The PSN `count` packets later.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count) & MASK24)
    }

    /// The PSN `count` packets earlier.
    #[must_use]
    pub const fn minus(self, count: u32) -> Self {
        Self(self.0.wrapping_sub(count) & MASK24)
    }

    /// The PSN after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        self.plus(1)
    }

    /// How many packets `self` is after `earlier`, modulo 2^24.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0) & MASK24
    }

    /// Signed distance from `other`: negative when `self` is behind it by at most half the number space.
    #[must_use]
    pub const fn distance(self, other: Self) -> i32 {
        (self.0.wrapping_sub(other.0) << 8) as i32 >> 8
    }

    /// Whether `self` comes before `other`.
    #[must_use]
    pub const fn is_before(self, other: Self) -> bool {
        self.distance(other) < 0
    }

    /// Whether `self` comes after `other`.
    #[must_use]
    pub const fn is_after(self, other: Self) -> bool {
        self.distance(other) > 0
    }

    /// Order within half the number space.
    #[must_use]
    pub fn compare(self, other: Self) -> Ordering {
        self.distance(other).cmp(&0)
    }
}

impl Msn {
    /// The number after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1) & MASK24)
    }

    /// How many messages `self` is after `earlier`, modulo 2^24.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0) & MASK24
    }
}

impl Qpn {
    /// Queue pair 1, the general services interface (connection management).
    pub const GSI: Self = Self(1);
    /// The destination of multicast datagrams (IBTA vol. 1, 10.5).
    pub const MULTICAST: Self = Self(MASK24);

    /// The QPN of queue pair `index` in the process that holds `slot`.
    #[must_use]
    pub const fn from_parts(slot: u8, index: u16) -> Self {
        Self((slot as u32) << 16 | index as u32)
    }

    /// The top byte: which process of the destination host.
    #[must_use]
    pub const fn slot(self) -> u8 {
        (self.0 >> 16) as u8
    }

    /// The low 16 bits: which queue pair of that process.
    #[must_use]
    pub const fn index(self) -> u16 {
        self.0 as u16
    }
}

/// A partition key: 15 bits of partition and the membership bit (IBTA vol. 1, 10.9.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pkey(pub u16);

impl Pkey {
    /// The default partition, full member.
    pub const DEFAULT: Self = Self(0xffff);

    /// The partition without the membership bit.
    #[must_use]
    pub const fn partition(self) -> u16 {
        self.0 & 0x7fff
    }

    /// Whether this key makes its holder a full member.
    #[must_use]
    pub const fn is_full(self) -> bool {
        self.0 & 0x8000 != 0
    }

    /// Whether a packet that carries `self` may reach a queue pair that holds `own`: same partition, and not both limited.
    #[must_use]
    pub const fn matches(self, own: Self) -> bool {
        self.partition() == own.partition() && self.partition() != 0 && (self.is_full() || own.is_full())
    }
}

impl Default for Pkey {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A queue key: guards datagram queue pairs (IBTA vol. 1, 10.2.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Qkey(pub u32);

impl Qkey {
    /// The well-known key of queue pair 1.
    pub const GSI: Self = Self(0x8001_0000);

    /// Whether the top bit is set: as a remote Q_Key of a work request it means "use the queue pair's own".
    #[must_use]
    pub const fn is_controlled(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

impl fmt::Debug for Qkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// An L_Key or R_Key: names a memory region or window. The top 24 bits are an index, the low 8 the consumer's tag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Key(pub u32);

impl Key {
    /// The key of table entry `index` (24 bits) with tag `tag`.
    #[must_use]
    pub const fn from_parts(index: u32, tag: u8) -> Self {
        Self(index << 8 | tag as u32)
    }

    /// The table entry: the top 24 bits.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.0 >> 8
    }

    /// The low 8 bits, changed at every re-use of the entry.
    #[must_use]
    pub const fn tag(self) -> u8 {
        self.0 as u8
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_wraps_and_compares_within_half() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.next(), Psn::new(0));
        assert_eq!(Psn::new(0).minus(1), last);
        assert!(last.is_before(Psn::new(0)));
        assert!(Psn::new(5).is_after(Psn::new(0xff_fff0)));
        assert_eq!(Psn::new(5).since(Psn::new(0xff_fff0)), 21);
        assert_eq!(Psn::new(0xff_fff0).distance(Psn::new(5)), -21);
        assert_eq!(Psn::new(Psn::HALF).distance(Psn::new(0)), -(Psn::HALF as i32));
        assert_eq!(Psn::new(Psn::HALF - 1).distance(Psn::new(0)), Psn::HALF as i32 - 1);
    }

    #[test]
    fn pkey_membership() {
        let (full, limited) = (Pkey(0x8001), Pkey(0x0001));
        assert!(full.matches(full) && full.matches(limited) && limited.matches(full));
        assert!(!limited.matches(limited));
        assert!(!full.matches(Pkey(0x8002)));
        assert!(!Pkey(0x8000).matches(Pkey(0x8000)));
    }

    #[test]
    fn qpn_parts() {
        let qpn = Qpn::from_parts(3, 0x1234);
        assert_eq!((qpn.value(), qpn.slot(), qpn.index()), (0x03_1234, 3, 0x1234));
    }
}
