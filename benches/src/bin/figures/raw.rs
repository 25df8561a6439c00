//! Measures plain UDP sockets, and the best that a socket could do.

use crate::{
    across::Wire,
    answer::{Other, Role, Stop, hear, say},
    ours::{Sleep, Traffic},
    place::{Held, Place},
};
use benches::{ends::Result, turns::processor_seconds};
use rxe_core::wire::icrc::{Route, RouteCrc};
use rxe_verbs::net::{Ident, Link, RecvBatch, SendError, Transmit, UdpConfig, UdpLink};
use serde_json::json;
use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

/// Size of a datagram that is as long as a WRITE of 64 bytes: BTH, RETH, data, ICRC.
const SMALL: usize = 12 + 16 + 64 + 4;
/// Parameters of the limit: packets and bytes of a batch, bytes in flight, and bytes of memory on each side.
const MOST_PACKETS: usize = 64;
const MOST_BYTES: usize = 15 * (FRAME + 4096);
const WINDOW: usize = 192 << 10;
const MEMORY: usize = 1 << 20;

fn socket(sleep: Sleep) -> Result<UdpSocket> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    if sleep == Sleep::Yes {
        // The timeout lets the loop notice the end.
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    } else {
        socket.set_nonblocking(true)?;
    }
    Ok(socket)
}

