//! A client. It has one session with one slot, so it makes one call at a time.

mod wire;

use super::{
    rpc,
    v4::{self, Status, attr, op},
    xdr::{Reader, Writer},
};
use crate::storage::link::LinkError;
use core::time::Duration;
use rxe_cm::Manager;
use std::{
    net::{IpAddr, SocketAddr},
    thread::sleep,
    time::Instant,
};
use wire::{Extra, Wire};

/// Maximum number of bytes of a file that one call reads or writes.
const MOST_DATA: usize = 256 << 10;
/// Size of the memory for a reply that is too long for a message.
const LONG_REPLY: usize = 64 << 10;
/// The pause before an operation is repeated because the server was busy or in its grace period.
const PAUSE: Duration = Duration::from_millis(500);
/// OPEN4_SHARE_ACCESS_READ and WRITE, and the request for no delegation (OPEN4_SHARE_ACCESS_WANT_NO_DELEG).
const SHARE: u32 = 3 | 0x0400;
/// Write through to stable storage (FILE_SYNC4).
const FILE_SYNC: u32 = 2;

/// The server to connect to, and the identity to use.
#[derive(Clone, Debug)]
pub struct Mount {
    /// The connection manager that sets up the connection.
    pub manager: Manager,
    /// Our address, if a particular one is required.
    pub from: Option<IpAddr>,
    /// The server's address; the port for RDMA is 20049.
    pub to: SocketAddr,
    /// How long the server may take for any operation.
    pub patience: Duration,
    /// Maximum number of bytes of a file, or of the names in a folder. The bytes are kept in memory, and without a limit a
    /// server could claim that there is always more.
    pub most: usize,
    /// The user on whose behalf calls are made.
    pub user: u32,
    /// The group on whose behalf calls are made.
    pub group: u32,
}

/// A session with a server.
#[derive(Debug)]
pub struct Client {
    wire: Wire,
    mount: Mount,
    client: u64,
    session: [u8; 16],
    /// The sequence number of the next call in our only slot.
    sequence: u32,
}

/// An open file.
struct Opened {
    handle: Vec<u8>,
    state: [u8; 16],
}

impl Client {
    /// Connects, and creates a session (RFC 8881, 18.35 and 18.36).
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn connect(mount: &Mount) -> Result<Self, LinkError> {
        let wire = Wire::open(mount)?;
        let mut client = Self { wire, mount: mount.clone(), client: 0, session: [0; 16], sequence: 1 };
        let owner = format!("rxe testbed {} {:?}", std::process::id(), Instant::now());
        let mut ops = Compound::new();
        // The verifier, the owner, no flags, no state protection, and no description of this implementation.
        ops.op(op::EXCHANGE_ID).long(1).opaque(owner.as_bytes()).word(0_u32).word(0_u32).word(0_u32);
        let reply = client.compound("EXCHANGE_ID", ops, Extra::default())?;
        let mut from = result(&reply.0, op::EXCHANGE_ID)?;
        client.client = from.long()?;
        let sequence = from.word()?;

        let mut ops = Compound::new();
        let args = ops.op(op::CREATE_SESSION).long(client.client).word(sequence).word(0_u32);
        for is_back in [false, true] {
            // Padding, size of a call, of a reply, of a cached reply, number of operations, number of slots; no RDMA reads.
            let size = if is_back { 4096_u32 } else { (MOST_DATA + 4096) as u32 };
            args.word(0_u32).word(size).word(size).word(0_u32).word(16_u32).word(1_u32).word(0_u32);
        }
        // The server cannot call us back: the callback program is a dummy without credentials.
        args.word(0x4000_0000_u32).word(1_u32).word(0_u32);
        let reply = client.compound("CREATE_SESSION", ops, Extra::default())?;
        let session = result(&reply.0, op::CREATE_SESSION)?.fixed(16)?;
        client.session.copy_from_slice(session);

        // There is no state to reclaim (18.51). From now on files may be opened.
        let mut ops = client.sequenced();
        ops.op(op::RECLAIM_COMPLETE).word(0_u32);
        client.compound("RECLAIM_COMPLETE", ops, Extra::default())?;
        Ok(client)
    }

