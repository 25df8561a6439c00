//! What the commands share: the choice of device and address, and connecting queue pairs.

use crate::{Result, output};
use rxe_verbs::{
    Access, CompChannel, Completion, Context, Cq, Device, EventError, Gid, Mtu, Psn, Qkey, Qp, QpChange,
    QpState, QpType, Qpn, WcStatus,
};
use socket2::{Domain, Socket, Type};
use std::{
    hash::{BuildHasher, RandomState},
    io,
    net::{IpAddr, SocketAddr, SocketAddrV6, TcpListener, TcpStream, ToSocketAddrs, UdpSocket},
    thread,
    time::{Duration, Instant},
};

/// How long to wait for a silent peer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// How often a connection is tried if nobody listens, and the time between: two seconds in all.
const TRIES: u32 = 21;
const AGAIN: Duration = Duration::from_millis(100);

/// Which of our addresses to use.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Local {
    /// Use only this address of ours
    #[arg(short, long, value_name = "IP")]
    pub(crate) bind: Option<IpAddr>,
    /// Use this device (rxe0) or network interface (eth0)
    #[arg(short, long, value_name = "NAME", conflicts_with = "bind")]
    pub(crate) device: Option<String>,
    /// Index into the GID table of our address [default: the one that the TCP connection uses]
    #[arg(short, long, value_name = "INDEX")]
    pub(crate) gid: Option<u8>,
}

impl Local {
    /// Opens the device that the options name, or the device of the local address `hint`, or the first.
    pub(crate) fn open(&self, hint: Option<IpAddr>) -> Result<Context> {
        let context = self.open_any_gid(hint)?;
        if let Some(index) = self.gid
            && context.gids().get(index).is_zero()
        {
            let (device, entries) = (context.device().name(), context.gids().len());
            return Err(format!(
                "{device} has no GID with index {index}: it has {entries} (see `rxe devices`)"
            )
            .into());
        }
        Ok(context)
    }

    fn open_any_gid(&self, hint: Option<IpAddr>) -> Result<Context> {
        if let Some(address) = self.bind {
            return Ok(Context::open_address(address)?);
        }
        let device = match (&self.device, hint) {
            (Some(name), _) => Device::find(name)?,
            (None, Some(address)) => Device::of_address(address).or_else(|_| Device::first())?,
            (None, None) => Device::first()?,
        };
        Ok(Context::open(&device)?)
    }

    /// Index of the GID to use, for a peer that is reached from the local address `hint`.
    pub(crate) fn gid_index(&self, context: &Context, hint: IpAddr) -> u8 {
        if let Some(index) = self.gid {
            return index;
        }
        let gids = context.gids();
        let wanted = Gid::from(hint.to_canonical());
        let count = u8::try_from(gids.len()).unwrap_or(u8::MAX);
        (0..count).find(|index| gids.get(*index) == wanted).unwrap_or(0)
    }

    /// The source address of packets to `host`, which determines the device if none is named.
    pub(crate) fn toward(&self, host: &str, port: u16) -> Option<IpAddr> {
        let there = (host, port).to_socket_addrs().ok()?.next()?;
        let any: SocketAddr = if there.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().ok()?;
        let socket = UdpSocket::bind(any).ok()?;
        socket.connect(there).ok()?;
        socket.local_addr().ok().map(|address| address.ip())
    }

