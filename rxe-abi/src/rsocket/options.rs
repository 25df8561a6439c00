//! Options and flags of sockets.

use super::find;
use crate::border::{Bytes, Errno, INVALID, ListMut, UNSUPPORTED, given, value};
use core::ffi::{c_int, c_long};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use rxe_rsocket::{Name, Value};
use std::os::fd::AsFd;

/// rsetsockopt(3).
#[unsafe(no_mangle)]
extern "C" fn rsetsockopt(fd: c_int, level: c_int, name: c_int, wish: Bytes, len: libc::socklen_t) -> c_int {
    value(|| {
        let socket = find(fd)?;
        let name = Name::find(level, name).ok_or(UNSUPPORTED)?;
        let wish = Value::decode(name, &wish.read(len.min(64) as usize))?;
        socket.set_option(name, &wish)?;
        Ok(0)
    })
}

/// rgetsockopt(3).
#[unsafe(no_mangle)]
extern "C" fn rgetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    mut out: ListMut<u8>,
    len: Option<&mut libc::socklen_t>,
) -> c_int {
    value(|| {
        let socket = find(fd)?;
        let name = Name::find(level, name).ok_or(UNSUPPORTED)?;
        let (bytes, room) = (socket.option(name)?.encode(), given(len)?);
        let count = bytes.len().min(*room as usize);
        if out.is_null() && count > 0 {
            return Err(Errno(libc::EFAULT));
        }
        out.elements(count).copy_from_slice(&bytes[..count]);
        *room = count as libc::socklen_t;
        Ok(0)
    })
}

/// rfcntl(3). Here it always has its argument; commands without an argument ignore it.
#[unsafe(no_mangle)]
extern "C" fn rfcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    value(|| {
        let socket = find(fd)?;
        let argument = argument as c_int;
        let system = |wish: FcntlArg<'_>| fcntl(socket.as_fd(), wish).map_err(|errno| Errno(errno as c_int));
        match command {
            libc::F_GETFL if socket.is_nonblocking() => Ok(libc::O_RDWR | libc::O_NONBLOCK),
            libc::F_GETFL => Ok(libc::O_RDWR),
            libc::F_SETFL => {
                socket.set_nonblocking(argument & libc::O_NONBLOCK != 0);
                Ok(0)
            }
            libc::F_GETFD => system(FcntlArg::F_GETFD),
            libc::F_SETFD => system(FcntlArg::F_SETFD(FdFlag::from_bits(argument).ok_or(INVALID)?)),
            _ => Err(UNSUPPORTED),
        }
    })
}
