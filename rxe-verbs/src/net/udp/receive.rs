//! Receiving from both families.

use std::io;
use std::os::fd::AsFd;

use super::{Family, UdpLink};
use crate::net::{Features, RecvBatch};

/// Every this many calls, both families are read, even if the busy one has traffic.
const FAIRNESS: u8 = 8;

/// Which family is read first.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    /// Whether IPv6 had traffic last.
    v6_first: bool,
    calls: u8,
}

impl UdpLink {
    /// Fills `into` from the busy family. Reads the other family, too, if the first had nothing, and every [`FAIRNESS`] calls.
    pub(in crate::net) fn receive(&mut self, into: &mut RecvBatch) -> io::Result<usize> {
        self.turn.calls = self.turn.calls.wrapping_add(1);
        let look_at_both = self.turn.calls.is_multiple_of(FAIRNESS);
        let v6_first = self.turn.v6_first ^ look_at_both;
        let mut taken = 0;
        for v6 in [v6_first, !v6_first] {
            let Some(family) = (if v6 { &self.v6 } else { &self.v4 }) else { continue };
            let count = fill(into, family, &mut self.features)?;
            taken += count;
            if count > 0 {
                self.turn.v6_first = v6;
                if !look_at_both {
                    break;
                }
            }
        }
        Ok(taken)
    }
}

/// Fills `into` from one family. If the system lacks `recvmmsg` or a sandbox forbids it, this reads one datagram at a time from
/// then on.
fn fill(into: &mut RecvBatch, family: &Family, features: &mut Features) -> io::Result<usize> {
    match into.fill(family.socket.as_fd(), family.bound, !features.mmsg) {
        Err(error) if features.mmsg && matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
            features.mmsg = false;
            into.fill(family.socket.as_fd(), family.bound, true)
        }
        filled => filled,
    }
}
