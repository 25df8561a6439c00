//! Finds out who has port 4791, for the error message after binding failed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::net::ROCE_PORT;
use crate::net::error::Holder;

/// Looks for the owner of a socket bound to port 4791 of either family.
pub(super) fn find(v4: bool) -> Holder {
    let table = if v4 { "/proc/thread-self/net/udp" } else { "/proc/thread-self/net/udp6" };
    let sockets = fs::read_to_string(table).map(|text| bound_sockets(&text)).unwrap_or_default();
    for &(_, inode) in &sockets {
        if let Some(holder) = process_with_socket(inode) {
            return holder;
        }
    }
    // Sockets of the kernel belong to no process. The rdma_rxe driver binds its sockets in the first network namespace.
    if Path::new("/sys/module/rdma_rxe").exists() && sockets.iter().any(|&(uid, _)| uid == 0) {
        return Holder::KernelRxe;
    }
    match sockets.first() {
        Some(&(uid, _)) if uid != own_uid() => Holder::User(uid),
        _ => Holder::Unknown,
    }
}

/// Whether a socket of this user has the port.
pub(crate) fn is_ours() -> bool {
    ["udp", "udp6"].iter().any(|table| {
        let text = fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
        bound_sockets(&text).iter().any(|(uid, _)| *uid == own_uid())
    })
}

/// User and inode of every line of `/proc/net/udp` (`proc_net(5)`) whose local port is 4791.
fn bound_sockets(table: &str) -> Vec<(u32, u64)> {
    let line = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, port) = fields.get(1)?.rsplit_once(':')?;
        (u16::from_str_radix(port, 16).ok()? == ROCE_PORT)
            .then(|| Some((fields.get(7)?.parse().ok()?, fields.get(9)?.parse().ok()?)))?
    };
    table.lines().filter_map(line).collect()
}

fn process_with_socket(inode: u64) -> Option<Holder> {
    let link = format!("socket:[{inode}]");
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else { continue };
        let has = descriptors
            .flatten()
            .any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == link.as_str()));
        if has {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some(Holder::Process { pid, name: name.trim_end().to_owned() });
        }
    }
    None
}

fn own_uid() -> u32 {
    fs::metadata("/proc/self").map_or(u32::MAX, |about| about.uid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_socket_table() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             1015: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 31337 2 0 0\n\
             1016: 00000000:12B8 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 5 2 0 0\n\
             short line 0:12B7\n";
        assert_eq!(bound_sockets(table), [(1000, 31337)]);
    }
}
