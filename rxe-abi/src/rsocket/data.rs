//! Sending and receiving.

use super::{find, restarting};
use crate::border::{
    Address, AddressOut, Errno, INVALID, List, ListMut, Result, given, pieces, places, waiting_size,
};
use core::ffi::c_int;
use rxe_rsocket::{IoMapping, Name, Received};
use smallvec::SmallVec;

/// rsend(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn rsend(fd: c_int, data: List<u8>, len: usize, flags: c_int) -> isize {
    waiting_size(|| {
        let socket = find(fd)?;
        let flags = socket.flags(flags);
        restarting(&socket, Name::SendTimeout, |socket| Ok(socket.send(&[data.all(len)?], None, flags)?))
    })
}

/// rwrite(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn rwrite(fd: c_int, data: List<u8>, len: usize) -> isize {
    rsend(fd, data, len, 0)
}

/// rsendto(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn rsendto(
    fd: c_int,
    data: List<u8>,
    len: usize,
    flags: c_int,
    to: Address,
    _to_len: libc::socklen_t,
) -> isize {
    waiting_size(|| {
        let to = to.read()?;
        let socket = find(fd)?;
        let flags = socket.flags(flags);
        restarting(&socket, Name::SendTimeout, |socket| Ok(socket.send(&[data.all(len)?], to, flags)?))
    })
}

/// rsendmsg(3), without control messages.
#[unsafe(no_mangle)]
extern "C-unwind" fn rsendmsg(fd: c_int, message: Option<&libc::msghdr>, flags: c_int) -> isize {
    waiting_size(|| {
        let message = given(message)?;
        if message.msg_controllen != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let to = Address::new(message.msg_name.cast_const().cast()).read()?;
        let list = List::new(message.msg_iov.cast_const());
        let socket = find(fd)?;
        let flags = socket.flags(flags);
        let data = pieces(list.all(message.msg_iovlen)?)?;
        restarting(&socket, Name::SendTimeout, |socket| Ok(socket.send(&data, to, flags)?))
    })
}

/// rwritev(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn rwritev(fd: c_int, list: List<libc::iovec>, count: c_int) -> isize {
    waiting_size(|| {
        let count = usize::try_from(count).map_err(|_| INVALID)?;
        let socket = find(fd)?;
        let flags = socket.flags(0);
        let data = pieces(list.all(count)?)?;
        restarting(&socket, Name::SendTimeout, |socket| Ok(socket.send(&data, None, flags)?))
    })
}

/// rrecv(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn rrecv(fd: c_int, mut out: ListMut<u8>, len: usize, flags: c_int) -> isize {
    waiting_size(|| {
        let socket = find(fd)?;
        let flags = socket.flags(flags);
        restarting(&socket, Name::ReceiveTimeout, |socket| {
            Ok(socket.receive(&mut [out.all(len)?], flags)?.count)
        })
    })
}

/// rread(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn rread(fd: c_int, out: ListMut<u8>, len: usize) -> isize {
    rrecv(fd, out, len, 0)
}

/// rrecvfrom(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn rrecvfrom(
    fd: c_int,
    mut out: ListMut<u8>,
    len: usize,
    flags: c_int,
    from: AddressOut,
    from_len: Option<&mut libc::socklen_t>,
) -> isize {
    waiting_size(|| {
        let socket = find(fd)?;
        let flags = socket.flags(flags);
        let got = restarting(&socket, Name::ReceiveTimeout, |socket| {
            Ok(socket.receive(&mut [out.all(len)?], flags)?)
        })?;
        if let Some(source) = got.from.or_else(|| socket.peer_addr().ok()) {
            from.write(from_len, source);
        }
        Ok(got.count)
    })
}

/// Receives into the pieces of a list.
fn scatter(fd: c_int, list: &List<libc::iovec>, count: usize, flags: c_int) -> Result<Received> {
    let socket = find(fd)?;
    let flags = socket.flags(flags);
    let mut places = places(list.all(count)?);
    let out = places.iter_mut().map(|(place, len)| place.all(*len));
    let mut out = out.collect::<Result<SmallVec<[&mut [u8]; 8]>>>()?;
    restarting(&socket, Name::ReceiveTimeout, |socket| Ok(socket.receive(&mut out, flags)?))
}

/// rrecvmsg(3). There are no control messages.
#[unsafe(no_mangle)]
extern "C-unwind" fn rrecvmsg(fd: c_int, message: Option<&mut libc::msghdr>, flags: c_int) -> isize {
    waiting_size(|| {
        let message = given(message)?;
        let list = List::new(message.msg_iov.cast_const());
        let got = scatter(fd, &list, message.msg_iovlen, flags)?;
        if let Some(from) = got.from {
            AddressOut::new(message.msg_name.cast()).write(Some(&mut message.msg_namelen), from);
        }
        message.msg_controllen = 0;
        message.msg_flags = if got.cut { libc::MSG_TRUNC } else { 0 };
        Ok(got.count)
    })
}

/// rreadv(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn rreadv(fd: c_int, list: List<libc::iovec>, count: c_int) -> isize {
    waiting_size(|| {
        let count = usize::try_from(count).map_err(|_| INVALID)?;
        Ok(scatter(fd, &list, count, 0)?.count)
    })
}

/// riomap(3).
#[unsafe(no_mangle)]
extern "C" fn riomap(
    fd: c_int,
    buffer: ListMut<u8>,
    len: usize,
    protection: c_int,
    _flags: c_int,
    offset: i64,
) -> i64 {
    let mapped = waiting_size(|| {
        if protection & !libc::PROT_WRITE != 0 {
            return Err(INVALID);
        }
        let wanted = IoMapping {
            addr: buffer.address(),
            len,
            remote: protection & libc::PROT_WRITE != 0,
            offset: u64::try_from(offset).ok(),
        };
        let socket = find(fd)?;
        // SAFETY: by this call the program gives the memory to its peer, until it unmaps it.
        let offset = unsafe { socket.as_stream("mapped buffers")?.map(wanted) }?;
        Ok(offset as usize)
    });
    mapped as i64
}

/// riounmap(3).
#[unsafe(no_mangle)]
extern "C" fn riounmap(fd: c_int, buffer: ListMut<u8>, len: usize) -> c_int {
    crate::border::value(|| {
        find(fd)?.as_stream("mapped buffers")?.unmap(buffer.address(), len)?;
        Ok(0)
    })
}

/// riowrite(3).
#[unsafe(no_mangle)]
extern "C-unwind" fn riowrite(fd: c_int, data: List<u8>, len: usize, offset: i64, flags: c_int) -> isize {
    waiting_size(|| {
        let socket = find(fd)?;
        let (stream, flags) = (socket.as_stream("mapped buffers")?, socket.flags(flags));
        restarting(&socket, Name::SendTimeout, |_| {
            Ok(stream.write_mapped(data.all(len)?, offset as u64, flags)?)
        })
    })
}
