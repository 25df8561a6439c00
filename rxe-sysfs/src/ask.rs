//! The content of files that change while programs run (counters, state, GIDs) is requested from the host service when they are
//! opened. The files in the folder only have the content from the time when `rxe run` wrote them. They are used if there is no
//! service, or if it does not answer. Only system calls are used, as everywhere in this crate.

use core::{
    ffi::{CStr, c_int, c_void},
    mem,
};

/// The usual name of a service (`rxe-verbs/src/host/name.rs`).
const NAME: &[u8] = b"\0rxe/4791";
/// A link beside the files of the folder, to the socket of the user's own service if the usual name belongs to another user.
const LINK: &[u8] = b"/service";
/// First byte of the request and of the response (`rxe-verbs/src/host/message.rs`, whose tests check them): a path, and the
/// last part of a file.
const READ: u8 = 9;
const PART: [u8; 2] = [6, 1];
/// Most bytes of a request or a response.
const MOST: usize = 512;
/// How long an answer may take. A stopped process delays it by a second.
static PATIENCE: libc::timeval = libc::timeval { tv_sec: 3, tv_usec: 0 };

/// A descriptor for reading the file with this path in the folder, if the service has it.
pub(crate) fn descriptor(folder: &[u8], path: &[u8], close_on_exec: bool) -> Option<c_int> {
    let path = path.strip_prefix(b"infiniband/").filter(|path| changes(path))?;
    // A program that also uses RoCE v1 has other GIDs than the service knows.
    if folder.ends_with(b"-v1") && is_of_gids(path) {
        return None;
    }
    let mut place = [0; MOST];
    let place = place.get_mut(..folder.len() + LINK.len())?;
    place[..folder.len()].copy_from_slice(folder);
    place[folder.len()..].copy_from_slice(LINK);
    let socket = connect(NAME).or_else(|| connect(place))?;
    let mut answer = [0; MOST];
    let text = ask(&socket, path, &mut answer)?;
    in_memory(text, close_on_exec)
}

/// Whether the service has newer content for a file. A path without a further slash may be a folder itself.
fn changes(path: &[u8]) -> bool {
    let Some(device) = path.iter().position(|byte| *byte == b'/') else { return false };
    let Some(below) = path[device..].strip_prefix(b"/ports/1/") else { return false };
    let kinds: [&[u8]; 6] =
        [b"counters/", b"hw_counters/", b"gids/", b"pkeys/", b"gid_attrs/types/", b"gid_attrs/ndevs/"];
    matches!(below, b"state" | b"phys_state")
        || kinds.iter().any(|kind| below.strip_prefix(*kind).is_some_and(|name| !name.is_empty()))
}

fn is_of_gids(path: &[u8]) -> bool {
    path.windows(b"/gid".len()).any(|part| part == b"/gid")
}

/// A descriptor of our own.
struct Fd(c_int);

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: it is ours, and used no more.
        unsafe { libc::close(self.0) };
    }
}

/// Connects to a service of this process's user.
fn connect(name: &[u8]) -> Option<Fd> {
    // SAFETY: no pointers; what it gives is a descriptor of ours.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return None;
    }
    let socket = Fd(fd);
    // SAFETY: zeroes are an address without a name.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (place, byte) in address.sun_path.get_mut(..name.len())?.iter_mut().zip(name) {
        *place = byte.cast_signed();
    }
    let length = mem::offset_of!(libc::sockaddr_un, sun_path) + name.len();
    for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        // SAFETY: the value is a timeval of that size.
        unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_SOCKET,
                option,
                (&raw const PATIENCE).cast::<c_void>(),
                size_of_val(&PATIENCE) as libc::socklen_t,
            )
        };
    }
    patiently(|| {
        // SAFETY: an address of that length.
        unsafe { libc::connect(fd, (&raw const address).cast(), length as libc::socklen_t) as isize }
    })?;
    let mut peer = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: 0 };
    let mut size = size_of_val(&peer) as libc::socklen_t;
    // SAFETY: writes as much as `peer` is large; no pointers in the second.
    let (told, own) = unsafe {
        let peer = (&raw mut peer).cast::<c_void>();
        (libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, peer, &raw mut size), libc::geteuid())
    };
    // The response of another user's process is not used.
    (told == 0 && peer.uid == own).then_some(socket)
}

fn ask<'a>(socket: &Fd, path: &[u8], answer: &'a mut [u8; MOST]) -> Option<&'a [u8]> {
    let mut question = [0; MOST];
    let (first, second) = varint(path.len())?;
    question[..3].copy_from_slice(&[READ, first, second.unwrap_or(0)]);
    let start = 2 + usize::from(second.is_some());
    question.get_mut(start..start + path.len())?.copy_from_slice(path);
    patiently(|| {
        // SAFETY: reads as many bytes as were just written.
        unsafe { libc::send(socket.0, question.as_ptr().cast(), start + path.len(), libc::MSG_NOSIGNAL) }
    })?;
    let len = patiently(|| {
        // SAFETY: writes no more than there is room for.
        unsafe { libc::recv(socket.0, answer.as_mut_ptr().cast(), answer.len(), 0) }
    })?;
    let bytes = answer.get(..len)?.strip_prefix(&PART)?;
    let (first, rest) = bytes.split_first()?;
    let (second, text) = if *first < 0x80 { (0, rest) } else { rest.split_first().map(|(b, r)| (*b, r))? };
    let told = usize::from(first & 0x7f) | usize::from(second) << 7;
    (!text.is_empty() && text.len() == told).then_some(text)
}

/// Repeats a call that a signal has interrupted. The system does not do so by itself for a socket with a time limit
/// (`signal(7)`), and a program with a timer would see counters of 0. The number of repetitions is bounded, because the time
/// limit begins anew each time.
fn patiently(mut call: impl FnMut() -> isize) -> Option<usize> {
    let begun = seconds();
    loop {
        if let Ok(done) = usize::try_from(call()) {
            return Some(done);
        }
        // SAFETY: where this thread's number is.
        let interrupted = unsafe { *libc::__errno_location() } == libc::EINTR;
        if !interrupted || seconds() - begun > PATIENCE.tv_sec {
            return None;
        }
    }
}

/// The time of a clock that cannot be set.
fn seconds() -> libc::time_t {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the time there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec
}

/// A number of up to 14 bits in groups of seven, the lowest first.
fn varint(number: usize) -> Option<(u8, Option<u8>)> {
    match number {
        0..0x80 => Some((number as u8, None)),
        0x80..0x4000 => Some((number as u8 | 0x80, Some((number >> 7) as u8))),
        _ => None,
    }
}

/// A file in memory, to be read from its start.
fn in_memory(text: &[u8], close_on_exec: bool) -> Option<c_int> {
    const NAME: &CStr = c"rxe-sysfs";
    let flags = if close_on_exec { libc::MFD_CLOEXEC } else { 0 };
    // SAFETY: a string; what it gives is a descriptor of ours.
    let fd = unsafe { libc::memfd_create(NAME.as_ptr(), flags) };
    if fd < 0 {
        return None;
    }
    // SAFETY: reads `text`; it is written at the start, and the position stays there.
    let written = unsafe { libc::pwrite(fd, text.as_ptr().cast(), text.len(), 0) };
    if usize::try_from(written) != Ok(text.len()) {
        drop(Fd(fd));
        return None;
    }
    Some(fd)
}
