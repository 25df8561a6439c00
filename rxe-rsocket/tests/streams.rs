//! Streams between two hosts: data, waiting, ends.

mod common;

use common::{Host, PATIENCE, PORT, connect, hosts, hosts_of, pattern, poll_one, read_all};
use rxe_rsocket::{Flags, Name, PollSet, Settings, Socket, SocketError, StreamSocket, Value, proto::How};
use std::{sync::Arc, thread, time::Duration};

#[test]
fn both_directions_carry_all_bytes_at_once() {
    let mut settings = Settings::default();
    // Rings that come round often, at odd places.
    settings.set_receive_buffer(9008);
    settings.set_send_buffer(7001);
    settings.set_receives(16);
    settings.set_sends(16);
    let (a, b) = hosts_of(settings);
    let (active, passive) = connect(&a, &b);
    let data = pattern(400_003);
    thread::scope(|scope| {
        for (socket, step) in [(&active, 1234), (&passive, 70_000)] {
            let data = &data;
            scope.spawn(move || {
                for piece in data.chunks(step) {
                    assert_eq!(socket.send(piece, Flags::NONE).unwrap(), piece.len());
                }
                socket.shut_down(How::Write).unwrap();
            });
            scope.spawn(move || assert!(read_all(socket).unwrap() == *data, "other bytes have arrived"));
        }
    });
    assert!(matches!(active.send(b"x", Flags::NONE), Err(SocketError::NoMoreWriting)));
    active.close();
    passive.close();
}

#[test]
fn flags_and_pieces() {
    let (a, b) = hosts();
    let (active, passive) = connect(&a, &b);
    let mut out = [0; 16];
    assert!(matches!(passive.receive(&mut out, Flags::DONTWAIT), Err(SocketError::WouldBlock)));
    let pieces: Vec<&[u8]> = vec![b"a", b"", b"bc", b"d", b"e", b"f", b"g", b"h", b"i", b"j", b"k"];
    assert_eq!(active.send_parts(&pieces, Flags::NONE).unwrap(), 11);
    assert_eq!(passive.receive(&mut out[..3], Flags::PEEK).unwrap(), 3);
    assert_eq!(passive.receive(&mut out[..11], Flags::WAITALL).unwrap(), 11);
    assert_eq!(&out[..11], b"abcdefghijk");
    active.send(b"the last", Flags::NONE).unwrap();
    active.close();
    assert_eq!(read_all(&passive).unwrap(), b"the last");
    assert!(matches!(passive.send(b"x", Flags::NONE), Err(SocketError::NoMoreWriting)));
    passive.close();
}

#[test]
fn addresses_and_options() {
    let (a, b) = hosts();
    let (active, passive) = connect(&a, &b);
    assert_eq!((active.peer_addr().unwrap(), passive.local_addr()), (b.at(PORT), b.at(PORT)));
    assert_eq!(passive.peer_addr().unwrap(), active.local_addr());
    assert_eq!(active.local_addr().ip(), a.address);
    let route = active.option(Name::Route).unwrap().encode();
    // Flags and the service ID; then the GIDs.
    assert_eq!((route.len(), &route[28..32], &route[44..48]), (72, &[10, 0, 0, 2][..], &[10, 0, 0, 1][..]));
    let fresh = a.stream();
    fresh.set_option(Name::ReceiveBuffer, &Value::Number(5000)).unwrap();
    assert_eq!(fresh.option(Name::ReceiveBuffer).unwrap(), Value::Number(10_000));
    fresh.set_option(Name::SendQueue, &Value::Number(1)).unwrap();
    assert_eq!(fresh.option(Name::SendQueue).unwrap(), Value::Number(16));
    // Sizes of a connection are settled.
    assert!(active.set_option(Name::SendQueue, &Value::Number(99)).is_err());
    let refused = fresh.connect(b.at(PORT + 1)).unwrap_err();
    assert_eq!(refused.errno(), libc::ECONNREFUSED);
    assert_eq!(fresh.option(Name::Error).unwrap(), Value::Number(0), "it has been told");
    assert!(matches!(a.stream().send(b"x", Flags::NONE), Err(SocketError::NotConnected)));
}

