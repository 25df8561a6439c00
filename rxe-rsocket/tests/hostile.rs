//! Peers that are no rsockets, or bad ones: played by queue pairs that do as they like.

mod common;

use common::{Host, PATIENCE, PORT, hosts, read_all};
use rxe_cm::{CmId, ConnParams, EventChannel, EventKind, ForeignQp, proto::PortSpace};
use rxe_rsocket::{
    Flags, Name, SocketError, StreamSocket, Value,
    proto::{Control, Hello, Message, Piece},
};
use rxe_verbs::{
    Access, Cq, Key, Mr, Payload, Qp, QpChange, QpInit, QpState, QpType, RecvWr, Remote, SendFlags, SendOp,
    SendWr,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// A peer by hand.
struct Rogue {
    id: CmId,
    channel: EventChannel,
    qp: Arc<Qp>,
    _cq: Cq,
    memory: Mr,
}

impl Rogue {
    /// Its id knows its way; nothing has been asked yet.
    fn new(host: &Host, id: CmId, channel: EventChannel) -> Self {
        let pd = host.context.alloc_pd().unwrap();
        let cq = host.context.create_cq(64, None).unwrap();
        let memory = pd.alloc_mr(8192, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let qp = id.create_qp(&pd, &QpInit::new(QpType::Rc, &cq)).unwrap();
        for _ in 0..16 {
            qp.post_recv(&RecvWr { wr_id: 0, sges: &[] }).unwrap();
        }
        Self { id, channel, qp, _cq: cq, memory }
    }

    fn active(host: &Host, to: &Host) -> Self {
        let channel = EventChannel::new().unwrap();
        let id = host.manager.create_id(&channel, PortSpace::Tcp).unwrap();
        id.resolve_addr(None, to.at(PORT)).unwrap();
        channel.get_event(Some(PATIENCE)).unwrap();
        id.resolve_route().unwrap();
        channel.get_event(Some(PATIENCE)).unwrap();
        Self::new(host, id, channel)
    }

    fn hello(&self) -> Hello {
        let directory = Piece { addr: self.memory.addr(), key: self.memory.rkey().0, len: 2 };
        let buffer = Piece { addr: self.memory.addr() + 64, key: self.memory.rkey().0, len: 4000 };
        Hello { big_endian: false, credits: 16, iomap: 0, directory, buffer }
    }

    /// Says this, and gives what comes of it.
    fn connect(&self, hello: &[u8]) -> rxe_cm::CmEvent {
        self.id.connect(&ConnParams { private_data: hello, ..ConnParams::default() }).unwrap();
        self.channel.get_event(Some(PATIENCE)).unwrap()
    }

    fn post(&self, op: SendOp, bytes: &[u8]) {
        let (flags, payload) = (SendFlags::SIGNALED, Payload::Inline(bytes));
        self.qp.post_send(&SendWr { wr_id: 0, op, flags, payload, dest: None, xrc_srq: 0 }).unwrap();
    }

    fn tell(&self, to: Piece, bytes: &[u8], message: Message) {
        self.post(SendOp::WriteImm(Remote { addr: to.addr, rkey: Key(to.key) }, message.encode()), bytes);
    }
}

/// A connection of a rogue with a socket; what the socket has said of itself.
fn pair(a: &Host, b: &Host) -> (Rogue, Hello, Arc<StreamSocket>) {
    let listener = b.listen(1);
    let rogue = Rogue::active(a, b);
    let event = rogue.connect(&rogue.hello().encode());
    assert!(matches!(event.kind, EventKind::Established(_)), "{event:?}");
    let told = Hello::decode(&event.private_data).unwrap();
    let socket = listener.accept().unwrap();
    listener.close();
    (rogue, told, socket)
}

#[test]
fn other_versions_and_no_rsockets_are_refused() {
    let (a, b) = hosts();
    let listener = b.listen(4);
    let rogue = Rogue::active(&a, &b);
    let good = rogue.hello().encode();
    let other = |at: usize, value: u8| {
        let mut bytes = good;
        bytes[at] = value;
        bytes
    };
    for bytes in [other(0, 2), other(0, 0), other(23, 0)] {
        let rogue = Rogue::active(&a, &b);
        let event = rogue.connect(&bytes);
        assert!(matches!(event.kind, EventKind::Rejected(_)), "{event:?}");
    }
    // The listener goes on.
    assert!(matches!(rogue.connect(&good).kind, EventKind::Established(_)));
    listener.accept().unwrap();
}

/// Its REQ is answered, and it sends no RTU.
#[test]
fn a_peer_that_does_not_finish_does_not_keep_others_out() {
    let (a, b) = hosts();
    let listener = b.listen(1);
    let rogue = Rogue::active(&a, &b);
    let hello = rogue.hello().encode();
    // Without a queue pair the program has to send the RTU itself.
    let channel = EventChannel::new().unwrap();
    let id = a.manager.create_id(&channel, PortSpace::Tcp).unwrap();
    id.resolve_addr(None, b.at(PORT)).unwrap();
    channel.get_event(Some(PATIENCE)).unwrap();
    id.resolve_route().unwrap();
    channel.get_event(Some(PATIENCE)).unwrap();
    let qp = Some(ForeignQp { qpn: rogue.qp.qpn(), srq: false });
    let params = ConnParams { private_data: &hello, qp, ..ConnParams::default() };
    id.connect(&params).unwrap();
    let event = channel.get_event(Some(PATIENCE)).unwrap();
    assert!(matches!(event.kind, EventKind::ConnectResponse(_)), "{event:?}");
    let socket = a.stream();
    socket.set_nonblocking(true);
    // On a machine under load it may be connected before the call returns.
    let connected = socket.connect(b.at(PORT));
    assert!(matches!(connected, Ok(()) | Err(SocketError::InProgress)), "{connected:?}");
    assert_eq!(common::poll_one(&socket, libc::POLLOUT, PATIENCE), libc::POLLOUT);
    assert!(channel.try_get_event().is_none(), "only when the first peer was given up");
    listener.accept().unwrap();
}

#[test]
fn a_server_of_another_version_is_an_error() {
    let (a, b) = hosts();
    let channel = EventChannel::new().unwrap();
    let listener = b.manager.create_id(&channel, PortSpace::Tcp).unwrap();
    listener.bind(b.at(PORT)).unwrap();
    listener.listen(4).unwrap();
    let socket = a.stream();
    socket.set_nonblocking(true);
    assert!(socket.connect(b.at(PORT)).is_err());
    let request = channel.get_event(Some(PATIENCE)).unwrap();
    assert!(Hello::decode(&request.private_data).is_ok());
    let rogue = Rogue::new(&b, request.id.clone(), channel.clone());
    rogue.id.accept(&ConnParams { private_data: &[3; 40], ..ConnParams::default() }).unwrap();
    socket.set_nonblocking(false);
    assert_eq!(socket.connect(b.at(PORT)).unwrap_err().errno(), libc::EPROTONOSUPPORT);
}

#[test]
fn what_was_sent_before_a_lie_can_be_read() {
    for lie in [Message::Data(1 << 20), Message::Data(0x1fff_ffff), Message::Reserved(0x2000_0000)] {
        let (a, b) = hosts();
        let (rogue, told, socket) = pair(&a, &b);
        rogue.tell(told.buffer, b"the truth", Message::Data(9));
        rogue.tell(Piece::default(), b"", lie);
        let (read, error) = read_all(&socket).unwrap_err();
        assert_eq!((&read[..], error.errno()), (&b"the truth"[..], libc::EPROTO), "{lie:?}");
        assert_eq!(socket.receive(&mut [0], Flags::NONE).unwrap(), 0, "told once");
        assert!(socket.send(b"x", Flags::NONE).is_err());
        socket.close();
    }
}

#[test]
fn more_messages_than_credits_cut_the_connection() {
    let (a, b) = hosts();
    let (rogue, told, socket) = pair(&a, &b);
    for _ in 0..u32::from(told.credits) + 1 {
        rogue.tell(told.buffer, b"x", Message::Data(1));
        // Its own queues are shorter: one after the other.
        while rogue.qp.query().0.state == QpState::Rts
            && rogue._cq.poll(&mut [Default::default(); 8]) == Ok(0)
        {}
        let _ = socket.unread();
    }
    let (read, error) = read_all(&socket).unwrap_err();
    assert_eq!((read.len(), error.errno()), (told.credits.into(), libc::EPROTO));
}

#[test]
fn a_peer_that_is_gone_is_an_error_once_all_is_read() {
    let (a, b) = hosts();
    let (rogue, told, socket) = pair(&a, &b);
    rogue.tell(told.buffer, b"last words", Message::Data(10));
    let mut first = [0; 4];
    assert_eq!(socket.receive(&mut first, Flags::WAITALL).unwrap(), 4);
    rogue.id.destroy();
    let (read, error) = read_all(&socket).unwrap_err();
    assert_eq!((&read[..], error.errno()), (&b" words"[..], libc::ECONNRESET));
    socket.close();
}

/// A call that has sent a part before returns how much. It must not take the reason with it.
#[test]
fn a_send_that_is_cut_short_leaves_the_reason_to_the_next_call() {
    let (a, b) = hosts();
    let (rogue, _, socket) = pair(&a, &b);
    let sending = {
        let socket = Arc::clone(&socket);
        // It has room for 4000 bytes, and gives no more.
        thread::spawn(move || socket.send(&[7; 10_000], Flags::NONE))
    };
    thread::sleep(Duration::from_millis(200));
    rogue.id.destroy();
    assert_eq!(sending.join().unwrap().unwrap(), 4000);
    let look = || socket.receive(&mut [0], Flags::PEEK);
    assert_eq!(look().unwrap_err().errno(), libc::ECONNRESET);
    assert_eq!(
        socket.receive(&mut [0], Flags::NONE).unwrap_err().errno(),
        libc::ECONNRESET,
        "a look takes nothing"
    );
    assert_eq!((look().unwrap(), socket.receive(&mut [0], Flags::NONE).unwrap()), (0, 0), "told once");
    socket.close();
}

/// It says nothing, not even that it ends: as a host whose power is gone.
#[test]
fn keep_alive_finds_out_that_a_peer_is_gone() {
    let (a, b) = hosts();
    let (rogue, _, socket) = pair(&a, &b);
    socket.set_option(Name::ReceiveTimeout, &Value::Time(Some(PATIENCE))).unwrap();
    socket.set_option(Name::KeepIdle, &Value::Number(1)).unwrap();
    socket.set_option(Name::KeepAlive, &Value::Number(1)).unwrap();
    rogue.qp.modify(&QpChange { state: Some(QpState::Reset), ..QpChange::default() }).unwrap();
    let error = socket.receive(&mut [0], Flags::NONE).unwrap_err();
    assert_eq!(error.errno(), libc::ETIMEDOUT, "{error}");
    assert!(matches!(error, SocketError::Cut(_)), "found out, and not given up waiting: {error:?}");
    socket.close();
}

/// A timer of the program must not keep close from giving up.
#[test]
fn close_gives_up_in_spite_of_signals() {
    let (a, b) = hosts();
    let listener = b.listen(1);
    let rogue = Rogue::active(&a, &b);
    // It promises more receives than it has, so the last messages are never taken.
    let hello = Hello { credits: 64, ..rogue.hello() };
    assert!(matches!(rogue.connect(&hello.encode()).kind, EventKind::Established(_)));
    let socket = listener.accept().unwrap();
    for _ in 0..20 {
        socket.send(b"x", Flags::NONE).unwrap();
    }
    socket.set_option(Name::Linger, &Value::Linger(Some(Duration::from_secs(1)))).unwrap();
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGUSR1, nothing as *const () as libc::sighandler_t) };
    // SAFETY: this thread lives longer than the scope below.
    let this = unsafe { libc::pthread_self() };
    let closed = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // At each signal it would begin to wait anew.
            for _ in 0..200 {
                thread::sleep(Duration::from_millis(100));
                if closed.load(Ordering::Acquire) {
                    return;
                }
                // SAFETY: as above.
                unsafe { libc::pthread_kill(this, libc::SIGUSR1) };
            }
            assert!(closed.load(Ordering::Acquire), "it still waits after 200 signals");
        });
        socket.close();
        closed.store(true, Ordering::Release);
    });
}

