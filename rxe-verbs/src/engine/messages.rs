//! The form in which reliable WRITEs and READs of several packets leave.

use crate::net::ConfigError;

/// How reliable RDMA WRITEs and READs longer than a packet leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Messages {
    /// In parts, where several requests are under way. A WRITE leaves as messages of one packet each ("RDMA WRITE only"). A READ of up to
    /// 16 packets leaves as requests for two packets each, if the peer allows 16 at a time. So all packets with data have one length. The
    /// system takes such packets in large batches, which saves a third to two thirds of the time.
    #[default]
    Parts,
    /// Each as one message of a first, middle and a last packet. For tests of peers with such packets under load.
    Whole,
}

impl Messages {
    /// The value of `RXE_MESSAGES`.
    pub(super) fn parse(text: &str) -> Result<Self, ConfigError> {
        match text {
            "" | "parts" => Ok(Self::Parts),
            "whole" => Ok(Self::Whole),
            _ => Err(ConfigError::new("RXE_MESSAGES", text, "parts, whole")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_has_two_values() {
        for (text, messages) in
            [("", Messages::Parts), ("parts", Messages::Parts), ("whole", Messages::Whole)]
        {
            assert_eq!(Messages::parse(text), Ok(messages));
        }
        let error = Messages::parse("all").unwrap_err().to_string();
        assert_eq!(error, "RXE_MESSAGES=\"all\" is not understood; allowed: parts, whole");
    }
}
