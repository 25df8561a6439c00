//! The in-process link, and the links that wrap others.

mod netns;

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use netns::{Namespace, packets, receive};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, alarm, dup2_raw, fork};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use rxe_verbs::net::{
    Capabilities, Capture, Encapsulation, FaultLink, FaultPlan, HeaderSeen, Ident, InprocLink, InprocNet,
    Link, RecvBatch, Run, SendError, TapLink, Transmit, UdpConfig, UdpLink,
};

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn ends() -> (InprocLink, InprocLink) {
    let net = InprocNet::new();
    let left = net.attach(&[address("10.0.0.1"), address("fd00::1")], 3).unwrap();
    let right = net.attach(&[address("10.0.0.2"), address("fd00::2")], 4).unwrap();
    assert_eq!(net.attach(&[address("10.0.0.2")], 5).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    (left, right)
}

fn batch(segment_size: usize) -> Transmit {
    Transmit {
        src: address("10.0.0.1"),
        dst: address("10.0.0.2"),
        ifindex: 0,
        source_port: 0xc000,
        tos: 2,
        hop_limit: 0,
        encapsulation: Encapsulation::V2,
        segment_size,
    }
}

#[test]
fn inproc_keeps_runs() {
    let (mut left, mut right) = ends();
    let bytes = packets(15, 4128, 28);
    left.send(&batch(4128), &bytes).unwrap();
    left.send(&Transmit { src: address("fd00::1"), dst: address("fd00::2"), ..batch(10) }, &[1; 10]).unwrap();
    left.send(&Transmit { dst: address("10.0.0.9"), ..batch(10) }, &[1; 10]).unwrap();
    let got = receive(&mut right, 16);
    assert_eq!(got.len(), 16);
    assert!(got[..15].iter().zip(bytes.chunks(4128)).all(|(got, sent)| got.bytes == sent && got.run == 15));
    assert_eq!((got[0].tos, got[0].ttl, got[0].ifindex, got[0].src_port), (2, 64, 4, 0xc000));
    assert_eq!(got[15].src, address("fd00::1"));

    // Multicast reaches members, the sender too if it is one.
    let group = address("ff12::1");
    let to_group = Transmit { src: address("fd00::1"), dst: group, ..batch(10) };
    right.join(group, 0).unwrap();
    left.send(&to_group, &[2; 10]).unwrap();
    assert_eq!(receive(&mut right, 1)[0].dst, group);
    right.leave(group, 0).unwrap();
    left.send(&to_group, &[3; 10]).unwrap();
    assert_eq!(right.recv(&mut RecvBatch::new(1)).unwrap(), 0);

    // What does not fit is dropped, and counted.
    let mut sent = 0;
    while right.drops() == 0 && sent < 1000 {
        left.send(&batch(4128), &bytes).unwrap();
        sent += 1;
    }
    assert_eq!(right.drops(), 1);
    assert_eq!(receive(&mut right, (sent - 1) * 15).len(), (sent - 1) * 15);

    // An end that left is an address nobody has.
    drop(right);
    left.send(&batch(10), &[1; 10]).unwrap();
}

#[test]
fn inproc_readiness_follows_the_queue() {
    let (mut left, mut right) = ends();
    let readable = |link: &InprocLink| {
        let fds = link.poll_fds();
        let mut polled = [nix::poll::PollFd::new(fds[0], nix::poll::PollFlags::POLLIN)];
        nix::poll::poll(&mut polled, 0u8).unwrap() > 0
    };
    assert!(!readable(&right));
    for _ in 0..3 {
        left.send(&batch(10), &[1; 10]).unwrap();
    }
    assert!(readable(&right));
    let mut two = RecvBatch::new(2);
    assert_eq!(right.recv(&mut two).unwrap(), 2);
    assert!(readable(&right));
    assert_eq!(right.recv(&mut two).unwrap(), 1);
    assert!(!readable(&right));
}

#[test]
fn a_batch_has_room_for_what_it_says() {
    let mut batch = RecvBatch::new(2);
    let run = |bytes| Run {
        src: address("10.0.0.1"),
        src_port: 1,
        dst: address("10.0.0.2"),
        ifindex: 0,
        tos: 0,
        ttl: 0,
        seen: HeaderSeen::Hidden,
        segment_size: 4,
        bytes,
    };
    assert!(!batch.push(&run(&[0; 65_537])));
    assert!(batch.push(&run(&[1; 65_536])));
    assert!(batch.push(&run(&[1, 2, 3, 4, 5])));
    assert!(batch.is_full() && !batch.push(&run(&[1])));
    assert!(batch.iter().nth(1).unwrap().packets().eq([&[1, 2, 3, 4][..], &[5]]));
    batch.clear();
    assert!(batch.is_empty() && batch.push(&run(&[])));
    assert_eq!(batch.iter().next().unwrap().packets().count(), 0);
}

/// Sends numbered packets through faults. Returns what came out, and the counts of sender and receiver.
fn through_faults(plan: &str, count: u32) -> (Vec<Vec<u8>>, rxe_verbs::net::fault::FaultCounts) {
    let (left, mut right) = ends();
    let plan = FaultPlan::parse(plan).unwrap();
    let sending = plan.sending;
    let mut left = FaultLink::new(Box::new(left), FaultPlan { receiving: false, ..plan.clone() }).unwrap();
    if sending {
        assert_eq!(left.capabilities().ident, Ident::Zero);
        assert_eq!(left.path(address("10.0.0.2"), 0).ident, Ident::Zero);
    }
    let mut got = Vec::new();
    let mut drain = |right: &mut dyn Link, wait: bool| {
        let mut batch = RecvBatch::default();
        for _ in 0..if wait { 5 } else { 1 } {
            right.recv(&mut batch).unwrap();
            got.extend(batch.iter().flat_map(|run| run.packets().map(<[u8]>::to_vec).collect::<Vec<_>>()));
            if wait {
                thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    };
    let mut numbers = (0..count).map(|number| [number.to_be_bytes(); 8].concat());
    loop {
        let some: Vec<u8> = numbers.by_ref().take(16).flatten().collect();
        if some.is_empty() {
            break;
        }
        left.send(&batch(32), &some).unwrap();
        drain(&mut right, false);
    }
    thread::sleep(std::time::Duration::from_millis(2));
    left.recv(&mut RecvBatch::default()).unwrap();
    drain(&mut right, true);
    (got, left.counts().0)
}

#[test]
fn faults_come_as_often_as_asked_for_and_the_same_for_a_seed() {
    const COUNT: u32 = 20_000;
    let (clean, counts) = through_faults("loss=0", COUNT);
    assert_eq!(clean.len(), COUNT as usize);
    assert!(clean.iter().zip(0u32..).all(|(packet, number)| packet[..4] == number.to_be_bytes()));
    assert_eq!((counts.lost, counts.duplicated, counts.reordered, counts.corrupted), (0, 0, 0, 0));

    let (got, counts) = through_faults("loss=10,dup=5,reorder=10,corrupt=1,seed=7", COUNT);
    assert_eq!(got.len() as u64, u64::from(COUNT) - counts.lost + counts.duplicated);
    let near = |count: u64, thousandths: u64| {
        let expected = u64::from(COUNT) * thousandths / 1000;
        assert!(count.abs_diff(expected) < expected / 2 + 5, "{count}, expected about {expected}");
    };
    near(counts.lost, 10);
    near(counts.duplicated, 5);
    near(counts.reordered, 10);
    near(counts.corrupted, 1);
    let damaged =
        got.iter().filter(|packet| packet.chunks(4).any(|part| part != &packet[..4])).count() as u64;
    assert!(damaged.abs_diff(counts.corrupted) <= counts.duplicated);
    let overtaken = got.windows(2).filter(|pair| pair[1][..4] < pair[0][..4]).count() as u64;
    assert!(overtaken > 0 && overtaken <= counts.reordered + counts.corrupted * 2, "{overtaken}");

    let (again, counts_again) = through_faults("loss=10,dup=5,reorder=10,corrupt=1,seed=7", COUNT);
    let sorted = |mut packets: Vec<Vec<u8>>| {
        packets.sort();
        packets
    };
    assert_eq!(counts_again, counts);
    // Only how long a packet was held back depends on the clock.
    assert!(sorted(again) == sorted(got));
    let (_, other) = through_faults("loss=10,dup=5,reorder=10,corrupt=1,seed=8", COUNT);
    assert_ne!(other, counts);
}

#[test]
fn faults_on_the_way_in_leave_runs_going_out() {
    let (mut left, right) = ends();
    let mut right = FaultLink::new(Box::new(right), FaultPlan::parse("loss=500,dir=rx").unwrap()).unwrap();
    assert_eq!(right.capabilities().ident, Ident::Sequential);
    let back = Transmit { src: address("10.0.0.2"), dst: address("10.0.0.1"), ..batch(10) };
    right.send(&back, &packets(20, 10, 0)).unwrap();
    let got = receive(&mut left, 20);
    assert!(got.len() == 20 && got.iter().all(|packet| packet.run == 20));
    left.send(&batch(10), &packets(100, 10, 0)).unwrap();
    let mut arrived = RecvBatch::new(128);
    right.recv(&mut arrived).unwrap();
    assert!((20..80).contains(&arrived.len()), "{}", arrived.len());
    assert_eq!(right.counts().1.lost + arrived.len() as u64, 100);
}

#[test]
fn plans_that_make_no_sense_are_refused() {
    for wrong in [
        "loss",
        "loss=",
        "loss=1001",
        "loss=-1",
        "lose=1",
        "seed=x",
        "dir=up",
        "loss=1 dup=2",
        "loss=101%",
        "loss=-1%",
        "delay=5",
        "delay=2h",
        "rate=1",
        "rate=0gbit",
        "delay=61s",
    ] {
        let error = FaultPlan::parse(wrong).unwrap_err().to_string();
        assert!(error.contains("RXE_FAULT") && error.contains("loss=N"), "{error}");
    }
    assert_eq!(FaultPlan::parse("").unwrap(), FaultPlan::default());
    let plan = FaultPlan::parse("loss=1000, dup=2, reorder=3, corrupt=4, seed=5, dir=tx").unwrap();
    assert_eq!(
        (plan.loss, plan.duplicate, plan.reorder, plan.corrupt, plan.seed),
        (1_000_000, 2_000, 3_000, 4_000, 5)
    );
    assert!(plan.sending && !plan.receiving);
}

/// A file in memory that two can hold.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The captured packets and whether each was sent (1 inbound, 2 outbound).
fn read_capture(bytes: &[u8]) -> Vec<(Vec<u8>, u32)> {
    let mut reader = PcapNgReader::new(bytes).unwrap();
    let mut packets = Vec::new();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.unwrap() {
            assert!(now.abs_diff(packet.timestamp).as_secs() < 60, "{:?}", packet.timestamp);
            let [EnhancedPacketOption::Flags(flags)] = packet.options[..] else {
                panic!("{:?}", packet.options)
            };
            packets.push((packet.data.to_vec(), flags));
        }
    }
    packets
}

#[test]
fn a_tap_records_what_the_wire_carries() {
    let Some((left, right)) = netns::pair(1500) else { return };
    left.ip("link set v0 gso_max_segs 1");
    let open = |namespace: &Namespace| namespace.run(|| UdpLink::open(&UdpConfig::default()).unwrap());
    let (file, file_in) = (Shared::default(), Shared::default());
    let capture = Capture::new(Box::new(file.clone()), "v0").unwrap();
    let mut sender = TapLink::new(Box::new(open(&left)), capture.clone());
    let mut receiver =
        TapLink::new(Box::new(open(&right)), Capture::new(Box::new(file_in.clone()), "v1").unwrap());
    let wire = netns::capture(&right);
    let source_port = sender.capabilities().source_ports[1];
    let bytes = packets(6, 1041, 40);
    for (src, dst) in [("10.9.0.1", "10.9.0.2"), ("fd09::1", "fd09::2")] {
        let (src, dst) = (address(src), address(dst));
        let batch = Transmit {
            src,
            dst,
            ifindex: 0,
            source_port,
            tos: 0x22,
            hop_limit: 64,
            encapsulation: Encapsulation::V2,
            segment_size: 1041,
        };
        sender.send(&batch, &bytes).unwrap();
    }
    // What did not leave is not recorded.
    let lost = Transmit { dst: address("192.0.2.1"), source_port, ..batch(1041) };
    assert!(matches!(sender.send(&lost, &bytes).unwrap_err(), SendError::Unreachable { .. }));

    let wire = netns::captured(&wire, 12);
    assert_eq!(wire.len(), 12);
    assert_eq!(receive(&mut receiver, 12).len(), 12);
    assert_eq!(capture.packets(), 12);
    drop((sender, receiver));
    capture.flush().unwrap();

    for ((recorded, flags), seen) in read_capture(&file.0.lock().unwrap()).iter().zip(&wire) {
        // The kernel left the UDP checksum to the (virtual) hardware: compare without it.
        let checksum = if recorded[0] >> 4 == 4 { 26 } else { 46 };
        let without = |packet: &[u8]| [&packet[..checksum], &packet[checksum + 2..]].concat();
        assert_eq!((without(recorded), flags), (without(seen), &2));
    }
    let received = read_capture(&file_in.0.lock().unwrap());
    assert_eq!(received.len(), 12);
    assert!(received.iter().zip(&wire).all(|((recorded, flags), seen)| {
        *flags == 1 && recorded.len() == seen.len() && recorded.ends_with(&seen[48..])
    }));
}

#[test]
fn a_capture_that_cannot_be_written_says_so_and_harms_nobody() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (left, mut right) = ends();
    let capture = Capture::new(Box::new(Full), "x").unwrap();
    let mut left = TapLink::new(Box::new(left), capture.clone());
    for _ in 0..50 {
        left.send(&batch(4128), &packets(15, 4128, 0)).unwrap();
    }
    assert_eq!(receive(&mut right, 750).len(), 750);
    assert!(capture.flush().is_err());
}

/// A link of several sockets, one of which fails at each receive.
struct HalfFailed(InprocLink);

impl Link for HalfFailed {
    fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }

    fn send(&mut self, batch: &Transmit, bytes: &[u8]) -> Result<(), SendError> {
        self.0.send(batch, bytes)
    }

    fn recv(&mut self, into: &mut RecvBatch) -> io::Result<usize> {
        self.0.recv(into)?;
        Err(io::Error::other("a socket has failed"))
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.0.poll_fds()
    }

    fn join(&mut self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        self.0.join(group, ifindex)
    }

    fn leave(&mut self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        self.0.leave(group, ifindex)
    }
}