#[test]
fn keys_that_lead_nowhere_end_the_connection() {
    // Large data and their message are two requests, of which the first is refused.
    for len in [13, 20_000] {
        let (a, b) = hosts();
        let listener = b.listen(1);
        let rogue = Rogue::active(&a, &b);
        let mut hello = rogue.hello();
        hello.buffer.key ^= 0xffff;
        hello.buffer.len = 40_000;
        assert!(matches!(rogue.connect(&hello.encode()).kind, EventKind::Established(_)));
        let socket = listener.accept().unwrap();
        assert_eq!(socket.send(&vec![7; len], Flags::NONE).unwrap(), len);
        let error = socket.receive(&mut [0], Flags::NONE).unwrap_err();
        assert_eq!(error.errno(), libc::EIO, "{len} bytes");
        socket.close();
    }
}

#[test]
fn messages_that_are_not_known_are_passed_over() {
    let (a, b) = hosts();
    let (rogue, told, socket) = pair(&a, &b);
    rogue.tell(Piece::default(), b"", Message::Control(Control::Other(77)));
    rogue.tell(Piece::default(), b"", Message::IoMap(9999));
    rogue.tell(Piece::default(), b"", Message::Control(Control::KeepAlive));
    rogue.tell(told.buffer, b"and on", Message::Data(6));
    rogue.tell(Piece::default(), b"", Message::Control(Control::Disconnect));
    assert_eq!(read_all(&socket).unwrap(), b"and on");
}
