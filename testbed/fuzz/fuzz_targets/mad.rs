//! Any management datagram: parsing is total, what is emitted parses to the same, values inside are read safely.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rxe_cm::proto::{Datagram, Message};
use rxe_core::wire::MadHeader;

fuzz_target!(|data: &[u8]| {
    check(data);
    // The same bytes behind a header that passes: what chance alone seldom finds.
    let Some((first, body)) = data.split_first() else { return };
    let mut mad = MadHeader::cm(0x10 + u16::from(first % 11), 1).emit().to_vec();
    mad.extend(body);
    mad.resize(256, 0);
    check(&mad);
});

fn check(mad: &[u8]) {
    let Ok(datagram) = Datagram::parse(mad) else { return };
    let emitted = datagram.emit();
    assert_eq!(Datagram::parse(&emitted), Ok(datagram));
    assert!(!datagram.to_string().is_empty());
    match datagram.message {
        Message::Req(req) => {
            let _ = (req.private_data.split_header(), req.mtu(), req.service_id.port());
        }
        Message::SidrReq(req) => {
            let _ = (req.private_data.split_header(), req.service_id.port());
        }
        Message::Rej(rej) => assert!(rej.info().len() <= 72 && !rej.reason.to_string().is_empty()),
        _ => {}
    }
}
