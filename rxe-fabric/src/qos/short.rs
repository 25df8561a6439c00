//! The short form, which some documents show, but OpenSM cannot read:
//!
//! ```text
//! service_id 0x1000-0x1fff sl 4
//! sl2vl 4 2
//! vlarb_high 0:64 1:64
//! vlarb_low 2:32
//! default 1
//! ```

use super::{LaneWishes, Level, QosPolicy, Rule, parse::simple_level};
use crate::{
    error::{FileError, Warning, Warnings},
    number, options,
    ranges::Ranges,
};

const WORDS: [&str; 5] = ["service_id", "sl2vl", "vlarb_high", "vlarb_low", "default"];
/// Most rules.
const MAX: usize = 100_000;

/// The lines that are not empty or comments, with their numbers.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.split('#').next().unwrap_or_default().trim()))
        .filter(|(_, line)| !line.is_empty())
}

/// Whether a text is in the short form. Its first word decides.
pub(super) fn is_short(text: &str) -> bool {
    lines(text)
        .next()
        .is_some_and(|(_, line)| WORDS.contains(&line.split_whitespace().next().unwrap_or_default()))
}

fn small(line: usize, word: Option<&str>, max: u64, what: &str) -> Result<u8, FileError> {
    let word = word.unwrap_or_default();
    let number = number::parse(word).map_err(|why| FileError::new(line, word, format!("{what}: {why}")))?;
    let fits = u8::try_from(number).ok().filter(|_| number <= max);
    fits.ok_or_else(|| FileError::new(line, word, format!("{what} is 0 to {max}")))
}

pub(super) fn parse(text: &str) -> Result<(QosPolicy, Vec<Warning>), FileError> {
    let mut lanes = LaneWishes::default();
    let (mut levels, mut rules, mut default) = (Vec::<Level>::new(), Vec::new(), 0);
    let said = "this short form is none of OpenSM's: it would read nothing of it";
    let mut warnings = Warnings::default();
    warnings.push(0, said);
    for (line, text) in lines(text) {
        let (key, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let mut words = rest.split_whitespace();
        match key {
            "service_id" => {
                if rules.len() >= MAX {
                    return Err(FileError::new(line, key, format!("{MAX} rules are possible")));
                }
                let range = words.next().unwrap_or_default();
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let id = |text: &str| {
                    number::parse(text)
                        .map_err(|why| FileError::new(line, text, format!("service ID: {why}")))
                };
                let services = Ranges::new([(id(first)?, id(last)?)]);
                match words.next() {
                    Some("sl") => {}
                    other => {
                        return Err(FileError::new(line, other.unwrap_or_default(), "\"sl\" is expected"));
                    }
                }
                let level = simple_level(&mut levels, small(line, words.next(), 15, "a service level")?);
                rules.push(Rule { services, level, line, ..Rule::default() });
            }
            "sl2vl" => {
                let sl = small(line, words.next(), 15, "a service level")?;
                lanes.sl2vl.push((sl, small(line, words.next(), 15, "a lane")?));
            }
            "vlarb_high" | "vlarb_low" => {
                let pairs = words.by_ref().collect::<Vec<_>>().join(",");
                let table = Some(options::entries(line, &pairs, &mut warnings)?);
                *(if key == "vlarb_high" { &mut lanes.high } else { &mut lanes.low }) = table;
            }
            "default" => default = small(line, words.next(), 15, "a service level")?,
            _ => {
                return Err(FileError::new(line, key, format!("one of {} is expected", WORDS.join(", "))));
            }
        }
        if let Some(word) = words.next() {
            return Err(FileError::new(line, word, "the line should end before this"));
        }
    }
    let default = simple_level(&mut levels, default);
    Ok((QosPolicy::new(Vec::new(), levels, rules, default, lanes), warnings.into_list()))
}
