//! `rxe listen` and `rxe connect`, and what all commands about connections share: addresses of peers, and advice for errors.

mod cell;
pub(crate) mod connect;
mod fields;
pub(crate) mod listen;
mod show;

use crate::Result;
use rxe_cm::{CmError, CmEvent, CmId, EventChannel, EventKind, proto::RejectReason};
use rxe_verbs::GidType;
use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs},
    time::{Duration, Instant},
};

/// All addresses, of both families.
pub(crate) const ANYWHERE: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// Resolves a name or an address.
pub(crate) fn find(host: &str, port: u16) -> Result<SocketAddr> {
    let unknown =
        |why: &dyn std::fmt::Display| format!("cannot find the address of {host}: {why}; is the name right?");
    let mut found = (host, port).to_socket_addrs().map_err(|error| unknown(&error))?;
    Ok(found.next().ok_or_else(|| unknown(&"it has none"))?)
}

/// `ADDR:PORT`, an IPv6 address in brackets.
fn find_pair(text: &str) -> Result<SocketAddr> {
    let parts = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let Some((host, port)) = parts.filter(|(host, port)| !host.is_empty() && *port != 0) else {
        return Err(format!("`{text}` is no ADDR:PORT, as 192.0.2.1:7471 or [2001:db8::1]:7471").into());
    };
    find(host.trim_start_matches('[').trim_end_matches(']'), port)
}

/// `[ADDR:]PORT`.
fn find_listen(text: &str) -> Result<SocketAddr> {
    match text.parse() {
        Ok(0) => Err("port 0 cannot be listened to: nobody would know which it is".into()),
        Ok(port) => Ok(SocketAddr::new(ANYWHERE, port)),
        Err(_) => find_pair(text),
    }
}

/// Private data from the command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Data(Vec<u8>);

impl Data {
    /// `0x` and an even number of digits, or text.
    fn parse(text: &str) -> std::result::Result<Self, String> {
        let Some(digits) = text.strip_prefix("0x") else {
            return Ok(Self(text.as_bytes().to_vec()));
        };
        let pairs = digits.as_bytes().chunks(2).map(|pair| {
            let pair = str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
            if !pair.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return None;
            }
            u8::from_str_radix(pair, 16).ok()
        });
        let bytes: Option<Vec<u8>> = pairs.collect();
        bytes.map(Self).ok_or_else(|| "after 0x, it is two hexadecimal digits for each byte".to_owned())
    }
}

pub(crate) fn parse_seconds(text: &str) -> std::result::Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| (0.0..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "it is 0 to 86400".to_owned())
}

/// Seconds that are not 0, for clap.
pub(crate) fn parse_some_seconds(text: &str) -> std::result::Result<f64, String> {
    let seconds = parse_seconds(text).ok().filter(|seconds| *seconds >= 0.01);
    seconds.ok_or_else(|| "it is 0.01 to 86400".to_owned())
}

/// The next event; `None` when the time is over. Without a time it waits for ever.
pub(crate) fn next(events: &EventChannel, timeout: Option<Duration>) -> Result<Option<CmEvent>> {
    let start = Instant::now();
    loop {
        let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
        match events.get_event(left) {
            Err(CmError::Interrupted) => {}
            Err(CmError::Empty) => return Ok(None),
            result => return Ok(Some(result?)),
        }
    }
}

/// Resolves the address and route of the peer, from a local address if one is given.
pub(crate) fn resolve(id: &CmId, events: &EventChannel, from: Option<IpAddr>, to: SocketAddr) -> Result<()> {
    id.resolve_addr(from.map(|ip| SocketAddr::new(ip, 0)), to)?;
    expect(events, to, |kind| matches!(kind, EventKind::AddrResolved))?;
    id.resolve_route()?;
    expect(events, to, |kind| matches!(kind, EventKind::RouteResolved))
}

fn expect(events: &EventChannel, peer: SocketAddr, hoped: impl Fn(&EventKind) -> bool) -> Result<()> {
    match next(events, None)? {
        Some(event) if hoped(&event.kind) => Ok(()),
        other => {
            let kind = other.map_or(EventKind::Unreachable(GidType::RoceV2), |event| event.kind);
            Err(failure(&kind, peer).into())
        }
    }
}

/// Why it failed, and what to do.
pub(crate) fn failure(kind: &EventKind, peer: SocketAddr) -> String {
    let (ip, port) = (peer.ip(), peer.port());
    match kind {
        EventKind::Rejected(RejectReason::INVALID_SERVICE_ID) | EventKind::NoService(_) => {
            let why = kind.words();
            format!(
                "{why}; start the program on {ip} that listens to port {port}, and name the same port on both sides"
            )
        }
        EventKind::Rejected(RejectReason::CONSUMER_DEFINED) => {
            format!("the program at {peer} said no (consumer reject, 28); its own messages may say why")
        }
        EventKind::Rejected(RejectReason::STALE_CONNECTION) => {
            format!("{peer} still has an older connection of ours (stale connection, 10); try again")
        }
        EventKind::Unreachable(GidType::RoceV1) => format!("{ip}: {}", kind.words()),
        EventKind::Unreachable(GidType::RoceV2) => format!(
            "{ip} does not answer; is it up, has it an RDMA device (`rxe devices`, `rdma link`), does UDP port 4791 reach it, and is its port one for RoCE v2 (not for v1 alone)?"
        ),
        EventKind::AddrError(error) => {
            format!(
                "{error}; which addresses are ours is shown by `rxe devices`, and the way to {ip} by `ip route get {ip}`"
            )
        }
        other => format!("with {peer}: {}", other.words()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_on_the_command_line() {
        let good = |text: &str| find_pair(text).unwrap().to_string();
        assert_eq!(good("127.0.0.1:7"), "127.0.0.1:7");
        assert_eq!(good("[::1]:7"), "[::1]:7");
        for wrong in ["", "7", ":7", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", "1.2.3.4:0"]
        {
            let error = find_pair(wrong).unwrap_err().to_string();
            assert!(error.contains("ADDR:PORT"), "{wrong}: {error}");
        }
        assert_eq!(find_listen("7").unwrap().to_string(), "[::]:7");
        assert_eq!(find_listen("127.0.0.1:7").unwrap().to_string(), "127.0.0.1:7");
        assert!(find_listen("0").is_err());
    }

    #[test]
    fn private_data_is_text_or_bytes() {
        assert_eq!(Data::parse("hello").unwrap().0, b"hello");
        assert_eq!(Data::parse("0x00fF").unwrap().0, [0, 0xff]);
        assert_eq!(Data::parse("").unwrap().0, b"");
        for wrong in ["0x0", "0xzz", "0x+1", "0x0\u{e9}"] {
            assert!(Data::parse(wrong).is_err(), "{wrong}");
        }
    }
}