    /// Waits for the peer's TCP connection.
    pub(crate) fn accept(&self, port: u16) -> Result<TcpStream> {
        let listener = match self.bind {
            Some(address) => TcpListener::bind(place(address, port)?),
            None => TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port))),
        };
        let listener = listener.map_err(|error| {
            format!("cannot listen on TCP port {port}: {error}; choose another with --port (on both sides)")
        })?;
        output::waits(format_args!("TCP port {port}"));
        let (stream, _) = listener.accept()?;
        prepare(stream)
    }

    /// Makes the TCP connection to the peer, from our own address if one was named and the peer has one of the same IP version. For a moment it tries again where nobody listens,
    /// because the other side may have been started just now.
    pub(crate) fn connect(&self, host: &str, port: u16) -> Result<TcpStream> {
        let unreachable = |error: &dyn std::fmt::Display| {
            format!(
                "cannot reach {host}, TCP port {port}: {error}; is the other side started, and is the port open?"
            )
        };
        let own = self.bind.map(|address| place(address, 0)).transpose()?;
        let addresses = (host, port)
            .to_socket_addrs()
            .map_err(|error| format!("cannot find the address of {host}: {error}; is the name right?"))?;
        // Queue pairs of one version may be told of by a connection of the other.
        let own = own.filter(|own| addresses.clone().any(|to| own.is_ipv4() == to.is_ipv4()));
        let fits = |to: &SocketAddr| own.is_none_or(|own| own.is_ipv4() == to.is_ipv4());
        let mut last: io::Error = io::ErrorKind::NotFound.into();
        for tries in (0..TRIES).rev() {
            for address in addresses.clone().filter(fits) {
                match connect_from(own, &address) {
                    Ok(stream) => return prepare(stream),
                    Err(error) => last = error,
                }
            }
            if tries == 0 || last.kind() != io::ErrorKind::ConnectionRefused {
                break;
            }
            thread::sleep(AGAIN);
        }
        Err(unreachable(&last).into())
    }
}

/// An address of ours, with its interface if it is a link-local one.
fn place(address: IpAddr, port: u16) -> Result<SocketAddr> {
    Ok(match address {
        IpAddr::V6(address) if address.is_unicast_link_local() => {
            let scope = Device::of_address(address.into())?.interface().index;
            SocketAddrV6::new(address, port, 0, scope).into()
        }
        other => SocketAddr::new(other, port),
    })
}

/// A TCP connection from an address of ours, if one was named.
fn connect_from(own: Option<SocketAddr>, to: &SocketAddr) -> io::Result<TcpStream> {
    let Some(own) = own else { return TcpStream::connect_timeout(to, PATIENCE) };
    let socket = Socket::new(Domain::for_address(*to), Type::STREAM, None)?;
    socket.bind(&own.into())?;
    socket.connect_timeout(&(*to).into(), PATIENCE)?;
    Ok(socket.into())
}

fn prepare(stream: TcpStream) -> Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Parses an MTU for clap.
pub(crate) fn parse_mtu(text: &str) -> std::result::Result<Mtu, String> {
    let mtu = text.parse().ok().and_then(Mtu::from_bytes);
    mtu.ok_or_else(|| "it is one of 256, 512, 1024, 2048, 4096".to_owned())
}

/// The time of a code: 4.096 us << code.
const UNIT: f64 = 4.096e-6;

/// The code of a time in seconds, for clap: the next longer time that has a code, or one that is nearly as long, because nobody
/// types 0.016777216.
pub(crate) fn parse_code(text: &str) -> std::result::Result<u8, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| *seconds >= 0.0);
    let code =
        seconds.and_then(|seconds| (0..=31).find(|code| UNIT * f64::from(1_u32 << code) * 1.05 >= seconds));
    code.ok_or_else(|| "it is a time in seconds, up to 8796".to_owned())
}

/// The same if code 0 has another meaning.
pub(crate) fn parse_some_code(text: &str) -> std::result::Result<u8, String> {
    parse_code(text).map(|code| code.max(1))
}

/// The same if code 0 means no time, as 0 seconds does.
pub(crate) fn parse_code_or_none(text: &str) -> std::result::Result<u8, String> {
    if text.parse() == Ok(0.0) { Ok(0) } else { parse_some_code(text) }
}

/// 24 bits that differ from call to call.
pub(crate) fn random_psn() -> Psn {
    Psn::new((RandomState::new().hash_one(0) & 0xff_ffff) as u32)
}

/// Parameters for connecting a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection {
    /// Index of our GID.
    pub(crate) gid_index: u8,
    /// The peer's GID.
    pub(crate) remote_gid: Gid,
    pub(crate) remote_qpn: Qpn,
    pub(crate) remote_psn: Psn,
    /// Our first PSN.
    pub(crate) psn: Psn,
    pub(crate) mtu: Mtu,
    /// Outstanding READs and atomics in each direction.
    pub(crate) depth: u8,
    /// Code of the retransmission timeout.
    pub(crate) timeout: u8,
}

/// The ibv_*_pingpong programs' timeout code: 67 ms.
pub(crate) const TIMEOUT: u8 = 14;

