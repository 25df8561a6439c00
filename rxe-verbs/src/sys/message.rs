//! `sendmsg`, `sendmmsg`, `recvmsg` and `recvmmsg` on datagram sockets, with buffers that are allocated once.
//!
//! None of these calls waits. Single messages use the raw system calls, because the C library's functions are cancellation points
//! (`pthreads(7)`). Verbs like polling a completion queue must not be one: a thread that is cancelled there would leave a shard
//! locked for ever.

use core::ffi::c_void;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::control::{self, Ancillary, Control};
use super::packet::PacketType;

/// Most messages of one `sendmmsg` call.
const SEND_CHUNK: usize = 32;

/// Room for the control messages of one arrival, aligned as the kernel needs it. Pktinfo, TOS, TTL and GRO take 112 bytes.
const CONTROL_WORDS: usize = 24;
type ControlRoom = [u64; CONTROL_WORDS];

/// A socket address in the kernel's form.
pub(crate) enum Name {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
    /// An interface, for packet sockets.
    Link(libc::sockaddr_ll),
}

impl Name {
    /// The address of `port` at `address`. `scope` is the interface of an IPv6 link-local address, and 0 for other addresses.
    pub(crate) fn new(address: IpAddr, port: u16, scope: u32) -> Self {
        match address {
            IpAddr::V4(address) => Self::V4(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: port.to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) },
                sin_zero: [0; 8],
            }),
            IpAddr::V6(address) => Self::V6(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: port.to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: address.octets() },
                sin6_scope_id: scope,
            }),
        }
    }

    fn parts(&self) -> (*mut c_void, libc::socklen_t) {
        match self {
            Self::V4(name) => {
                ((&raw const *name).cast_mut().cast(), size_of::<libc::sockaddr_in>() as libc::socklen_t)
            }
            Self::V6(name) => {
                ((&raw const *name).cast_mut().cast(), size_of::<libc::sockaddr_in6>() as libc::socklen_t)
            }
            Self::Link(name) => {
                ((&raw const *name).cast_mut().cast(), size_of::<libc::sockaddr_ll>() as libc::socklen_t)
            }
        }
    }
}

fn zeroed_header() -> libc::msghdr {
    // SAFETY: `msghdr` is plain data for which all zeroes (null pointers, zero lengths) is valid.
    unsafe { core::mem::zeroed() }
}

fn vector(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

fn header(name: &Name, control: &Control, vector: *mut libc::iovec) -> libc::msghdr {
    let mut header = zeroed_header();
    (header.msg_name, header.msg_namelen) = name.parts();
    header.msg_iov = vector;
    header.msg_iovlen = 1;
    let control = control.as_bytes();
    if !control.is_empty() {
        header.msg_control = control.as_ptr().cast_mut().cast();
        header.msg_controllen = control.len() as _;
    }
    header
}

/// Sends one datagram (or one batch, with a segment size in `control`): all of it or nothing.
pub(crate) fn send(fd: BorrowedFd<'_>, name: &Name, control: &Control, bytes: &[u8]) -> io::Result<()> {
    let mut vector = vector(bytes);
    let header = header(name, control, &raw mut vector);
    loop {
        // SAFETY: name, control and vector outlive the call and the kernel only reads through them.
        let sent = unsafe {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            libc::syscall(libc::SYS_sendmsg, fd.as_raw_fd(), &raw const header, flags)
        };
        if sent >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Sends every `segment_size` bytes of `bytes` as a datagram of its own, many in one system call.
///
/// Returns how many were sent, and the error that stopped the rest, if any.
pub(crate) fn send_each(
    fd: BorrowedFd<'_>,
    name: &Name,
    control: &Control,
    bytes: &[u8],
    segment_size: usize,
) -> (usize, Option<io::Error>) {
    let mut sent = 0;
    for chunk in bytes.chunks(segment_size.saturating_mul(SEND_CHUNK)) {
        let mut vectors = [vector(&[]); SEND_CHUNK];
        // SAFETY: `mmsghdr` is plain data for which all zeroes is valid.
        let mut headers: [libc::mmsghdr; SEND_CHUNK] = unsafe { core::mem::zeroed() };
        let mut count = 0;
        for (segment, slot) in chunk.chunks(segment_size).zip(&mut vectors) {
            *slot = vector(segment);
            headers[count].msg_hdr = header(name, control, &raw mut *slot);
            count += 1;
        }
        // SAFETY: these headers were built above, and what they point at is alive.
        if let Err((done, error)) = unsafe { send_all(fd, &mut headers[..count]) } {
            return (sent + done, Some(error));
        }
        sent += count;
    }
    (sent, None)
}

/// Sends the messages of these headers. An error comes with the number of messages that were sent before it.
///
/// # Safety
/// All that the headers point at is alive.
unsafe fn send_all(fd: BorrowedFd<'_>, headers: &mut [libc::mmsghdr]) -> Result<(), (usize, io::Error)> {
    let mut done = 0;
    while let Some(rest) = headers.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: as many headers follow the pointer; what they point at is alive, as the caller says.
        let result =
            unsafe { libc::sendmmsg(fd.as_raw_fd(), rest.as_mut_ptr(), rest.len() as libc::c_uint, flags) };
        match usize::try_from(result) {
            Ok(more) => done += more.max(1),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err((done, error));
                }
            }
        }
    }
    Ok(())
}

