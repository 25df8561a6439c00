//! How large sockets are unless told otherwise: what an administrator has written below `/etc/rdma/rsocket`, as for
//! rdma-core's (`rsocket(7)`), else defaults.

use crate::proto::{scaled, unscaled};
use std::{fs, path::Path};

/// Where the files are; each holds a number.
const FOLDER: &str = "/etc/rdma/rsocket";
/// What queues hold at least and at most.
const QUEUE: (u32, u32) = (16, 0xfffe);
/// Memory of a buffer at most: lengths on the wire have 29 bits, two halves each less.
const MOST_MEMORY: u32 = 1 << 30;
/// A send buffer has at least room for two messages of the least size.
const LEAST_SEND: u32 = 4096;

/// Sizes of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Bytes of the receive buffer (mem_default, SO_RCVBUF). Each connection takes what of it is used.
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
    /// The queues are rdma-core's. Its buffers have 128 KiB; see [`Self::receive_buffer`].
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
    /// What the administrator wishes, else the defaults. What is no number in range counts as not written.
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

    /// Sets the receive buffer's bytes, rounded to what can be.
    pub fn set_receive_buffer(&mut self, bytes: u32) {
        // Two halves of whole words.
        self.receive_buffer = bytes.clamp(32, MOST_MEMORY).next_multiple_of(16);
    }

    /// Sets the send buffer's bytes, rounded to what can be.
    pub fn set_send_buffer(&mut self, bytes: u32) {
        self.send_buffer = bytes.clamp(LEAST_SEND, MOST_MEMORY);
    }

    /// Sets the send queue's length, 16 to 65,534.
    pub fn set_sends(&mut self, count: u32) {
        self.sends = count.clamp(QUEUE.0, QUEUE.1) as u16;
    }

    /// Sets the receive queue's length, 16 to 32,767: half the numbers that credits are counted by.
    pub fn set_receives(&mut self, count: u32) {
        self.receives = count.clamp(QUEUE.0, 0x7fff) as u16;
    }

    /// Sets what is sent without the buffer, up to 1 KiB.
    pub fn set_inline(&mut self, bytes: u32) {
        self.inline = bytes.min(1024) as u16;
    }

    /// Sets the number of mapped buffers, rounded as the protocol has it.
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
