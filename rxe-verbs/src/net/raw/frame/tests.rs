use super::*;

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn recording(text: &str) -> Vec<Vec<u8>> {
    text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()).map(hex).collect()
}

/// Frames of ConnectX cards: read, and written again from what was read.
#[test]
fn rocev1_frames_of_hardware() {
    for frame in recording(include_str!("../../../../../rxe-core/tests/data/rocev1.txt")) {
        let Read { run, place } = read(&frame, 0, 4200, false).unwrap();
        assert_eq!((run.seen, run.src_port, place.start), (HeaderSeen::Grh, 0, 54));
        assert_eq!(run.segment_size, place.len());
        let batch = Transmit {
            src: run.src,
            dst: run.dst,
            ifindex: 0,
            source_port: 0,
            tos: run.tos,
            hop_limit: run.ttl,
            encapsulation: Encapsulation::V1,
            segment_size: place.len(),
        };
        let ends = (frame[6..12].try_into().unwrap(), frame[..6].try_into().unwrap());
        let head = Head::write(&batch, ends, place.len(), 0, None, false);
        assert_eq!(head.as_ref(), &frame[..54]);
        // Padding of Ethernet's is left out, a header that promises more than there is refused.
        let padded = [&frame[..], &[0xee; 7]].concat();
        assert_eq!(read(&padded, 0, 4200, false).unwrap().place, place);
        assert_eq!(read(&frame[..frame.len() - 1], 0, 4200, false).unwrap_err(), Unusable::Length);
    }
}

#[test]
fn rocev2_frames_of_hardware_and_kernel() {
    let frames = recording(include_str!("../../../../../rxe-core/tests/data/frames.txt"));
    for frame in frames.into_iter().filter(|frame| frame[12..14] == [8, 0]) {
        let Read { run, place } = read(&frame, 0, 4200, false).unwrap();
        let ident = u16::from_be_bytes([frame[18], frame[19]]);
        assert_eq!(run.seen, HeaderSeen::Seen { ident, fragment: DONT_FRAGMENT });
        let batch = Transmit {
            src: run.src,
            dst: run.dst,
            ifindex: 0,
            source_port: run.src_port,
            tos: run.tos,
            hop_limit: run.ttl,
            encapsulation: Encapsulation::V2,
            segment_size: place.len(),
        };
        let ends = (frame[6..12].try_into().unwrap(), frame[..6].try_into().unwrap());
        let head = Head::write(&batch, ends, place.len(), ident, None, false);
        assert_eq!(head.as_ref()[..40], frame[..40], "checksum of the IP header among them");
    }
}

/// Whatever a frame is cut to, and whatever one byte of its headers is, reading ends in a reason or inside the frame.
#[test]
fn reading_is_total() {
    let v1 = recording(include_str!("../../../../../rxe-core/tests/data/rocev1.txt")).pop().unwrap();
    let v2 = recording(include_str!("../../../../../rxe-core/tests/data/frames.txt")).pop().unwrap();
    for frame in [v1, v2] {
        for vnet in [false, true] {
            let frame = if vnet { [&Vnet::default().emit()[..], &frame].concat() } else { frame.clone() };
            let look = |bytes: &[u8], largest| {
                let (seen, frame) = split_vnet(bytes, vnet)?;
                read(frame, seen.segment, largest, false).map(|read| (read, frame.len()))
            };
            for cut in 0..frame.len() {
                if let Ok((Read { place, .. }, len)) = look(&frame[..cut], 4200) {
                    assert!(place.end <= len);
                }
            }
            for at in 0..64.min(frame.len()) {
                for value in [0, 1, 0x45, 0x7f, 0xff] {
                    let mut bad = frame.clone();
                    bad[at] = value;
                    if let Ok((Read { run, place }, len)) = look(&bad, 70_000) {
                        assert!(place.end <= len && run.segment_size >= 1 && !place.is_empty());
                    }
                    complete_udp(&mut bad);
                }
            }
        }
    }
}

/// Listeners on a loopback address hear packets from such addresses, which nobody else may have.
#[test]
fn a_loopback_address_does_not_come_from_outside() {
    let frames = recording(include_str!("../../../../../rxe-core/tests/data/frames.txt"));
    let mut frame = frames.into_iter().find(|frame| frame[12..14] == [8, 0]).unwrap();
    assert!(read(&frame, 0, 4200, false).is_ok());
    frame[26..30].copy_from_slice(&[127, 0, 0, 9]);
    assert_eq!(read(&frame, 0, 4200, false).unwrap_err(), Unusable::Foreign);
    assert!(read(&frame, 0, 4200, true).is_ok());
}

