//! Times as text, and escaping for XML.

use std::fmt::{self, Display, Formatter};

/// A pause is shown if it is this many times the usual time between two rows,
pub(crate) const LONG_PAUSE: u64 = 20;
/// and no shorter than this, in nanoseconds.
pub(crate) const SHORTEST_PAUSE: u64 = 1_000_000;

/// A duration with three to four digits: `18.2 us`.
#[must_use]
pub fn duration(nanoseconds: u64) -> String {
    let value = nanoseconds as f64;
    let (scaled, unit) = match nanoseconds {
        0..1_000 => return format!("{nanoseconds} ns"),
        1_000..1_000_000 => (value / 1e3, "us"),
        1_000_000..1_000_000_000 => (value / 1e6, "ms"),
        _ => (value / 1e9, "s"),
    };
    let digits = if scaled < 10.0 { 2 } else { usize::from(scaled < 100.0) };
    format!("{scaled:.digits$} {unit}")
}

/// A time since the start: in seconds, to the microsecond.
#[must_use]
pub fn moment(nanoseconds: u64) -> String {
    format!("{}.{:06}", nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000 / 1_000)
}

/// Text for XML: markup is escaped, and characters that are invalid in XML are replaced.
pub(crate) struct Escaped<'a>(pub(crate) &'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '&' => f.write_str("&amp;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' | '\t' => fmt::Write::write_char(f, character)?,
                _ if character.is_control() || ('\u{fffe}'..='\u{ffff}').contains(&character) => {
                    f.write_str("\u{fffd}")?;
                }
                _ => fmt::Write::write_char(f, character)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{duration, moment};

    #[test]
    fn durations_have_three_digits() {
        for (value, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 us"),
            (18_240, "18.2 us"),
            (999_400, "999 us"),
            (4_096_000, "4.10 ms"),
            (2_000_000_000, "2.00 s"),
            (u64::MAX, "18446744074 s"),
        ] {
            assert_eq!(duration(value), text);
        }
    }

    #[test]
    fn moments_are_seconds() {
        assert_eq!(moment(1_234_567_890), "1.234567");
        assert_eq!(moment(0), "0.000000");
    }
}
