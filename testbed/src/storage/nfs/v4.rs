//! The numbers of NFS version 4.1 (RFC 8881; RFC 5662 lists all of them).

/// The minor version.
pub(super) const MINOR: u32 = 1;
/// Maximum size of a file handle in bytes.
pub(super) const HANDLE: usize = 128;
/// Maximum size of a name in bytes.
pub(super) const NAME: usize = 255;
/// Maximum size of an owner's name, or of a tag, in bytes.
pub(super) const OWNER: usize = 1024;

/// Operations (RFC 8881, 18).
pub(super) mod op {
    pub(crate) const ACCESS: u32 = 3;
    pub(crate) const CLOSE: u32 = 4;
    pub(crate) const COMMIT: u32 = 5;
    pub(crate) const CREATE: u32 = 6;
    pub(crate) const GETATTR: u32 = 9;
    pub(crate) const GETFH: u32 = 10;
    pub(crate) const LINK: u32 = 11;
    pub(crate) const LOOKUP: u32 = 15;
    pub(crate) const LOOKUPP: u32 = 16;
    pub(crate) const OPEN: u32 = 18;
    pub(crate) const PUTFH: u32 = 22;
    pub(crate) const PUTPUBFH: u32 = 23;
    pub(crate) const PUTROOTFH: u32 = 24;
    pub(crate) const READ: u32 = 25;
    pub(crate) const READDIR: u32 = 26;
    pub(crate) const REMOVE: u32 = 28;
    pub(crate) const RENAME: u32 = 29;
    pub(crate) const RESTOREFH: u32 = 31;
    pub(crate) const SAVEFH: u32 = 32;
    pub(crate) const SETATTR: u32 = 34;
    pub(crate) const WRITE: u32 = 38;
    pub(crate) const EXCHANGE_ID: u32 = 42;
    pub(crate) const CREATE_SESSION: u32 = 43;
    pub(crate) const DESTROY_SESSION: u32 = 44;
    pub(crate) const SECINFO_NO_NAME: u32 = 52;
    pub(crate) const SEQUENCE: u32 = 53;
    pub(crate) const TEST_STATEID: u32 = 55;
    pub(crate) const DESTROY_CLIENTID: u32 = 57;
    pub(crate) const RECLAIM_COMPLETE: u32 = 58;
    pub(crate) const ILLEGAL: u32 = 10_044;
}

/// The status of an operation (RFC 8881, 15).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Status(pub(super) u32);

impl Status {
    pub(super) const OK: Self = Self(0);
    pub(super) const NO_ENTRY: Self = Self(2);
    pub(super) const IO: Self = Self(5);
    pub(super) const ACCESS: Self = Self(13);
    pub(super) const NOT_DIR: Self = Self(20);
    pub(super) const IS_DIR: Self = Self(21);
    pub(super) const READ_ONLY: Self = Self(30);
    pub(super) const STALE: Self = Self(70);
    pub(super) const BAD_HANDLE: Self = Self(10_001);
    pub(super) const BAD_COOKIE: Self = Self(10_003);
    pub(super) const NOT_SUPPORTED: Self = Self(10_004);
    pub(super) const TOO_SMALL: Self = Self(10_005);
    pub(super) const DELAY: Self = Self(10_008);
    pub(super) const GRACE: Self = Self(10_013);
    pub(super) const NO_HANDLE: Self = Self(10_020);
    pub(super) const MINOR_VERSION: Self = Self(10_021);
    pub(super) const STALE_CLIENT: Self = Self(10_022);
    pub(super) const BAD_STATE: Self = Self(10_025);
    pub(super) const BAD_XDR: Self = Self(10_036);
    pub(super) const ILLEGAL: Self = Self(10_044);
    pub(super) const BAD_SESSION: Self = Self(10_052);
    pub(super) const BAD_SLOT: Self = Self(10_053);
    pub(super) const NOT_ONLY: Self = Self(10_081);
    pub(super) const SEQUENCE_POSITION: Self = Self(10_064);
    pub(super) const MISORDERED: Self = Self(10_063);
    pub(super) const REPLY_TOO_BIG: Self = Self(10_066);
    pub(super) const TOO_MANY_OPS: Self = Self(10_070);
    pub(super) const NO_SESSION: Self = Self(10_071);
    pub(super) const CLIENT_BUSY: Self = Self(10_074);
}

impl core::fmt::Display for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::NO_ENTRY => f.write_str("no such file or folder (2)"),
            Self::ACCESS => f.write_str("permission denied (13)"),
            Self::READ_ONLY => f.write_str("read-only file system (30)"),
            Self(other) => write!(f, "NFS error {other}"),
        }
    }
}

/// The bit numbers of attributes (RFC 8881, 5.8).
pub(super) mod attr {
    pub(crate) const SUPPORTED: u32 = 0;
    pub(crate) const TYPE: u32 = 1;
    pub(crate) const FH_EXPIRE: u32 = 2;
    pub(crate) const CHANGE: u32 = 3;
    pub(crate) const SIZE: u32 = 4;
    pub(crate) const LINK_SUPPORT: u32 = 5;
    pub(crate) const SYMLINK_SUPPORT: u32 = 6;
    pub(crate) const NAMED_ATTR: u32 = 7;
    pub(crate) const FSID: u32 = 8;
    pub(crate) const UNIQUE_HANDLES: u32 = 9;
    pub(crate) const LEASE_TIME: u32 = 10;
    pub(crate) const RDATTR_ERROR: u32 = 11;
    pub(crate) const FILEHANDLE: u32 = 19;
    pub(crate) const FILEID: u32 = 20;
    pub(crate) const MAX_FILE_SIZE: u32 = 27;
    pub(crate) const MAX_LINK: u32 = 28;
    pub(crate) const MAX_NAME: u32 = 29;
    pub(crate) const MAX_READ: u32 = 30;
    pub(crate) const MAX_WRITE: u32 = 31;
    pub(crate) const MODE: u32 = 33;
    pub(crate) const NUM_LINKS: u32 = 35;
    pub(crate) const OWNER: u32 = 36;
    pub(crate) const OWNER_GROUP: u32 = 37;
    pub(crate) const RAW_DEV: u32 = 41;
    pub(crate) const SPACE_USED: u32 = 45;
    pub(crate) const TIME_ACCESS: u32 = 47;
    pub(crate) const TIME_METADATA: u32 = 52;
    pub(crate) const TIME_MODIFY: u32 = 53;
    pub(crate) const MOUNTED_ON: u32 = 55;
}
