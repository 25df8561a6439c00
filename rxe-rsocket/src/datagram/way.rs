//! A queue pair for one local address, with the buffers for its datagrams.

use crate::{
    error::SocketError,
    proto::datagram::{decode_source, encode_source},
    settings::Settings,
};
use rxe_cm::CmId;
use rxe_verbs::{
    Access, CompChannel, Completion, Cq, Mr, Payload, Qp, QpCaps, QpInit, QpType, Qpn, RecvWr, SendFlags,
    SendOp, SendWr, UdDest, WcStatus,
};
use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

/// Most bytes of a datagram with its header.
pub(super) const SLOT: usize = 2048;
/// Bytes of the network header before a received datagram.
const GRH: usize = 40;
/// This bit is set in the `wr_id` of receives.
const RECEIVE: u64 = 1 << 63;
/// Completions that are polled at a time.
const BATCH: usize = 16;

/// A datagram that waits for the program.
#[derive(Debug)]
pub(super) struct Received {
    /// The source, in the form of the connection manager: IPv4 is not mapped.
    pub(super) from: SocketAddr,
    /// The queue pair that has sent it.
    pub(super) sender: Qpn,
    /// The datagram with its header, and the offset of the program's data.
    bytes: Vec<u8>,
    begin: usize,
}

impl Received {
    /// The program's data.
    pub(super) fn data(&self) -> &[u8] {
        &self.bytes[self.begin..]
    }
}

/// A queue pair for one local address.
#[derive(Debug)]
pub(super) struct Way {
    local: IpAddr,
    /// The header of each datagram that we send.
    source: Vec<u8>,
    qp: Arc<Qp>,
    cq: Cq,
    channel: CompChannel,
    receive: Mr,
    send: Mr,
    /// Free slots of the send buffer.
    free: Vec<u32>,
    slots: u32,
    armed: bool,
    /// Most bytes of a datagram with its header.
    most: usize,
    /// The id that owns the queue pair.
    _id: CmId,
}

impl Way {
    /// Creates the queue pair for an id whose device is known. Its datagrams have `source` as their source.
    pub(super) fn new(settings: &Settings, id: CmId, source: SocketAddr) -> Result<Self, SocketError> {
        let context = id.context().ok_or(SocketError::NotConnected)?;
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let slots = |bytes: u32, most: u16| (bytes / SLOT as u32).clamp(1, most.into());
        let receives = slots(settings.receive_buffer, settings.receives);
        let sends = slots(settings.send_buffer, settings.sends);
        let cq = context.create_cq(sends + receives, Some(&channel))?;
        let caps = QpCaps {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: settings.inline.into(),
        };
        let init = QpInit { caps, signal_all: true, ..QpInit::new(QpType::Ud, &cq) };
        let qp = id.create_qp(&pd, &init)?;
        let way = Self {
            local: source.ip(),
            source: encode_source(source),
            receive: pd.alloc_mr(receives as usize * (SLOT + GRH), Access::LOCAL_WRITE)?,
            send: pd.alloc_mr(sends as usize * SLOT, Access::LOCAL_WRITE)?,
            free: (0..sends).collect(),
            slots: sends,
            armed: false,
            most: SLOT.min(context.port().active_mtu.bytes() as usize),
            qp,
            cq,
            channel,
            _id: id,
        };
        (0..receives).try_for_each(|slot| way.post_receive(slot))?;
        Ok(way)
    }

    pub(super) const fn local(&self) -> IpAddr {
        self.local
    }

    pub(super) fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    /// The descriptor that becomes readable once the queue is armed.
    pub(super) fn channel(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Whether a datagram can be sent.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether all datagrams have left.
    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == self.slots as usize
    }

    /// The length of a datagram that we send.
    ///
    /// # Errors
    /// [`SocketError::TooLong`].
    pub(super) fn measure(&self, data: &[&[u8]]) -> Result<usize, SocketError> {
        let (len, most) = (length(data), self.most - self.source.len());
        if len <= most { Ok(len) } else { Err(SocketError::TooLong { len, most }) }
    }

    fn post_receive(&self, slot: u32) -> Result<(), SocketError> {
        let sge = self.receive.sge(slot as usize * (SLOT + GRH), (SLOT + GRH) as u32);
        Ok(self.qp.post_recv(&RecvWr { wr_id: RECEIVE | u64::from(slot), sges: &[sge] })?)
    }

    /// Makes the channel become readable at the next completion. Returns whether it was not armed before.
    pub(super) fn arm(&mut self) -> bool {
        let new = !core::mem::replace(&mut self.armed, true);
        if new {
            self.cq.req_notify(false);
        }
        new
    }

    /// Takes the channel's event. Returns whether there was one.
    pub(super) fn take_event(&mut self) -> bool {
        let Some(cq) = self.armed.then(|| self.channel.try_get_event()).flatten() else { return false };
        cq.ack_events(1);
        self.armed = false;
        true
    }

    /// Handles completions. Datagrams are put into the inbox while it has fewer than `most`. Returns the number of completions.
    pub(super) fn progress(&mut self, inbox: &mut VecDeque<Received>, most: usize) -> u64 {
        let (mut done, mut all) = ([Completion::default(); BATCH], 0);
        while let Ok(count @ 1..) = self.cq.poll(&mut done) {
            all += count as u64;
            done[..count].iter().for_each(|wc| self.take(wc, inbox, most));
        }
        all
    }

    fn take(&mut self, wc: &Completion, inbox: &mut VecDeque<Received>, most: usize) {
        let slot = wc.wr_id as u32;
        if wc.wr_id & RECEIVE == 0 {
            self.free.push(slot);
            return;
        }
        let len = (wc.byte_len as usize).saturating_sub(GRH).min(SLOT);
        if wc.status == WcStatus::Success && inbox.len() < most {
            let at = slot as usize * (SLOT + GRH) + GRH;
            let bytes = self.receive.read_vec(at, len).unwrap_or_default();
            if let Some((from, data)) = decode_source(&bytes) {
                let begin = bytes.len() - data.len();
                inbox.push_back(Received { from, sender: wc.src_qp, bytes, begin });
            }
        }
        // If posting fails the queue pair has ended.
        let _ = self.post_receive(slot);
    }

    /// Sends a datagram through a slot. There must be a free one.
    pub(super) fn send_own(&mut self, data: &[&[u8]], dest: UdDest) -> Result<(), SocketError> {
        let source = core::mem::take(&mut self.source);
        let sent = self.send(&source, data, dest);
        self.source = source;
        sent
    }

    /// Sends a datagram with another header.
    pub(super) fn send(&mut self, header: &[u8], data: &[&[u8]], dest: UdDest) -> Result<(), SocketError> {
        let (len, most) = (header.len() + length(data), self.most);
        if len > most {
            return Err(SocketError::TooLong { len, most });
        }
        let Some(slot) = self.free.pop() else { return Err(SocketError::WouldBlock) };
        let at = slot as usize * SLOT;
        let mut end = at;
        for part in core::iter::once(&header).chain(data) {
            // This is our own memory, and the length was checked.
            let _ = self.send.write_at(end, part);
            end += part.len();
        }
        let sges = [self.send.sge(at, (end - at) as u32)];
        let payload = Payload::Sges(&sges);
        let wr = SendWr {
            wr_id: slot.into(),
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            payload,
            dest: Some(dest),
            xrc_srq: 0,
        };
        if let Err(error) = self.qp.post_send(&wr) {
            self.free.push(slot);
            return Err(error.into());
        }
        Ok(())
    }
}

fn length(parts: &[&[u8]]) -> usize {
    parts.iter().map(|part| part.len()).sum()
}
