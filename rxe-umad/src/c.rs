//! The structures of `infiniband/umad.h`, with its names of the fields. Fields in network order are byte arrays here.

use core::ffi::{c_char, c_int, c_uint};

/// Bytes of a device's name, the zero at its end included (UMAD_CA_NAME_LEN).
pub(crate) const NAME: usize = 20;
/// Ports of a device, by their numbers (UMAD_CA_MAX_PORTS).
pub(crate) const PORTS: usize = 10;

/// ib_mad_addr_t.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct MadAddr {
    pub(crate) qpn: [u8; 4],
    pub(crate) qkey: [u8; 4],
    pub(crate) lid: [u8; 2],
    pub(crate) sl: u8,
    pub(crate) path_bits: u8,
    pub(crate) grh_present: u8,
    pub(crate) gid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) gid: [u8; 16],
    pub(crate) flow_label: u32,
    pub(crate) pkey_index: u16,
    pub(crate) reserved: [u8; 6],
}

/// ib_user_mad_t: the datagram is behind it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct UserMad {
    pub(crate) agent_id: u32,
    pub(crate) status: u32,
    pub(crate) timeout_ms: u32,
    pub(crate) retries: u32,
    pub(crate) length: u32,
    pub(crate) addr: MadAddr,
}

/// umad_port_t.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Port {
    pub(crate) ca_name: [c_char; NAME],
    pub(crate) portnum: c_int,
    pub(crate) base_lid: c_uint,
    pub(crate) lmc: c_uint,
    pub(crate) sm_lid: c_uint,
    pub(crate) sm_sl: c_uint,
    pub(crate) state: c_uint,
    pub(crate) phys_state: c_uint,
    pub(crate) rate: c_uint,
    pub(crate) capmask: [u8; 4],
    pub(crate) gid_prefix: u64,
    pub(crate) port_guid: u64,
    pub(crate) pkeys_size: c_uint,
    pub(crate) pkeys: *mut u16,
    pub(crate) link_layer: [c_char; NAME],
}

/// umad_ca_t.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Ca {
    pub(crate) ca_name: [c_char; NAME],
    pub(crate) node_type: c_uint,
    pub(crate) numports: c_int,
    pub(crate) fw_ver: [c_char; 20],
    pub(crate) ca_type: [c_char; 40],
    pub(crate) hw_ver: [c_char; 20],
    pub(crate) node_guid: u64,
    pub(crate) system_guid: u64,
    pub(crate) ports: [*mut Port; PORTS],
}

/// struct umad_device_node.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct DeviceNode {
    pub(crate) next: *mut Self,
    pub(crate) ca_name: *const c_char,
}

/// struct umad_reg_attr.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RegAttr {
    pub(crate) mgmt_class: u8,
    pub(crate) mgmt_class_version: u8,
    pub(crate) flags: u32,
    pub(crate) method_mask: [u64; 2],
    pub(crate) oui: u32,
    pub(crate) rmpp_version: u8,
}

/// Text for a field: truncated if it is too long, and filled with zeroes.
pub(crate) fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (place, byte) in out[..N - 1].iter_mut().zip(text.bytes()) {
        *place = byte.cast_signed();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{offset_of, size_of};
    use std::{fs, io::Write, process::Command};

    macro_rules! facts {
        ($out:ident, $c:literal, $ours:ty, { $($field:ident),* }) => {
            $out.push((format!("sizeof({})", $c), size_of::<$ours>()));
            $($out.push((format!("offsetof({}, {})", $c, stringify!($field)), offset_of!($ours, $field)));)*
        };
    }

    /// Compares the offsets of fields with those that a C compiler computes from the header.
    #[test]
    fn structures_are_the_headers() {
        let mut facts: Vec<(String, usize)> = Vec::new();
        facts!(facts, "ib_mad_addr_t", MadAddr, {
            qpn, qkey, lid, sl, path_bits, grh_present, gid_index, hop_limit, traffic_class, gid, flow_label, pkey_index, reserved
        });
        facts!(facts, "ib_user_mad_t", UserMad, { agent_id, status, timeout_ms, retries, length, addr });
        facts!(facts, "umad_port_t", Port, {
            ca_name, portnum, base_lid, lmc, sm_lid, sm_sl, state, phys_state, rate, capmask, gid_prefix, port_guid,
            pkeys_size, pkeys, link_layer
        });
        facts!(facts, "umad_ca_t", Ca, {
            ca_name, node_type, numports, fw_ver, ca_type, hw_ver, node_guid, system_guid, ports
        });
        facts!(facts, "struct umad_device_node", DeviceNode, { next, ca_name });
        facts!(facts, "struct umad_reg_attr", RegAttr, {
            mgmt_class, mgmt_class_version, flags, method_mask, oui, rmpp_version
        });
        let folder = std::env::temp_dir().join(format!("rxe-umad-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (source, program) = (folder.join("facts.c"), folder.join("facts"));
        let mut file = fs::File::create(&source).unwrap();
        writeln!(
            file,
            "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/umad.h>\nint main(void) {{"
        )
        .unwrap();
        for (fact, _) in &facts {
            writeln!(file, "printf(\"%zu\\n\", {fact});").unwrap();
        }
        writeln!(file, "return 0; }}").unwrap();
        let built = Command::new("cc").arg(&source).arg("-o").arg(&program).status().unwrap();
        assert!(built.success(), "libibumad-dev has to be there (scripts/install-deps)");
        let said = String::from_utf8(Command::new(&program).output().unwrap().stdout).unwrap();
        fs::remove_dir_all(folder).unwrap();
        let theirs: Vec<usize> = said.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(theirs.len(), facts.len());
        for ((fact, ours), theirs) in facts.iter().zip(theirs) {
            assert_eq!(*ours, theirs, "{fact}");
        }
    }

    #[test]
    fn texts_end_with_a_zero() {
        assert_eq!(text::<4>("abcdef"), [97, 98, 99, 0]);
        assert_eq!(text::<4>("a"), [97, 0, 0, 0]);
    }
}
