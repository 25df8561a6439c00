//! COMPOUND (RFC 8881, 16.2): a list of operations, executed one after the other until one fails.

use super::{
    Shared,
    export::{Content, MOST_READ},
    sessions::SLOTS,
    v4::{HANDLE, MINOR, NAME, OWNER, Status, op},
};
use crate::storage::nfs::xdr::{Reader, Writer, XdrError};

/// Maximum number of operations in a list.
const MOST_OPS: u32 = 16;
/// Maximum size of a folder's entries in one reply, in bytes.
const MOST_ENTRIES: usize = 32 << 10;
/// Maximum size of file data within the results themselves, in bytes.
const MOST_INLINE: usize = 32 << 10;
/// Smaller cookies are reserved by the protocol (18.23).
const FIRST_COOKIE: u64 = 3;

/// The outcome of a list of operations.
#[derive(Default)]
pub(super) struct Reply {
    pub(super) results: Writer,
    /// Data of a file that are written to the client's memory instead of the results.
    pub(super) data: Option<Data>,
    /// The size of that memory in bytes; `None` if the client has named no memory, and the data are part of the results.
    pub(super) room: Option<usize>,
}

/// A part of the export's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Data {
    pub(super) offset: usize,
    pub(super) len: usize,
}

/// Why an operation has no result.
enum Failed {
    Status(Status),
    Xdr,
}

impl From<XdrError> for Failed {
    fn from(_: XdrError) -> Self {
        Self::Xdr
    }
}

impl From<Status> for Failed {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

type Outcome = Result<(), Failed>;

/// Executes a list of operations.
pub(super) fn execute(shared: &Shared, mut from: Reader<'_>, reply: &mut Reply) -> Result<(), XdrError> {
    let tag = from.opaque(OWNER)?;
    let (minor, count) = (from.word()?, from.word()?);
    let mut work =
        Work { shared, current: None, saved: None, out: Writer::default(), data: None, room: reply.room };
    let (mut status, mut done) = (Status::OK, 0_u32);
    if minor != MINOR {
        status = Status::MINOR_VERSION;
    } else {
        while done < count && status == Status::OK {
            let number = from.word()?;
            status = work.step(number, done, count, &mut from);
            done += 1;
        }
    }
    reply.results.word(status.0).opaque(tag).word(done);
    reply.results.0.extend_from_slice(&work.out.0);
    reply.data = work.data;
    Ok(())
}

/// A list of operations that is being executed.
struct Work<'a> {
    shared: &'a Shared,
    /// The current and the saved file handle.
    current: Option<usize>,
    saved: Option<usize>,
    out: Writer,
    data: Option<Data>,
    room: Option<usize>,
}

