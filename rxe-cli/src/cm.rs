//! What the commands about connections have in common: where the peer is, and what to do when it does not work.

use crate::Result;
use rxe_cm::{CmError, CmEvent, CmId, EventChannel, EventKind, proto::RejectReason};
use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs},
    time::{Duration, Instant},
};

/// All addresses, of both families.
pub(crate) const ANYWHERE: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// An address by name or number.
pub(crate) fn find(host: &str, port: u16) -> Result<SocketAddr> {
    let unknown =
        |why: &dyn std::fmt::Display| format!("cannot find the address of {host}: {why}; is the name right?");
    let mut found = (host, port).to_socket_addrs().map_err(|error| unknown(&error))?;
    Ok(found.next().ok_or_else(|| unknown(&"it has none"))?)
}

/// The next event; none when the time is over, without one it takes as long as it takes.
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

/// Finds the way to the peer, from an address of ours if one is named.
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
            let kind = other.map_or(EventKind::Unreachable, |event| event.kind);
            Err(failure(&kind, peer).into())
        }
    }
}

/// Why it did not work, and what to do.
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
        EventKind::Unreachable => format!(
            "{ip} does not answer; is it up, has it an RDMA device (`rxe devices`, `rdma link`), and does UDP port 4791 reach it?"
        ),
        EventKind::AddrError(error) => {
            format!(
                "{error}; which addresses are ours is shown by `rxe devices`, and the way to {ip} by `ip route get {ip}`"
            )
        }
        other => format!("with {peer}: {}", other.words()),
    }
}