    /// The NULL procedure (RFC 8881, 16.1).
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn null(&mut self) -> Result<(), LinkError> {
        self.wire.call(rpc::NULL, &self.mount, &[], Extra::default()).map(drop)
    }

    /// Reads a whole file, with calls of `piece` bytes each, 256 KiB at most.
    ///
    /// # Errors
    /// [`LinkError`]; [`LinkError::Refused`] if the file does not exist, or may not be read.
    pub fn read(&mut self, path: &str, piece: usize) -> Result<Vec<u8>, LinkError> {
        let opened = self.open(path, false)?;
        let mut data = Vec::new();
        loop {
            let mut ops = self.sequenced();
            ops.op(op::PUTFH).opaque(&opened.handle);
            let piece = piece.clamp(1, MOST_DATA);
            ops.op(op::READ).fixed(&opened.state).long(data.len() as u64).word(piece as u32);
            let extra = Extra { write: piece, ..Extra::default() };
            let (reply, placed) = self.compound("READ", ops, extra)?;
            let mut from = result(&reply, op::READ)?;
            let (is_end, len) = (from.flag()?, from.word()? as usize);
            // The data were left out of the reply. They are in the memory that the call named.
            if len != placed || len > piece {
                return Err(LinkError::protocol(format!(
                    "READ of {piece} bytes: {len} said, {placed} placed"
                )));
            }
            if len == 0 && !is_end {
                return Err(LinkError::protocol("READ of nothing, and no end of the file"));
            }
            if data.len() + len > self.mount.most {
                return Err(LinkError::protocol(format!("a file of more than {} bytes", self.mount.most)));
            }
            data.extend(self.wire.data.read_vec(0, len)?);
            if is_end {
                break;
            }
        }
        self.close(&opened)?;
        Ok(data)
    }

    /// Writes a file, with calls of `piece` bytes each, 256 KiB at most. Creates the file if it does not exist.
    ///
    /// # Errors
    /// [`LinkError`]; [`LinkError::Refused`] if that is not allowed.
    pub fn write(&mut self, path: &str, data: &[u8], piece: usize) -> Result<(), LinkError> {
        let opened = self.open(path, true)?;
        let piece = piece.clamp(1, MOST_DATA);
        for (part, offset) in data.chunks(piece).zip((0..).step_by(piece)) {
            let mut ops = self.sequenced();
            ops.op(op::PUTFH).opaque(&opened.handle);
            ops.op(op::WRITE).fixed(&opened.state).long(offset).word(FILE_SYNC).word(part.len() as u32);
            // The bytes themselves are not part of the call message (RFC 8267, 4).
            let extra = Extra { read: Some((ops.args.0.len(), part)), ..Extra::default() };
            let (reply, _) = self.compound("WRITE", ops, extra)?;
            let count = result(&reply, op::WRITE)?.word()? as usize;
            if count != part.len() {
                return Err(LinkError::protocol(format!(
                    "WRITE of {} bytes: {count} were taken",
                    part.len()
                )));
            }
        }
        self.close(&opened)
    }

