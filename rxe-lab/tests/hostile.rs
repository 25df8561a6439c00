//! Captures that were cut or damaged at any byte: an error or a summary, never a panic or an endless loop.

mod common;

use common::{ETHERNET, captures_of_cards, dissect, dissect_with, pcap, recorded, session::Session, snapped};
use rxe_core::work::SendOp;
use rxe_lab::{capture::CaptureError, flow::Marks};

/// A pcapng file with several kinds of packets.
fn session() -> Vec<u8> {
    let mut session = Session::new("lab-hostile");
    let remote = session.remote(1);
    session.recv(1, 1000);
    session.send(0, SendOp::SendImm([1, 2, 3, 4]), 100);
    session.send(0, SendOp::Read(remote), 300);
    session.send(0, SendOp::FetchAdd { remote, add: 1 }, 8);
    session.run();
    session.capture()
}

fn samples() -> Vec<Vec<u8>> {
    let short = recorded().into_iter().filter(|frame| frame.len() < 120).collect::<Vec<_>>();
    let mut samples = vec![session(), pcap(ETHERNET, &short), pcap(ETHERNET, &recorded()[..2])];
    samples.extend(captures_of_cards().iter().filter_map(|file| std::fs::read(file).ok()));
    samples
}

#[test]
fn every_length_of_a_capture() {
    for sample in samples() {
        let whole = dissect(&sample).seen.len();
        let mut last = 0;
        for len in 0..sample.len() {
            let told = dissect_with(&sample[..len], false);
            let count = told.seen.len();
            assert!(count >= last && count <= whole, "{len} of {} bytes: {count} packets", sample.len());
            last = count;
            // Between two records nothing is missing.
            let error = told.error.as_ref();
            let is_told = matches!(error, None | Some(CaptureError::CutShort { .. } | CaptureError::Empty))
                || (len < 12 && matches!(error, Some(CaptureError::NotACapture)));
            assert!(is_told, "{len}: {error:?}");
            assert!(error.is_some() || count > 0 || len >= 24, "{len} bytes are no capture");
        }
    }
}

#[test]
fn every_byte_damaged() {
    for sample in samples() {
        for at in 0..sample.len().min(4096) {
            let mut damaged = sample.clone();
            damaged[at] ^= [0x01, 0x80, 0xff][at % 3];
            let told = dissect_with(&damaged, at % 8 == 0);
            assert!(told.seen.len() <= 2 * sample.len() / 16);
        }
    }
}

/// Whatever is kept of each frame, what is there is told, and no ICRC is called wrong for bytes that are missing.
#[test]
fn every_length_of_frames() {
    let frames = recorded();
    for most in (0..90).chain([100, 150, 200]) {
        let told = dissect(&snapped(ETHERNET, &frames, most));
        assert_eq!(told.summary.totals.frames, frames.len() as u64, "{most}");
        assert!(told.error.is_none());
        assert_eq!(told.count(Marks::BAD_ICRC), 0, "{most} bytes of each frame");
        let whole = frames.iter().filter(|frame| frame.len() <= most).count() as u64;
        assert!(told.summary.totals.icrc_right >= whole, "{most}: {:?}", told.summary.totals);
    }
}

/// Wrong lengths: a record of 4 GiB, blocks that are longer than the file or shorter than their own headers.
#[test]
fn lengths_that_are_lies() {
    let mut file = pcap(ETHERNET, &recorded()[..1]);
    file[32..36].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(dissect(&file).error.is_some());
    let good = session();
    for at in (0..good.len().min(600)).step_by(4) {
        for lie in [0_u32, 1, 11, 12, 0x7fff_ffff, u32::MAX - 3, u32::MAX] {
            let mut file = good.clone();
            file[at..at + 4].copy_from_slice(&lie.to_le_bytes());
            let _ = dissect_with(&file, false);
        }
    }
}