#[test]
fn who_does_not_wait_is_told_by_poll() {
    let (a, b) = hosts();
    let listener = b.listen(4);
    listener.set_nonblocking(true);
    assert!(matches!(listener.accept(), Err(SocketError::WouldBlock)));
    let active = a.stream();
    active.set_nonblocking(true);
    assert!(matches!(active.connect(b.at(PORT)), Err(SocketError::InProgress)));
    assert_eq!(poll_one(&active, libc::POLLOUT, PATIENCE), libc::POLLOUT);
    assert_eq!(active.option(Name::Error).unwrap(), Value::Number(0));
    assert_eq!(poll_one(&listener, libc::POLLIN, PATIENCE), libc::POLLIN);
    let passive = listener.accept().unwrap();
    assert_eq!(poll_one(&passive, libc::POLLIN, Duration::from_millis(20)), 0);
    let peer = Arc::clone(&active);
    let late = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        peer.send(b"late", Flags::NONE).unwrap();
    });
    assert_eq!(poll_one(&passive, libc::POLLIN, PATIENCE), libc::POLLIN);
    late.join().unwrap();
    let refused = a.stream();
    refused.set_nonblocking(true);
    assert!(matches!(refused.connect(b.at(PORT + 1)), Err(SocketError::InProgress)));
    let told = poll_one(&refused, libc::POLLOUT, PATIENCE);
    assert_eq!(told & (libc::POLLOUT | libc::POLLERR), libc::POLLOUT | libc::POLLERR);
    let number = libc::ECONNREFUSED as u32;
    assert_eq!(refused.option(Name::Error).unwrap(), Value::Number(number));
}

/// Programs that connect without waiting ask for the peer to find out whether there is a connection.
#[test]
fn there_is_no_peer_before_there_is_a_connection() {
    let (a, b) = hosts();
    let listener = b.listen(1);
    let no_peer = |socket: &StreamSocket| matches!(socket.peer_addr(), Err(SocketError::NotConnected));
    // One more than the backlog, whom nobody answers.
    let sockets: Vec<_> = (0..2).map(|_| a.stream()).collect();
    assert!(no_peer(&sockets[0]));
    for socket in &sockets {
        socket.set_nonblocking(true);
        assert!(matches!(socket.connect(b.at(PORT)), Err(SocketError::InProgress)));
        assert_eq!(poll_one(&sockets[0], libc::POLLOUT, PATIENCE), libc::POLLOUT);
    }
    assert_eq!(sockets[0].peer_addr().unwrap(), b.at(PORT));
    assert!(no_peer(&sockets[1]), "it is not answered yet");
    let refused = a.stream();
    assert_eq!(refused.connect(b.at(PORT + 1)).unwrap_err().errno(), libc::ECONNREFUSED);
    assert!(no_peer(&refused), "it is refused");
    listener.close();
}

/// As socket(7) has it: EAGAIN for accept, send, and recv, EINPROGRESS for connect.
#[test]
fn timeouts_are_those_of_connections_too() {
    let (a, b) = hosts();
    let time = Value::Time(Some(Duration::from_millis(50)));
    let listener = b.listen(1);
    listener.set_option(Name::ReceiveTimeout, &time).unwrap();
    // Ends what would wait for ever.
    let _end = common::Alarm::new({
        let listener = Arc::clone(&listener);
        move || listener.close()
    });
    assert!(matches!(listener.accept(), Err(SocketError::WouldBlock)));
    let first = a.stream();
    first.connect(b.at(PORT)).unwrap();
    // Nobody answers this one.
    let second = a.stream();
    second.set_option(Name::SendTimeout, &time).unwrap();
    second.set_option(Name::ReceiveTimeout, &time).unwrap();
    assert!(matches!(second.connect(b.at(PORT)), Err(SocketError::InProgress)));
    assert!(matches!(second.connect(b.at(PORT)), Err(SocketError::Already)));
    assert!(matches!(second.send(b"x", Flags::NONE), Err(SocketError::WouldBlock)));
    assert!(matches!(second.receive(&mut [0], Flags::NONE), Err(SocketError::WouldBlock)));
    // It is being connected all the same.
    listener.accept().unwrap();
    assert_eq!(poll_one(&second, libc::POLLOUT, PATIENCE), libc::POLLOUT);
    assert_eq!(second.send(b"x", Flags::NONE).unwrap(), 1);
}