/// As [`send_each`], but each datagram has one of `heads` in front.
pub(crate) fn send_each_headed<H: AsRef<[u8]>>(
    fd: BorrowedFd<'_>,
    name: &Name,
    heads: &[H],
    bytes: &[u8],
    segment_size: usize,
) -> (usize, Option<io::Error>) {
    let control = Control::new();
    let mut sent = 0;
    let segments = bytes.chunks(segment_size.saturating_mul(SEND_CHUNK)).zip(heads.chunks(SEND_CHUNK));
    for (chunk, heads) in segments {
        let mut vectors = [[vector(&[]); 2]; SEND_CHUNK];
        // SAFETY: `mmsghdr` is plain data for which all zeroes is valid.
        let mut headers: [libc::mmsghdr; SEND_CHUNK] = unsafe { core::mem::zeroed() };
        let mut count = 0;
        for ((segment, head), slot) in chunk.chunks(segment_size).zip(heads).zip(&mut vectors) {
            *slot = [vector(head.as_ref()), vector(segment)];
            headers[count].msg_hdr = header(name, &control, slot.as_mut_ptr());
            headers[count].msg_hdr.msg_iovlen = 2;
            count += 1;
        }
        // SAFETY: these headers were built above, and what they point at is alive.
        if let Err((done, error)) = unsafe { send_all(fd, &mut headers[..count]) } {
            return (sent + done, Some(error));
        }
        sent += count;
    }
    (sent, None)
}

/// A received frame: its interface, whom it was for, and its length. If it is truncated, bytes are missing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameArrival {
    pub(crate) ifindex: u32,
    /// That interface is a loopback, so the sender is on this host.
    pub(crate) inside: bool,
    pub(crate) kind: PacketType,
    pub(crate) len: usize,
    pub(crate) truncated: bool,
}

/// A received datagram: its source, its length, and its control messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) source: IpAddr,
    pub(crate) source_port: u16,
    pub(crate) ancillary: Ancillary,
    pub(crate) len: usize,
    /// The datagram or its control messages did not fit, and are incomplete.
    pub(crate) truncated: bool,
}

/// Receive buffers for a number of datagrams, and the kernel's view of them.
pub(crate) struct RecvRing {
    messages: usize,
    capacity: usize,
    // Raw because the kernel's headers hold pointers into them for the ring's whole life.
    bytes: *mut u8,
    names: *mut libc::sockaddr_storage,
    controls: *mut ControlRoom,
    vectors: *mut libc::iovec,
    headers: *mut libc::mmsghdr,
    /// Headers the kernel has written since they were last reset.
    dirty: core::ops::Range<usize>,
}

// SAFETY: the pointers are to memory this value alone owns.
unsafe impl Send for RecvRing {}
// SAFETY: `&RecvRing` only reads.
unsafe impl Sync for RecvRing {}

