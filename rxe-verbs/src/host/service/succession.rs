//! How a service continues the work of an earlier one, and what it leaves for the next.

use super::{Service, clients::End, presence::Contact};
use crate::{
    host::{group::Group, records::Register, slots::Slot, vault::Vault},
    net::OpenError,
};
use std::os::fd::OwnedFd;

impl Service {
    /// Continues the work of an earlier service, or makes way for a service that can.
    pub(super) fn inherit(&mut self, fds: [OwnedFd; Vault::DESCRIPTORS]) -> Result<(), End> {
        self.take_over(fds).map_err(|error| self.make_way(&error))
    }

    /// Called when the service cannot work before it has the port. Another process may have more descriptors or higher limits. So this
    /// service gives up its name, and all who are connected try again.
    pub(super) fn make_way(&mut self, why: &dyn core::fmt::Display) -> End {
        let text = format!("the host service cannot take over from an earlier one: {why}");
        self.journal.note(&text);
        self.stop();
        let keys: Vec<usize> = self.clients.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.close(key, End::Busy(text.clone()));
        }
        End::Gone
    }

    fn take_over(&mut self, fds: [OwnedFd; Vault::DESCRIPTORS]) -> Result<(), OpenError> {
        let unread = |source| OpenError::System { action: "read its state", source };
        let mut vault = Vault::adopt(fds);
        let mut contents = vault.load().map_err(unread)?;
        let earlier = Register::adopt(contents.register).map_err(unread)?;
        let group = Group::adopt(contents.families, &mut contents.members);
        if let Err(error) = self.settle(group, vault)? {
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
