//! Measurements of the UDP link, no tests: `cargo test --release -p rxe-verbs --test net_speed -- --ignored --nocapture`.

mod netns;

use std::net::{IpAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use netns::{Namespace, packets};
use rxe_verbs::net::{Features, Link, RecvBatch, SendError, Transmit, UdpConfig, UdpLink};

fn links(namespace: &Namespace, features: Features) -> [(UdpLink, Transmit); 2] {
    let addresses = [IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2])];
    [0, 1].map(|i| {
        let config = UdpConfig { features, ..UdpConfig::only(addresses[i], 0) };
        let link = namespace.run(move || UdpLink::open(&config).unwrap());
        let batch = Transmit {
            src: addresses[i],
            dst: addresses[1 - i],
            ifindex: 0,
            source_port: link.capabilities().source_ports[0],
            tos: 0,
            hop_limit: 64,
            encapsulation: rxe_verbs::net::Encapsulation::V2,
            segment_size: 4128,
        };
        (link, batch)
    })
}

/// One sender with a window of `window` packets, one receiver; no ICRC, no copy to a place.
fn throughput(namespace: &Namespace, without: &str, count: usize, size: usize) {
    let [(mut near, batch), (mut far, back)] = links(namespace, Features::without(without).unwrap());
    let count = count.min(near.capabilities().max_segments.into());
    let bytes = packets(count, size, 0);
    let time = Duration::from_secs(1);
    let receiver = thread::spawn(move || {
        let mut into = RecvBatch::default();
        let (mut packets, mut owed) = (0u64, 0);
        let start = Instant::now();
        while start.elapsed() < time + Duration::from_millis(100) {
            far.recv(&mut into).unwrap();
            let arrived = into.iter().map(|run| run.packets().len()).sum::<usize>();
            packets += arrived as u64;
            owed += arrived;
            while owed >= count {
                owed -= count;
                far.send(&back, &[0; 20]).unwrap();
            }
        }
        (packets, far.drops())
    });
    let batch = Transmit { segment_size: size, ..batch };
    let mut into = RecvBatch::default();
    let start = Instant::now();
    let mut flying = 0usize;
    let mut last = Instant::now();
    while start.elapsed() < time {
        near.recv(&mut into).unwrap();
        let answered = into.iter().map(|run| run.packets().len()).sum::<usize>();
        if answered > 0 {
            last = Instant::now();
        }
        // A drop would stall the count for ever.
        flying = if last.elapsed() > Duration::from_millis(20) { 0 } else { flying.saturating_sub(answered) };
        while (flying + 1) * count * size <= 192 << 10 {
            match near.send(&batch, &bytes) {
                Ok(()) => flying += 1,
                Err(SendError::WouldBlock { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    let (packets, drops) = receiver.join().unwrap();
    let rate = packets as f64 / time.as_secs_f64();
    println!(
        "without [{without:>12}] {count:>3} x {size:>4} B: {:>6.2} Gbit/s, {:>6.3} M packets/s, {drops} drops",
        rate * size as f64 * 8e-9,
        rate * 1e-6
    );
}

fn ping_pong(namespace: &Namespace, len: usize) {
    const ROUNDS: u32 = 100_000;
    let [(mut near, batch), (mut far, back)] = links(namespace, Features::default());
    let echo = thread::spawn(move || {
        let mut into = RecvBatch::default();
        let mut answered = 0;
        while answered < ROUNDS {
            for _ in 0..far.recv(&mut into).unwrap() {
                far.send(&back, &[1; 64][..len]).unwrap();
                answered += 1;
            }
        }
    });
    let mut into = RecvBatch::default();
    let start = Instant::now();
    for _ in 0..ROUNDS {
        near.send(&batch, &[1; 64][..len]).unwrap();
        while near.recv(&mut into).unwrap() == 0 {}
    }
    let one_way = start.elapsed().as_secs_f64() / f64::from(ROUNDS) / 2.0;
    echo.join().unwrap();
    println!("ping-pong of {len} B, both ends polling: {:.2} us one way", one_way * 1e6);
}

/// The same with bare sockets: what the system itself takes.
fn bare_ping_pong(namespace: &Namespace, len: usize) {
    const ROUNDS: u32 = 100_000;
    let [near, far] = ["127.0.0.1:4791", "127.0.0.2:4791"].map(|address| {
        let socket = namespace.run(move || UdpSocket::bind(address).unwrap());
        socket.set_nonblocking(true).unwrap();
        socket
    });
    let echo = thread::spawn(move || {
        let mut buffer = [0; 100];
        let mut answered = 0;
        while answered < ROUNDS {
            if let Ok((len, from)) = far.recv_from(&mut buffer) {
                far.send_to(&buffer[..len], from).unwrap();
                answered += 1;
            }
        }
    });
    let mut buffer = [0; 100];
    let start = Instant::now();
    for _ in 0..ROUNDS {
        near.send_to(&[1; 64][..len], "127.0.0.2:4791").unwrap();
        while near.recv_from(&mut buffer).is_err() {}
    }
    let one_way = start.elapsed().as_secs_f64() / f64::from(ROUNDS) / 2.0;
    echo.join().unwrap();
    println!("the same with bare sockets: {:.2} us one way", one_way * 1e6);
}

#[test]
#[ignore = "a measurement: cargo test --release -p rxe-verbs --test net_speed -- --ignored --nocapture"]
fn speed() {
    let Some(namespace) = Namespace::new() else { return };
    for without in ["", "gro", "gso", "gso,gro,mmsg"] {
        throughput(&namespace, without, 15, 4128);
    }
    throughput(&namespace, "", 127, 96);
    ping_pong(&namespace, 16);
    bare_ping_pong(&namespace, 16);
    ping_pong(&namespace, 16);
    bare_ping_pong(&namespace, 16);
}