/// The engine uses what came before the failure.
#[test]
fn a_tap_records_what_came_before_a_failure() {
    let (mut left, right) = ends();
    let capture = Capture::new(Box::new(Shared::default()), "x").unwrap();
    let mut right = TapLink::new(Box::new(HalfFailed(right)), capture.clone());
    left.send(&batch(100), &[1; 300]).unwrap();
    let mut into = RecvBatch::default();
    assert!(right.recv(&mut into).is_err());
    assert_eq!((into.len(), capture.packets()), (1, 3));
}

/// A new folder for the files of a test.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("rxe-{name}-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    folder.canonicalize().unwrap()
}

/// The descriptor of this process by which a file is open.
fn descriptor_of(path: &Path) -> i32 {
    let mut all = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let found = all.find(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == path)).unwrap();
    found.file_name().to_str().unwrap().parse().unwrap()
}

/// Programs close all descriptors, ours among them (`close_range(2)`), and open files of their own.
#[test]
fn a_capture_leaves_a_file_alone_that_has_got_its_number() {
    let folder = folder("number");
    let [ours, theirs] = ["ours", "theirs"].map(|name| folder.join(name));
    let capture = Capture::create(&ours, "x").unwrap();
    // SAFETY: puts a file of "the program's" in the place of the capture's, which is what is tested.
    let stranger = unsafe { dup2_raw(File::create(&theirs).unwrap(), descriptor_of(&ours)) }.unwrap();
    let mut left = TapLink::new(Box::new(ends().0), capture.clone());
    left.send(&batch(100), &[1; 300]).unwrap();
    assert!(capture.flush().is_err());
    drop((left, capture));
    assert_eq!(fs::read(&theirs).unwrap(), b"");
    File::from(stranger).write_all(b"x").unwrap();
    assert_eq!(fs::read(&theirs).unwrap(), b"x", "it is still open");
    fs::remove_dir_all(folder).unwrap();
}

