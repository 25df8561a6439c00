//! Where the fields of a message lie. A message is declared once, as a table of fields and places; struct, parser, emitter and
//! listing follow from it, so they cannot disagree.

use super::{
    message::Path,
    private_data::PrivateData,
    service_id::ServiceId,
    types::{CommId, Concerns, Guid, RejectReason, SidrStatus, Transport},
};
use core::{
    net::{IpAddr, Ipv6Addr},
    ops::Range,
};
use rxe_core::num::{Pkey, Psn, Qkey, Qpn};

/// Size of a message behind the management header, bytes.
pub const BODY_LEN: usize = 232;

/// A message's bytes. Offsets in this module count from its start, byte 24 of the management datagram.
pub(super) type Body = [u8; BODY_LEN];

/// A place in a message that holds a value of type `T`.
pub(super) trait Place<T> {
    /// Reads the value.
    fn read(&self, body: &Body) -> T;
    /// Writes the value over zeroes.
    fn write(&self, body: &mut Body, value: &T);
}

/// A big-endian number: some bytes, shifted and masked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    start: usize,
    end: usize,
    shift: u32,
    mask: u64,
}

impl Field {
    /// Whole bytes, at most eight.
    pub(super) const fn bytes(range: Range<usize>) -> Self {
        let bits = (range.end - range.start) * 8;
        Self { start: range.start, end: range.end, shift: 0, mask: u64::MAX >> (64 - bits) }
    }

    /// Bits `high` down to `low` of one byte.
    pub(super) const fn bits(byte: usize, high: u32, low: u32) -> Self {
        Self { start: byte, end: byte + 1, shift: low, mask: u64::MAX >> (63 - (high - low)) }
    }

    /// The upper 20 bits of three bytes.
    pub(super) const fn upper20(start: usize) -> Self {
        Self { start, end: start + 3, shift: 4, mask: 0xf_ffff }
    }

    fn get(&self, body: &Body) -> u64 {
        let all = body[self.start..self.end].iter().fold(0, |all, &byte| all << 8 | u64::from(byte));
        all >> self.shift & self.mask
    }

    fn put(&self, body: &mut Body, value: u64) {
        let mut rest = (value & self.mask) << self.shift;
        for byte in body[self.start..self.end].iter_mut().rev() {
            *byte |= rest as u8;
            rest >>= 8;
        }
    }
}

/// Three bytes that lie apart: a vendor ID, most significant first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Apart(pub(super) [usize; 3]);

/// An array of bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area(pub(super) usize);

macro_rules! number {
    ($($type:ty: $from:expr, $to:expr;)*) => {
        $(impl Place<$type> for Field {
            fn read(&self, body: &Body) -> $type {
                let from: fn(u64) -> $type = $from;
                from(self.get(body))
            }

            fn write(&self, body: &mut Body, value: &$type) {
                let to: fn($type) -> u64 = $to;
                self.put(body, to(*value));
            }
        })*
    };
}

number! {
    bool: |v| v != 0, u64::from;
    u8: |v| v as u8, u64::from;
    u16: |v| v as u16, u64::from;
    u32: |v| v as u32, u64::from;
    u64: |v| v, |v| v;
    CommId: |v| CommId(v as u32), |v| v.0.into();
    Guid: Guid, |v| v.0;
    Qpn: |v| Qpn::new(v as u32), |v| v.value().into();
    Psn: |v| Psn::new(v as u32), |v| v.value().into();
    Qkey: |v| Qkey(v as u32), |v| v.0.into();
    Pkey: |v| Pkey(v as u16), |v| v.0.into();
    ServiceId: ServiceId, |v| v.0;
    Transport: |v| Transport::from_bits(v as u8), |v| v.bits().into();
    Concerns: |v| Concerns::from_bits(v as u8), |v| v.bits().into();
    RejectReason: |v| RejectReason(v as u16), |v| v.0.into();
    SidrStatus: |v| SidrStatus(v as u8), |v| v.0.into();
}

impl Place<u32> for Apart {
    fn read(&self, body: &Body) -> u32 {
        self.0.iter().fold(0, |all, &at| all << 8 | u32::from(body[at]))
    }

    fn write(&self, body: &mut Body, value: &u32) {
        let [_, high, middle, low] = value.to_be_bytes();
        for (at, byte) in self.0.into_iter().zip([high, middle, low]) {
            body[at] = byte;
        }
    }
}