fn leak<T: Clone>(value: T, count: usize) -> *mut T {
    Box::into_raw(vec![value; count].into_boxed_slice()).cast()
}

impl RecvRing {
    /// Room for `messages` datagrams of up to `capacity` bytes each (both at least 1).
    pub(crate) fn new(messages: usize, capacity: usize) -> Self {
        let (messages, capacity) = (messages.max(1), capacity.max(1));
        // SAFETY: plain data for which all zeroes is valid.
        let (name, empty): (libc::sockaddr_storage, libc::mmsghdr) = unsafe { core::mem::zeroed() };
        let ring = Self {
            messages,
            capacity,
            bytes: leak(0u8, messages * capacity),
            names: leak(name, messages),
            controls: leak([0; CONTROL_WORDS], messages),
            vectors: leak(vector(&[]), messages),
            headers: leak(empty, messages),
            dirty: 0..messages,
        };
        for i in 0..messages {
            // SAFETY: every array has `messages` elements (`bytes` has `capacity` for each) and is ours alone.
            unsafe {
                let vector = ring.vectors.add(i);
                (*vector).iov_base = ring.bytes.add(i * capacity).cast();
                (*vector).iov_len = capacity;
                let header = &raw mut (*ring.headers.add(i)).msg_hdr;
                (*header).msg_name = ring.names.add(i).cast();
                (*header).msg_iov = vector;
                (*header).msg_iovlen = 1;
                (*header).msg_control = ring.controls.add(i).cast();
            }
        }
        ring
    }

    pub(crate) const fn messages(&self) -> usize {
        self.messages
    }

    /// Bytes of datagram buffer `index`.
    pub(crate) fn buffer(&self, index: usize) -> &[u8] {
        assert!(index < self.messages);
        // SAFETY: in range by the assertion; initialised at creation; only `&mut self` writes.
        unsafe { core::slice::from_raw_parts(self.bytes.add(index * self.capacity), self.capacity) }
    }

    /// The same for writing.
    pub(crate) fn buffer_mut(&mut self, index: usize) -> &mut [u8] {
        assert!(index < self.messages);
        // SAFETY: as above, and `&mut self` excludes other users.
        unsafe { core::slice::from_raw_parts_mut(self.bytes.add(index * self.capacity), self.capacity) }
    }

