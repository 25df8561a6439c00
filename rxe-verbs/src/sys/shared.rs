//! Memory that several processes share, as 64-bit words that are accessed as atomics or copied in and out.

use super::{
    kept::Kept,
    unix::out_of_the_way,
    usercopy::{Fault, Region},
};
use core::{
    net::{IpAddr, Ipv6Addr},
    sync::atomic::AtomicU64,
};
use memmap2::{MmapOptions, MmapRaw};
use nix::sys::{
    memfd::{MFdFlags, memfd_create},
    resource::{Resource, getrlimit},
};
use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

/// A file in memory, sealed at its length. So a process that maps it can rely on its pages.
#[derive(Debug)]
pub(crate) struct SharedFile(Kept<File>);

impl SharedFile {
    /// A new file of `len` zero bytes. A page costs memory when it is first written.
    ///
    /// # Errors
    /// `FileTooLarge` above the process's limit of file sizes (`ulimit -f`): there the kernel would end the process by a signal.
    pub(crate) fn new(name: &str, len: usize) -> io::Result<Self> {
        use nix::fcntl::{FcntlArg, SealFlag, fcntl};
        if let Ok((limit, _)) = getrlimit(Resource::RLIMIT_FSIZE)
            && limit < len as u64
        {
            let why = format!("files may have {limit} bytes (ulimit -f), and {len} are needed");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        }
        let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        let file = File::from(out_of_the_way(fd));
        file.set_len(len as u64)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(Self(Kept::new(file)))
    }

    /// Takes a file that was made elsewhere.
    ///
    /// # Errors
    /// `InvalidData` if it is shorter than `len` or might shrink.
    pub(crate) fn adopt(fd: OwnedFd, len: usize) -> io::Result<Self> {
        use nix::fcntl::{FcntlArg, SealFlag, fcntl};
        let file = File::from(out_of_the_way(fd));
        let seals = SealFlag::from_bits_truncate(fcntl(&file, FcntlArg::F_GET_SEALS)?);
        if !seals.contains(SealFlag::F_SEAL_SHRINK) || file.metadata()?.len() < len as u64 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "not the shared memory that was promised",
            ));
        }
        Ok(Self(Kept::new(file)))
    }

    /// A read-only descriptor of the same file. If /proc is not mounted, the descriptor also allows writing.
    pub(crate) fn for_reading(&self) -> io::Result<Self> {
        let fd = match File::open(format!("/proc/self/fd/{}", self.0.as_fd().as_raw_fd())) {
            Ok(file) => file.into(),
            Err(_) => self.0.try_clone()?.into(),
        };
        Ok(Self(Kept::new(File::from(out_of_the_way(fd)))))
    }

    /// Maps the first `words` words.
    pub(crate) fn map(&self, words: usize) -> io::Result<SharedWords> {
        let map = MmapOptions::new().len(words * 8).map_raw(&*self.0)?;
        Ok(SharedWords { map, words })
    }

    /// Maps `words` words from word `first` on, which must be at the start of a page.
    pub(crate) fn map_part(&self, first: usize, words: usize) -> io::Result<SharedWords> {
        let map = MmapOptions::new().offset(first as u64 * 8).len(words * 8).map_raw(&*self.0)?;
        Ok(SharedWords { map, words })
    }

    /// As [`Self::map`], but read-only: storing to these words is a fault.
    pub(crate) fn map_for_reading(&self, words: usize) -> io::Result<SharedWords> {
        let map = MmapOptions::new().len(words * 8).map_raw_read_only(&*self.0)?;
        Ok(SharedWords { map, words })
    }
}

impl AsFd for SharedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A mapped piece of a [`SharedFile`].
#[derive(Debug)]
pub(crate) struct SharedWords {
    map: MmapRaw,
    words: usize,
}

impl SharedWords {
    /// The words. Other processes may change them at any time.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is that long, aligned to a page, lives as long as `self`, cannot lose its pages (the file
        // is sealed), and nobody makes any other reference to it.
        unsafe { core::slice::from_raw_parts(self.map.as_ptr().cast::<AtomicU64>(), self.words) }
    }

    /// The bytes from word `first` on, as a region for one copy.
    fn bytes_from(&self, first: usize) -> Result<Region, Fault> {
        let len = self.words.checked_sub(first).ok_or(Fault)? * 8;
        // SAFETY: they are within the mapping, which outlives the copy that the region is made for, and references to its words
        // are to atomics only.
        unsafe { Region::new(self.map.as_ptr() as usize + first * 8, len) }.ok_or(Fault)
    }

    /// Copies `bytes` to the words from `first` on. If `bytes` end within a word, the rest of that word stays as it is.
    ///
    /// # Errors
    /// The bytes do not fit into the mapping, or the system has no memory for the pages.
    pub(crate) fn store(&self, first: usize, bytes: &[u8]) -> Result<(), Fault> {
        self.bytes_from(first)?.write(0, bytes)
    }

    /// Copies the words from `first` on to `bytes`, where other processes cannot change them any more.
    ///
    /// # Errors
    /// As [`Self::store`].
    pub(crate) fn load(&self, first: usize, bytes: &mut [u8]) -> Result<(), Fault> {
        self.bytes_from(first)?.read(0, bytes)
    }
}

/// An address as two words. An IPv4 address is mapped into IPv6.
pub(crate) fn words_of_address(address: IpAddr) -> [u64; 2] {
    let bits = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    [(bits >> 64) as u64, bits as u64]
}

/// The address that two words stand for.
pub(crate) fn address_of_words([high, low]: [u64; 2]) -> IpAddr {
    Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::child::in_child;
    use nix::sys::resource::setrlimit;

    /// `ulimit -f`: the system would end the program, which may be anybody's, by SIGXFSZ.
    #[test]
    fn beyond_the_limit_of_file_sizes_is_an_error() {
        in_child(|| {
            setrlimit(Resource::RLIMIT_FSIZE, 4096, 4096).unwrap();
            let small = SharedFile::new("small", 4096).is_ok();
            let large = SharedFile::new("large", 8192).unwrap_err();
            small && large.kind() == io::ErrorKind::FileTooLarge
        });
    }
}