    /// The names in a folder.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn list(&mut self, path: &str) -> Result<Vec<String>, LinkError> {
        let (mut names, mut cookie, mut verifier, mut left) = (Vec::new(), 0, [0; 8], self.mount.most);
        loop {
            let mut ops = self.sequenced();
            walk(&mut ops, &parts(path));
            let room = (LONG_REPLY - 1024) as u32;
            ops.op(op::READDIR).long(cookie).fixed(&verifier).word(room).word(room).bits(0);
            let (reply, _) = self.compound("READDIR", ops, Extra { is_long: true, ..Extra::default() })?;
            let mut from = result(&reply, op::READDIR)?;
            verifier.copy_from_slice(from.fixed(8)?);
            let before = names.len();
            while from.flag()? {
                cookie = from.long()?;
                let name = String::from_utf8_lossy(from.opaque(v4::NAME)?).into_owned();
                // Even an empty name takes memory.
                left = left.checked_sub(size_of::<String>() + name.len()).ok_or_else(|| {
                    LinkError::protocol(format!("names of more than {} bytes", self.mount.most))
                })?;
                names.push(name);
                from.bits()?;
                from.opaque(LONG_REPLY)?;
            }
            if from.flag()? {
                return Ok(names);
            }
            if names.len() == before {
                return Err(LinkError::protocol("READDIR of nothing, and no end of the folder"));
            }
        }
    }

    /// Removes a file.
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn remove(&mut self, path: &str) -> Result<(), LinkError> {
        let parts = parts(path);
        let (name, folder) = parts.split_last().ok_or_else(|| LinkError::protocol("no name"))?;
        let mut ops = self.sequenced();
        walk(&mut ops, folder);
        ops.op(op::REMOVE).opaque(name.as_bytes());
        self.compound("REMOVE", ops, Extra::default()).map(drop)
    }

    /// Destroys the session and the client ID (18.37 and 18.50).
    ///
    /// # Errors
    /// [`LinkError`].
    pub fn leave(mut self) -> Result<(), LinkError> {
        let mut ops = Compound::new();
        ops.op(op::DESTROY_SESSION).fixed(&self.session);
        self.compound("DESTROY_SESSION", ops, Extra::default())?;
        let mut ops = Compound::new();
        ops.op(op::DESTROY_CLIENTID).long(self.client);
        self.compound("DESTROY_CLIENTID", ops, Extra::default()).map(drop)
    }

    /// Opens a file for reading (18.16). With `make`, the file is created if necessary, and is opened for writing, too.
    fn open(&mut self, path: &str, make: bool) -> Result<Opened, LinkError> {
        let parts = parts(path);
        let (name, folder) = parts.split_last().ok_or_else(|| LinkError::protocol("no name"))?;
        let end = Instant::now() + self.mount.patience;
        let reply = loop {
            let mut ops = self.sequenced();
            walk(&mut ops, folder);
            let args = ops.op(op::OPEN).word(0_u32).word(if make { SHARE } else { SHARE & !2 }).word(0_u32);
            args.long(self.client).opaque(b"testbed");
            if make {
                // UNCHECKED4, with a file mode.
                let mut mode = Writer::default();
                mode.word(0o644_u32);
                args.word(1_u32).word(0_u32).bits(1 << attr::MODE).opaque(&mode.0);
            } else {
                args.word(0_u32);
            }
            // By its name (CLAIM_NULL).
            args.word(0_u32).opaque(name.as_bytes());
            ops.op(op::GETFH);
            let (status, reply) = self.try_compound(ops, Extra::default())?;
            match status {
                Status::OK => break reply.0,
                Status::GRACE | Status::DELAY if Instant::now() < end => sleep(PAUSE),
                status => return Err(LinkError::Refused { what: "OPEN", status: status.to_string() }),
            }
        };
        let mut state = [0; 16];
        state.copy_from_slice(result(&reply, op::OPEN)?.fixed(16)?);
        let handle = result(&reply, op::GETFH)?.opaque(v4::HANDLE)?.to_vec();
        Ok(Opened { handle, state })
    }

    fn close(&mut self, opened: &Opened) -> Result<(), LinkError> {
        let mut ops = self.sequenced();
        ops.op(op::PUTFH).opaque(&opened.handle);
        ops.op(op::CLOSE).word(0_u32).fixed(&opened.state);
        self.compound("CLOSE", ops, Extra::default()).map(drop)
    }

    /// A list of operations that begins with SEQUENCE, as a session requires (18.46).
    fn sequenced(&mut self) -> Compound {
        let mut ops = Compound::new();
        let (slot, highest, keep) = (0_u32, 0_u32, 0_u32);
        ops.op(op::SEQUENCE).fixed(&self.session).word(self.sequence).word(slot).word(highest).word(keep);
        self.sequence += 1;
        ops
    }

    fn compound(
        &mut self,
        what: &'static str,
        ops: Compound,
        extra: Extra<'_>,
    ) -> Result<(Vec<OpResult>, usize), LinkError> {
        match self.try_compound(ops, extra)? {
            (Status::OK, reply) => Ok(reply),
            (status, _) => Err(LinkError::Refused { what, status: status.to_string() }),
        }
    }

    /// Makes a call. Returns the status, the results, and the number of bytes that the server placed in our memory.
    fn try_compound(
        &mut self,
        ops: Compound,
        extra: Extra<'_>,
    ) -> Result<(Status, (Vec<OpResult>, usize)), LinkError> {
        let (wanted, args) = ops.finish();
        let (bytes, placed) = self.wire.call(rpc::COMPOUND, &self.mount, &args, extra)?;
        let mut from = Reader::new(&bytes);
        let status = Status(from.word()?);
        from.opaque(v4::OWNER)?;
        let count = from.word()? as usize;
        if status != Status::OK {
            return Ok((status, (Vec::new(), placed)));
        }
        if count != wanted.len() {
            return Err(LinkError::protocol(format!("{count} results of {} operations", wanted.len())));
        }
        Ok((status, (results(&wanted, from)?, placed)))
    }
}

