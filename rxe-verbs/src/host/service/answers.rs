//! Messages to clients. They are sent at once, or when the client reads again.

use super::{Service, Token, clients::End};
use crate::host::message::{MAX_ANSWER, MAX_PART, Packet, ToClient, encode, parts};
use nix::sys::epoll::{EpollEvent, EpollFlags};
use serde::Serialize;
use std::{io, os::fd::AsFd};

/// Most answers that wait for a client to read.
const MAX_QUEUE: usize = 1024;
/// Most packets among them. Further packets are lost, as in a socket buffer.
const MAX_QUEUED_PACKETS: usize = 512;

impl Service {
    /// Sends an answer, now or when the client reads again.
    pub(super) fn answer(&mut self, key: usize, message: &ToClient) {
        self.answer_all(key, [encode(message)]);
    }

    /// Sends a long answer in parts, or says that it is too long.
    pub(super) fn answer_in_parts<T: Serialize>(&mut self, key: usize, whole: &T) {
        let parts = parts(whole);
        if parts.len() > MAX_ANSWER / MAX_PART {
            let text = format!("the answer is longer than {} MB", MAX_ANSWER >> 20);
            self.close(key, End::Refused(text));
            return;
        }
        self.answer_all(key, parts.into_iter().map(|part| encode(&ToClient::Part(part))));
    }

    /// Only what has waited before counts as unread, because one answer may have more parts than may wait.
    fn answer_all(&mut self, key: usize, messages: impl IntoIterator<Item = Vec<u8>>) {
        let Some(client) = self.clients.get_mut(key) else { return };
        if client.queue.len() >= MAX_QUEUE {
            self.close(key, End::Misbehaved("it does not read its answers"));
            return;
        }
        client.queue.extend(messages);
        self.flush(key);
    }

    pub(super) fn flush(&mut self, key: usize) {
        let Some(client) = self.clients.get_mut(key) else { return };
        while let Some(bytes) = client.queue.front() {
            match client.channel.send(bytes, &[]) {
                Ok(()) => _ = client.queue.pop_front(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // A receive will tell that the connection has ended.
                Err(_) => client.queue.clear(),
            }
        }
        let mut flags = EpollFlags::EPOLLIN;
        flags.set(EpollFlags::EPOLLOUT, !client.queue.is_empty());
        let mut event = EpollEvent::new(flags, Token::Client(key).number());
        let _ = self.epoll.modify(client.channel.as_fd(), &mut event);
    }

    /// Gives a packet to the process of a slot, now or when it reads again. False if there is no such process, or too much waits for it.
    pub(super) fn deliver(&mut self, slot: u8, packet: Packet) -> bool {
        let Some(key) = self.presences.connection(slot) else { return false };
        let Some(client) = self.clients.get_mut(key) else { return false };
        let bytes = encode(&ToClient::Packet(packet));
        let sent = if client.queue.is_empty() {
            client.channel.send(&bytes, &[])
        } else {
            Err(io::ErrorKind::WouldBlock.into())
        };
        let given = match sent {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let room = client.queue.len() < MAX_QUEUED_PACKETS;
                if room {
                    client.queue.push_back(bytes);
                    self.flush(key);
                }
                room
            }
            Err(_) => false,
        };
        self.exchanged_with(slot).given += u64::from(given);
        given
    }
}