/// Receives a datagram. Returns its sender, or `None` if none arrived.
fn receive(socket: &UdpSocket, bytes: &mut [u8]) -> Result<Option<SocketAddr>> {
    match socket.recv_from(bytes) {
        Ok((_, from)) => Ok(Some(from)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn connect(role: Role, sleep: Sleep, place: Place) -> Result<(UdpSocket, SocketAddr, Other, Held)> {
    let (mut other, held) = place.start(|| Other::start(role, 0, 0, (Wire::Loopback, None)))?;
    let to = other.hear()?.as_str().unwrap_or_default().parse()?;
    Ok((socket(sleep)?, to, other, held))
}

/// Sends each datagram back.
pub(crate) fn echo(sleep: Sleep) -> Result<()> {
    let socket = socket(sleep)?;
    say(&json!(socket.local_addr()?.to_string()))?;
    let stop = Stop::watch()?;
    let mut bytes = [0; 64];
    while !stop.is_near() {
        if let Some(from) = receive(&socket, &mut bytes)? {
            socket.send_to(&bytes[..2], from)?;
        }
    }
    stop.tell()
}

/// One-way latency of datagrams of 2 bytes, in microseconds.
pub(crate) fn latency(sleep: Sleep, place: Place, seconds: f64) -> Result<Vec<f64>> {
    let role = if sleep == Sleep::Yes { Role::UdpAsleep } else { Role::Udp };
    let (socket, to, other, _held) = connect(role, sleep, place)?;
    let mut bytes = [0; 64];
    let mut times = Vec::with_capacity(1 << 20);
    let begin = Instant::now();
    while begin.elapsed().as_secs_f64() < seconds || times.is_empty() {
        let start = Instant::now();
        socket.send_to(&bytes[..2], to)?;
        while receive(&socket, &mut bytes)?.is_none() {}
        times.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
    }
    other.end()?;
    Ok(times)
}

/// Receives datagrams, one per call.
pub(crate) fn count() -> Result<()> {
    let socket = socket(Sleep::No)?;
    say(&json!(socket.local_addr()?.to_string()))?;
    let stop = Stop::watch()?;
    let mut bytes = [0; 2 * SMALL];
    while !stop.is_near() {
        receive(&socket, &mut bytes)?;
    }
    stop.tell()
}

/// Rate of sent datagrams, one per call, while another process receives. More are sent than arrive, because nothing limits
/// the sender.
pub(crate) fn rate(seconds: f64) -> Result<f64> {
    let (socket, to, other, _held) = connect(Role::UdpCount, Sleep::No, Place::Free)?;
    let begin = Instant::now();
    let mut sent = 0u64;
    while begin.elapsed().as_secs_f64() < seconds || sent == 0 {
        match socket.send_to(&[0; SMALL], to) {
            Ok(_) => sent += 1,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    let rate = sent as f64 / begin.elapsed().as_secs_f64();
    other.end()?;
    Ok(rate)
}

/// Size of BTH and ICRC.
const FRAME: usize = 12 + 4;

/// Number of packets in a batch, which one send call takes.
const fn batch_of(payload: usize) -> usize {
    let fit = MOST_BYTES / (FRAME + payload);
    if fit < MOST_PACKETS { fit } else { MOST_PACKETS }
}

fn link(answers: bool, payload: usize) -> Result<(UdpLink, Transmit, RouteCrc)> {
    let [src, dst] = [1, 2].map(|last| IpAddr::from([127, 77, 92, if answers { last } else { 3 - last }]));
    let link = UdpLink::open(&UdpConfig::only(src, 0).with_environment()?)?;
    let source_port = link.capabilities().source_ports[0];
    let segment_size = FRAME + payload;
    let batch = Transmit {
        src,
        dst,
        ifindex: 0,
        source_port,
        tos: 0,
        hop_limit: 64,
        encapsulation: rxe_verbs::net::Encapsulation::V2,
        segment_size,
    };
    Ok((link, batch, RouteCrc::new(&Route::v2(src, dst, source_port))))
}

/// Checks the packets that arrive and copies them to memory. Sends a packet of 20 bytes back for each run of packets.
pub(crate) fn take(payload: usize) -> Result<()> {
    let (mut link, batch, _) = link(true, payload)?;
    say(&json!(batch.source_port))?;
    let from = hear()?.as_u64().ok_or("no port")?;
    let crc = RouteCrc::new(&Route::v2(batch.dst, batch.src, from as u16));
    let stop = Stop::watch()?;
    let mut into = RecvBatch::default();
    let mut memory = vec![0_u8; MEMORY];
    let (mut at, mut wrong) = (0, 0u64);
    while !stop.is_near() {
        link.recv(&mut into)?;
        for run in into.iter() {
            for (id, packet) in run.packets().enumerate() {
                wrong += u64::from(!crc.check(id as u16, 0x4000, packet));
                memory[at..at + payload].copy_from_slice(&packet[12..12 + payload]);
                at = (at + payload) % MEMORY;
            }
            let mut answer = [0; 20];
            answer[0] = run.packets().len() as u8;
            link.send(&batch, &answer)?;
        }
    }
    if wrong > 0 { Err(format!("{wrong} wrong ICRCs").into()) } else { stop.tell() }
}

/// Moves data from one memory to the other in packets of this payload (a power of two), by batches with ICRCs.
pub(crate) fn limit(payload: usize, seconds: f64) -> Result<Traffic> {
    let mut other = Other::start(Role::Limit, 0, payload as u32, (Wire::Loopback, None))?;
    let (mut link, batch, crc) = link(false, payload)?;
    other.hear()?;
    other.say(&json!(batch.source_port))?;
    let sequential = link.path(batch.dst, 0).ident == Ident::Sequential;
    let memory = vec![0x5a_u8; MEMORY];
    let packet_len = FRAME + payload;
    let mut arena = vec![0_u8; batch_of(payload) * packet_len];
    let mut into = RecvBatch::default();
    let (mut at, mut flying, mut answered) = (0, 0usize, 0usize);
    let processor = processor_seconds()?;
    let (start, mut life) = (Instant::now(), Instant::now());
    while start.elapsed().as_secs_f64() < seconds || answered == 0 {
        while flying + arena.len() <= WINDOW {
            for (id, packet) in arena.chunks_mut(packet_len).enumerate() {
                packet[12..12 + payload].copy_from_slice(&memory[at..at + payload]);
                at = (at + payload) % MEMORY;
                crc.seal(if sequential { id as u16 } else { 0 }, packet);
            }
            match link.send(&batch, &arena) {
                Ok(()) => flying += arena.len(),
                Err(SendError::WouldBlock { .. }) => break,
                Err(error) => return Err(error.into()),
            }
        }
        link.recv(&mut into)?;
        for answer in into.iter().flat_map(|run| run.packets()) {
            let count = usize::from(answer[0]);
            answered += count;
            flying = flying.saturating_sub(count * packet_len);
            life = Instant::now();
        }
        if life.elapsed() > Duration::from_millis(20) {
            // A packet was lost: the window is opened again.
            (flying, life) = (0, Instant::now());
        }
    }
    let messages = answered as f64 / start.elapsed().as_secs_f64();
    let processor = processor_seconds()? - processor + other.end()?;
    Ok(Traffic { messages, processor: processor / answered.max(1) as f64 })
}
