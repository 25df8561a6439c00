//! What was done to which packet, a line each.

use core::{fmt::Display, net::IpAddr};
use rxe_core::wire::Packet;
use std::{
    fs::File,
    io::Write,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// Where the lines go. Clones write to the same place.
#[derive(Clone, Debug)]
pub struct FaultLog(Arc<Mutex<(File, Instant)>>);

impl FaultLog {
    /// Lines go to a file.
    #[must_use]
    pub fn new(file: File) -> Self {
        Self(Arc::new(Mutex::new((file, Instant::now()))))
    }

    /// Seconds since the start, what was done, direction, the other side, what the packet said.
    pub(super) fn write(&self, what: &dyn Display, sending: bool, peer: IpAddr, bytes: &[u8]) {
        let mut out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, start) = &mut *out;
        let direction = if sending { '>' } else { '<' };
        let packet = match Packet::decode(bytes) {
            Ok(packet) => packet.to_string(),
            Err(error) => format!("{} B: {error}", bytes.len()),
        };
        let seconds = start.elapsed().as_secs_f64();
        // A disk that is full loses lines of the log, not packets.
        let _ = file.write_all(format!("{seconds:12.6} {what} {direction} {peer} {packet}\n").as_bytes());
    }
}
