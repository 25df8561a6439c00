//! How many shards, each with a thread, a stack may have.

use crate::net::ConfigError;
use std::thread::available_parallelism;

/// Shards of a stack at most.
pub(crate) const MOST: u8 = 16;
/// Without being told, a stack has one shard for so many processors, which it shares with the program's own threads,
const PROCESSORS: usize = 4;
/// and so many at most.
const USUAL_MOST: u8 = 4;

/// How many shards a stack may have, and which queue pairs go where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Threads {
    /// 1 to [`MOST`].
    pub(super) most: u8,
    /// Each queue pair goes to the next shard. Else those of one completion queue stay together: whoever polls it has one
    /// socket to look at.
    pub(super) spread: bool,
}

impl Threads {
    /// As a program or user wishes; brought into the range.
    pub(crate) fn wished(count: u8) -> Self {
        Self { most: count.clamp(1, MOST), spread: true }
    }

    /// What `RXE_THREADS` says, 1 to 16; if it is not set or empty, what fits the machine.
    ///
    /// # Errors
    /// [`ConfigError`] for another value.
    pub(super) fn from_environment() -> Result<Self, ConfigError> {
        let text = std::env::var_os("RXE_THREADS").unwrap_or_default();
        Self::parse(&text.to_string_lossy(), available_parallelism().map_or(1, usize::from))
    }

    fn parse(text: &str, processors: usize) -> Result<Self, ConfigError> {
        if text.is_empty() {
            let most = u8::try_from(processors / PROCESSORS).unwrap_or(u8::MAX).clamp(1, USUAL_MOST);
            return Ok(Self { most, spread: false });
        }
        match text.parse() {
            Ok(count @ 1..=MOST) => Ok(Self::wished(count)),
            _ => Err(ConfigError::new("RXE_THREADS", text, "1 to 16")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_decides_unless_somebody_does() {
        for (processors, most) in [(1, 1), (3, 1), (4, 1), (7, 1), (8, 2), (15, 3), (16, 4), (4096, 4)] {
            assert_eq!(Threads::parse("", processors), Ok(Threads { most, spread: false }), "{processors}");
        }
        assert_eq!(Threads::parse("1", 64), Ok(Threads::wished(1)));
        assert_eq!(Threads::parse("16", 2), Ok(Threads { most: 16, spread: true }));
        for wrong in ["0", "17", "-1", "two", "4 ", "256"] {
            let error = Threads::parse(wrong, 2).unwrap_err().to_string();
            assert_eq!(error, format!("RXE_THREADS={wrong:?} is not understood; allowed: 1 to 16"));
        }
    }
}
