//! How many shards, each with a thread, a stack may have.

use crate::net::ConfigError;
use rxe_core::endpoint::Stream;

/// Shards of a stack at most.
const MOST: u8 = 16;
const _: () = assert!(MOST as usize <= Stream::MOST);

/// How many shards a stack may have: 1 to 16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Threads(u8);

impl Threads {
    /// One, whatever the machine has. Each shard sees only its part of a peer's packets, and one that counts its IPv4 IDs
    /// over all of them (kernel rxe, ConnectX) makes jumps there, of which each costs a packet (`rxe_core::wire::ident`).
    const USUAL: Self = Self(1);

    /// As a program or user wishes; brought into the range.
    pub(crate) fn wished(count: u8) -> Self {
        Self(count.clamp(1, MOST))
    }

    pub(super) const fn count(self) -> u8 {
        self.0
    }

    /// The value of `RXE_THREADS`.
    pub(super) fn parse(text: &str) -> Result<Self, ConfigError> {
        match text.parse() {
            _ if text.is_empty() => Ok(Self::USUAL),
            Ok(count @ 1..=MOST) => Ok(Self(count)),
            _ => Err(ConfigError::new("RXE_THREADS", text, "1 to 16")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_unless_the_user_wants_more() {
        for (text, count) in [("", 1), ("1", 1), ("16", 16)] {
            assert_eq!(Threads::parse(text), Ok(Threads(count)), "{text:?}");
        }
        for wrong in ["0", "17", "-1", "two", "4 ", "256"] {
            let error = Threads::parse(wrong).unwrap_err().to_string();
            assert_eq!(error, format!("RXE_THREADS={wrong:?} is not understood; allowed: 1 to 16"));
        }
        assert_eq!([0, 3, 255].map(Threads::wished), [1, 3, 16].map(Threads));
    }
}
