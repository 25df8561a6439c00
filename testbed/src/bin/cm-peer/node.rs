//! What every connection or datagram id of ours has: a queue pair, its completion queues, memory.

use crate::peer::{completion, part, same};
use rxe_cm::CmId;
use rxe_verbs::{
    Access, Completion, Cq, Mr, Pd, Qp, QpInit, QpType, RecvWr, SendFlags, SendOp, SendWr, UdDest,
};
use std::sync::Arc;
use testbed::{agent::Failure, pattern::pattern};

/// Bytes in front of a datagram: the network header's.
pub(crate) const GRH: usize = 40;

/// An id with messages of one size: one that it sends, and a place for each that it receives.
pub(crate) struct Node {
    pub(crate) id: CmId,
    pub(crate) qp: Arc<Qp>,
    sent: Cq,
    received: Cq,
    memory: Mr,
    size: usize,
    /// In front of each message received.
    header: usize,
    _pd: Pd,
}

impl Node {
    /// Makes the queue pair and posts `messages` receives. What it sends is the pattern of `seed`.
    pub(crate) fn new(id: CmId, messages: usize, size: usize, seed: u64) -> Result<Self, Failure> {
        let datagrams = id.port_space() == Some(rxe_cm::proto::PortSpace::Udp);
        let (kind, header) = if datagrams { (QpType::Ud, GRH) } else { (QpType::Rc, 0) };
        let context = id.context().ok_or("an id without a device")?;
        let pd = context.alloc_pd()?;
        let depth = u32::try_from(messages.max(1))?;
        let (sent, received) = (context.create_cq(depth, None)?, context.create_cq(depth, None)?);
        let init = QpInit { recv_cq: &received, ..QpInit::new(kind, &sent) };
        let caps = rxe_verbs::QpCaps { max_send_wr: depth, max_recv_wr: depth, ..init.caps };
        let qp = id.create_qp(&pd, &QpInit { caps, ..init })?;
        let memory = pd.alloc_mr((size + (header + size) * messages).max(1), Access::LOCAL_WRITE)?;
        memory.write_at(0, &pattern(seed, size))?;
        let node = Self { id, qp, sent, received, memory, size, header, _pd: pd };
        for message in 0..messages {
            let place = part(&node.memory, node.place(message), header + size);
            node.qp.post_recv(&RecvWr { wr_id: message as u64, sges: &[place] })?;
        }
        Ok(node)
    }

    /// Where a message is received.
    fn place(&self, message: usize) -> usize {
        self.size + (self.header + self.size) * message
    }

    /// Sends its message so many times.
    pub(crate) fn send(&self, messages: usize) -> Result<(), Failure> {
        self.post(messages, SendOp::Send, None)
    }

    /// The same as datagrams that carry our queue pair's number, as the programs do.
    pub(crate) fn send_to(&self, dest: UdDest, messages: usize) -> Result<(), Failure> {
        self.post(messages, SendOp::SendImm(self.qp.qpn().value().to_be_bytes()), Some(dest))
    }

    fn post(&self, messages: usize, op: SendOp, dest: Option<UdDest>) -> Result<(), Failure> {
        for message in 0..messages {
            let sges = [part(&self.memory, 0, self.size)];
            let wr = SendWr { dest, flags: SendFlags::SIGNALED, ..SendWr::new(message as u64, op, &sges) };
            self.qp.post_send(&wr)?;
        }
        (0..messages).try_for_each(|_| completion(&self.sent).map(drop))
    }

    /// Takes all messages, which come in order and have their full length; the last completion.
    pub(crate) fn receive(&self, messages: usize) -> Result<Option<Completion>, Failure> {
        let mut last = None;
        for message in 0..messages {
            let wc = completion(&self.received)?;
            if (wc.wr_id, wc.byte_len as usize) != (message as u64, self.header + self.size) {
                return Err(format!("message {message} of {} bytes came as {wc:?}", self.size).into());
            }
            last = Some(wc);
        }
        Ok(last)
    }

    /// Whether each message received has these bytes from `offset` on.
    pub(crate) fn compare(&self, messages: usize, offset: usize, want: &[u8]) -> Result<(), Failure> {
        (0..messages).try_for_each(|message| {
            let have = self.memory.read_vec(self.place(message) + self.header + offset, want.len())?;
            same("a message", &have, want)
        })
    }
}