#[test]
fn pieces_and_merged_packets_are_told_apart() {
    let frames = recording(include_str!("../../../../../rxe-core/tests/data/frames.txt"));
    let frame = frames.into_iter().find(|frame| frame[12..14] == [8, 0]).unwrap();
    let mut piece = frame.clone();
    piece[20] = 0x20;
    assert_eq!(read(&piece, 0, 4200, false).unwrap_err(), Unusable::Fragment);
    let whole = read(&frame, 0, 4200, false).unwrap().place.len();
    assert_eq!(read(&frame, 0, whole - 1, false).unwrap_err(), Unusable::Merged);
    let batch = [&Vnet { heads: 0, unsummed: Some(34), segment: 100 }.emit()[..], &frame].concat();
    let (seen, frame) = split_vnet(&batch, true).unwrap();
    assert_eq!((seen.segment, seen.unsummed), (100, true));
    assert_eq!(read(frame, seen.segment, whole - 1, false).unwrap().run.segment_size, 100);
}

/// The checksum that the kernel completes, and the heads of what it cuts.
#[test]
fn heads_as_the_kernel_writes_them() {
    let [src, dst] = ["fd09::1", "fd09::2"].map(|address| address.parse().unwrap());
    let batch = Transmit {
        src,
        dst,
        ifindex: 0,
        source_port: 0xc000,
        tos: 0,
        hop_limit: 0,
        encapsulation: Encapsulation::V2,
        segment_size: 20,
    };
    for (src, dst) in [(src, dst), ([10, 9, 0, 1].into(), [10, 9, 0, 2].into())] {
        let batch = Transmit { src, dst, ..batch };
        let whole = Head::write(&batch, ([2; 6], [4; 6]), 50, 0, None, false);
        for (index, payload) in [(0, 20), (1, 20), (2, 10)] {
            let head = segment_head(whole.as_ref(), index, payload);
            assert_eq!(head, Head::write(&batch, ([2; 6], [4; 6]), payload, index, None, false).as_ref());
            let mut frame = [&head[..], &vec![0xa5; payload]].concat();
            complete_udp(&mut frame);
            // All ones over datagram and pseudo header (RFC 1071).
            let pseudo = words(&octets(src)) + words(&octets(dst));
            let pseudo = if src.is_ipv4() { pseudo - 2 * 0xffff } else { pseudo };
            let udp = &frame[head.len() - UDP..];
            assert_eq!(folded(pseudo + 17 + udp.len() as u32 + words(udp)), u16::MAX);
        }
    }
}

/// What a capture shows of a packet whose headers are hidden is a frame that reads as that packet, and adds up.
#[test]
fn made_up_frames_are_whole() {
    let ends = [
        ([10, 9, 0, 1].into(), [10, 9, 0, 2].into()),
        ("fd00::1".parse().unwrap(), "fd00::9".parse().unwrap()),
    ];
    for (src, dst) in ends {
        let payload = [0xa5; 33];
        let record = Record {
            src,
            dst,
            source_port: 0xc001,
            tos: 0x22,
            ttl: 7,
            ident: if src.is_ipv4() { 0x1234 } else { 0 },
            encapsulation: Encapsulation::V2,
            payload: &payload,
            outbound: true,
        };
        let mut frame = vec![1; 3];
        assert!(make_up(&record, &mut frame));
        let Read { run, place } = read(&frame, 0, 4200, false).unwrap();
        assert_eq!((run.src, run.dst, run.src_port, run.tos, run.ttl), (src, dst, 0xc001, 0x22, 7));
        assert_eq!(
            run.seen,
            HeaderSeen::Seen { ident: record.ident, fragment: if src.is_ipv4() { DONT_FRAGMENT } else { 0 } }
        );
        assert_eq!(&frame[place.clone()], payload);
        let udp = [&frame[place.start - UDP..], &[0]].concat();
        let pseudo = words(&octets(src)) + words(&octets(dst));
        assert_eq!(folded(pseudo + 17 + UDP as u32 + 33 + words(&udp)), u16::MAX);
        assert!(!src.is_ipv4() || folded(words(&frame[ETHERNET..][..IPV4])) == u16::MAX);
        let other = if src.is_ipv4() { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
        assert!(!make_up(&Record { dst: other, ..record }, &mut frame), "two families");
        let long = vec![0; 65_536 - UDP - if src.is_ipv4() { IPV4 } else { 0 }];
        assert!(make_up(&Record { payload: &long[1..], ..record }, &mut frame));
        assert!(!make_up(&Record { payload: &long, ..record }, &mut frame), "too long");
    }
}
