//! How a service continues the work of an earlier one, and what it leaves for the next.

use super::{Service, clients::End, presence::Contact};
use crate::host::{group::Group, records::Register, slots::Slot, vault::Vault};
use std::os::fd::OwnedFd;

impl Service {
    /// Continues the work of an earlier service.
    pub(super) fn inherit(&mut self, fds: [OwnedFd; Vault::DESCRIPTORS]) -> Result<(), End> {
        let refused = |error: &dyn core::fmt::Display| {
            End::Refused(format!(
                "the earlier host service left nothing to go on from ({error}); end this program"
            ))
        };
        let mut vault = Vault::adopt(fds);
        let mut contents = vault.load().map_err(|error| refused(&error))?;
        let earlier = Register::adopt(contents.register).map_err(|error| refused(&error))?;
        let group = Group::adopt(contents.families, &mut contents.members);
        if let Err(error) = self.settle(group, vault).map_err(|error| refused(&error))? {
            self.journal.note(&format!("packets cannot be steered anew here ({error}): nobody can join"));
        }
        for member in contents.members.into_iter().filter(|member| member.slot != 0) {
            let held = matches!(member.state, Slot::Held(_));
            self.slots.set(member.slot, member.state);
            if held {
                self.presences.begin(member.slot, Contact::Awaited);
                // If the process died meanwhile, its pidfd tells at once.
                self.watch_death(member.slot, member.pidfd);
            }
        }
        self.restore_listeners(&earlier);
        self.journal.note(&format!("took over from an earlier service: {} members", self.members()));
        self.store();
        self.admit_waiting();
        Ok(())
    }

    /// Restores the listeners of the earlier service, before other processes can take their service IDs.
    fn restore_listeners(&mut self, earlier: &Register) {
        for (slot, token, listen) in earlier.load() {
            if matches!(self.slots.get(slot), Slot::Held(_)) {
                self.listeners.add(usize::from(slot), token, listen);
            }
        }
        self.listeners_changed();
    }

    /// Stores the listeners for the next service, and steers requests by them.
    pub(super) fn listeners_changed(&mut self) {
        let changes = self.listeners.take_changes();
        if let Some(port) = &self.port {
            for (place, change) in changes {
                let of_slot = change
                    .and_then(|(owner, token, listen)| Some((u8::try_from(owner).ok()?, token, listen)));
                port.register.set(place, of_slot);
            }
        }
        self.review_direct();
    }

    fn members(&self) -> usize {
        self.port.as_ref().map_or(0, |port| port.group.len())
    }
}
