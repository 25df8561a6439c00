//! Recordings made by hand, right and wrong ones, played against our core.

use super::*;
use crate::{
    dut::core,
    wire::{Ends, Roce},
};
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use std::time::Duration;

const OWN: &str = "192.0.2.1";

/// A capture of packets: from the played end (true) or to it.
fn capture(packets: &[(bool, Packet)]) -> Vec<u8> {
    let header = PcapHeader { datalink: DataLink::RAW, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
    for (ours, packet) in packets {
        let (own, peer) = (OWN.parse().unwrap(), "192.0.2.2".parse().unwrap());
        let (src, dst) = if *ours { (own, peer) } else { (peer, own) };
        let qpn = if *ours { 0x139 } else { 0x169 };
        let ip = packet.clone().dest_qp(qpn).encode(&Ends { src, dst, sport: 0xc000, roce: Roce::V2 });
        writer.write_packet(&PcapPacket::new(Duration::ZERO, ip.len() as u32, &ip)).unwrap();
    }
    writer.into_writer()
}

/// A SEND each way, a WRITE and a READ of what it wrote.
fn session() -> Vec<(bool, Packet)> {
    let data = vec![7; 22];
    vec![
        (true, Packet::of(op::SEND_ONLY).psn(0xff_ffff).data(vec![1; 50]).ask()),
        (false, Packet::of(op::ACK).psn(0xff_ffff).syndrome(0).msn(1)),
        (false, Packet::of(op::SEND_ONLY).psn(500).data(vec![2; 30]).ask()),
        (true, Packet::of(op::ACK).psn(500).syndrome(0).msn(1)),
        (
            true,
            Packet::of(op::WRITE_ONLY).psn(0).reth(0x55f4_e59c_edb0, 0x1350d, 22).data(data.clone()).ask(),
        ),
        (false, Packet::of(op::ACK).psn(0).syndrome(0).msn(2)),
        (true, Packet::of(op::READ_REQUEST).psn(1).reth(0x55f4_e59c_edb0, 0x1350d, 22).ask()),
        (false, Packet::of(op::READ_ONLY).psn(1).syndrome(0).msn(3).data(data)),
    ]
}

fn played(packets: &[(bool, Packet)]) -> Vec<Different> {
    let (dut, link) = core::open(false);
    let mut bench = Bench::new(Box::new(dut), Box::new(link));
    let session = Session::parse(&capture(packets), OWN.parse().unwrap()).unwrap();
    play(&mut bench, &session).unwrap()
}

#[test]
fn a_session_is_played_without_a_difference_that_matters() {
    let differences = played(&session());
    assert!(differences.iter().all(|one| one.because.is_some()), "{differences:?}");
}

#[test]
fn another_msn_or_other_data_is_a_difference() {
    let mut changed = session();
    changed[5].1.msn = Some(9);
    changed[7].1.data = Some(vec![8; 22]);
    let differences = played(&changed);
    let matters: Vec<_> = differences.iter().filter(|one| one.because.is_none()).map(|one| one.at).collect();
    assert_eq!(matters, [6, 8], "{differences:?}");
}

/// Memory of two keys, the first from an odd address on: the atomic in the second stays aligned.
#[test]
fn memory_that_was_aligned_stays_so() {
    let packets = [
        (true, Packet::of(op::WRITE_ONLY).psn(0).reth(0x1001, 1, 3).data(vec![7; 3]).ask()),
        (false, Packet::of(op::ACK).psn(0).syndrome(0).msn(1)),
        (true, Packet::of(op::FETCH_ADD).psn(1).va(0x2008).rkey(2).swap_add(5).ask()),
        (false, Packet::of(op::ATOMIC_ACK).psn(1).syndrome(0).msn(2).original(0)),
    ];
    assert_eq!(played(&packets).iter().find(|one| one.because.is_none()), None);
}

/// Ranges that no device has are told, not played.
#[test]
fn a_recording_that_cannot_be_played_is_told() {
    let far = |va, len| {
        let read = Packet::of(op::READ_REQUEST).psn(1).reth(va, 9, len).ask();
        let answer = Packet::of(op::READ_ONLY).psn(1).syndrome(0).msn(1).data(vec![3; 64]);
        capture(&[(true, read.clone().va(0)), (true, read), (false, answer)])
    };
    let own = OWN.parse().unwrap();
    for (va, len) in [(u64::MAX, 1), (u64::MAX - 9, u32::MAX), (1 << 40, 8)] {
        let session = Session::parse(&far(va, len), own).unwrap();
        assert!(matches!(Places::of(&session), Err(Fail::Skip(_))), "{va:#x} {len}");
    }
    let read = Packet::of(op::READ_REQUEST).psn(1).reth(0, 9, u32::MAX).ask();
    let ack = Packet::of(op::ACK).psn(1).syndrome(0).msn(1);
    let long = capture(&[(false, read), (true, ack)]);
    assert!(Session::parse(&long, own).unwrap_err().contains("4294967295"));
}

/// More data than a READ asked for, and a frame of which the recorder kept only the beginning.
#[test]
fn recordings_that_lie_are_no_panic() {
    let mut lie = session();
    lie.truncate(4);
    lie.push((true, Packet::of(op::READ_REQUEST).psn(0).reth(0x1000, 5, 8).ask()));
    lie.push((false, Packet::of(op::READ_ONLY).psn(0).syndrome(0).msn(2).data(vec![1; 4096])));
    assert!(played(&lie).iter().any(|one| one.because.is_none()));
    let header = PcapHeader { datalink: DataLink::RAW, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
    let ends =
        Ends { src: OWN.parse().unwrap(), dst: "192.0.2.2".parse().unwrap(), sport: 0xc000, roce: Roce::V2 };
    let ip = Packet::of(op::SEND_ONLY).dest_qp(0x139).data(vec![1; 500]).encode(&ends);
    writer.write_packet(&PcapPacket::new(Duration::ZERO, ip.len() as u32, &ip[..96])).unwrap();
    let told = Session::parse(&writer.into_writer(), ends.src).unwrap_err();
    assert!(told.contains("frame 1 is cut off"), "{told}");
}

#[test]
fn broken_files_are_told() {
    let own = OWN.parse().unwrap();
    assert!(Session::parse(b"", own).is_err());
    assert!(Session::parse(b"nonsense that is long enough for a header", own).is_err());
    let whole = capture(&session());
    assert!(Session::parse(&whole, "192.0.2.77".parse().unwrap()).is_err());
    for cut in 0..whole.len() {
        let _ = Session::parse(&whole[..cut], own);
    }
}