/// Runs `work` in a forked child, which must end within 20 s.
fn in_child(work: impl FnOnce()) {
    // SAFETY: the child allocates (glibc sees to that), and does not return into the test harness.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            alarm::set(20);
            work();
            // SAFETY: ends the process without the harness's handlers.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
}

/// What is not written to disk yet is in the child's memory, too.
#[test]
fn a_forked_child_adds_nothing_to_a_capture() {
    let folder = folder("child");
    let path = folder.join("capture");
    let capture = Capture::create(&path, "x").unwrap();
    let (left, _right) = ends();
    let mut links = Some((TapLink::new(Box::new(left), capture.clone()), capture));
    links.as_mut().unwrap().0.send(&batch(100), &[1; 300]).unwrap();
    in_child(|| drop(links.take()));
    links.as_mut().unwrap().0.send(&batch(100), &[2; 300]).unwrap();
    drop(links.take());
    let packets = read_capture(&fs::read(&path).unwrap());
    let firsts: Vec<u8> = packets.iter().map(|(packet, _)| packet[28]).collect();
    assert_eq!(firsts, [1, 1, 1, 2, 2, 2]);
    fs::remove_dir_all(folder).unwrap();
}

/// A file to which writing takes as long as the test wants.
struct Slow {
    begun: mpsc::Sender<()>,
    end: mpsc::Receiver<()>,
}

impl Write for Slow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.begun.send(());
        let _ = self.end.recv();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_forked_child_does_not_wait_for_a_thread_that_records() {
    let ((begun, has_begun), (end, ended)) = (mpsc::channel(), mpsc::channel());
    let capture = Capture::new(Box::new(Slow { begun, end: ended }), "x").unwrap();
    let (left, right) = ends();
    let mut left = TapLink::new(Box::new(left), capture.clone());
    let mut right = Some(TapLink::new(Box::new(right), capture));
    thread::scope(|scope| {
        scope.spawn(|| left.send(&batch(4128), &packets(15, 4128, 0)).unwrap());
        has_begun.recv().unwrap();
        in_child(|| drop(right.take()));
        drop(end);
    });
}
