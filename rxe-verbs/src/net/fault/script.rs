//! Fault scripts: a file with one rule per line. A rule says what happens to which packets.
//!
//! ```text
//! # The third READ response is lost, and every hundredth packet that arrives is marked by a "switch".
//! drop rx read-response 3rd
//! mark rx every 100
//! turn rnr 14 rx ack 1st
//! delay 2s tx cm rtu
//! down 1s after 500ms
//! kill after 100 packets
//! ```
//!
//! A line has an action and then conditions in any order. All conditions must hold. [`HELP`] lists actions and conditions.

use super::plan::{WHOLE, parse_chance, parse_time};
use core::{ops::RangeInclusive, time::Duration};
use rxe_core::wire::{Class, NakCode, Service, Syndrome};
use std::{fs, io, path::Path};
use thiserror::Error;

/// The help text: all words of scripts.
pub const HELP: &str = "\
actions     drop, corrupt, duplicate, mark (ECN: congestion experienced), delay TIME, reorder N (behind N later packets),
            turn rnr N | nak-sequence | nak-request | nak-access | nak-operation (an acknowledgement into another),
            down TIME (nothing comes in or goes out), kill (this process ends)
direction   tx, rx (both unless one is named)
packets     send, write, read, read-response, ack, nak, atomic, atomic-ack, flush, cnp, ud, cm [req|rep|rtu|...]
            qp N (destination), psn N or N..M, opcode N
which       1st, 2nd, 3rd, ...; first N; every N; times N; chance P%
when        after N packets; after TIME; until TIME (since the device was opened)";

/// Longest script, bytes.
const LONGEST: u64 = 1 << 20;

/// Largest PSN and queue pair number: 24 bits.
const LARGEST: u32 = 0xff_ffff;

/// What a rule does with a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    Drop,
    Corrupt,
    Duplicate,
    Mark,
    Delay(Duration),
    Reorder(u64),
    Turn(Syndrome),
    Down(Duration),
    Kill,
}

/// A condition on the kind of the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Class(Class),
    /// Atomic requests of either kind.
    Atomic,
    /// A positive acknowledgement.
    Ack,
    /// A negative one.
    Nak,
    Service(Service),
    /// A message of the connection manager: any, or the one with this attribute ID.
    Cm(Option<u16>),
    Opcode(u8),
    Qp(u32),
}

/// One line of a script.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Rule {
    /// Line number, from 1 on.
    pub(super) line: usize,
    pub(super) action: Action,
    /// `Some(true)`: only packets that are sent. `Some(false)`: only packets that are received.
    pub(super) sending: Option<bool>,
    pub(super) kinds: Vec<Kind>,
    pub(super) psn: Option<RangeInclusive<u32>>,
    /// Which of the packets that meet the other conditions, counted from 1 on.
    pub(super) which: RangeInclusive<u64>,
    pub(super) every: u64,
    /// How often the rule acts at most.
    pub(super) times: u64,
    /// The chance that the rule acts, in millionths.
    pub(super) chance: u32,
    /// The rule applies only after so many packets, counted in both directions.
    pub(super) packets: u64,
    pub(super) after: Duration,
    pub(super) until: Option<Duration>,
}

/// A script: rules in the order of their lines.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Script {
    pub(super) rules: Vec<Rule>,
}

/// Why a script is not understood.
#[derive(Debug, Error)]
pub enum ScriptError {
    /// The file cannot be read.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// A word is wrong or missing.
    #[error("line {line}, column {column}: {what}")]
    Word {
        /// Line, from 1 on.
        line: usize,
        /// Column of the word's first letter, from 1 on.
        column: usize,
        /// What is wrong, and what would be right.
        what: String,
    },
}

