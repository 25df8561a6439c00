//! The files of a port in sysfs that change while programs run, with the paths that kernel drivers use.

use crate::device::{Device, PortState};
use rxe_fabric::mad::PortCounts;
use std::collections::BTreeMap;

/// Entries of the GID table that have a file.
const GIDS: u8 = 32;
/// Names of counters in `hw_counters`, of kernel rxe and for congestion of a ConnectX, and the counters of ours that they stand for.
pub const HW_COUNTERS: [(&str, &str); 11] = [
    ("sent_pkts", "packets_sent"),
    ("rcvd_pkts", "packets_received"),
    ("duplicate_request", "duplicates"),
    ("out_of_seq_request", "dropped_out_of_order"),
    ("rcvd_rnr_err", "rnr_naks_received"),
    ("send_rnr_err", "rnr_naks_sent"),
    ("rcvd_seq_err", "psn_naks_received"),
    ("completer_retry_err", "timeouts"),
    ("retransmitted", "retransmitted"),
    ("np_cnp_sent", "cnps_sent"),
    ("rp_cnp_handled", "cnps_received"),
];
/// The port's counters (IBTA vol. 1, 16.1.3.5 and 16.1.4.10), the counter of ours for each, and its divisor: data are
/// counted in words of four bytes there.
const COUNTERS: [(&str, &str, u64); 4] = [
    ("port_xmit_data", "bytes_sent", 4),
    ("port_rcv_data", "bytes_received", 4),
    ("port_xmit_packets", "packets_sent", 1),
    ("port_rcv_packets", "packets_received", 1),
];
/// Counters of errors on an InfiniBand link. We have none, so they are 0.
const OF_WIRES: [&str; 12] = [
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "port_rcv_constraint_errors",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_discards",
    "symbol_error",
    "VL15_dropped",
];

/// The same for performance management, from a device's counters.
pub(crate) fn port_counts(counted: &BTreeMap<String, u64>) -> PortCounts {
    let [sent_words, received_words, sent_packets, received_packets] =
        COUNTERS.map(|(_, ours, unit)| counted.get(ours).copied().unwrap_or(0) / unit);
    PortCounts { sent_words, received_words, sent_packets, received_packets }
}

/// Whether a file's content depends on counters.
#[must_use]
pub fn is_counter(path: &str) -> bool {
    path.contains("/counters/") || path.contains("/hw_counters/")
}

/// The files of a device, by their path below `/sys/class/infiniband`. The contents have no line end. `counted` are the
/// device's counters.
#[must_use]
pub fn port_files(
    device: &Device,
    pkeys: &[u16],
    v1: bool,
    counted: &BTreeMap<String, u64>,
) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let mut put = |path: &str, content: String| {
        files.insert(format!("{}/ports/1/{path}", device.name()), content);
    };
    let (state, wire) = match device.state() {
        PortState::Active => ("4: ACTIVE", "5: LinkUp"),
        PortState::Down => ("1: DOWN", "3: Disabled"),
    };
    put("state", state.to_owned());
    put("phys_state", wire.to_owned());
    for (index, key) in pkeys.iter().enumerate() {
        put(&format!("pkeys/{index}"), format!("{key:#06x}"));
    }
    let gids = device.gids_over(v1);
    for index in 0..GIDS {
        let gid = gids.get(index);
        put(&format!("gids/{index}"), gid.to_string());
        if !gid.is_zero() {
            put(&format!("gid_attrs/types/{index}"), gids.gid_type(index).to_string());
            put(&format!("gid_attrs/ndevs/{index}"), device.netdev().to_owned());
        }
    }
    let count = |name: &str| counted.get(name).copied().unwrap_or(0);
    for (name, ours) in HW_COUNTERS {
        put(&format!("hw_counters/{name}"), count(ours).to_string());
    }
    for (name, ours, unit) in COUNTERS {
        put(&format!("counters/{name}"), (count(ours) / unit).to_string());
    }
    for name in OF_WIRES {
        put(&format!("counters/{name}"), "0".to_owned());
    }
    files
}
