//! Values of fields, for people and for programs.

use rxe_cm::proto::Guid;
use serde_json::Value;
use std::net::IpAddr;

/// A value as text and in JSON.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) json: Value,
}

impl Cell {
    pub(super) fn number(value: impl Into<u64>) -> Self {
        let value: u64 = value.into();
        Self { text: value.to_string(), json: value.into() }
    }

    /// A number that is usually written in hexadecimal.
    pub(super) fn hex(value: impl Into<u64>, digits: usize) -> Self {
        let value: u64 = value.into();
        Self { text: format!("{value:#0width$x}", width = digits + 2), json: value.into() }
    }

    /// A number of 64 bits, which is too large for JSON.
    pub(super) fn long(value: u64) -> Self {
        let text = format!("{value:#018x}");
        Self { json: text.clone().into(), text }
    }

    pub(super) fn guid(guid: Guid) -> Self {
        Self { text: guid.to_string(), json: format!("{:#018x}", guid.0).into() }
    }

    pub(super) fn flag(value: bool) -> Self {
        Self { text: if value { "yes" } else { "no" }.to_owned(), json: value.into() }
    }

    pub(super) fn address(ip: IpAddr) -> Self {
        let text = ip.to_canonical().to_string();
        Self { json: text.clone().into(), text }
    }

    pub(super) fn words(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { json: text.clone().into(), text }
    }

    /// Bytes. As text they are shown without trailing zeroes, and as a string if possible.
    pub(super) fn bytes(bytes: &[u8]) -> Self {
        Self { text: shown(bytes), json: hex(bytes).into() }
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A short text for bytes.
pub(super) fn shown(bytes: &[u8]) -> String {
    let len = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let bytes = &bytes[..len];
    match str::from_utf8(bytes) {
        _ if bytes.is_empty() => "none".to_owned(),
        Ok(text) if !text.chars().any(char::is_control) => format!("{text:?}"),
        _ => format!("0x{}", hex(bytes)),
    }
}

/// A time as CM messages write it: 4.096 us << code.
pub(super) fn time(code: u8) -> String {
    let ms = 0.004_096 * (1_u64 << (code & 31)) as f64;
    if ms < 1.0 { format!("{ms:.3} ms") } else { format!("{ms:.0} ms") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_specification() {
        assert_eq!(time(0), "0.004 ms");
        assert_eq!(time(14), "67 ms");
        assert_eq!(time(20), "4295 ms");
        assert_eq!(time(31), "8796093 ms");
    }

    #[test]
    fn bytes_are_shown_as_text_where_they_are_one() {
        assert_eq!(shown(b"hello\0\0"), "\"hello\"");
        assert_eq!(shown(b"\0\0"), "none");
        assert_eq!(shown(b"\x01\xff\0"), "0x01ff");
        assert_eq!(Cell::bytes(b"\x01\0").json, "0100");
        assert_eq!(Cell::hex(0x12_u32, 6).text, "0x000012");
    }
}
