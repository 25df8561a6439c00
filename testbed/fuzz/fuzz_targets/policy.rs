//! Any file of an administrator's: reading it ends with an answer or an error that names a line, and what was read can be
//! asked.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rxe_fabric::{Fabric, Options, Partitions, PathQuery, Port, QosPolicy};

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let options = Options::parse(&text).map_or_else(|_| Options { qos: true, ..Options::default() }, |read| read.0);
    let policy = QosPolicy::parse(&text).map(|read| read.0).ok();
    let partitions = Partitions::parse(&text, data.len() % 2 == 0).map(|read| read.0).unwrap_or_default();
    let fabric = Fabric::new(&options, policy, partitions);
    let (from, to) = (Port::new(1), Port::new(0x10));
    for (service_id, pkey) in [(None, None), (Some(1), Some(0xffff)), (Some(u64::MAX), Some(0))] {
        let query =
            PathQuery { from: &from, to: &to, service_id, qos_class: None, pkey, sl: None, mtu: 5, rate: 0 };
        if let Ok(path) = fabric.path(&query) {
            assert!(path.sl < 16 && path.vl < 15);
        }
    }
});
