//! Captures to look at: recorded frames, sessions of the protocol core over bad wires, and files made of them.

#![allow(dead_code, reason = "each test program uses a part")]

pub(crate) mod session;

use rxe_lab::{
    capture::{Capture, CaptureError},
    flow::{Analyzer, Marks, Place, Remark, Summary},
    packet::{Found, Packet},
};
use serde_json::Value;
use std::{collections::BTreeMap, io::Cursor, path::PathBuf};

/// Whole Ethernet frames of ConnectX cards and kernel rxe.
const RECORDED: &str = include_str!("../../../rxe-core/tests/data/frames.txt");
/// Two acknowledgements between ConnectX cards by RoCEv1.
pub(crate) const V1_ACKS: [&str; 2] = [
    "08c0eb3b353c08c0eb3b349489156020000000141b4000000000000000000000ffffc0a8f23900000000000000000000ffffc0a8f2381140ffff00001312007d4a1a1f000000460eb2dd",
    "08c0eb3b349408c0eb3b353c89156020000000141b4000000000000000000000ffffc0a8f23800000000000000000000ffffc0a8f2391140ffff000002f90034722a1f000000faad7284",
];

pub(crate) const ETHERNET: u32 = 1;
pub(crate) const RAW: u32 = 101;
pub(crate) const SLL: u32 = 113;
pub(crate) const SLL2: u32 = 276;
pub(crate) const NULL: u32 = 0;

pub(crate) fn hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
}

/// The recorded frames.
pub(crate) fn recorded() -> Vec<Vec<u8>> {
    let lines = RECORDED.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let mut frames: Vec<_> = lines.map(|line| hex(line.trim())).collect();
    frames.extend(V1_ACKS.map(hex));
    frames
}

/// A pcap file of frames that are 1 ms apart.
pub(crate) fn pcap(link: u32, frames: &[Vec<u8>]) -> Vec<u8> {
    snapped(link, frames, usize::MAX)
}

/// The same, of which so many bytes of each frame are kept.
pub(crate) fn snapped(link: u32, frames: &[Vec<u8>], most: usize) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 0x0004_0000, link] {
        file.extend(word.to_le_bytes());
    }
    for (at, frame) in frames.iter().enumerate() {
        let kept = frame.len().min(most);
        for word in
            [1_700_000_000 + at as u32 / 1000, at as u32 % 1000 * 1000, kept as u32, frame.len() as u32]
        {
            file.extend(word.to_le_bytes());
        }
        file.extend(&frame[..kept]);
    }
    file
}

/// A pcapng file of frames that are 1 ms apart, each with its direction: 1 is in, 2 out.
pub(crate) fn pcapng(link: u32, frames: &[Vec<u8>], directions: &[u32]) -> Vec<u8> {
    let block = |kind: u32, body: &[u8]| {
        let len = (body.len() as u32 + 12).to_le_bytes();
        [&kind.to_le_bytes()[..], &len, body, &len].concat()
    };
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let mut file = block(0x0a0d_0d0a, &words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]));
    file.extend(block(1, &words(&[link, 0])));
    for (at, (frame, direction)) in frames.iter().zip(directions).enumerate() {
        let len = frame.len() as u32;
        let mut body = words(&[0, 0, 1000 * at as u32, len, len]);
        body.extend(frame);
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend(words(&[4 << 16 | 2, *direction, 0]));
        file.extend(block(6, &body));
    }
    file
}

/// One packet, dissected.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) place: Place,
    pub(crate) label: String,
    pub(crate) remark: Remark,
    pub(crate) json: Value,
}

/// A whole capture, dissected.
#[derive(Debug)]
pub(crate) struct Dissected {
    pub(crate) seen: Vec<Seen>,
    pub(crate) summary: Summary,
    pub(crate) later: BTreeMap<Place, (Marks, String)>,
    pub(crate) error: Option<CaptureError>,
}

impl Dissected {
    /// How many packets have this mark, those included of which it shows later.
    pub(crate) fn count(&self, mark: Marks) -> usize {
        let early = self.seen.iter().filter(|seen| seen.remark.marks.contains(mark)).count();
        early + self.later.values().filter(|(marks, _)| marks.contains(mark)).count()
    }
}

/// Dissects a file, all fields of all packets included.
pub(crate) fn dissect(file: &[u8]) -> Dissected {
    dissect_with(file, true)
}

/// Dissects a file; fields on demand, because they take most of the time.
pub(crate) fn dissect_with(file: &[u8], fields: bool) -> Dissected {
    let mut analyzer = Analyzer::new();
    let (mut seen, mut later, mut error) = (Vec::new(), BTreeMap::new(), None);
    match Capture::new(Cursor::new(file.to_vec())) {
        Err(told) => error = Some(told),
        Ok(mut capture) => {
            let mut number = 0;
            loop {
                let record = match capture.next_record() {
                    Ok(Some(record)) => record,
                    Ok(None) => break,
                    Err(told) => {
                        error = Some(told);
                        break;
                    }
                };
                number += 1;
                let mut take = |packet: Packet<'_>| {
                    let remark = analyzer.packet(&packet);
                    let json = if fields { rxe_lab::report::json(&packet, &remark) } else { Value::Null };
                    seen.push(Seen {
                        place: (packet.number, packet.part),
                        label: packet.label(),
                        remark,
                        json,
                    });
                };
                match Found::new(number, &record) {
                    Ok(Found::One(packet)) => take(packet),
                    Ok(Found::Batch(batch)) => batch.for_each(take),
                    Err(other) => analyzer.other(other, record.time),
                }
            }
        }
    }
    let summary = analyzer.finish();
    for (place, marks, why) in analyzer.hindsight() {
        later.entry(place).or_insert((marks, why));
    }
    Dissected { seen, summary, later, error }
}

/// A file of one test's own.
pub(crate) fn scratch(name: &str, bytes: &[u8]) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("rxe-lab-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Captures of sessions between cards or with kernels, where they are at hand: in the folder that RXE_CAPTURES names, or in
/// shared/captures beside the project. They are others', and not part of it.
#[allow(dead_code, reason = "not all tests use it")]
pub(crate) fn captures_of_cards() -> Vec<PathBuf> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/captures");
    let folder = std::env::var_os("RXE_CAPTURES").unwrap_or_else(|| beside.into());
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    files.filter(|path| path.extension().is_some_and(|end| end == "pcap")).collect()
}
