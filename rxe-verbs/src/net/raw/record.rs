//! Recording a raw link's frames as they are on the wire. Where the kernel segments a batch, the capture has each packet. It
//! also has the checksums that the kernel completes.

use core::ops::Range;

use super::frame::{Ends, Head, complete_udp, make_up, segment_head};
use crate::net::{
    Capture, Ident, Run, Transmit,
    tap::{self, Sink, idents::Idents},
};

/// Writes frames to a capture.
#[derive(Debug)]
pub(super) struct Recorder {
    capture: Capture,
    /// For packets that come by port 4791, whose headers are hidden.
    idents: Idents,
    frame: Vec<u8>,
}

impl Recorder {
    pub(super) fn new(capture: Capture) -> Self {
        Self { capture, idents: Idents::new(), frame: Vec::new() }
    }

    /// Records the first `sent` packets of a batch. `summed` says that the kernel completed their UDP checksums.
    pub(super) fn sent(&mut self, batch: &Transmit, ends: Ends, bytes: &[u8], (sent, summed): (usize, bool)) {
        for (index, packet) in bytes.chunks(batch.segment_size).enumerate().take(sent) {
            let head = Head::write(batch, ends, packet.len(), Ident::Sequential.of(index), None, false);
            self.write([head.as_ref(), packet], summed, true);
        }
    }

    /// Records a received frame. `packets` is the part of the frame that holds packets, and the length of each; `None` if the
    /// frame is unusable. `unsummed` says that the sender is on this host, so the kernel has not completed the checksum.
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

    /// Records a run that came by the socket of port 4791. That socket shows no headers, so they are made up, without MAC
    /// addresses.
    pub(super) fn by_port(&mut self, run: &Run<'_>) {
        let idents: Vec<u16> = self.idents.of_run(run).collect();
        for (payload, ident) in run.packets().zip(idents) {
            self.made_up(&tap::Record::arrived(run, ident, payload));
        }
    }

    /// Records the first `sent` packets of a batch that left by the socket of port 4791.
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
        self.capture.finish();
    }
}
