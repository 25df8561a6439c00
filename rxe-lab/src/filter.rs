//! Choosing packets by words: `nak`, `retransmitted and not cm`, `qp=0x12 (read or write) psn=100..200`.
//!
//! Words that follow each other must all be true, `or` binds less than that, `not` more; brackets group. What a word means is in
//! [`HELP`].

use crate::{
    flow::{Analyzer, Marks, Remark, WORDS},
    frame::Net,
    packet::Packet,
};
use rxe_core::{
    num::Qpn,
    wire::{Class, Opcode, Service},
};
use std::{net::IpAddr, ops::RangeInclusive};
use thiserror::Error;

/// The meaning of the words, one line each.
pub const HELP: &str = "\
lost retransmitted gap late nak rnr unanswered   what happened to a packet
bad cut rewritten copy unreadable                what the capture shows of it
marked cnp msn cm                                congestion, sequence numbers, connection manager
rc uc ud xrc v1                                  transport service; RoCEv1
send write read atomic flush ack                 what it does (READ requests and responses)
request answer ackreq                            direction; asks for an acknowledgement
qp=0x12 psn=100 psn=100..200 number=7 opcode=17  queue pair at either end, PSN, frame number, opcode
host=10.0.0.1 src=... dst=...                    addresses
time=0.5..2                                      seconds since the first frame
not, and, or, ( )                                words in a row must all be true";

