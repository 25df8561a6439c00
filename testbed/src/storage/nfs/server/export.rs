//! The files that are served, and their attributes.

use super::{
    sessions::LEASE,
    v4::{NAME, attr},
};
use crate::storage::{link::LinkError, nfs::xdr::Writer};
use rxe_verbs::{Access, Mr, Pd};
use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::Path,
    time::SystemTime,
};

/// Maximum number of files and folders.
const MOST_NODES: usize = 100_000;
/// Maximum size of all files together, in bytes.
const MOST_BYTES: u64 = 1 << 30;
/// Maximum number of bytes that one READ returns.
pub(super) const MOST_READ: usize = 256 << 10;

/// The attributes that the server supports, as a bit set.
const KNOWN: u64 = bits(&[
    attr::SUPPORTED,
    attr::TYPE,
    attr::FH_EXPIRE,
    attr::CHANGE,
    attr::SIZE,
    attr::LINK_SUPPORT,
    attr::SYMLINK_SUPPORT,
    attr::NAMED_ATTR,
    attr::FSID,
    attr::UNIQUE_HANDLES,
    attr::LEASE_TIME,
    attr::RDATTR_ERROR,
    attr::FILEHANDLE,
    attr::FILEID,
    attr::MAX_FILE_SIZE,
    attr::MAX_LINK,
    attr::MAX_NAME,
    attr::MAX_READ,
    attr::MAX_WRITE,
    attr::MODE,
    attr::NUM_LINKS,
    attr::OWNER,
    attr::OWNER_GROUP,
    attr::RAW_DEV,
    attr::SPACE_USED,
    attr::TIME_ACCESS,
    attr::TIME_METADATA,
    attr::TIME_MODIFY,
    attr::MOUNTED_ON,
]);

const fn bits(attributes: &[u32]) -> u64 {
    let (mut bits, mut place) = (0, 0);
    while place < attributes.len() {
        bits |= 1 << attributes[place];
        place += 1;
    }
    bits
}

/// The folder in registered memory. Clients have no access rights to it: the server moves the data.
#[derive(Debug)]
pub(super) struct Export {
    nodes: Vec<Node>,
    memory: Mr,
    /// A number that distinguishes handles of this run from those of other runs.
    run: u32,
}

/// A file or a folder.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) parent: usize,
    pub(super) content: Content,
    mode: u32,
    user: u32,
    group: u32,
    /// The modification time in seconds and nanoseconds.
    modified: (i64, u32),
}

#[derive(Debug)]
pub(super) enum Content {
    /// The place of its bytes in the memory.
    File { offset: usize, len: usize },
    /// Its entries by name.
    Folder(BTreeMap<Vec<u8>, usize>),
}

impl Export {
    pub(super) fn read(folder: &Path, pd: &Pd) -> Result<Self, LinkError> {
        let failed = |error: io::Error| LinkError::Refused {
            what: "reading the folder",
            status: format!("{}: {error}", folder.display()),
        };
        let (mut nodes, mut data) = (Vec::new(), Vec::new());
        read_node(folder, 0, &mut nodes, &mut data).map_err(failed)?;
        let memory = pd.alloc_mr(data.len().max(1), Access::LOCAL_WRITE)?;
        memory.write_at(0, &data)?;
        let run =
            SystemTime::UNIX_EPOCH.elapsed().map_or(1, |time| time.subsec_nanos() ^ time.as_secs() as u32);
        Ok(Self { nodes, memory, run })
    }

    pub(super) const fn memory(&self) -> &Mr {
        &self.memory
    }

    pub(super) fn node(&self, number: usize) -> &Node {
        &self.nodes[number]
    }

    /// A node's handle.
    pub(super) fn handle(&self, number: usize) -> [u8; 8] {
        let mut handle = [0; 8];
        handle[..4].copy_from_slice(&self.run.to_be_bytes());
        handle[4..].copy_from_slice(&(number as u32).to_be_bytes());
        handle
    }

    /// The node of a handle. `None` if the handle's length is wrong; an error if there is no such node, or no longer one.
    pub(super) fn find(&self, handle: &[u8]) -> Option<Result<usize, ()>> {
        let handle: &[u8; 8] = handle.try_into().ok()?;
        let number = u32::from_be_bytes([handle[4], handle[5], handle[6], handle[7]]) as usize;
        let is_ours = number < self.nodes.len() && self.handle(number) == *handle;
        Some(if is_ours { Ok(number) } else { Err(()) })
    }

