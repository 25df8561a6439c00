//! Any script of messages, commands and time against the connection manager's machines; the oracle stands beside their tests.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../../rxe-cm/tests/machine_script/mod.rs"]
mod machine_script;

fuzz_target!(|data: &[u8]| {
    machine_script::play(data);
});
