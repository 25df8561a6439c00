//! How a process's slot is taken back. The process has died; or it lives and does not use the slot any more, because it has executed
//! another program, or closed all its descriptors. The end of the connection alone does not tell, because a process may lose its
//! connection to us and still use its sockets.

use super::{REUNION, Service};
use crate::sys::unix::pid_of;
use nix::sys::epoll::EpollFlags;
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// A process without a pidfd that is not connected is taken for dead after this long.
const UNWATCHED: Duration = Duration::from_secs(30);
/// Most messages that are read from a process that has died. This is more than its channel holds, but bounded, because a child of the
/// process may go on sending.
const LAST_BURSTS: usize = 64;

/// Whether a process has any of these sockets open.
///
/// # Errors
/// It cannot be known: we may not look at the process, or /proc is not mounted.
fn has_any(pid: i32, sockets: &[PathBuf]) -> io::Result<bool> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    if has_any_in(&process.join("fd"), sockets)? {
        return Ok(true);
    }
    // Threads may have descriptor tables of their own (`unshare(2)`, CLONE_FILES).
    for thread in fs::read_dir(process.join("task"))? {
        match has_any_in(&thread?.path().join("fd"), sockets) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            // The thread has ended meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

fn has_any_in(folder: &Path, sockets: &[PathBuf]) -> io::Result<bool> {
    for entry in fs::read_dir(folder)? {
        match fs::read_link(entry?.path()) {
            Ok(target) if sockets.contains(&target) => return Ok(true),
            Ok(_) => {}
            // It was closed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

impl Service {
    /// Processes that cannot be watched and have been away for long are taken for dead.
    pub(super) fn release_unwatched(&mut self, now: Instant) {
        let gone: Vec<u8> = self.presences.missing(now, UNWATCHED).collect();
        for slot in gone {
            self.bury(slot);
        }
    }

    /// The process of a slot has died.
    pub(super) fn bury(&mut self, slot: u8) {
        // Its last messages count, and its death may be reported before them.
        for _ in 0..LAST_BURSTS {
            if let Some(key) = self.presences.connection(slot) {
                self.hear(key, EpollFlags::EPOLLIN);
            }
        }
        if !self.presences.is_known(slot) {
            // It had left before.
            return;
        }
        if let Some(key) = self.presences.connection(slot) {
            self.clients.try_remove(key);
            self.forget_asks_of(key);
        }
        self.counters.died += 1;
        self.journal.note(&format!("slot {slot}: its process died"));
        self.retire(slot);
        self.store();
    }

    /// Takes a slot back: its connections are ended, its sockets are emptied, and it rests for a while.
    pub(super) fn retire(&mut self, slot: u8) {
        if let Some(fd) = self.presences.end(slot) {
            let _ = self.epoll.delete(fd);
        }
        self.ledger.close(slot);
        self.listeners.remove_owner(usize::from(slot));
        self.listeners_changed();
        let Some(port) = &mut self.port else { return };
        self.counters.drained += port.group.drain(slot);
        port.group.put_inbox(slot, None);
        let records = port.group.put_records(slot, None).and_then(|records| records.read().ok());
        self.courier.mourn(&records.unwrap_or_default());
        self.slots.give_back(Instant::now(), slot);
    }

    /// Takes back the slots of processes that live and do not use them any more.
    pub(super) fn release_departed(&mut self, now: Instant) {
        // Processes that an earlier service knew may still rejoin.
        let all_are_back = now.duration_since(self.journal.started()) > REUNION;
        let presences = &self.presences;
        let away: Vec<u8> =
            presences.away().filter(|slot| all_are_back || presences.has_hung_up(*slot)).collect();
        for slot in away {
            if self.is_deserted(slot) {
                self.counters.deserted += 1;
                self.journal.note(&format!(
                    "slot {slot}: its process goes on without it (it has executed another program, or closed its descriptors)"
                ));
                self.retire(slot);
                self.store();
            }
        }
    }

    /// Whether a slot's process lives, and has none of its sockets.
    fn is_deserted(&self, slot: u8) -> bool {
        let (Some(port), Some(pidfd)) = (&self.port, self.presences.pidfd(slot)) else { return false };
        // This is the number in our PID namespace. If the process has died, its pidfd will tell.
        let Some(pid) = pid_of(pidfd).filter(|pid| *pid > 0) else { return false };
        let sockets = port.group.links(slot);
        !sockets.is_empty()
            && matches!(has_any(pid, &sockets), Ok(false))
            // Meanwhile the number may have become that of another process.
            && pid_of(pidfd) == Some(pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::UdpSocket, os::fd::AsRawFd};

    #[test]
    fn a_process_s_sockets_are_found() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let link = fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
        let own = std::process::id() as i32;
        assert!(has_any(own, &["socket:[0]".into(), link]).unwrap());
        assert!(!has_any(own, &["socket:[0]".into()]).unwrap());
        assert!(has_any(0, &[]).is_err(), "no such process");
    }
}