impl Work<'_> {
    /// Executes an operation and writes its result.
    fn step(&mut self, number: u32, place: u32, count: u32, from: &mut Reader<'_>) -> Status {
        let is_known = (op::ACCESS..=op::RECLAIM_COMPLETE).contains(&number);
        self.out.word(if is_known { number } else { op::ILLEGAL });
        let at = self.out.0.len();
        self.out.word(0_u32);
        let outcome = match Self::allowed(number, place, count) {
            Status::OK if is_known => self.operate(number, from),
            Status::OK => Err(Status::ILLEGAL.into()),
            status => Err(status.into()),
        };
        let status = match outcome {
            Ok(()) => return Status::OK,
            Err(Failed::Status(status)) => status,
            Err(Failed::Xdr) => Status::BAD_XDR,
        };
        self.out.0.truncate(at);
        self.out.word(status.0);
        if number == op::SETATTR {
            // Its result includes the attributes that were set, even if it fails (18.30).
            self.out.bits(0);
        }
        status
    }

    /// Checks whether an operation may stand at this place in a list (2.10.6.1 and 18.46.3).
    fn allowed(number: u32, place: u32, count: u32) -> Status {
        let makes_or_ends_sessions = matches!(
            number,
            op::EXCHANGE_ID | op::CREATE_SESSION | op::DESTROY_SESSION | op::DESTROY_CLIENTID
        );
        match (number, place) {
            _ if place >= MOST_OPS => Status::TOO_MANY_OPS,
            (op::SEQUENCE, 0) => Status::OK,
            (op::SEQUENCE, _) => Status::SEQUENCE_POSITION,
            (_, 0) if !makes_or_ends_sessions => Status::NO_SESSION,
            (_, 0) if count > 1 => Status::NOT_ONLY,
            _ => Status::OK,
        }
    }

    fn operate(&mut self, number: u32, from: &mut Reader<'_>) -> Outcome {
        match number {
            op::EXCHANGE_ID => self.exchange_id(from),
            op::CREATE_SESSION => self.create_session(from),
            op::DESTROY_SESSION => Ok(self.shared.sessions.destroy(from.fixed(16)?)?),
            op::DESTROY_CLIENTID => Ok(self.shared.sessions.destroy_client(from.long()?)?),
            op::SEQUENCE => self.sequence(from),
            // There is no state to reclaim.
            op::RECLAIM_COMPLETE => from.flag().map(drop).map_err(Failed::from),
            op::PUTROOTFH | op::PUTPUBFH => {
                self.current = Some(0);
                Ok(())
            }
            op::PUTFH => self.put_handle(from),
            op::GETFH => {
                let handle = self.shared.export.handle(self.current()?);
                self.out.opaque(&handle);
                Ok(())
            }
            op::SAVEFH => {
                self.saved = Some(self.current()?);
                Ok(())
            }
            op::RESTOREFH => {
                self.current = Some(self.saved.ok_or(Status::NO_HANDLE)?);
                Ok(())
            }
            op::LOOKUP => {
                let name = from.opaque(NAME)?;
                self.look_up(name)
            }
            op::LOOKUPP => match self.current()? {
                0 => Err(Status::NO_ENTRY.into()),
                node => {
                    self.current = Some(self.shared.export.node(node).parent);
                    Ok(())
                }
            },
            op::GETATTR => {
                let (node, wanted) = (self.current()?, from.bits()?);
                self.shared.export.attributes(node, wanted, &mut self.out);
                Ok(())
            }
            op::ACCESS => self.access(from),
            op::SECINFO_NO_NAME => {
                from.word()?;
                // AUTH_SYS and AUTH_NONE. The current file handle is consumed (18.45).
                self.current()?;
                self.current = None;
                self.out.word(2_u32).word(1_u32).word(0_u32);
                Ok(())
            }
            op::OPEN => self.open(from),
            op::CLOSE => {
                from.word()?;
                let state = from.fixed(16)?;
                self.out.fixed(state);
                Ok(())
            }
            op::TEST_STATEID => {
                let count = from.word()?.min(64);
                self.out.word(count);
                for _ in 0..count {
                    from.fixed(16)?;
                    self.out.word(0_u32);
                }
                Ok(())
            }
            op::READ => self.read(from),
            op::READDIR => self.read_folder(from),
            op::COMMIT | op::CREATE | op::LINK | op::REMOVE | op::RENAME | op::SETATTR | op::WRITE => {
                Err(Status::READ_ONLY.into())
            }
            _ => Err(Status::NOT_SUPPORTED.into()),
        }
    }

    fn current(&self) -> Result<usize, Status> {
        self.current.ok_or(Status::NO_HANDLE)
    }

    /// EXCHANGE_ID: identifies a client (18.35).
    fn exchange_id(&mut self, from: &mut Reader<'_>) -> Outcome {
        let mut verifier = [0; 8];
        verifier.copy_from_slice(from.fixed(8)?);
        let owner = from.opaque(OWNER)?;
        let (_flags, protection) = (from.word()?, from.word()?);
        if protection != 0 {
            return Err(Status::NOT_SUPPORTED.into());
        }
        let known = self.shared.sessions.exchange(owner, verifier)?;
        // No parallel NFS (USE_NON_PNFS), and whether the client has had a session before (CONFIRMED_R).
        let flags = 0x1_0000 | if known.is_confirmed { 0x8000_0000_u32 } else { 0 };
        self.out.long(known.client).word(known.sequence).word(flags).word(0_u32);
        // The server's name, its scope, and no description of this implementation.
        self.out.long(0).opaque(b"rxe testbed").opaque(b"rxe testbed").word(0_u32);
        Ok(())
    }

    /// Creates a session (18.36). The server never calls the client back.
    fn create_session(&mut self, from: &mut Reader<'_>) -> Outcome {
        let (client, sequence, _flags) = (from.long()?, from.word()?, from.word()?);
        let mut channels = [[0; 6]; 2];
        for channel in &mut channels {
            for word in channel.iter_mut() {
                *word = from.word()?;
            }
            // RDMA reads: none, or one number.
            if from.word()? > 0 {
                from.word()?;
            }
        }
        let name = self.shared.sessions.create(client, sequence)?;
        self.out.fixed(&name).word(sequence).word(0_u32);
        for [_, call, reply, _, ops, slots] in channels {
            // Padding and cached replies: none.
            self.out.word(0_u32).word(call).word(reply).word(0_u32);
            self.out.word(ops.min(MOST_OPS)).word(slots.clamp(1, SLOTS)).word(0_u32);
        }
        Ok(())
    }

    fn sequence(&mut self, from: &mut Reader<'_>) -> Outcome {
        let name = from.fixed(16)?;
        let (sequence, slot, _highest, _keep) = (from.word()?, from.word()?, from.word()?, from.word()?);
        self.shared.sessions.call(name, slot, sequence)?;
        self.out.fixed(name).word(sequence).word(slot).word(SLOTS - 1).word(SLOTS - 1).word(0_u32);
        Ok(())
    }

    fn put_handle(&mut self, from: &mut Reader<'_>) -> Outcome {
        let found = self.shared.export.find(from.opaque(HANDLE)?).ok_or(Status::BAD_HANDLE)?;
        self.current = Some(found.map_err(|()| Status::STALE)?);
        Ok(())
    }

    fn look_up(&mut self, name: &[u8]) -> Outcome {
        let Content::Folder(children) = &self.shared.export.node(self.current()?).content else {
            return Err(Status::NOT_DIR.into());
        };
        self.current = Some(*children.get(name).ok_or(Status::NO_ENTRY)?);
        Ok(())
    }

    /// The permitted kinds of access (18.1): reading, and in folders looking up names. Whether a file may be executed is
    /// decided by the client.
    fn access(&mut self, from: &mut Reader<'_>) -> Outcome {
        let wanted = from.word()? & 0x3f;
        let folder = matches!(self.shared.export.node(self.current()?).content, Content::Folder(_));
        let allowed = if folder { 0x01 | 0x02 } else { 0x01 | 0x20 };
        self.out.word(wanted).word(wanted & allowed);
        Ok(())
    }

    /// Opens a file (18.16), by name or by handle, for reading. No state is kept for it, because the file cannot change and
    /// there are no locks.
    fn open(&mut self, from: &mut Reader<'_>) -> Outcome {
        let (_sequence, access, _deny) = (from.word()?, from.word()?, from.word()?);
        let (_client, _owner) = (from.long()?, from.opaque(OWNER)?);
        let makes = from.word()? == 1;
        // OPEN4_SHARE_ACCESS_WRITE.
        if makes || access & 2 != 0 {
            return Err(Status::READ_ONLY.into());
        }
        match from.word()? {
            // CLAIM_NULL, CLAIM_FH.
            0 => {
                let name = from.opaque(NAME)?;
                self.look_up(name)?;
            }
            4 => {}
            _ => return Err(Status::NOT_SUPPORTED.into()),
        }
        let node = self.current()?;
        if matches!(self.shared.export.node(node).content, Content::Folder(_)) {
            return Err(Status::IS_DIR.into());
        }
        let mut state = [0; 16];
        state[3] = 1;
        state[4..8].copy_from_slice(b"open");
        state[8..].copy_from_slice(&self.shared.export.handle(node));
        // The state; no change of the folder; no flags, no attributes set, no delegation.
        self.out.fixed(&state).word(true).long(1).long(1).word(0_u32).bits(0).word(0_u32);
        Ok(())
    }

    /// Reads from a file (18.22). If the client has named memory for the data, the results contain only their length.
    fn read(&mut self, from: &mut Reader<'_>) -> Outcome {
        let state = from.fixed(16)?;
        let (start, count) = (from.long()?, from.word()? as usize);
        let node = self.current()?;
        let Content::File { offset, len } = self.shared.export.node(node).content else {
            return Err(Status::IS_DIR.into());
        };
        let is_special = state.iter().all(|byte| *byte == 0) || state.iter().all(|byte| *byte == 0xff);
        if !is_special && state[8..] != self.shared.export.handle(node) {
            return Err(Status::BAD_STATE.into());
        }
        if self.data.is_some() {
            // The data of one READ are written to the client's memory. A second READ would need a separate place.
            return Err(Status::REPLY_TOO_BIG.into());
        }
        let start = usize::try_from(start).unwrap_or(usize::MAX).min(len);
        let take = count.min(len - start).min(MOST_READ).min(self.room.unwrap_or(MOST_INLINE));
        self.out.word(start + take == len).word(take as u32);
        let data = Data { offset: offset + start, len: take };
        if self.room.is_some() {
            self.data = Some(data);
        } else {
            // The export's memory stays registered, so this cannot fail.
            let bytes = self.shared.export.memory().read_vec(data.offset, data.len);
            self.out.fixed(&bytes.map_err(|_| Status::IO)?);
        }
        Ok(())
    }

    /// Lists a folder (18.23).
    fn read_folder(&mut self, from: &mut Reader<'_>) -> Outcome {
        let (cookie, _verifier) = (from.long()?, from.fixed(8)?);
        let (_names, most, wanted) = (from.word()?, from.word()? as usize, from.bits()?);
        let Content::Folder(children) = &self.shared.export.node(self.current()?).content else {
            return Err(Status::NOT_DIR.into());
        };
        let first = match cookie {
            0 => 0,
            cookie => cookie.checked_sub(FIRST_COOKIE - 1).ok_or(Status::BAD_COOKIE)?,
        };
        self.out.fixed(&[0; 8]);
        let begin = self.out.0.len();
        let mut is_end = true;
        for (place, (name, node)) in
            (0_u64..).zip(children).skip(usize::try_from(first).unwrap_or(usize::MAX))
        {
            let mut entry = Writer::default();
            entry.word(true).long(place + FIRST_COOKIE).opaque(name);
            self.shared.export.attributes(*node, wanted, &mut entry);
            if self.out.0.len() - begin + entry.0.len() + 16 > most.min(MOST_ENTRIES) {
                is_end = false;
                break;
            }
            self.out.0.extend_from_slice(&entry.0);
        }
        if !is_end && self.out.0.len() == begin {
            return Err(Status::TOO_SMALL.into());
        }
        self.out.word(false).word(is_end);
        Ok(())
    }
}
