//! Quantities in scenario files: `"40gbit"`, `"2us"`, `"240KB"`. As numbers, rates are in bits per second, times in picoseconds
//! (a byte at 100 Gbit/s takes 80), and sizes in bytes.

use serde::{Deserialize, Deserializer, de};
use std::time::Duration;

/// Picoseconds of a nanosecond.
pub const NANO: u64 = 1000;
/// Picoseconds of a microsecond.
pub const MICRO: u64 = 1_000_000;
/// Picoseconds of a second.
pub const SECOND: u64 = 1_000_000_000_000;

/// Bits per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate(pub u64);
/// Picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Span(pub u64);
/// Bytes: decimal units, `KB` is 1000 and `KiB` 1024.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Size(pub u64);

impl Span {
    /// As a duration of the standard library, in whole nanoseconds.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(self.0 / NANO)
    }
}

fn parse(text: &str, units: &[(&str, f64)], what: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let names = || units.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let number: f64 = number
        .replace('_', "")
        .parse()
        .map_err(|_| format!("{text:?} is no {what}: a number and a unit of {}", names()))?;
    let unit = unit.trim();
    let (_, factor) = units
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(|| format!("{text:?} is no {what}: the unit {unit:?} is none of {}", names()))?;
    let value = number * factor;
    if value < 9e18 { Ok(value.round() as u64) } else { Err(format!("{text:?} is too large")) }
}

macro_rules! quantity {
    ($name:ident, $what:literal, $units:expr) => {
        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                parse(text, $units, $what).map(Self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    };
}

quantity!(Rate, "rate", &[("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3), ("bit", 1.0)]);
quantity!(Span, "time", &[("ns", 1e3), ("us", 1e6), ("ms", 1e9), ("s", 1e12)]);
quantity!(
    Size,
    "size",
    &[
        ("B", 1.0),
        ("KB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("KiB", 1024.0),
        ("MiB", 1_048_576.0),
        ("GiB", 1_073_741_824.0)
    ]
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_units_and_wrong_ones_are_named() {
        assert_eq!("40gbit".parse(), Ok(Rate(40_000_000_000)));
        assert_eq!("2.5us".parse(), Ok(Span(2_500_000)));
        assert_eq!("240 KB".parse(), Ok(Size(240_000)));
        assert!("5".parse::<Span>().unwrap_err().contains("none of ns, us"));
        assert!("fast".parse::<Rate>().unwrap_err().contains("\"fast\""));
    }
}