/// Why a filter was not understood.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum FilterError {
    /// An unknown word.
    #[error("filter: \"{0}\" is no word of filters{1}")]
    Word(String, String),
    /// A value that is invalid for its key.
    #[error("filter: \"{0}\" is not understood: {1}")]
    Value(String, &'static str),
    /// An open bracket, or `not` without a test behind it.
    #[error("filter: {0}")]
    Shape(&'static str),
}

#[derive(Clone, PartialEq, Debug)]
enum Test {
    All(Vec<Self>),
    Any(Vec<Self>),
    Not(Box<Self>),
    Marks(Marks),
    Service(Service),
    Class(&'static [Class]),
    Request(bool),
    AckReq,
    V1,
    Qp(Qpn),
    Psn(Psns),
    Number(RangeInclusive<u64>),
    Opcode(Opcode),
    Host(Option<IpAddr>, Option<IpAddr>, Option<IpAddr>),
    Time(RangeInclusive<u64>),
}

/// PSNs from the first to the second. After the highest PSN comes 0.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Psns(u32, u32);

impl Psns {
    const fn has(self, psn: u32) -> bool {
        let Self(first, last) = self;
        if first <= last { first <= psn && psn <= last } else { first <= psn || psn <= last }
    }
}

/// A filter.
#[derive(Clone, PartialEq, Debug)]
pub struct Filter(Test);

/// Words that are not marks.
const KINDS: &[(&str, Test)] = &[
    ("rc", Test::Service(Service::Rc)),
    ("uc", Test::Service(Service::Uc)),
    ("ud", Test::Service(Service::Ud)),
    ("xrc", Test::Service(Service::Xrc)),
    ("v1", Test::V1),
    ("send", Test::Class(&[Class::Send])),
    ("write", Test::Class(&[Class::Write, Class::AtomicWrite])),
    ("read", Test::Class(&[Class::ReadRequest, Class::ReadResponse])),
    (
        "atomic",
        Test::Class(&[Class::CompareSwap, Class::FetchAdd, Class::AtomicAcknowledge, Class::AtomicWrite]),
    ),
    ("flush", Test::Class(&[Class::Flush])),
    ("ack", Test::Class(&[Class::Acknowledge, Class::AtomicAcknowledge])),
    ("request", Test::Request(true)),
    ("answer", Test::Request(false)),
    ("ackreq", Test::AckReq),
];

impl Filter {
    /// The filter that chooses all packets.
    #[must_use]
    pub const fn everything() -> Self {
        Self(Test::All(Vec::new()))
    }

    /// Parses a filter from words, which may contain spaces.
    ///
    /// # Errors
    /// [`FilterError`] names the word that was not understood, and a similar one.
    pub fn parse<S: AsRef<str>>(words: &[S]) -> Result<Self, FilterError> {
        let text = words.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(" ");
        let spaced = text.replace('(', " ( ").replace(')', " ) ");
        let mut parser = Parser { words: spaced.split_whitespace().collect(), at: 0, depth: 0 };
        let test = parser.any()?;
        if parser.at < parser.words.len() {
            return Err(FilterError::Shape("a \")\" without a \"(\""));
        }
        Ok(Self(test))
    }

    /// Whether it tests something that is only known later. This needs a second pass over the capture.
    #[must_use]
    pub fn needs_hindsight(&self) -> bool {
        fn asks(test: &Test) -> bool {
            match test {
                Test::All(tests) | Test::Any(tests) => tests.iter().any(asks),
                Test::Not(test) => asks(test),
                Test::Marks(marks) => marks.intersects(Marks::LOST | Marks::UNANSWERED),
                Test::Qp(_) => true,
                _ => false,
            }
        }
        asks(&self.0)
    }

    /// Whether a packet is chosen. `start` is the time of the first frame.
    #[must_use]
    pub fn chooses(&self, packet: &Packet<'_>, remark: &Remark, analyzer: &Analyzer, start: u64) -> bool {
        self.0.holds(&Sight { packet, remark, analyzer, start })
    }
}

/// What a test examines.
struct Sight<'a, 'b> {
    packet: &'a Packet<'b>,
    remark: &'a Remark,
    analyzer: &'a Analyzer,
    start: u64,
}

impl Test {
    fn holds(&self, sight: &Sight<'_, '_>) -> bool {
        let packet = sight.packet;
        let head = packet.head.as_ref().ok();
        match self {
            Self::All(tests) => tests.iter().all(|test| test.holds(sight)),
            Self::Any(tests) => tests.iter().any(|test| test.holds(sight)),
            Self::Not(test) => !test.holds(sight),
            Self::Marks(marks) => sight.remark.marks.intersects(*marks),
            Self::Service(service) => head.is_some_and(|head| head.info.service == *service),
            Self::Class(classes) => head.is_some_and(|head| classes.contains(&head.info.class)),
            Self::Request(wanted) => head.is_some_and(|head| head.info.is_request() == *wanted),
            Self::AckReq => head.is_some_and(|head| head.bth.ack_req),
            Self::V1 => matches!(packet.frame.net, Net::Grh { .. }),
            Self::Qp(qp) => sight.analyzer.is_of_qp(packet, sight.remark, *qp),
            Self::Psn(range) => head.is_some_and(|head| range.has(head.bth.psn.value())),
            Self::Number(range) => range.contains(&packet.number),
            Self::Opcode(opcode) => packet.opcode() == Some(*opcode),
            Self::Host(either, src, dst) => {
                let (from, to) = packet.addresses();
                either.is_none_or(|host| host == from || host == to)
                    && src.is_none_or(|host| host == from)
                    && dst.is_none_or(|host| host == to)
            }
            Self::Time(range) => range.contains(&packet.time.saturating_sub(sight.start)),
        }
    }
}

/// Most nested brackets and `not`s.
const DEEPEST: usize = 64;

struct Parser<'a> {
    words: Vec<&'a str>,
    at: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).copied()
    }

    fn any(&mut self) -> Result<Test, FilterError> {
        let mut tests = vec![self.all()?];
        while self.peek() == Some("or") {
            self.at += 1;
            if matches!(self.peek(), None | Some(")" | "or")) || tests == [Test::All(Vec::new())] {
                return Err(FilterError::Shape("\"or\" wants a word on each side"));
            }
            tests.push(self.all()?);
        }
        Ok(if tests.len() == 1 { tests.remove(0) } else { Test::Any(tests) })
    }

    fn all(&mut self) -> Result<Test, FilterError> {
        let mut tests = Vec::new();
        while let Some(word) = self.peek() {
            match word {
                "or" | ")" => break,
                "and" => self.at += 1,
                _ => tests.push(self.one()?),
            }
        }
        Ok(Test::All(tests))
    }

    fn one(&mut self) -> Result<Test, FilterError> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(FilterError::Shape("brackets are too deep"));
        }
        let word = self.peek().ok_or(FilterError::Shape("\"not\" wants a word behind it"))?;
        self.at += 1;
        let test = match word {
            "not" if matches!(self.peek(), None | Some("or" | "and" | ")")) => {
                return Err(FilterError::Shape("\"not\" wants a word behind it"));
            }
            "not" => Test::Not(Box::new(self.one()?)),
            "(" => {
                let inner = self.any()?;
                if self.peek() != Some(")") {
                    return Err(FilterError::Shape("a \"(\" without a \")\""));
                }
                self.at += 1;
                inner
            }
            _ => Self::word(word)?,
        };
        self.depth -= 1;
        Ok(test)
    }

    fn word(word: &str) -> Result<Test, FilterError> {
        if let Some((key, value)) = word.split_once('=') {
            return Self::pair(word, key, value);
        }
        let mark = WORDS.iter().find(|(_, name, _)| *name == word).map(|(mark, _, _)| Test::Marks(*mark));
        let kind = || KINDS.iter().find(|(name, _)| *name == word).map(|(_, test)| test.clone());
        mark.or_else(kind).ok_or_else(|| FilterError::Word(word.to_owned(), suggestion(word)))
    }

    fn pair(word: &str, key: &str, value: &str) -> Result<Test, FilterError> {
        let wrong = |what| FilterError::Value(word.to_owned(), what);
        let number = "a number is wanted: 18 or 0x12";
        let range = "a number or a range is wanted: 18, 0x12 or 10..20";
        let in_order = |range: Option<(u64, u64)>, wanted| {
            let (low, high) = range.ok_or_else(|| wrong(wanted))?;
            if low > high {
                return Err(wrong("it ends before it begins: swap the two"));
            }
            Ok(low..=high)
        };
        let address = || value.parse::<IpAddr>().map_err(|_| wrong("an IP address is wanted"));
        match key {
            "qp" => Ok(Test::Qp(queue_pair(value).ok_or_else(|| wrong(number))?)),
            "psn" => {
                let (low, high) = parse_range(value).ok_or_else(|| wrong(range))?;
                let [low, high] = [low, high].map(|psn| psn.min(u32::MAX.into()) as u32);
                Ok(Test::Psn(Psns(low, high)))
            }
            "number" => in_order(parse_range(value), range).map(Test::Number),
            "opcode" => {
                let opcode = parse_number(value).and_then(|opcode| u8::try_from(opcode).ok());
                Ok(Test::Opcode(Opcode(opcode.ok_or_else(|| wrong(number))?)))
            }
            "host" => Ok(Test::Host(Some(address()?), None, None)),
            "src" => Ok(Test::Host(None, Some(address()?), None)),
            "dst" => Ok(Test::Host(None, None, Some(address()?))),
            "time" => in_order(parse_seconds(value), "seconds are wanted: 0.5..2").map(Test::Time),
            _ => Err(FilterError::Word(word.to_owned(), suggestion(key))),
        }
    }
}

fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// A queue pair number, decimal or with 0x.
#[must_use]
pub fn queue_pair(text: &str) -> Option<Qpn> {
    let number = parse_number(text).and_then(|number| u32::try_from(number).ok());
    number.filter(|number| *number < 1 << 24).map(Qpn::new)
}

fn parse_range(text: &str) -> Option<(u64, u64)> {
    let Some((low, high)) = text.split_once("..") else { return parse_number(text).map(|one| (one, one)) };
    let low = if low.is_empty() { 0 } else { parse_number(low)? };
    let high = if high.is_empty() { u64::MAX } else { parse_number(high)? };
    Some((low, high))
}

fn parse_seconds(text: &str) -> Option<(u64, u64)> {
    let nanoseconds = |text: &str, else_: u64| match text {
        "" => Some(else_),
        _ => text
            .parse::<f64>()
            .ok()
            .filter(|seconds| seconds.is_finite() && *seconds >= 0.0)
            .map(|s| (s * 1e9) as u64),
    };
    let (low, high) = text.split_once("..")?;
    Some((nanoseconds(low, 0)?, nanoseconds(high, u64::MAX)?))
}

/// A known word with a similar spelling.
fn suggestion(word: &str) -> String {
    let keys = ["qp", "psn", "number", "opcode", "host", "src", "dst", "time"];
    let marks = WORDS.iter().map(|(_, word, _)| *word);
    let all = marks.chain(KINDS.iter().map(|(word, _)| *word)).chain(keys);
    let near = all.map(|known| (distance(word, known), known)).min();
    match near {
        Some((distance, known)) if distance <= known.len() / 2 => format!("; did you mean \"{known}\"?"),
        _ => String::new(),
    }
}