    /// Receives up to `most` datagrams into the buffers from `first` on, without waiting. Returns how many arrived. With
    /// `one_by_one` it never uses `recvmmsg`.
    pub(crate) fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        first: usize,
        most: usize,
        one_by_one: bool,
    ) -> io::Result<usize> {
        assert!(most > 0 && first + most <= self.messages);
        self.reset();
        // For one message `recvmsg` takes less time.
        let result = if one_by_one || most == 1 {
            self.receive_singly(fd, first, most)
        } else {
            self.receive_many(fd, first, most)
        };
        match result {
            Ok(count) => {
                self.dirty = first..first + count;
                Ok(count)
            }
            Err(error) => {
                self.dirty = first..first + 1;
                if error.raw_os_error() == Some(libc::EAGAIN) { Ok(0) } else { Err(error) }
            }
        }
    }

    fn reset(&mut self) {
        for i in self.dirty.clone() {
            // SAFETY: `dirty` is within `0..messages`.
            unsafe {
                let header = &raw mut (*self.headers.add(i)).msg_hdr;
                (*header).msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
                (*header).msg_controllen = size_of::<ControlRoom>() as _;
                (*header).msg_flags = 0;
            }
        }
    }

    fn receive_many(&self, fd: BorrowedFd<'_>, first: usize, most: usize) -> io::Result<usize> {
        loop {
            // SAFETY: `most` headers follow the pointer; each points at buffers of its own.
            let result = unsafe {
                libc::recvmmsg(
                    fd.as_raw_fd(),
                    self.headers.add(first),
                    most as libc::c_uint,
                    libc::MSG_DONTWAIT as _,
                    core::ptr::null_mut(),
                )
            };
            match usize::try_from(result) {
                Ok(count) => return Ok(count),
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
    }

    fn receive_singly(&self, fd: BorrowedFd<'_>, first: usize, most: usize) -> io::Result<usize> {
        let mut count = 0;
        while count < most {
            // SAFETY: the header is in range and points at buffers of its own.
            let result = unsafe {
                let header = self.headers.add(first + count);
                let message = &raw mut (*header).msg_hdr;
                let result = libc::syscall(libc::SYS_recvmsg, fd.as_raw_fd(), message, libc::MSG_DONTWAIT);
                (*header).msg_len = u32::try_from(result).unwrap_or(0);
                result
            };
            if result >= 0 {
                count += 1;
                continue;
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::Interrupted => {}
                // An error after good datagrams shows again at the next call.
                _ if count > 0 => break,
                _ => return Err(error),
            }
        }
        Ok(count)
    }

    /// What arrived in buffer `index`, which must be one the last [`receive`](Self::receive) filled; `None` if the
    /// sender's address is of no family we know.
    pub(crate) fn arrival(&self, index: usize) -> Option<Arrival> {
        assert!(index < self.messages);
        #[allow(clippy::unnecessary_cast, reason = "the length's type differs between C libraries")]
        // SAFETY: in range; the kernel wrote the header, and `controllen` bytes of the control buffer, which was
        // initialised at creation.
        let (header, len, control) = unsafe {
            let message = &*self.headers.add(index);
            let control = core::slice::from_raw_parts(
                message.msg_hdr.msg_control.cast::<u8>(),
                message.msg_hdr.msg_controllen as usize,
            );
            (&message.msg_hdr, message.msg_len as usize, control)
        };
        // SAFETY: in range; the storage is initialised and large and aligned enough for either form.
        let (source, source_port) = unsafe {
            let name = self.names.add(index);
            match libc::c_int::from((*name).ss_family) {
                libc::AF_INET => {
                    let name = &*name.cast::<libc::sockaddr_in>();
                    let address = Ipv4Addr::from(name.sin_addr.s_addr.to_ne_bytes());
                    (IpAddr::V4(address), u16::from_be(name.sin_port))
                }
                libc::AF_INET6 => {
                    let name = &*name.cast::<libc::sockaddr_in6>();
                    let address = Ipv6Addr::from(name.sin6_addr.s6_addr);
                    (IpAddr::V6(address), u16::from_be(name.sin6_port))
                }
                _ => return None,
            }
        };
        Some(Arrival {
            source,
            source_port,
            ancillary: control::parse(control),
            len: len.min(self.capacity),
            truncated: header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
        })
    }
}

impl RecvRing {
    /// The frame in buffer `index`, which must be one that the last [`receive`](Self::receive) filled from a packet socket.
    pub(crate) fn frame(&self, index: usize) -> Option<FrameArrival> {
        assert!(index < self.messages);
        // SAFETY: in range; the kernel wrote the header; the storage is initialised and large and aligned enough.
        let (flags, len, name) = unsafe {
            let message = &*self.headers.add(index);
            let name = &*self.names.add(index).cast::<libc::sockaddr_ll>();
            (message.msg_hdr.msg_flags, message.msg_len as usize, name)
        };
        (libc::c_int::from(name.sll_family) == libc::AF_PACKET).then(|| FrameArrival {
            ifindex: name.sll_ifindex.cast_unsigned(),
            inside: name.sll_hatype == libc::ARPHRD_LOOPBACK,
            kind: PacketType::of(name.sll_pkttype),
            len: len.min(self.capacity),
            truncated: flags & libc::MSG_TRUNC != 0,
        })
    }
}

fn release<T>(pointer: *mut T, count: usize) {
    // SAFETY: made by `leak` with the same count, and dropped once.
    drop(unsafe { Box::from_raw(core::ptr::slice_from_raw_parts_mut(pointer, count)) });
}

impl Drop for RecvRing {
    fn drop(&mut self) {
        release(self.bytes, self.messages * self.capacity);
        release(self.names, self.messages);
        release(self.controls, self.messages);
        release(self.vectors, self.messages);
        release(self.headers, self.messages);
    }
}
