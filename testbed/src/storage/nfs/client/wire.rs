//! The connection of a client. It makes one call at a time, with the data left out of the message, and receives its reply.

use super::{LONG_REPLY, MOST_DATA, Mount};
use crate::storage::{
    link::{Depth, Link, LinkError},
    nfs::{
        rpc::{self, Call},
        transport::{Chunks, Header, Kind, MESSAGE, ReadSegment, Segment, longest_message, private_data},
        xdr::Reader,
    },
};
use core::time::Duration;
use rxe_verbs::{Access, Mr, RecvWr, SendOp, SendWr, WcOpcode};

/// Number of receives posted for replies. One would suffice, but servers may use more credits than that.
const RECEIVES: usize = 4;
/// Number of calls that we request credits for.
const CREDITS: u32 = 4;

/// The parts of a call beside its arguments.
#[derive(Clone, Copy, Default)]
pub(super) struct Extra<'a> {
    /// Data that is left out of the call at this offset, for the server to read by RDMA.
    pub(super) read: Option<(usize, &'a [u8])>,
    /// Number of bytes that the server may write to our memory instead of putting them into the reply.
    pub(super) write: usize,
    /// Whether the reply may be too long for a message.
    pub(super) is_long: bool,
}

/// The connection.
#[derive(Debug)]
pub(super) struct Wire {
    link: Link,
    /// Memory for a message to send, then for received messages. The server has no access to it.
    messages: Mr,
    /// Memory that the server reads and writes by RDMA: first data, then long replies.
    pub(super) data: Mr,
    /// The longest message that the server receives, in bytes.
    longest: usize,
    xid: u32,
    patience: Duration,
}

impl Wire {
    pub(super) fn open(mount: &Mount) -> Result<Self, LinkError> {
        let depth = Depth { sends: 1, receives: RECEIVES as u32 };
        let prepare = |link: &Link| {
            let messages = link.pd().alloc_mr(MESSAGE * (1 + RECEIVES), Access::LOCAL_WRITE)?;
            (1..=RECEIVES).try_for_each(|place| post_receive(link, &messages, place))?;
            let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
            Ok((messages, link.pd().alloc_mr(MOST_DATA + LONG_REPLY, rights)?))
        };
        let (manager, patience) = (&mount.manager, mount.patience);
        let (link, (messages, data)) =
            Link::connect(manager, mount.from, mount.to, depth, &private_data(), patience, prepare)?;
        let longest = longest_message(link.private_data());
        Ok(Self { link, messages, data, longest, xid: 1, patience })
    }

    fn segment(&self, at: usize, len: usize) -> Segment {
        Segment { key: self.data.rkey().0, len: len as u32, addr: self.data.addr() + at as u64 }
    }

    /// Calls a procedure. Returns its results, and the number of bytes that the server placed in our memory.
    pub(super) fn call(
        &mut self,
        procedure: u32,
        mount: &Mount,
        args: &[u8],
        extra: Extra<'_>,
    ) -> Result<(Vec<u8>, usize), LinkError> {
        self.xid = self.xid.wrapping_add(1);
        let call = Call { xid: self.xid, program: rpc::NFS, version: rpc::VERSION, procedure };
        let mut message = call.write(mount.user, mount.group);
        let mut chunks = Chunks::default();
        if let Some((position, data)) = extra.read {
            self.data.write_at(0, data)?;
            let position = (message.0.len() + position) as u32;
            chunks.reads.push(ReadSegment { position, segment: self.segment(0, data.len()) });
        }
        if extra.write > 0 {
            // Old data must not be mistaken for new data.
            self.data.write_at(0, &vec![0xa5; extra.write])?;
            chunks.writes.push(vec![self.segment(0, extra.write)]);
        }
        chunks.reply = extra.is_long.then(|| vec![self.segment(MOST_DATA, LONG_REPLY)]);
        message.0.extend_from_slice(args);
        let header = Header { xid: self.xid, credits: CREDITS, kind: Kind::Message(chunks) };
        let mut bytes = header.encode();
        bytes.extend_from_slice(&message.0);
        if bytes.len() > self.longest {
            return Err(LinkError::protocol(format!("a call of {} bytes is too long", bytes.len())));
        }
        self.messages.write_at(0, &bytes)?;
        let sges = [self.messages.sge(0, bytes.len() as u32)];
        self.link.qp().post_send(&SendWr::new(0, SendOp::Send, &sges))?;
        let reply = self.exchange()?;
        self.take(&reply, extra)
    }

    /// Waits until the call has been sent and answered. Returns the reply.
    fn exchange(&self) -> Result<Vec<u8>, LinkError> {
        let (mut is_sent, mut reply) = (false, None);
        loop {
            let wc = self.link.next(self.patience)?;
            if wc.opcode == WcOpcode::Recv {
                let place = wc.wr_id as usize;
                let len = (wc.byte_len as usize).min(MESSAGE);
                let bytes = self.messages.read_vec(place * MESSAGE, len)?;
                post_receive(&self.link, &self.messages, place)?;
                if reply.replace(bytes).is_some() {
                    return Err(LinkError::protocol("two replies to one call"));
                }
            } else {
                is_sent = true;
            }
            if is_sent && reply.is_some() {
                return reply.ok_or(LinkError::Ended);
            }
        }
    }

    /// Parses a reply. Returns the results, and the number of bytes that the server has placed.
    fn take(&self, reply: &[u8], extra: Extra<'_>) -> Result<(Vec<u8>, usize), LinkError> {
        let garbage = || LinkError::protocol("a reply without a header");
        let (header, inline) = Header::decode(reply).map_err(|_| garbage())?;
        if header.xid != self.xid {
            return Err(LinkError::protocol(format!("a reply to call {}, not {}", header.xid, self.xid)));
        }
        let (chunks, bytes) = match header.kind {
            Kind::Message(chunks) => (chunks, inline.to_vec()),
            Kind::NoMessage(chunks) => {
                let len = chunks.reply.as_deref().map_or(0, sum);
                if !extra.is_long || len > LONG_REPLY {
                    return Err(LinkError::protocol(format!(
                        "a reply of {len} bytes that nobody has room for"
                    )));
                }
                (chunks, self.data.read_vec(MOST_DATA, len)?)
            }
            Kind::Error(refusal) => {
                let status = format!("{refusal:?}");
                return Err(LinkError::Refused { what: "RPC over RDMA", status });
            }
        };
        let placed = chunks.writes.iter().map(|chunk| sum(chunk)).sum();
        if placed > extra.write {
            return Err(LinkError::protocol(format!("{placed} bytes placed where {} are", extra.write)));
        }
        let mut from = Reader::new(&bytes);
        let failed = |status| LinkError::Refused { what: "RPC", status };
        rpc::read_reply(&mut from, self.xid)?.map_err(failed)?;
        Ok((from.rest().to_vec(), placed))
    }
}

/// The size of a chunk in bytes. The server may claim any number.
fn sum(chunk: &[Segment]) -> usize {
    chunk.iter().map(|segment| segment.len as usize).sum()
}

fn post_receive(link: &Link, messages: &Mr, place: usize) -> Result<(), LinkError> {
    let sges = [messages.sge(place * MESSAGE, MESSAGE as u32)];
    Ok(link.qp().post_recv(&RecvWr { wr_id: place as u64, sges: &sges })?)
}
