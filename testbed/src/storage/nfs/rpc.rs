//! Remote procedure calls (RFC 5531): the headers in front of a procedure's arguments and results.

use super::xdr::{Reader, Writer, XdrError};

/// The program NFS, its version, and its two procedures (RFC 8881, 16).
pub(super) const NFS: u32 = 100_003;
pub(super) const VERSION: u32 = 4;
pub(super) const NULL: u32 = 0;
pub(super) const COMPOUND: u32 = 1;

const CALL: u32 = 0;
const REPLY: u32 = 1;
const RPC_VERSION: u32 = 2;
/// Maximum size of a credential in bytes (RFC 5531, 8.2).
const CREDENTIAL: usize = 400;
/// The caller's identity by numbers (AUTH_SYS; RFC 5531, appendix A).
const AUTH_SYS: u32 = 1;

/// The acceptance status of a call (RFC 5531, 9: accept_stat).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Accepted {
    Success = 0,
    NoProgram = 1,
    WrongVersion = 2,
    NoProcedure = 3,
    GarbageArguments = 4,
}

/// The header of a call: its ID, program, version and procedure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Call {
    pub(super) xid: u32,
    pub(super) program: u32,
    pub(super) version: u32,
    pub(super) procedure: u32,
}

impl Call {
    /// Writes the header of a call, with the credential of a user and group (AUTH_SYS).
    pub(super) fn write(&self, user: u32, group: u32) -> Writer {
        let mut credential = Writer::default();
        credential.word(0_u32).opaque(b"rxe").word(user).word(group).word(0_u32);
        let mut out = Writer::default();
        out.word(self.xid).word(CALL).word(RPC_VERSION);
        out.word(self.program).word(self.version).word(self.procedure);
        out.word(AUTH_SYS).opaque(&credential.0).word(0_u32).opaque(&[]);
        out
    }

    /// Reads the header of a call; the arguments follow.
    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, XdrError> {
        let xid = from.word()?;
        if (from.word()?, from.word()?) != (CALL, RPC_VERSION) {
            return Err(XdrError);
        }
        let (program, version, procedure) = (from.word()?, from.word()?, from.word()?);
        for _ in ["credential", "verifier"] {
            from.word()?;
            from.opaque(CREDENTIAL)?;
        }
        Ok(Self { xid, program, version, procedure })
    }
}

/// Writes the header of a reply; results follow if it reports success.
pub(super) fn reply(xid: u32, accepted: Accepted) -> Writer {
    let mut out = Writer::default();
    out.word(xid).word(REPLY).word(0_u32).word(0_u32).opaque(&[]).word(accepted as u32);
    if accepted == Accepted::WrongVersion {
        out.word(VERSION).word(VERSION);
    }
    out
}

/// Reads the header of a reply; the results follow. If the reply does not report success, returns a description of the
/// error.
pub(super) fn read_reply(from: &mut Reader<'_>, xid: u32) -> Result<Result<(), String>, XdrError> {
    if (from.word()?, from.word()?) != (xid, REPLY) {
        return Err(XdrError);
    }
    match from.word()? {
        0 => {}
        1 => return Ok(Err(format!("call denied ({})", from.word()?))),
        _ => return Err(XdrError),
    }
    from.word()?;
    from.opaque(CREDENTIAL)?;
    Ok(match from.word()? {
        0 => Ok(()),
        status => Err(format!("call not accepted ({status})")),
    })
}
