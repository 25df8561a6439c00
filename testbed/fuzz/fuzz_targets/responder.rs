//! Any script of packets and time against a queue pair in RTS; `rxe_core::testing::gauntlet` judges.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rxe_core::{testing::gauntlet, wire::Encapsulation};

fuzz_target!(|data: &[u8]| {
    let _ = gauntlet::run(data, Encapsulation::V2);
});