/// Some take a hang-up for a failure, whatever there is left to read: rstream -T a.
#[test]
fn a_hang_up_is_told_when_all_is_read() {
    let (a, b) = hosts();
    let (active, passive) = connect(&a, &b);
    let data = pattern(9000);
    assert_eq!(active.send(&data, Flags::NONE).unwrap(), data.len());
    // It waits until the other end has all, the end included.
    active.close();
    let (mut got, mut piece) = (Vec::new(), [0; 1000]);
    while got.len() < data.len() {
        assert_eq!(poll_one(&passive, libc::POLLIN, PATIENCE), libc::POLLIN, "{} bytes are read", got.len());
        let count = passive.receive(&mut piece, Flags::DONTWAIT).unwrap();
        got.extend_from_slice(&piece[..count]);
    }
    assert!(got == data, "other bytes have arrived");
    assert_eq!(poll_one(&passive, libc::POLLIN, PATIENCE), libc::POLLIN | libc::POLLHUP);
    assert_eq!(passive.receive(&mut piece, Flags::NONE).unwrap(), 0);
    passive.close();
}

#[test]
fn a_peer_that_never_reads_stops_the_sender_and_not_its_end() {
    let (a, b) = hosts();
    let (active, passive) = connect(&a, &b);
    active.set_nonblocking(true);
    let data = pattern(1 << 20);
    let mut sent = 0;
    loop {
        match active.send(&data[sent..(sent + 10_000).min(data.len())], Flags::NONE) {
            Ok(count) => sent += count,
            Err(SocketError::WouldBlock) => {
                // So much there is room for, whenever it comes; after that, nothing.
                let patience = if sent < 131_072 { PATIENCE } else { Duration::from_millis(200) };
                if poll_one(&active, libc::POLLOUT, patience) == 0 {
                    break;
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!((131_072..data.len()).contains(&sent), "{sent} bytes fit");
    // What has been sent can be read when all is over, and no byte more.
    active.close();
    let got = read_all(&passive).unwrap();
    assert_eq!(got.len(), sent);
    assert!(got == data[..sent], "other bytes have arrived");
}

#[test]
fn more_than_the_backlog_waits() {
    let (a, b) = hosts();
    let listener = b.listen(2);
    let sockets: Vec<_> = (0..5).map(|_| a.stream()).collect();
    for socket in &sockets {
        socket.set_nonblocking(true);
        assert!(matches!(socket.connect(b.at(PORT)), Err(SocketError::InProgress)));
    }
    for _ in &sockets {
        listener.accept().unwrap().send(b"welcome", Flags::NONE).unwrap();
    }
    for socket in &sockets {
        assert_eq!(poll_one(socket, libc::POLLIN, PATIENCE) & libc::POLLIN, libc::POLLIN);
    }
    // Connections that nobody has taken end with their listener.
    let late = a.stream();
    late.connect(b.at(PORT)).unwrap();
    listener.close();
    assert_eq!(late.receive(&mut [0], Flags::NONE).unwrap_err().errno(), libc::ECONNRESET);
    assert_eq!(late.receive(&mut [0], Flags::NONE).unwrap(), 0);
}

/// The second process of the test below, because it changes the limit.
#[test]
#[ignore = "run by connections_that_nobody_accepts_do_not_use_up_the_descriptors"]
fn listens_with_few_descriptors() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (a, b) = hosts();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    // Only for the listener: the peers need descriptors, too.
    setrlimit(Resource::RLIMIT_NOFILE, 60, hard).unwrap();
    let listener = b.listen(511);
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    let peers: Vec<_> = (0..30).map(|_| a.stream()).collect();
    for peer in &peers {
        peer.set_nonblocking(true);
        assert!(matches!(peer.connect(b.at(PORT)), Err(SocketError::InProgress)));
    }
    // Who is going to be answered is answered by then.
    thread::sleep(Duration::from_millis(500));
    let established = peers.iter().filter(|peer| peer.peer_addr().is_ok()).count();
    assert!((1..=10).contains(&established), "{established}");
    for _ in &peers {
        listener.accept().unwrap();
    }
}

#[test]
fn connections_that_nobody_accepts_do_not_use_up_the_descriptors() {
    let mut second = std::process::Command::new(std::env::current_exe().unwrap());
    let status = second.args(["--exact", "listens_with_few_descriptors", "--ignored"]).status().unwrap();
    assert!(status.success(), "{status}");
}

#[test]
fn shutdown_of_a_listener_ends_accept() {
    let (a, b) = hosts();
    let listener = b.listen(2);
    listener.shut_down(How::Write).unwrap();
    a.stream().connect(b.at(PORT)).unwrap();
    listener.accept().unwrap();
    let accepting = {
        let listener = Arc::clone(&listener);
        thread::spawn(move || listener.accept().map(drop))
    };
    thread::sleep(Duration::from_millis(50));
    listener.shut_down(How::Read).unwrap();
    for _ in 0..3000 {
        if accepting.is_finished() {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    assert!(accepting.is_finished(), "it still waits");
    assert_eq!(accepting.join().unwrap().unwrap_err().errno(), libc::EINVAL);
    assert_eq!(a.stream().connect(b.at(PORT)).unwrap_err().errno(), libc::ECONNREFUSED);
    listener.close();
}

#[test]
fn a_buffer_of_the_peer_is_written_past_the_stream() {
    let mut settings = Settings::default();
    settings.set_iomap(4);
    let (a, b) = hosts_of(settings);
    let (active, passive) = connect(&a, &b);
    // Never a reference: the peer writes there.
    let memory = Box::into_raw(vec![0_u8; 100_000].into_boxed_slice());
    let wanted = rxe_rsocket::IoMapping {
        addr: memory.cast::<u8>().addr(),
        len: 100_000,
        remote: true,
        offset: Some(5_000),
    };
    // SAFETY: nobody looks at it until it is unmapped.
    unsafe { passive.map(wanted) }.unwrap();
    assert_eq!(active.write_mapped(b"x", 5_000, Flags::NONE).unwrap(), 0, "not told yet");
    passive.send(b"!", Flags::NONE).unwrap();
    active.receive(&mut [0], Flags::NONE).unwrap();
    let data = pattern(90_000);
    assert_eq!(active.write_mapped(&data, 5_010, Flags::NONE).unwrap(), 90_000);
    // Beyond its end nothing is written.
    assert_eq!(active.write_mapped(&data, 104_990, Flags::NONE).unwrap(), 10);
    assert_eq!(active.write_mapped(&data, 105_000, Flags::NONE).unwrap(), 0);
    active.send(b"!", Flags::NONE).unwrap();
    passive.receive(&mut [0], Flags::NONE).unwrap();
    passive.unmap(wanted.addr, wanted.len).unwrap();
    assert!(passive.unmap(wanted.addr, wanted.len).is_err());
    // SAFETY: made above, and not mapped any more.
    let memory = unsafe { Box::from_raw(memory) };
    assert!(memory[10..90_010] == data && memory[..10] == [0; 10] && memory[99_990..] == data[..10]);
}

#[test]
fn a_set_tells_of_each_connection_of_an_edge_triggered_listener() {
    let (a, b) = hosts();
    let listener = b.listen(8);
    let set = PollSet::new().unwrap();
    let events = libc::EPOLLIN as u32 | libc::EPOLLET as u32;
    set.set(1, Socket::Stream(Arc::clone(&listener)), events, 7);
    let first = a.stream();
    first.connect(b.at(PORT)).unwrap();
    assert_eq!(set.wait(8, Some(PATIENCE)).unwrap().len(), 1);
    listener.accept().unwrap();
    let second = a.stream();
    second.connect(b.at(PORT)).unwrap();
    assert_eq!(set.wait(8, Some(PATIENCE)).unwrap().len(), 1);
    // Nothing new: the thread sleeps, although a connection stands.
    let used = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a clock of this thread, and a place for its time.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let before = used();
    assert_eq!(set.wait(8, Some(Duration::from_millis(400))).unwrap(), []);
    let used = used() - before;
    assert!(used < Duration::from_millis(100), "{used:?} of processor time");
    listener.accept().unwrap();
}

#[test]
fn a_set_that_is_asked_for_one_event_tells_of_each_in_turn() {
    use nix::sys::epoll::{EpollEvent, EpollFlags};
    use std::os::fd::AsFd;
    let (a, b) = hosts();
    let (active, passive) = connect(&a, &b);
    let set = PollSet::new().unwrap();
    for (fd, socket) in [(1, &active), (2, &passive)] {
        assert_eq!(poll_one(socket, libc::POLLOUT, PATIENCE), libc::POLLOUT);
        set.set(fd, Socket::Stream(Arc::clone(socket)), libc::EPOLLOUT as u32, fd as u64);
    }
    let (_reader, writer) = std::io::pipe().unwrap();
    let other = EpollEvent::new(EpollFlags::EPOLLOUT, 3);
    nix::sys::epoll::Epoll(set.as_fd().try_clone_to_owned().unwrap()).add(&writer, other).unwrap();
    let mut told: Vec<u64> = (0..6).map(|_| set.wait(1, Some(PATIENCE)).unwrap()[0].1).collect();
    told.sort_unstable();
    told.dedup();
    assert_eq!(told, [1, 2, 3]);
}

#[test]
fn a_set_tells_of_levels_and_of_edges() {
    use nix::sys::epoll::EpollFlags;
    let (a, b) = hosts();
    let (active, passive) = connect(&a, &b);
    let set = PollSet::new().unwrap();
    let bits = |flags: EpollFlags| flags.bits() as u32;
    let brief = Some(Duration::from_millis(20));
    set.set(1, Socket::Stream(Arc::clone(&passive)), bits(EpollFlags::EPOLLIN), 7);
    assert_eq!(set.wait(8, brief).unwrap(), []);
    active.send(b"one", Flags::NONE).unwrap();
    for _ in 0..2 {
        assert_eq!(set.wait(8, Some(PATIENCE)).unwrap(), [(bits(EpollFlags::EPOLLIN), 7)]);
    }
    set.set(1, Socket::Stream(Arc::clone(&passive)), bits(EpollFlags::EPOLLIN | EpollFlags::EPOLLET), 8);
    assert_eq!(set.wait(8, Some(PATIENCE)).unwrap(), [(bits(EpollFlags::EPOLLIN), 8)]);
    assert_eq!(set.wait(8, brief).unwrap(), []);
    active.send(b"two", Flags::NONE).unwrap();
    assert_eq!(set.wait(8, Some(PATIENCE)).unwrap(), [(bits(EpollFlags::EPOLLIN), 8)]);
    let once = EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT;
    set.set(1, Socket::Stream(Arc::clone(&passive)), bits(once), 9);
    assert_eq!(set.wait(8, Some(PATIENCE)).unwrap(), [(bits(EpollFlags::EPOLLIN), 9)]);
    assert_eq!(set.wait(8, brief).unwrap(), []);
    assert!(set.remove(1) && !set.has_sockets());
    drop::<(Host, Host)>((a, b));
}
