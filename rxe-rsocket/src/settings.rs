//! Default sizes of sockets. An administrator can set them by files below `/etc/rdma/rsocket`, as for rdma-core (`rsocket(7)`).

use crate::proto::{scaled, unscaled};
use std::{fs, path::Path};

/// The folder of the files. Each has a number.
const FOLDER: &str = "/etc/rdma/rsocket";
/// The smallest and largest queue lengths.
const QUEUE: (u32, u32) = (16, 0xfffe);
/// The largest buffer: lengths on the wire have 29 bits, and a buffer has two halves.
const MOST_MEMORY: u32 = 1 << 30;
/// The smallest send buffer has room for two messages of the smallest size.
const LEAST_SEND: u32 = 4096;

/// Sizes of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Bytes of the receive buffer (mem_default, SO_RCVBUF). Only the used part of it takes memory.
    pub receive_buffer: u32,
    /// Bytes of the send buffer (wmem_default, SO_SNDBUF).
    pub send_buffer: u32,
    /// Requests of the send queue (sqsize_default, RDMA_SQSIZE).
    pub sends: u16,
    /// Requests of the receive queue (rqsize_default, RDMA_RQSIZE).
    pub receives: u16,
    /// Bytes that are sent without the send buffer (inline_default, RDMA_INLINE).
    pub inline: u16,
    /// Buffers that the peer may map for us (iomap_size, RDMA_IOMAPSIZE).
    pub iomap: u16,
}

impl Default for Settings {
    /// The queue lengths are those of rdma-core. Its buffers have 128 KiB; see [`Self::receive_buffer`].
    fn default() -> Self {
        Self {
            receive_buffer: 1 << 17,
            send_buffer: 1 << 17,
            sends: 384,
            receives: 384,
            inline: 64,
            iomap: 0,
        }
    }
}

impl Settings {
    /// The administrator's settings, or the defaults. Invalid or out-of-range values are ignored.
    #[must_use]
    pub fn load() -> Self {
        Self::from_folder(Path::new(FOLDER))
    }

    fn from_folder(folder: &Path) -> Self {
        let number = |name: &str| -> Option<u32> {
            let text = fs::read_to_string(folder.join(name)).ok()?;
            text.split_whitespace().next()?.parse().ok()
        };
        let mut settings = Self::default();
        if let Some(bytes) = number("mem_default") {
            settings.set_receive_buffer(bytes);
        }
        if let Some(bytes) = number("wmem_default") {
            settings.set_send_buffer(bytes);
        }
        if let Some(count) = number("sqsize_default") {
            settings.set_sends(count);
        }
        if let Some(count) = number("rqsize_default") {
            settings.set_receives(count);
        }
        if let Some(bytes) = number("inline_default") {
            settings.set_inline(bytes);
        }
        if let Some(count) = number("iomap_size") {
            settings.set_iomap(count);
        }
        settings
    }

    /// Sets the size of the receive buffer, rounded to a possible value.
    pub fn set_receive_buffer(&mut self, bytes: u32) {
        // Two halves with a whole number of words.
        self.receive_buffer = bytes.clamp(32, MOST_MEMORY).next_multiple_of(16);
    }

    /// Sets the size of the send buffer, rounded to a possible value.
    pub fn set_send_buffer(&mut self, bytes: u32) {
        self.send_buffer = bytes.clamp(LEAST_SEND, MOST_MEMORY);
    }

    /// Sets the send queue's length, 16 to 65,534.
    pub fn set_sends(&mut self, count: u32) {
        self.sends = count.clamp(QUEUE.0, QUEUE.1) as u16;
    }

    /// Sets the receive queue's length, 16 to 32,767: half of the range of credit numbers.
    pub fn set_receives(&mut self, count: u32) {
        self.receives = count.clamp(QUEUE.0, 0x7fff) as u16;
    }

    /// Sets the size up to which data is sent inline, at most 1 KiB.
    pub fn set_inline(&mut self, bytes: u32) {
        self.inline = bytes.min(1024) as u16;
    }

    /// Sets the number of mapped buffers, rounded as the protocol requires.
    pub fn set_iomap(&mut self, count: u32) {
        self.iomap = unscaled(scaled(u16::try_from(count).unwrap_or(0x7f00).min(0x7f00)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read() {
        let folder = std::env::temp_dir().join(format!("rxe-rsocket-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let put = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        put("mem_default", "1000000\n");
        put("wmem_default", "1\n");
        put("rqsize_default", "70000");
        put("sqsize_default", "many");
        put("iomap_size", "300");
        let settings = Settings::from_folder(&folder);
        fs::remove_dir_all(&folder).unwrap();
        let wanted = Settings {
            receive_buffer: 1_000_000,
            send_buffer: LEAST_SEND,
            receives: 0x7fff,
            iomap: 256,
            ..Settings::default()
        };
        assert_eq!(settings, wanted);
    }
}