/// RESET to INIT.
pub(crate) fn to_init(qp: &Qp, access: Access, qkey: Qkey) -> Result<()> {
    let datagram = qp.qp_type() == QpType::Ud;
    Ok(qp.modify(&QpChange {
        state: Some(QpState::Init),
        pkey_index: Some(0),
        port: Some(1),
        access: (!datagram).then_some(access),
        qkey: datagram.then_some(qkey),
        ..QpChange::default()
    })?)
}

/// INIT to RTR to RTS, with the attributes of the ibv_*_pingpong programs.
pub(crate) fn connect(qp: &Qp, to: &Connection) -> Result<()> {
    let none = QpChange::default();
    let (reliable, datagram) = (qp.qp_type() == QpType::Rc, qp.qp_type() == QpType::Ud);
    let mut rtr = QpChange { state: Some(QpState::Rtr), ..none };
    if !datagram {
        rtr.av = Some(qp.context().address_vector(to.gid_index, to.remote_gid)?);
        rtr.path_mtu = Some(to.mtu);
        rtr.dest_qpn = Some(to.remote_qpn);
        rtr.rq_psn = Some(to.remote_psn);
    }
    let mut rts = QpChange { state: Some(QpState::Rts), sq_psn: Some(to.psn), ..none };
    if reliable {
        rtr.max_dest_rd_atomic = Some(to.depth);
        rtr.min_rnr_timer = Some(12);
        rts.timeout = Some(to.timeout);
        rts.retry_count = Some(7);
        rts.rnr_retry = Some(7);
        rts.max_rd_atomic = Some(to.depth);
    }
    qp.modify(&rtr)?;
    Ok(qp.modify(&rts)?)
}

/// Waits for a completion, by polling or by events of the channel. It must be successful.
pub(crate) fn next_completion(
    cq: &Cq,
    events: Option<&CompChannel>,
    context: &Context,
) -> Result<Completion> {
    let next = match events {
        None => cq.poll_within(PATIENCE)?,
        Some(events) => sleep_for(cq, events)?,
    };
    let Some(wc) = next else {
        let seconds = PATIENCE.as_secs();
        return Err(format!(
            "nothing came from the peer for {seconds} s: is it still running, does UDP port 4791 reach both sides, have \
             both as many --iters, and have both the same --size and --mtu?{}",
            network_says(context)
        )
        .into());
    };
    check(&wc, context)?;
    Ok(wc)
}

fn sleep_for(cq: &Cq, events: &CompChannel) -> Result<Option<Completion>> {
    let mut one = [Completion::default()];
    let end = Instant::now() + PATIENCE;
    loop {
        // Completions from before the queue was armed cause no event, so it is polled once more.
        for armed in [false, true] {
            if cq.poll(&mut one)? == 1 {
                return Ok(Some(one[0]));
            }
            if !armed {
                cq.req_notify(false);
            }
        }
        match events.get_event_within(end.saturating_duration_since(Instant::now())) {
            Ok(_) | Err(EventError::Interrupted) => {}
            Err(EventError::Empty) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Checks that a completion is successful.
pub(crate) fn check(wc: &Completion, context: &Context) -> Result<()> {
    let advice = match wc.status {
        WcStatus::Success => return Ok(()),
        WcStatus::RetryExceeded => {
            ": the peer does not answer; is it still running, does UDP port 4791 reach it, and has it the same MTU?"
        }
        WcStatus::RemoteInvalidRequest | WcStatus::LocalLength => {
            ": have both sides the same --size and --mtu?"
        }
        _ => "",
    };
    let network = network_says(context);
    Err(format!("a work request failed with {:?}{advice}{network}", wc.status).into())
}

fn network_says(context: &Context) -> String {
    match context.link_report().last_error {
        Some(error) => format!(" (the network says: {error})"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up_to_those_that_packets_can_carry() {
        for (text, code) in
            [("0", 0), ("4.1e-6", 0), ("0.017", 12), ("0.018", 13), ("0.067", 14), ("8796", 31)]
        {
            assert_eq!(parse_code(text), Ok(code), "{text}");
        }
        for wrong in ["-1", "9999", "x", "NaN", "inf"] {
            assert!(parse_code(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            (parse_some_code("0"), parse_code_or_none("0"), parse_code_or_none("1e-9")),
            (Ok(1), Ok(0), Ok(1))
        );
    }
}
