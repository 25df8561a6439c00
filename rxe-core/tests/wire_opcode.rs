//! The opcode table, the syndromes and the RNR timer against tables written out here by hand.

use rxe_core::wire::{
    Class::{self, *},
    Extensions, NakCode, Opcode,
    Position::{self, *},
    Service, Syndrome, rnr_delay,
};

/// One row: operation (low five bits), class, position, extension headers of RC, payload, whether UC has it.
type Row = (u8, Class, Position, &'static [(Extensions, usize)], bool, bool);

const RETH: (Extensions, usize) = (Extensions::RETH, 16);
const AETH: (Extensions, usize) = (Extensions::AETH, 4);
const IMM: (Extensions, usize) = (Extensions::IMMDT, 4);
const IETH: (Extensions, usize) = (Extensions::IETH, 4);
const ATOMIC: (Extensions, usize) = (Extensions::ATOMIC_ETH, 28);
const ATOMIC_ACK: (Extensions, usize) = (Extensions::ATOMIC_ACK_ETH, 8);
const FETH: (Extensions, usize) = (Extensions::FETH, 4);

#[rustfmt::skip]
const CONNECTED: [Row; 25] = [
    (0x00, Send, First, &[], true, true),
    (0x01, Send, Middle, &[], true, true),
    (0x02, Send, Last, &[], true, true),
    (0x03, Send, Last, &[IMM], true, true),
    (0x04, Send, Only, &[], true, true),
    (0x05, Send, Only, &[IMM], true, true),
    (0x06, Write, First, &[RETH], true, true),
    (0x07, Write, Middle, &[], true, true),
    (0x08, Write, Last, &[], true, true),
    (0x09, Write, Last, &[IMM], true, true),
    (0x0a, Write, Only, &[RETH], true, true),
    (0x0b, Write, Only, &[RETH, IMM], true, true),
    (0x0c, ReadRequest, Only, &[RETH], false, false),
    (0x0d, ReadResponse, First, &[AETH], true, false),
    (0x0e, ReadResponse, Middle, &[], true, false),
    (0x0f, ReadResponse, Last, &[AETH], true, false),
    (0x10, ReadResponse, Only, &[AETH], true, false),
    (0x11, Acknowledge, Only, &[AETH], false, false),
    (0x12, AtomicAcknowledge, Only, &[AETH, ATOMIC_ACK], false, false),
    (0x13, CompareSwap, Only, &[ATOMIC], false, false),
    (0x14, FetchAdd, Only, &[ATOMIC], false, false),
    (0x16, Send, Last, &[IETH], true, false),
    (0x17, Send, Only, &[IETH], true, false),
    (0x1c, Flush, Only, &[FETH, RETH], false, false),
    (0x1d, AtomicWrite, Only, &[RETH], true, false),
];

/// What the table must say of `opcode`: service, class, position, headers, their size, payload.
fn wanted(opcode: u8) -> Option<(Service, Class, Position, Extensions, usize, bool)> {
    match opcode {
        0x64 => return Some((Service::Ud, Send, Only, Extensions::DETH, 12 + 8, true)),
        0x65 => {
            return Some((Service::Ud, Send, Only, Extensions::DETH | Extensions::IMMDT, 12 + 8 + 4, true));
        }
        0x81 => return Some((Service::Cnp, Congestion, Only, Extensions::empty(), 12, true)),
        _ => {}
    }
    let service = match opcode & 0xe0 {
        0x00 => Service::Rc,
        0x20 => Service::Uc,
        0xa0 => Service::Xrc,
        _ => return None,
    };
    let row = CONNECTED.iter().find(|row| row.0 == opcode & 0x1f)?;
    if service == Service::Uc && !row.5 {
        return None;
    }
    let response = matches!(row.1, ReadResponse | Acknowledge | AtomicAcknowledge);
    let xrceth =
        if service == Service::Xrc && !response { (Extensions::XRCETH, 4) } else { (Extensions::empty(), 0) };
    let extensions = row.3.iter().fold(xrceth.0, |all, one| all | one.0);
    let size = 12 + xrceth.1 + row.3.iter().map(|one| one.1).sum::<usize>();
    Some((service, row.1, row.2, extensions, size, row.4))
}

#[test]
fn table_holds_for_all_256() {
    let mut known = 0;
    for opcode in 0..=255 {
        let info = Opcode(opcode).info();
        let found = info.map(|i| (i.service, i.class, i.position, i.extensions, i.header_len, i.payload));
        assert_eq!(found, wanted(opcode), "opcode {opcode:#04x}");
        known += usize::from(info.is_some());
    }
    assert_eq!(known, 25 + 12 + 25 + 3);
}

#[test]
fn requests_and_receives() {
    for opcode in 0..=255 {
        let Some(info) = Opcode(opcode).info() else { continue };
        let low = opcode & 0x1f;
        let connected = !matches!(info.service, Service::Ud | Service::Cnp);
        let request = if connected { !(0x0d..=0x12).contains(&low) } else { info.service == Service::Ud };
        assert_eq!(info.is_request(), request, "{opcode:#04x}");
        let takes = if connected {
            matches!(low, 0x00 | 0x04 | 0x05 | 0x09 | 0x0b | 0x17)
        } else {
            info.service == Service::Ud
        };
        assert_eq!(info.takes_receive(), takes, "{opcode:#04x}");
    }
}

#[test]
fn makers_agree_with_the_table() {
    for position in [First, Middle, Last, Only] {
        for (immediate, invalidate) in [(false, false), (true, false), (false, true)] {
            let info = Opcode::send(position, immediate, invalidate).info().unwrap();
            assert_eq!((info.class, info.position), (Send, position));
            assert_eq!(info.has_immediate(), immediate && position.is_end());
            assert_eq!(info.extensions.contains(Extensions::IETH), invalidate && position.is_end());
        }
        for immediate in [false, true] {
            let info = Opcode::write(position, immediate).info().unwrap();
            assert_eq!((info.class, info.position), (Write, position));
            assert_eq!(info.has_immediate(), immediate && position.is_end());
            assert_eq!(info.extensions.contains(Extensions::RETH), position.is_start());
        }
        let info = Opcode::read_response(position).info().unwrap();
        assert_eq!((info.class, info.position), (ReadResponse, position));
        assert_eq!(Position::new(position.is_start(), position.is_end()), position);
    }
    for (opcode, class) in [
        (Opcode::RC_ACKNOWLEDGE, Acknowledge),
        (Opcode::RC_ATOMIC_ACKNOWLEDGE, AtomicAcknowledge),
        (Opcode::RC_READ_REQUEST, ReadRequest),
        (Opcode::RC_COMPARE_SWAP, CompareSwap),
        (Opcode::RC_FETCH_ADD, FetchAdd),
        (Opcode::RC_FLUSH, Flush),
        (Opcode::RC_ATOMIC_WRITE, AtomicWrite),
        (Opcode::RC_READ_RESPONSE_ONLY, ReadResponse),
    ] {
        assert_eq!(opcode.info().unwrap().class, class);
        assert_eq!(opcode.on(0xa0).info().unwrap().class, class);
    }
}

#[test]
fn syndromes_of_all_256() {
    for bits in 0..=255_u8 {
        let syndrome = Syndrome::from_bits(bits);
        assert_eq!(syndrome.bits(), bits, "{syndrome:?}");
        let wanted = match bits {
            0x00..=0x1f => Syndrome::Ack(bits),
            0x20..=0x3f => Syndrome::RnrNak(bits - 0x20),
            0x60 => Syndrome::Nak(NakCode::PsnSequence),
            0x61 => Syndrome::Nak(NakCode::InvalidRequest),
            0x62 => Syndrome::Nak(NakCode::RemoteAccess),
            0x63 => Syndrome::Nak(NakCode::RemoteOperational),
            0x64 => Syndrome::Nak(NakCode::InvalidRdRequest),
            0x65..=0x7f => Syndrome::Nak(NakCode::Reserved(bits - 0x60)),
            _ => Syndrome::Reserved(bits),
        };
        assert_eq!(syndrome, wanted);
    }
}

#[test]
fn rnr_timer_in_milliseconds() {
    const MS: [f64; 32] = [
        655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92,
        2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76,
        327.68, 491.52,
    ];
    for (code, ms) in MS.iter().enumerate() {
        let micros = (ms * 1000.0).round() as u128;
        assert_eq!(rnr_delay(code as u8).as_micros(), micros, "code {code}");
        assert_eq!(rnr_delay(code as u8 | 0xe0).as_micros(), micros, "only the low five bits count");
    }
}
