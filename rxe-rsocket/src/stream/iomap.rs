//! Mapped buffers: memory of a program to which its peer writes outside of the stream (riomap, riounmap, riowrite).

use super::StreamSocket;
use crate::{
    error::SocketError,
    flags::Flags,
    link::{Link, Until},
    lock,
    proto::{IoEntry, Piece, Stream},
};
use rxe_verbs::{Access, Mr};

/// Memory of the program to be mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoMapping {
    /// Address of the first byte in this process.
    pub addr: usize,
    /// Bytes.
    pub len: usize,
    /// Whether the peer may write to it. Otherwise it is only registered.
    pub remote: bool,
    /// The offset by which the peer addresses the first byte; by default its address.
    pub offset: Option<u64>,
}

/// The mapped buffers of a socket.
#[derive(Debug, Default)]
pub(super) struct Maps {
    list: Vec<Map>,
}

#[derive(Debug)]
struct Map {
    mr: Mr,
    offset: u64,
    /// The entry of the peer's table, if it has one, and whether the peer has been told of it.
    index: Option<u16>,
    told: bool,
}

impl StreamSocket {
    /// Maps memory (riomap). Returns the offset by which the peer addresses its first byte. The peer can use it once it has
    /// received data that was sent after this call.
    ///
    /// # Errors
    /// [`SocketError::NotConnected`], [`SocketError::NoIoMap`], [`SocketError::Register`].
    ///
    /// # Safety
    /// As long as it is mapped, the peer may write to the memory at any time: as for [`rxe_verbs::Pd::reg_mr_raw`].
    #[allow(unsafe_code, reason = "the memory is the program's")]
    pub unsafe fn map(&self, wanted: IoMapping) -> Result<u64, SocketError> {
        let link = self.connected(Until::Now).map_err(|_| SocketError::NotConnected)?;
        let mut maps = lock(&self.maps);
        let index = if wanted.remote { Some(maps.free(link.peer.iomap)?) } else { None };
        let access =
            if wanted.remote { Access::LOCAL_WRITE | Access::REMOTE_WRITE } else { Access::LOCAL_WRITE };
        let IoMapping { addr, len, .. } = wanted;
        // SAFETY: promised by the caller.
        let mr = unsafe { link.parts.pd.reg_mr_raw(addr, len, addr as u64, access) }?;
        let offset = wanted.offset.unwrap_or(addr as u64);
        maps.list.push(Map { mr, offset, index, told: index.is_none() });
        Ok(offset)
    }

    /// Unmaps the buffer with this address and length (riounmap).
    ///
    /// # Errors
    /// [`SocketError::Argument`] if there is none.
    pub fn unmap(&self, addr: usize, len: usize) -> Result<(), SocketError> {
        let mut maps = lock(&self.maps);
        let is_it = |map: &Map| map.mr.memory_addr() == addr as u64 && map.mr.len() == len;
        let place = maps.list.iter().position(is_it);
        let place =
            place.ok_or_else(|| SocketError::Argument(format!("{len} bytes at {addr:#x} are not mapped")))?;
        maps.list.swap_remove(place);
        Ok(())
    }

    /// Tells the peer of newly mapped buffers.
    pub(super) fn send_maps(&self, link: &Link, until: Until) -> Result<(), SocketError> {
        let mut maps = lock(&self.maps);
        for map in maps.list.iter_mut().filter(|map| !map.told) {
            let index = map.index.unwrap_or_default();
            let (message, posting) = {
                let mut stream = self.wait_writable(link, until, Stream::can_send)?;
                (stream.take_map(index).ok_or(SocketError::WouldBlock)?, link.posting())
            };
            let len = u32::try_from(map.mr.len()).unwrap_or(u32::MAX);
            let piece = Piece { addr: map.mr.addr(), key: map.mr.rkey().0, len };
            let entry = IoEntry { offset: map.offset, piece };
            link.send_map(message, index, entry, posting).inspect_err(|_| self.lost(link))?;
            map.told = true;
        }
        Ok(())
    }

    /// Writes to a buffer that the peer has mapped (riowrite). Returns how many bytes were sent. The peer's program is not
    /// notified, but data that is sent afterwards arrives later.
    ///
    /// # Errors
    /// As [`Self::send`]. If no buffer is mapped there, nothing is written and the result is 0, as with rdma-core.
    pub fn write_mapped(&self, data: &[u8], offset: u64, flags: Flags) -> Result<usize, SocketError> {
        let until = self.until(flags, lock(&self.options).send_timeout);
        let link = self.connected(until)?;
        let _alone = self.sending.take(until)?;
        self.send_maps(link, until).map_err(|error| self.once(error))?;
        let mut done = 0;
        while done < data.len() {
            let at = offset.wrapping_add(done as u64);
            let Some(entry) = link.mapped(at) else { break };
            let room = entry.room(at).unwrap_or_default();
            let to =
                Piece { addr: entry.piece.addr.wrapping_add(at - entry.offset), len: room, ..entry.piece };
            let sent = self.wait_writable(link, until, Stream::can_send).and_then(|mut stream| {
                let chunk = stream.take_direct(data.len() - done, to).ok_or(SocketError::WouldBlock)?;
                let posting = link.posting();
                drop(stream);
                let len = chunk.len as usize;
                link.send(&chunk, &[&data[done..done + len]], false, posting)
                    .inspect_err(|_| self.lost(link))?;
                Ok(len)
            });
            match sent {
                Ok(len) => done += len,
                // The reason is told by the next call.
                Err(_) if done > 0 => break,
                Err(error) => return Err(self.once(error)),
            }
        }
        Ok(done)
    }
}

impl Maps {
    /// A free entry of the peer's table, which has `most` entries.
    fn free(&self, most: u16) -> Result<u16, SocketError> {
        let taken = |index: &u16| self.list.iter().any(|map| map.index == Some(*index));
        (0..most).find(|index| !taken(index)).ok_or(SocketError::NoIoMap(most))
    }
}
