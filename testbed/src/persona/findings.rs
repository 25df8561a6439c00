//! What the persona checks of its peer: each law, how often it was checked, and where it was broken.

use std::{collections::BTreeMap, fmt};

/// Breaches kept with their details; more are only counted.
const KEPT: usize = 20;

/// Laws checked so far.
#[derive(Debug, Default)]
pub struct Findings {
    checked: BTreeMap<&'static str, (u64, u64)>,
    broken: Vec<String>,
}

impl Findings {
    /// Notes that `law` was checked, and with which result.
    pub fn check(&mut self, law: &'static str, holds: bool, detail: impl FnOnce() -> String) {
        let (checked, broken) = self.checked.entry(law).or_default();
        *checked += 1;
        if !holds {
            *broken += 1;
            if self.broken.len() < KEPT {
                self.broken.push(format!("{law}: {}", detail()));
            }
        }
    }

    /// How often `law` was checked.
    #[must_use]
    pub fn count(&self, law: &str) -> u64 {
        self.checked.get(law).map_or(0, |counts| counts.0)
    }

    /// The breaches.
    #[must_use]
    pub fn broken(&self) -> &[String] {
        &self.broken
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (law, (checked, broken)) in &self.checked {
            writeln!(f, "{checked:8} checked {broken:4} broken  {law}")?;
        }
        Ok(())
    }
}
