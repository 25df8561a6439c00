//! Receiving from both families.

use std::io;
use std::os::fd::AsFd;

use super::{Family, UdpLink};
use crate::net::{Features, RecvBatch};

/// Every this many calls the quiet family is read even though the busy one has traffic.
const FAIRNESS: u8 = 8;

/// Whose turn it is to be read first.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    /// The family that had traffic last.
    v6_first: bool,
    calls: u8,
}

impl UdpLink {
    /// Fills `into`: from the busy family, and from the other if that had nothing or it is time to look.
    pub(in crate::net) fn receive(&mut self, into: &mut RecvBatch) -> io::Result<usize> {
        self.turn.calls = self.turn.calls.wrapping_add(1);
        let look_at_both = self.turn.calls.is_multiple_of(FAIRNESS);
        let v6_first = self.turn.v6_first ^ look_at_both;
        for v6 in [v6_first, !v6_first] {
            let Some(family) = (if v6 { &self.v6 } else { &self.v4 }) else { continue };
            if fill(into, family, &mut self.features)? > 0 {
                self.turn.v6_first = v6;
                if !look_at_both {
                    break;
                }
            }
        }
        Ok(into.len())
    }
}

/// Fills `into` from one family. Where the system has no call for several datagrams, or a sandbox forbids it, goes on without.
fn fill(into: &mut RecvBatch, family: &Family, features: &mut Features) -> io::Result<usize> {
    match into.fill(family.socket.as_fd(), family.bound, !features.mmsg) {
        Err(error) if features.mmsg && matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
            features.mmsg = false;
            into.fill(family.socket.as_fd(), family.bound, true)
        }
        filled => filled,
    }
}
