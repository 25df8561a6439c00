//! Any capture file: reading, dissecting, all fields, the summary and both ladders are total, and memory is bounded.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rxe_lab::{
    capture::Capture,
    flow::{Analyzer, Marks},
    packet::{Found, Packet},
    report::{self, ladder::Builder, line, text},
};
use std::io::Cursor;

fuzz_target!(|data: &[u8]| {
    let Ok(mut capture) = Capture::new(Cursor::new(data.to_vec())) else { return };
    let mut analyzer = Analyzer::new();
    let mut ladder = Builder::new("capture", 0);
    let mut number = 0;
    while let Ok(Some(record)) = capture.next_record() {
        number += 1;
        let mut take = |packet: Packet<'_>| {
            let remark = analyzer.packet(&packet);
            let look = line::Look { colours: number % 2 == 0, fields: true };
            assert!(!line::line(&packet, &remark, 0, look).is_empty());
            assert!(report::json(&packet, &remark).is_object());
            assert!(packet.frame.packet.len() <= packet.frame.len);
            ladder.add(&packet, &remark, analyzer.source_qp(&packet, &remark));
        };
        match Found::new(number, &record) {
            Ok(Found::One(packet)) => take(packet),
            Ok(Found::Batch(batch)) => batch.for_each(take),
            Err(other) => analyzer.other(other, record.time),
        }
        assert!(analyzer.hindsight().iter().all(|(place, marks, _)| place.0 <= number && *marks == Marks::LOST));
    }
    let summary = analyzer.finish();
    let note = text::summary(&summary);
    let _ = ladder.finish(&note).html().to_string();
});