impl Script {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ScriptError`] points at the first word that is wrong.
    pub fn load(path: &Path) -> Result<Self, ScriptError> {
        if fs::metadata(path)?.len() > LONGEST {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is longer than 1 MiB").into());
        }
        Self::parse(&fs::read_to_string(path)?)
    }

    /// Reads a script.
    ///
    /// # Errors
    /// [`ScriptError`] points at the first word that is wrong.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        let mut rules = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let code = line.split('#').next().unwrap_or_default();
            let words = Words::new(at + 1, code);
            if words.words.is_empty() {
                continue;
            }
            rules.push(words.rule()?);
        }
        Ok(Self { rules })
    }

    /// Whether any rule takes the port down.
    pub(super) fn takes_port_down(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule.action, Action::Down(_)))
    }

    /// Whether any rule is for packets that are sent (`sending`) or received.
    #[must_use]
    pub(super) fn is_for(&self, sending: bool) -> bool {
        self.rules.iter().any(|rule| rule.sending.is_none_or(|only| only == sending))
    }
}

/// Parses a decimal number, or a hexadecimal one behind `0x`.
fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The words of a line, with their columns.
struct Words<'a> {
    line: usize,
    words: Vec<(usize, &'a str)>,
    at: usize,
    end: usize,
}

impl<'a> Words<'a> {
    fn new(line: usize, code: &'a str) -> Self {
        let mut words = Vec::new();
        for word in code.split_whitespace() {
            // The word is a slice of the line, so the difference of the addresses is its offset.
            let start = word.as_ptr() as usize - code.as_ptr() as usize;
            words.push((code[..start].chars().count() + 1, word));
        }
        Self { line, words, at: 0, end: code.trim_end().chars().count() + 1 }
    }

    fn next(&mut self) -> Option<&'a str> {
        let word = self.words.get(self.at).map(|(_, word)| *word);
        self.at += 1;
        word
    }

    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).map(|(_, word)| *word)
    }

    /// An error at the word that was taken last, or at the end of the line if a word is missing.
    fn wrong<T>(&self, what: impl Into<String>) -> Result<T, ScriptError> {
        let column = self.words.get(self.at.saturating_sub(1)).map_or(self.end, |(column, _)| *column);
        Err(ScriptError::Word { line: self.line, column, what: what.into() })
    }

    fn number(&mut self, what: &str) -> Result<u64, ScriptError> {
        let word = self.next();
        match word.and_then(parse_number) {
            Some(number) => Ok(number),
            None => self.wrong(format!("{what} is wanted{}", instead(word))),
        }
    }

    fn time(&mut self) -> Result<Duration, ScriptError> {
        let word = self.next();
        match word.and_then(parse_time) {
            Some(time) => Ok(time),
            None => self
                .wrong(format!("a time of at most 60 s is wanted, such as 200us or 1.5s{}", instead(word))),
        }
    }

    fn rule(mut self) -> Result<Rule, ScriptError> {
        let action = self.action()?;
        let mut rule = Rule {
            line: self.line,
            action,
            sending: None,
            kinds: Vec::new(),
            psn: None,
            which: 1..=u64::MAX,
            every: 1,
            times: u64::MAX,
            chance: WHOLE,
            packets: 0,
            after: Duration::ZERO,
            until: None,
        };
        while let Some(word) = self.next() {
            self.condition(word, &mut rule)?;
        }
        // Without a number, `down` and `kill` act once, not for every later packet.
        if matches!(action, Action::Down(_) | Action::Kill) && rule.times == u64::MAX && rule.every == 1 {
            rule.times = 1;
        }
        if let Action::Turn(_) = action {
            rule.kinds.push(Kind::Class(Class::Acknowledge));
        }
        Ok(rule)
    }

    fn action(&mut self) -> Result<Action, ScriptError> {
        let word = self.next();
        Ok(match word {
            Some("drop") => Action::Drop,
            Some("corrupt") => Action::Corrupt,
            Some("duplicate") => Action::Duplicate,
            Some("mark") => Action::Mark,
            Some("kill") => Action::Kill,
            Some("delay") => Action::Delay(self.time()?),
            Some("down") => Action::Down(self.time()?),
            Some("reorder") => match self.number("how many packets are to pass by, 1 to 64,")? {
                count @ 1..=64 => Action::Reorder(count),
                count => return self.wrong(format!("1 to 64 packets can pass by, not {count}")),
            },
            Some("turn") => Action::Turn(self.syndrome()?),
            _ => {
                let list = "drop, corrupt, duplicate, mark, delay, reorder, turn, down or kill";
                return self.wrong(format!("an action is wanted: {list}{}", instead(word)));
            }
        })
    }

    fn syndrome(&mut self) -> Result<Syndrome, ScriptError> {
        let word = self.next();
        Ok(match word {
            Some("rnr") => match self.number("a timer code, 0 to 31,")? {
                code @ 0..=31 => Syndrome::RnrNak(code as u8),
                code => return self.wrong(format!("timer codes are 0 to 31, not {code}")),
            },
            Some("nak-sequence") => Syndrome::Nak(NakCode::PsnSequence),
            Some("nak-request") => Syndrome::Nak(NakCode::InvalidRequest),
            Some("nak-access") => Syndrome::Nak(NakCode::RemoteAccess),
            Some("nak-operation") => Syndrome::Nak(NakCode::RemoteOperational),
            _ => {
                let list = "rnr N, nak-sequence, nak-request, nak-access or nak-operation";
                return self.wrong(format!("turn into what: {list}{}", instead(word)));
            }
        })
    }

    fn condition(&mut self, word: &str, rule: &mut Rule) -> Result<(), ScriptError> {
        match word {
            "tx" => rule.sending = Some(true),
            "rx" => rule.sending = Some(false),
            "psn" => rule.psn = Some(self.psns()?),
            "first" => rule.which = 1..=self.at_least_one("how many packets")?,
            "every" => rule.every = self.at_least_one("a number of packets")?,
            "times" => rule.times = self.at_least_one("how often")?,
            "chance" => {
                let text = self.next();
                rule.chance = match text.filter(|text| text.ends_with('%')).and_then(parse_chance) {
                    Some(chance) => chance,
                    None => return self.wrong(format!("a chance is wanted, such as 5%{}", instead(text))),
                };
            }
            "after" => {
                if self.words.get(self.at + 1).is_some_and(|(_, word)| *word == "packets") {
                    rule.packets = self.number("a number of packets")?;
                    self.at += 1;
                } else {
                    rule.after = self.time()?;
                }
            }
            "until" => rule.until = Some(self.time()?),
            _ => match ordinal(word) {
                Some(0) => return self.wrong("packets are counted from 1st on"),
                Some(number) => rule.which = number..=number,
                None => {
                    let kind = self.kind(word)?;
                    rule.kinds.push(kind);
                }
            },
        }
        Ok(())
    }

    fn at_least_one(&mut self, what: &str) -> Result<u64, ScriptError> {
        match self.number(&format!("{what}, at least 1,"))? {
            0 => self.wrong("at least 1 is wanted, not 0"),
            number => Ok(number),
        }
    }

    fn psns(&mut self) -> Result<RangeInclusive<u32>, ScriptError> {
        let number = |text: &str| parse_number(text)?.try_into().ok();
        let word = self.next();
        let range = word.and_then(|word| match word.split_once("..") {
            Some((low, high)) => Some(number(low)?..=number(high)?),
            None => number(word).map(|one| one..=one),
        });
        match range {
            Some(range) if *range.end() > LARGEST => self.wrong("PSNs are 0 to 0xffffff"),
            Some(range) if range.is_empty() => {
                self.wrong("the first PSN is beyond the last: two lines can name both sides of 0")
            }
            Some(range) => Ok(range),
            None => {
                self.wrong(format!("a PSN or a range is wanted, such as 0x10 or 100..200{}", instead(word)))
            }
        }
    }

    fn kind(&mut self, word: &str) -> Result<Kind, ScriptError> {
        Ok(match word {
            "send" => Kind::Class(Class::Send),
            "write" => Kind::Class(Class::Write),
            "read" => Kind::Class(Class::ReadRequest),
            "read-response" => Kind::Class(Class::ReadResponse),
            "ack" => Kind::Ack,
            "nak" => Kind::Nak,
            "atomic" => Kind::Atomic,
            "atomic-ack" => Kind::Class(Class::AtomicAcknowledge),
            "flush" => Kind::Class(Class::Flush),
            "cnp" => Kind::Service(Service::Cnp),
            "ud" => Kind::Service(Service::Ud),
            "qp" => match u32::try_from(self.number("a queue pair number, 0 to 0xffffff,")?) {
                Ok(number @ 0..=LARGEST) => Kind::Qp(number),
                _ => return self.wrong("queue pair numbers are 0 to 0xffffff"),
            },
            "opcode" => match u8::try_from(self.number("an opcode, 0 to 255,")?) {
                Ok(opcode) => Kind::Opcode(opcode),
                Err(_) => return self.wrong("opcodes are 0 to 255"),
            },
            "cm" => {
                let message = self.peek().and_then(cm_message);
                self.at += usize::from(message.is_some());
                Kind::Cm(message)
            }
            _ => {
                let list = "tx, rx, send, write, read, read-response, ack, nak, atomic, cm, qp, psn, 3rd, first, every, after, ...";
                return self.wrong(format!("\"{word}\" is no condition: {list}"));
            }
        })
    }
}

fn instead(word: Option<&str>) -> String {
    word.map_or_else(String::new, |word| format!(", not \"{word}\""))
}

/// `1st`, `2nd`, `3rd`, `4th`.
fn ordinal(word: &str) -> Option<u64> {
    let at = word.find(|character: char| !character.is_ascii_digit())?;
    let (number, end) = word.split_at(at);
    matches!(end, "st" | "nd" | "rd" | "th").then(|| number.parse().ok())?
}

/// The attribute ID of a connection manager's message (IBTA vol. 1, table 99).
fn cm_message(name: &str) -> Option<u16> {
    Some(match name.to_ascii_lowercase().as_str() {
        "req" => 0x10,
        "mra" => 0x11,
        "rej" => 0x12,
        "rep" => 0x13,
        "rtu" => 0x14,
        "dreq" => 0x15,
        "drep" => 0x16,
        "sidr-req" => 0x17,
        "sidr-rep" => 0x18,
        "lap" => 0x19,
        "apr" => 0x1a,
        _ => return None,
    })
}