    /// Writes those of the requested attributes that are supported (RFC 8881, 5).
    pub(super) fn attributes(&self, number: usize, wanted: u64, out: &mut Writer) {
        let node = self.node(number);
        let wanted = wanted & KNOWN;
        let mut values = Writer::default();
        for attribute in (0..64).filter(|bit| wanted >> bit & 1 == 1) {
            self.attribute(number, node, attribute, &mut values);
        }
        out.bits(wanted).opaque(&values.0);
    }

    fn attribute(&self, number: usize, node: &Node, attribute: u32, out: &mut Writer) {
        let size = node.size();
        let folder = matches!(node.content, Content::Folder(_));
        match attribute {
            attr::SUPPORTED => drop(out.bits(KNOWN)),
            // NF4REG and NF4DIR.
            attr::TYPE => drop(out.word(if folder { 2_u32 } else { 1 })),
            attr::CHANGE => drop(out.long((node.modified.0 as u64) << 32 | u64::from(node.modified.1))),
            attr::SIZE => drop(out.long(size)),
            attr::SPACE_USED => drop(out.long(size.next_multiple_of(4096))),
            attr::UNIQUE_HANDLES => drop(out.word(true)),
            attr::FSID => drop(out.long(u64::from(self.run)).long(0)),
            attr::LEASE_TIME => drop(out.word(LEASE)),
            attr::FILEHANDLE => drop(out.opaque(&self.handle(number))),
            // Some programs treat 0 as "no file".
            attr::FILEID | attr::MOUNTED_ON => drop(out.long(number as u64 + 1)),
            attr::MAX_FILE_SIZE => drop(out.long(i64::MAX as u64)),
            attr::MAX_LINK => drop(out.word(1_u32)),
            attr::MAX_NAME => drop(out.word(NAME as u32)),
            attr::MAX_READ | attr::MAX_WRITE => drop(out.long(MOST_READ as u64)),
            attr::MODE => drop(out.word(node.mode & 0o7777)),
            attr::NUM_LINKS => drop(out.word(if folder { 2_u32 } else { 1 })),
            // As decimal numbers (RFC 8881, 5.9).
            attr::OWNER => drop(out.opaque(node.user.to_string().as_bytes())),
            attr::OWNER_GROUP => drop(out.opaque(node.group.to_string().as_bytes())),
            attr::RAW_DEV => drop(out.word(0_u32).word(0_u32)),
            attr::TIME_ACCESS | attr::TIME_METADATA | attr::TIME_MODIFY => {
                out.long(node.modified.0 as u64).word(node.modified.1);
            }
            // Handles do not expire, there are no links and no named attributes, and there was no error.
            _ => drop(out.word(0_u32)),
        }
    }
}

impl Node {
    pub(super) fn size(&self) -> u64 {
        match &self.content {
            Content::File { len, .. } => *len as u64,
            Content::Folder(_) => 4096,
        }
    }
}

/// Reads a file, or a folder and everything in it. Returns the number of its node.
fn read_node(path: &Path, parent: usize, nodes: &mut Vec<Node>, data: &mut Vec<u8>) -> io::Result<usize> {
    let about = fs::symlink_metadata(path)?;
    let number = nodes.len();
    if number == MOST_NODES || data.len() as u64 + about.len() > MOST_BYTES {
        let text = format!("more than {MOST_NODES} files or {MOST_BYTES} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    nodes.push(Node {
        parent,
        content: Content::Folder(BTreeMap::new()),
        mode: about.mode(),
        user: about.uid(),
        group: about.gid(),
        modified: (about.mtime(), about.mtime_nsec() as u32),
    });
    if !about.is_dir() {
        let bytes = fs::read(path)?;
        nodes[number].content = Content::File { offset: data.len(), len: bytes.len() };
        data.extend(bytes);
        return Ok(number);
    }
    let mut children = BTreeMap::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let name = entry.file_name().as_bytes().to_vec();
        if (kind.is_dir() || kind.is_file()) && name.len() <= NAME {
            children.insert(name, read_node(&entry.path(), number, nodes, data)?);
        }
    }
    nodes[number].content = Content::Folder(children);
    Ok(number)
}
