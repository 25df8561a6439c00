//! The form in which reliable WRITEs of several packets leave.

use crate::net::ConfigError;

/// How reliable RDMA WRITEs longer than a packet leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Writes {
    /// Those that are one of several under way: as messages of one packet each ("RDMA WRITE only"), all packets of which have one
    /// length. The system takes such packets in large batches, which is worth a third to two thirds of the time.
    #[default]
    Parts,
    /// Each as one message, of a first, middle and a last packet. For peers that are to see those under load.
    Whole,
}

impl Writes {
    /// What `RXE_WRITES` says: `parts` or `whole`; [`Self::Parts`] if it is not set or empty.
    ///
    /// # Errors
    /// [`ConfigError`] for another value.
    pub fn from_environment() -> Result<Self, ConfigError> {
        let text = std::env::var_os("RXE_WRITES").unwrap_or_default();
        Self::parse(&text.to_string_lossy())
    }

    fn parse(text: &str) -> Result<Self, ConfigError> {
        match text {
            "" | "parts" => Ok(Self::Parts),
            "whole" => Ok(Self::Whole),
            _ => Err(ConfigError::new("RXE_WRITES", text, "parts, whole")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_has_two_values() {
        for (text, writes) in [("", Writes::Parts), ("parts", Writes::Parts), ("whole", Writes::Whole)] {
            assert_eq!(Writes::parse(text), Ok(writes));
        }
        let error = Writes::parse("all").unwrap_err().to_string();
        assert_eq!(error, "RXE_WRITES=\"all\" is not understood; allowed: parts, whole");
    }
}
