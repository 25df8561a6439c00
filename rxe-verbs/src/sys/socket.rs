//! Socket options that `socket2` does not have, and an event counter.

use super::unix::{in_sight, out_of_the_way};
use core::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// One instruction of a classic BPF program (`struct sock_filter`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Instruction {
    pub(crate) code: u16,
    pub(crate) jump_true: u8,
    pub(crate) jump_false: u8,
    pub(crate) k: u32,
}

fn check(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets an option whose value is an `int`.
pub(crate) fn set_option(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    set_value(fd, level, name, &value)
}

/// Sets an option whose value is a structure without pointers.
pub(crate) fn set_value<T: Copy>(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    // SAFETY: the pointer and length describe `value`, which lives through the call; the kernel only reads it.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const *value).cast::<c_void>(),
            size_of::<T>() as libc::socklen_t,
        )
    })
}

/// Gives the socket's reuseport group the program that chooses a member for each packet
/// (`socket(7)`, SO_ATTACH_REUSEPORT_CBPF).
pub(crate) fn attach_reuseport_program(fd: BorrowedFd<'_>, program: &[Instruction]) -> io::Result<()> {
    attach(fd, libc::SO_ATTACH_REUSEPORT_CBPF, program)
}

/// Makes the socket drop whatever arrives at it (`socket(7)`, SO_ATTACH_FILTER).
pub(crate) fn drop_arrivals(fd: BorrowedFd<'_>) -> io::Result<()> {
    const RETURN_CONSTANT: u16 = 0x06;
    attach(
        fd,
        libc::SO_ATTACH_FILTER,
        &[Instruction { code: RETURN_CONSTANT, jump_true: 0, jump_false: 0, k: 0 }],
    )
}

/// Gives the socket a filter (`socket(7)`, SO_ATTACH_FILTER). It replaces the filter that the socket had.
pub(crate) fn attach_filter(fd: BorrowedFd<'_>, program: &[Instruction]) -> io::Result<()> {
    attach(fd, libc::SO_ATTACH_FILTER, program)
}

/// Takes a socket's filter away, if it has one.
pub(crate) fn detach_filter(fd: BorrowedFd<'_>) {
    // ENOENT: it has none.
    let _ = set_option(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0);
}

fn attach(fd: BorrowedFd<'_>, option: c_int, program: &[Instruction]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut().cast::<libc::sock_filter>() };
    // SAFETY: `Instruction` has the layout of `sock_filter`; the kernel copies `len` of them and writes nothing.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const program).cast::<c_void>(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    })
}

/// Packets that this socket lost because its receive buffer was full (SO_MEMINFO). The number is exact at once; SO_RXQ_OVFL tells
/// it only with the next arrival.
pub(crate) fn receive_drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
    /// `SK_MEMINFO_DROPS` of `linux/sock_diag.h`.
    const DROPS: usize = 8;
    let mut info = [0u32; DROPS + 1];
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of `info`.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            info.as_mut_ptr().cast::<c_void>(),
            &raw mut len,
        )
    })?;
    Ok(info[DROPS])
}

/// MTU of the named interface (`netdevice(7)`, SIOCGIFMTU). Any socket can be used to ask.
pub(crate) fn interface_mtu(fd: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    // SAFETY: `ifreq` is plain data for which all zeroes is valid.
    let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: the request is an `ifreq` with a terminated name; the kernel fills its union.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) })?;
    // SAFETY: after SIOCGIFMTU the union holds `ifru_mtu`.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(u32::try_from(mtu).unwrap_or(0))
}

/// An event counter that can be polled (`eventfd(2)`), non-blocking.
#[derive(Debug)]
pub(crate) struct Event(OwnedFd);

impl Event {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(out_of_the_way(Self::open()?)))
    }

    /// Takes an event counter that another process has made.
    pub(crate) fn adopt(fd: OwnedFd) -> Self {
        Self(out_of_the_way(fd))
    }

    /// An event counter whose descriptor the program sees, and may wait on.
    pub(crate) fn in_sight() -> io::Result<Self> {
        Ok(Self(in_sight(Self::open()?)))
    }

    fn open() -> io::Result<OwnedFd> {
        // SAFETY: no pointers; a non-negative result is a descriptor that nobody else owns.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: see above.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Makes the descriptor readable. Fails only if the counter is full, and then it is readable already.
    pub(crate) fn raise(&self) {
        let one = 1u64;
        // SAFETY: writes the eight bytes of `one`.
        let _ = unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast::<c_void>(), 8) };
    }

    /// Makes it unreadable again.
    pub(crate) fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: reads eight bytes into `count`.
        let _ = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast::<c_void>(), 8) };
    }
}

impl std::os::fd::AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Discards everything that has arrived at a socket, and returns the number of datagrams. It ends after 10,000, in case they come
/// faster than they can be read.
pub(crate) fn discard(fd: BorrowedFd<'_>) -> u64 {
    const MOST: u64 = 10_000;
    let mut count = 0;
    while count < MOST {
        // SAFETY: reads nothing, into a buffer of length 0; the rest of each datagram is dropped.
        let read = unsafe {
            libc::recv(fd.as_raw_fd(), core::ptr::null_mut(), 0, libc::MSG_DONTWAIT | libc::MSG_TRUNC)
        };
        if read < 0 {
            break;
        }
        count += 1;
    }
    count
}