/// An operation's number, and its result.
struct OpResult(u32, Vec<u8>);

fn result<'a>(results: &'a [OpResult], op: u32) -> Result<Reader<'a>, LinkError> {
    let found = results.iter().find(|result| result.0 == op);
    found.map(|result| Reader::new(&result.1)).ok_or_else(|| LinkError::protocol("a result is missing"))
}

/// Splits the results of a reply. The length is determined only for operations that others follow; the last result takes all
/// remaining bytes.
fn results(wanted: &[u32], mut from: Reader<'_>) -> Result<Vec<OpResult>, LinkError> {
    let mut found = Vec::new();
    for (place, op) in wanted.iter().enumerate() {
        let (had, status) = (from.word()?, from.word()?);
        if had != *op || status != 0 {
            return Err(LinkError::protocol(format!(
                "result of operation {had}, status {status}, not of {op}"
            )));
        }
        let before = from.rest();
        match *op {
            _ if place + 1 == wanted.len() => drop(from.fixed(before.len() / 4 * 4)?),
            op::SEQUENCE => drop(from.fixed(36)?),
            op::OPEN => skip_opened(&mut from)?,
            _ => {}
        }
        found.push(OpResult(*op, before[..before.len() - from.rest().len()].to_vec()));
    }
    Ok(found)
}

/// Skips OPEN's result: state, change of the folder, flags, attributes set, delegation (18.16).
fn skip_opened(from: &mut Reader<'_>) -> Result<(), LinkError> {
    from.fixed(16 + 4 + 8 + 8 + 4)?;
    from.bits()?;
    match from.word()? {
        0 => {}
        // No delegation, and the reason. The reasons "contention" and "resources" have one word more.
        3 => {
            if matches!(from.word()?, 1 | 2) {
                from.flag()?;
            }
        }
        kind => return Err(LinkError::protocol(format!("a delegation ({kind}) that nobody wanted"))),
    }
    Ok(())
}

fn parts(path: &str) -> Vec<&str> {
    path.split('/').filter(|part| !part.is_empty()).collect()
}

/// Adds the operations that go to a folder.
fn walk(ops: &mut Compound, folder: &[&str]) {
    ops.op(op::PUTROOTFH);
    for part in folder {
        ops.op(op::LOOKUP).opaque(part.as_bytes());
    }
}

/// A list of operations (RFC 8881, 16.2).
struct Compound {
    args: Writer,
    ops: Vec<u32>,
}

/// The offset of the number of operations: behind an empty tag and the minor version.
const COUNT_AT: usize = 8;

impl Compound {
    fn new() -> Self {
        let mut args = Writer::default();
        args.opaque(&[]).word(v4::MINOR).word(0_u32);
        Self { args, ops: Vec::new() }
    }

    /// Adds an operation; the caller appends its arguments.
    fn op(&mut self, op: u32) -> &mut Writer {
        self.ops.push(op);
        self.args.word(op)
    }

    fn finish(mut self) -> (Vec<u32>, Vec<u8>) {
        self.args.0[COUNT_AT..COUNT_AT + 4].copy_from_slice(&(self.ops.len() as u32).to_be_bytes());
        (self.ops, self.args.0)
    }
}
