//! Numbers as strtoull(3) reads them with base 0: 0x for hexadecimal, 0 for octal, else decimal.

/// The number, or what is wrong with it.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        None => (text, 10),
    };
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(radix)) {
        return Err(match radix {
            8 => "not a number: a leading 0 makes it octal".to_owned(),
            _ => "a number is expected".to_owned(),
        });
    }
    u64::from_str_radix(digits, radix).map_err(|_| "the number does not fit in 64 bits".to_owned())
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn bases() {
        for (text, number) in [("0", 0), ("10", 10), ("010", 8), ("0x10", 16), ("0XfF", 255)] {
            assert_eq!(parse(text), Ok(number));
        }
        for text in ["", "0x", "08", "1a", "-1", "+1", "0x1g", "18446744073709551616"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
