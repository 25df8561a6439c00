//! The clients and their sessions (RFC 8881, 2.10). The server keeps no other state of clients. Files are not locked and
//! cannot change, so there is no state behind an open file. A repeated call is executed again, instead of being answered
//! from a reply cache.

use super::v4::Status;
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Seconds after which a silent client may be forgotten.
pub(super) const LEASE: u32 = 60;
/// Maximum number of clients. A new client replaces the one that has been silent for the longest time, if that is at least a
/// lease.
const MOST_CLIENTS: usize = 64;
/// Maximum number of sessions of a client.
const MOST_SESSIONS: usize = 8;
/// Maximum number of outstanding calls of a session.
pub(super) const SLOTS: u32 = 16;

/// All clients.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    clients: HashMap<u64, ClientState>,
    sessions: HashMap<[u8; 16], Session>,
    made: u64,
}

#[derive(Debug)]
struct ClientState {
    owner: Vec<u8>,
    verifier: [u8; 8],
    /// Whether it has created a session before.
    is_confirmed: bool,
    /// The sequence number of its next CREATE_SESSION.
    sequence: u32,
    last_session: [u8; 16],
    heard: Instant,
}

#[derive(Debug)]
struct Session {
    client: u64,
    /// The sequence number of the last call in each slot.
    slots: [u32; SLOTS as usize],
}

/// The result of EXCHANGE_ID.
pub(super) struct Known {
    pub(super) client: u64,
    pub(super) sequence: u32,
    pub(super) is_confirmed: bool,
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds or adds a client by the name that it gives itself (18.35). A different verifier means that the client has
    /// restarted.
    pub(super) fn exchange(&self, owner: &[u8], verifier: [u8; 8]) -> Result<Known, Status> {
        let mut state = self.lock();
        let found = state.clients.iter().find(|(_, client)| client.owner == owner).map(|(id, _)| *id);
        if let Some(id) = found {
            let client = &state.clients[&id];
            if client.verifier == verifier {
                let (sequence, is_confirmed) = (client.sequence, client.is_confirmed);
                return Ok(Known { client: id, sequence, is_confirmed });
            }
            state.forget(id);
        }
        if state.clients.len() >= MOST_CLIENTS {
            let oldest = state.clients.iter().min_by_key(|(_, client)| client.heard);
            let oldest = oldest.map(|(id, client)| (*id, client.heard.elapsed()));
            match oldest {
                Some((id, silent)) if silent > Duration::from_secs(LEASE.into()) => state.forget(id),
                _ => return Err(Status::DELAY),
            }
        }
        state.made += 1;
        let id = state.made;
        let client = ClientState {
            owner: owner.to_vec(),
            verifier,
            is_confirmed: false,
            sequence: 1,
            last_session: [0; 16],
            heard: Instant::now(),
        };
        state.clients.insert(id, client);
        Ok(Known { client: id, sequence: 1, is_confirmed: false })
    }

    /// Creates a session (18.36). A repeated request returns the same session.
    pub(super) fn create(&self, id: u64, sequence: u32) -> Result<[u8; 16], Status> {
        let mut state = self.lock();
        let count = state.sessions.values().filter(|session| session.client == id).count();
        state.made += 1;
        let made = state.made;
        let client = state.clients.get_mut(&id).ok_or(Status::STALE_CLIENT)?;
        client.heard = Instant::now();
        if sequence.wrapping_add(1) == client.sequence && client.is_confirmed {
            return Ok(client.last_session);
        }
        if sequence != client.sequence {
            return Err(Status::MISORDERED);
        }
        if count >= MOST_SESSIONS {
            return Err(Status::DELAY);
        }
        let mut name = [0; 16];
        name[..8].copy_from_slice(&id.to_be_bytes());
        name[8..].copy_from_slice(&made.to_be_bytes());
        client.sequence = sequence.wrapping_add(1);
        client.is_confirmed = true;
        client.last_session = name;
        state.sessions.insert(name, Session { client: id, slots: [0; SLOTS as usize] });
        Ok(name)
    }

    /// Checks a call in a slot (18.46).
    pub(super) fn call(&self, name: &[u8], slot: u32, sequence: u32) -> Result<(), Status> {
        let mut state = self.lock();
        let session = state.sessions.get_mut(name).ok_or(Status::BAD_SESSION)?;
        let last = session.slots.get_mut(slot as usize).ok_or(Status::BAD_SLOT)?;
        if sequence != last.wrapping_add(1) && (sequence != *last || *last == 0) {
            return Err(Status::MISORDERED);
        }
        *last = sequence;
        let id = session.client;
        if let Some(client) = state.clients.get_mut(&id) {
            client.heard = Instant::now();
        }
        Ok(())
    }

    /// Ends a session (18.37).
    pub(super) fn destroy(&self, name: &[u8]) -> Result<(), Status> {
        self.lock().sessions.remove(name).map(drop).ok_or(Status::BAD_SESSION)
    }

    /// Forgets a client (18.50).
    pub(super) fn destroy_client(&self, id: u64) -> Result<(), Status> {
        let mut state = self.lock();
        if state.sessions.values().any(|session| session.client == id) {
            return Err(Status::CLIENT_BUSY);
        }
        state.clients.remove(&id).map(drop).ok_or(Status::STALE_CLIENT)
    }
}

impl State {
    fn forget(&mut self, id: u64) {
        self.clients.remove(&id);
        self.sessions.retain(|_, session| session.client != id);
    }
}