/// The Levenshtein distance of short words. Two swapped letters count as one mistake.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(24).collect(), b.chars().collect());
    let is_swapped = |at: usize| {
        a[at] == b[at + 1] && a[at + 1] == b[at] && a[..at] == b[..at] && a[at + 2..] == b[at + 2..]
    };
    if a.len() == b.len() && (1..a.len()).any(|at| is_swapped(at - 1)) && a != b {
        return 1;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let next = (diagonal + usize::from(from != to)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], next);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Filter, FilterError> {
        Filter::parse(&[text])
    }

    #[test]
    fn words_bind_as_they_read() {
        let Filter(test) = parse("nak or retransmitted not cm").unwrap();
        let Test::Any(parts) = test else { panic!("{test:?}") };
        assert_eq!(parts[0], Test::All(vec![Test::Marks(Marks::NAK)]));
        let both = vec![Test::Marks(Marks::RETRANSMITTED), Test::Not(Box::new(Test::Marks(Marks::CM)))];
        assert_eq!(parts[1], Test::All(both));
        assert_eq!(parse("(nak or rnr) and qp=0x12"), parse("( nak or rnr )  qp=18"));
        assert_eq!(parse("psn=5"), parse("psn=0x5..5"));
        assert_eq!(parse(""), Ok(Filter::everything()));
    }

    #[test]
    fn mistakes_are_told_with_what_was_meant() {
        for (text, told) in [
            ("retransmited", "did you mean \"retransmitted\"?"),
            ("knack", "\"knack\" is no word"),
            ("pns=3", "did you mean \"psn\"?"),
            ("qp=0x1000000", "\"qp=0x1000000\" is not understood"),
            ("psn=a..b", "a range is wanted"),
            ("time=5", "seconds are wanted"),
            ("number=9..3", "\"number=9..3\" is not understood: it ends before it begins: swap the two"),
            ("time=3..1", "\"time=3..1\" is not understood: it ends before it begins: swap the two"),
            ("host=localhost", "an IP address is wanted"),
            ("(nak", "without a \")\""),
            ("nak )", "without a \"(\""),
            ("nak or", "wants a word on each side"),
            ("or nak", "wants a word on each side"),
            ("not", "wants a word behind it"),
            ("( ) or not", "wants a word"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
        assert!(parse(&"(".repeat(10_000)).is_err());
        assert!(parse(&"not ".repeat(10_000)).is_err());
    }

    /// PSNs begin anew after 0xffffff, and a range may lie across that.
    #[test]
    fn a_range_of_psns_may_go_round() {
        let chosen = |text: &str| {
            let Filter(Test::All(tests)) = parse(text).unwrap() else { panic!("{text}") };
            let [Test::Psn(range)] = tests[..] else { panic!("{tests:?}") };
            [0, 0x10, 0x11, 0x1000, 0xff_ffef, 0xff_fff0, 0xff_ffff].map(|psn| range.has(psn))
        };
        assert_eq!(chosen("psn=0xfffff0..0x10"), [true, true, false, false, false, true, true]);
        assert_eq!(chosen("psn=0x10..0xfffff0"), [false, true, true, true, true, true, false]);
        assert_eq!(chosen("psn=0x11.."), [false, false, true, true, true, true, true]);
        assert_eq!(chosen("psn=..0x10"), [true, true, false, false, false, false, false]);
    }
}