impl<const N: usize> Place<PrivateData<N>> for Area {
    fn read(&self, body: &Body) -> PrivateData<N> {
        let mut out = [0; N];
        out.copy_from_slice(&body[self.0..self.0 + N]);
        PrivateData(out)
    }

    fn write(&self, body: &mut Body, value: &PrivateData<N>) {
        body[self.0..self.0 + N].copy_from_slice(&value.0);
    }
}

/// A GID. On RoCEv2 it is an IP address; IPv4 is mapped into IPv6.
impl Place<IpAddr> for Area {
    fn read(&self, body: &Body) -> IpAddr {
        let mut octets = [0; 16];
        octets.copy_from_slice(&body[self.0..self.0 + 16]);
        Ipv6Addr::from(octets).to_canonical()
    }

    fn write(&self, body: &mut Body, value: &IpAddr) {
        let address = match value {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => *v6,
        };
        body[self.0..self.0 + 16].copy_from_slice(&address.octets());
    }
}

/// What a field holds, for those who show messages to people or to programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shown<'a> {
    /// Yes or no.
    Flag(bool),
    /// A number that is counted with.
    Count(u64),
    /// A number that is compared only, with its size in hexadecimal digits.
    Number(u64, u8),
    /// A GID.
    Address(IpAddr),
    /// Private data and the like.
    Bytes(&'a [u8]),
    /// A path.
    Path(&'a Path),
}

/// A field that can be shown.
pub(super) trait Show {
    /// What it holds.
    fn shown(&self) -> Shown<'_>;
}

macro_rules! shown {
    ($($type:ty: $from:expr;)*) => {
        $(impl Show for $type {
            fn shown(&self) -> Shown<'_> {
                let from: fn(&$type) -> Shown<'_> = $from;
                from(self)
            }
        })*
    };
}

shown! {
    bool: |v| Shown::Flag(*v);
    u8: |v| Shown::Count((*v).into());
    u16: |v| Shown::Number((*v).into(), 4);
    u32: |v| Shown::Number((*v).into(), 6);
    CommId: |v| Shown::Number(v.0.into(), 8);
    Guid: |v| Shown::Number(v.0, 16);
    Qpn: |v| Shown::Number(v.value().into(), 6);
    Psn: |v| Shown::Count(v.value().into());
    Qkey: |v| Shown::Number(v.0.into(), 8);
    Pkey: |v| Shown::Number(v.0.into(), 4);
    ServiceId: |v| Shown::Number(v.0, 16);
    Transport: |v| Shown::Count(v.bits().into());
    Concerns: |v| Shown::Count(v.bits().into());
    RejectReason: |v| Shown::Count(v.0.into());
    SidrStatus: |v| Shown::Count(v.0.into());
    Path: |v| Shown::Path(v);
}

impl<const N: usize> Show for PrivateData<N> {
    fn shown(&self) -> Shown<'_> {
        Shown::Bytes(&self.0)
    }
}

/// Declares a message: `field: Type = place` for each field.
macro_rules! message {
    (
        $(#[$doc:meta])*
        $name:ident {
            $($(#[$field_doc:meta])* $field:ident: $type:ty = $place:expr,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $name {
            pub(in crate::proto) fn parse(body: &$crate::proto::layout::Body) -> Self {
                Self { $($field: $crate::proto::layout::Place::<$type>::read(&$place, body),)* }
            }

            pub(in crate::proto) fn emit(&self, body: &mut $crate::proto::layout::Body) {
                $($crate::proto::layout::Place::<$type>::write(&$place, body, &self.$field);)*
            }

            /// Shows every field by name, in the order of declaration.
            pub fn each(&self, show: &mut dyn FnMut(&'static str, &dyn core::fmt::Debug)) {
                $(show(stringify!($field), &self.$field);)*
            }

            /// The same with what each holds; the text is what the value's own type makes of it.
            pub fn each_shown(&self, show: &mut dyn FnMut(&'static str, $crate::proto::Shown<'_>, &dyn core::fmt::Debug)) {
                $(show(stringify!($field), $crate::proto::layout::Show::shown(&self.$field), &self.$field);)*
            }
        }
    };
}
pub(super) use message;
