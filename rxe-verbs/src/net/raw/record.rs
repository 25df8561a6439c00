//! Recording a raw link's frames as they are on the wire: packet by packet also where the kernel cuts a batch, and with the
//! checksums that it completes.

use core::ops::Range;

use super::frame::{Ends, Head, complete_udp, make_up, segment_head};
use crate::net::{
    Capture, Ident, Run, Transmit,
    tap::{self, idents::Idents},
};

/// Writes frames to a capture.
#[derive(Debug)]
pub(super) struct Recorder {
    capture: Capture,
    /// Of packets whose headers are hidden.
    idents: Idents,
    frame: Vec<u8>,
}

impl Recorder {
    pub(super) fn new(capture: Capture) -> Self {
        Self { capture, idents: Idents::new(), frame: Vec::new() }
    }

    /// The first `sent` packets of a batch have left. `summed`: the kernel has completed their checksums.
    pub(super) fn sent(&mut self, batch: &Transmit, ends: Ends, bytes: &[u8], (sent, summed): (usize, bool)) {
        for (index, packet) in bytes.chunks(batch.segment_size).enumerate().take(sent) {
            let head = Head::write(batch, ends, packet.len(), Ident::Sequential.of(index), None, false);
            self.write([head.as_ref(), packet], summed, true);
        }
    }

    /// A frame has come, with nothing in front of it. `packets` is what of it holds packets, and the length of each, unless it
    /// is none of ours; `unsummed`: its sender is on this host, and nobody has completed the checksum.
    pub(super) fn arrived(&mut self, frame: &[u8], packets: Option<(Range<usize>, usize)>, unsummed: bool) {
        let Some((place, segment)) = packets.filter(|(place, segment)| *segment < place.len()) else {
            return self.write([frame, &[]], unsummed, false);
        };
        let (head, bytes) = (&frame[..place.start], &frame[place]);
        for (index, packet) in bytes.chunks(segment).enumerate() {
            let head = segment_head(head, index as u16, packet.len());
            self.write([&head, packet], unsummed, false);
        }
    }

    /// A run has come by the socket of port 4791, which shows no headers: those in front are made up, without stations.
    pub(super) fn by_port(&mut self, run: &Run<'_>) {
        let idents: Vec<u16> = self.idents.of_run(run).collect();
        for (payload, ident) in run.packets().zip(idents) {
            self.made_up(&tap::Record::arrived(run, ident, payload));
        }
    }

    /// The first `sent` packets of a batch have left by that socket.
    pub(super) fn sent_by_port(&mut self, batch: &Transmit, ident: Ident, bytes: &[u8], sent: usize) {
        for (index, payload) in bytes.chunks(batch.segment_size).enumerate().take(sent) {
            self.made_up(&tap::Record::sent(batch, ident.of(index), payload));
        }
    }

    fn made_up(&mut self, record: &tap::Record<'_>) {
        if make_up(record, &mut self.frame) {
            self.capture.record_frame(&self.frame, record.outbound);
        }
    }

    fn write(&mut self, parts: [&[u8]; 2], unsummed: bool, outbound: bool) {
        self.frame.clear();
        parts.iter().for_each(|part| self.frame.extend_from_slice(part));
        if unsummed {
            complete_udp(&mut self.frame);
        }
        self.capture.record_frame(&self.frame, outbound);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // What could not be written is told by `Capture::flush`.
        let _ = self.capture.flush();
    }
}
