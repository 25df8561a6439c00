//! Whole frames: seen, made by hand, and passed on with a tag.

use super::{Namespace, capture};
use std::{
    ffi::CString,
    io::{Error, Read},
    os::fd::AsRawFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// The frames that a capture has.
pub(crate) fn frames(mut wire: &socket2::Socket) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut buffer = vec![0; 70_000];
    while let Ok(len) = wire.read(&mut buffer) {
        frames.push(buffer[..len].to_vec());
    }
    frames
}

/// A socket that has what comes in by an interface, and where frames go that are to leave by it.
pub(crate) fn injector(
    namespace: &Namespace,
    interface: &'static str,
) -> (socket2::Socket, socket2::SockAddr) {
    const IGNORE_OUTGOING: libc::c_int = 23;
    let index = namespace.run(move || {
        let name = CString::new(interface).unwrap();
        // SAFETY: a string.
        unsafe { libc::if_nametoindex(name.as_ptr()) }
    });
    // SAFETY: the storage is zeroed and larger than a sockaddr_ll, of which all that is read is written here.
    let (_, at) = unsafe {
        socket2::SockAddr::try_init(|storage, len| {
            let at = &mut *storage.cast::<libc::sockaddr_ll>();
            (at.sll_family, at.sll_ifindex) = (libc::AF_PACKET as u16, index.cast_signed());
            at.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
            *len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            Ok(())
        })
    }
    .unwrap();
    let socket = capture(namespace);
    socket.bind(&at).unwrap();
    // SAFETY: the value is an int.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            IGNORE_OUTGOING,
            (&raw const ON).cast(),
            size_of_val(&ON) as libc::socklen_t,
        )
    };
    assert_eq!(done, 0, "{}", Error::last_os_error());
    (socket, at)
}

static ON: libc::c_int = 1;

/// A switch between two hosts that gives every frame a tag: a priority and VLAN 0, as switches and cards with priorities do. No
/// 8021q is needed for those.
pub(crate) struct TaggingSwitch {
    stop: Arc<AtomicBool>,
    tagged: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
    _namespace: Namespace,
}

impl TaggingSwitch {
    /// The switch and its hosts, which have `v0` and `v1`; `None`, and why on stderr, where we may not make namespaces.
    pub(crate) fn new() -> Option<([Namespace; 2], Self)> {
        let (left, switch, right) = (Namespace::new()?, Namespace::new()?, Namespace::new()?);
        for (host, interface, port) in [(&left, "v0", "s0"), (&right, "v1", "s1")] {
            host.ip(&format!("link add {interface} type veth peer name {port} netns {}", switch.thread));
            host.ip(&format!("link set {interface} up"));
            host.cut_batches(interface);
            switch.ip(&format!("link set {port} up"));
            host.await_up(interface);
            switch.await_up(port);
        }
        let [(left_port, to_left), (right_port, to_right)] = ["s0", "s1"].map(|port| {
            let (socket, there) = injector(&switch, port);
            socket.set_nonblocking(false).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            (Arc::new(socket), there)
        });
        let (stop, tagged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let ways =
            [(Arc::clone(&left_port), Arc::clone(&right_port), to_right), (right_port, left_port, to_left)];
        let threads = ways.map(|(from, to, there)| {
            let (stop, tagged) = (Arc::clone(&stop), Arc::clone(&tagged));
            thread::spawn(move || {
                let mut frame = vec![0; 70_000];
                while !stop.load(Ordering::Relaxed) {
                    // It looks now and then whether it is to end.
                    let Ok(len) = (&*from).read(&mut frame) else { continue };
                    let with_tag = [&frame[..12], &[0x81, 0x00, 0x60, 0x00], &frame[12..len]].concat();
                    // As at any switch, a frame is lost where the port's interface is down: hosts may go before it does.
                    if to.send_to(&with_tag, &there).is_ok() {
                        tagged.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        });
        let threads = threads.into_iter().collect();
        Some(([left, right], Self { stop, tagged, threads, _namespace: switch }))
    }

    /// Frames that have got a tag so far.
    pub(crate) fn tagged(&self) -> u64 {
        self.tagged.load(Ordering::Relaxed)
    }
}

impl Drop for TaggingSwitch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
