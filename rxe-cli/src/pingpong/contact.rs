//! The exchange of parameters: the lines of text that the ibv_*_pingpong programs exchange over TCP.

use crate::Result;
use core::fmt;
use rxe_verbs::{Gid, Psn, Qpn};
use std::io::{self, Read, Write};

/// Bytes of a line: `LID:QPN:PSN:GID` in 4, 6, 6 and 32 hexadecimal digits, and a zero byte.
const LINE: usize = 4 + 1 + 6 + 1 + 6 + 1 + 32 + 1;
/// Number of lines that ibv_srq_pingpong always sends.
pub(super) const SRQ_CONTACTS: usize = 256;
/// The client's last line.
const DONE: &[u8; 5] = b"done\0";

/// A queue pair and its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Contact {
    pub(super) qpn: Qpn,
    /// The first PSN it will send.
    pub(super) psn: Psn,
    pub(super) gid: Gid,
}

impl fmt::Display for Contact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { qpn, psn, gid } = self;
        let (qpn, psn, ip) = (qpn.value(), psn.value(), std::net::Ipv6Addr::from(gid.0));
        write!(f, "LID 0x0000, QPN {qpn:#08x}, PSN {psn:#08x}, GID {ip}")
    }
}

impl Contact {
    fn line(&self) -> [u8; LINE] {
        let Self { qpn, psn, gid } = self;
        let gid = u128::from_be_bytes(gid.0);
        // RoCE has no LIDs.
        let text = format!("0000:{:06x}:{:06x}:{gid:032x}\0", qpn.value(), psn.value());
        text.into_bytes().try_into().unwrap_or_else(|_| unreachable!("its fields have fixed widths"))
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let text = line.split(|byte| *byte == 0).next()?;
        let mut fields = str::from_utf8(text).ok()?.split(':');
        let mut number = || u32::from_str_radix(fields.next()?, 16).ok();
        let (_lid, qpn, psn) = (number()?, number()?, number()?);
        let gid = fields.next().filter(|gid| gid.len() == 32)?;
        let gid = Gid(u128::from_str_radix(gid, 16).ok()?.to_be_bytes());
        let fits = qpn < 1 << 24 && psn < 1 << 24 && fields.next().is_none();
        fits.then(|| Self { qpn: Qpn::new(qpn), psn: Psn::new(psn), gid })
    }

    /// Sends all lines at once.
    pub(super) fn write_all(contacts: &[Self], tcp: &mut impl Write) -> Result<()> {
        let bytes: Vec<u8> = contacts.iter().flat_map(Self::line).collect();
        Ok(tcp.write_all(&bytes).map_err(|error| lost(&error))?)
    }

    pub(super) fn read(tcp: &mut impl Read) -> Result<Self> {
        let mut line = [0; LINE];
        tcp.read_exact(&mut line).map_err(|error| lost(&error))?;
        let shown = String::from_utf8_lossy(&line);
        Ok(Self::parse(&line).ok_or_else(|| {
            format!(
                "the peer's address line is not understood: {shown:?}; is it a ping-pong of the same service?"
            )
        })?)
    }

    /// Whether it can be the peer of a queue pair.
    pub(super) fn check(&self) -> Result<()> {
        if self.gid.is_zero() {
            return Err(
                "the peer gave no GID, and RoCE needs it: start it with -g 0 (ibv_*_pingpong -g INDEX)"
                    .into(),
            );
        }
        if self.qpn.value() == 0 {
            return Err("the peer has fewer queue pairs than we: give both sides the same --num-qp".into());
        }
        Ok(())
    }
}

fn lost(error: &io::Error) -> String {
    let why = match error.kind() {
        io::ErrorKind::UnexpectedEof => "it hung up".to_owned(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "it is silent".to_owned(),
        _ => error.to_string(),
    };
    format!(
        "the peer did not tell its address ({why}); is it a ping-pong of the same service? its messages may say why"
    )
}

pub(super) fn write_done(tcp: &mut impl Write) -> Result<()> {
    Ok(tcp.write_all(DONE).map_err(|error| lost(&error))?)
}

pub(super) fn read_done(tcp: &mut impl Read) -> Result<()> {
    let mut done = [0; DONE.len()];
    tcp.read_exact(&mut done).map_err(|error| lost(&error))?;
    if done == *DONE {
        return Ok(());
    }
    Err("the peer said something else than `done` at the end of the exchange".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_rdma_core() {
        let contact = Contact {
            qpn: Qpn::new(0x11),
            psn: Psn::new(0xab_cdef),
            gid: Gid::from(std::net::IpAddr::from([10, 0, 0, 1])),
        };
        let line = *b"0000:000011:abcdef:00000000000000000000ffff0a000001\0";
        assert_eq!(contact.line(), line);
        assert_eq!(Contact::parse(&line), Some(contact));
    }

    #[test]
    fn wrong_lines_are_refused() {
        for wrong in [
            &b""[..],
            b"0000:000011:abcdef\0",
            b"0000:000011:abcdef:00\0",
            b"0000:1000000:abcdef:00000000000000000000ffff0a000001\0",
            b"0000:000011:abcdef:0000000000000000000gffff0a000001\0",
            b"0000:000011:abcdef:00000000000000000000ffff0a000001:1\0",
            b"\xff\xfe:0\0",
        ] {
            assert_eq!(Contact::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_peer_without_gid_is_told_what_to_do() {
        let line = *b"0000:000011:abcdef:00000000000000000000000000000000\0";
        let error = Contact::parse(&line).unwrap().check().unwrap_err().to_string();
        assert!(error.contains("-g 0"), "{error}");
    }
}
