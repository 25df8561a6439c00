//! Records of a process's live connections, in memory that it shares only with the host service. When the process
//! dies, the service knows which peers to tell.

use super::message::Listen;
use crate::sys::shared::{SharedFile, SharedWords, address_of_words, words_of_address};
use core::sync::atomic::{AtomicU64, Ordering};
use std::{
    io,
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// Most connections in the records of a process.
pub const CAPACITY: usize = 16_383;
/// Words of one record.
const WORDS: usize = 16;
/// Bytes of one slot's records: whole pages. They begin with the number of records that were ever used. Pages behind those do not
/// exist yet, and to read them would create them.
const SLOT_BYTES: usize = (1 + CAPACITY) * WORDS * 8;
/// First word of a record that holds a connection.
const LIVE: u64 = 0x7278_652d_6c69_7665;

/// Most listeners in the register. The next service learns of others when their processes rejoin.
const REGISTER_ENTRIES: usize = 65_535;
/// Words of one listener. In front of all is the number of places that were ever used.
const ENTRY: usize = 8;
const REGISTER_WORDS: usize = (1 + REGISTER_ENTRIES) * ENTRY;

/// A connection made by the connection manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connection {
    /// Our communication ID.
    pub local_comm_id: u32,
    /// The peer's.
    pub remote_comm_id: u32,
    /// Our queue pair.
    pub local_qpn: u32,
    /// The peer's.
    pub remote_qpn: u32,
    /// Transaction ID of the REQ that made it.
    pub transaction: u64,
    /// Our address.
    pub local: IpAddr,
    /// The peer's.
    pub remote: IpAddr,
    /// Interface to the peer; 0 if routing decides.
    pub ifindex: u32,
    /// Partition key.
    pub pkey: u16,
    /// IPv4 TOS or IPv6 traffic class.
    pub tos: u8,
}

impl Connection {
    fn words(&self) -> [u64; 10] {
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let [a, b] = words_of_address(self.local);
        let [c, d] = words_of_address(self.remote);
        [
            LIVE,
            pair(self.local_comm_id, self.remote_comm_id),
            pair(self.local_qpn, self.remote_qpn),
            self.transaction,
            a,
            b,
            c,
            d,
            pair(self.ifindex, u32::from(self.pkey) << 8 | u32::from(self.tos)),
            0,
        ]
    }

    fn from_words(words: [u64; 10]) -> Option<Self> {
        let split = |word: u64| ((word >> 32) as u32, word as u32);
        if words[0] != LIVE {
            return None;
        }
        let (local_comm_id, remote_comm_id) = split(words[1]);
        let (local_qpn, remote_qpn) = split(words[2]);
        let (ifindex, rest) = split(words[8]);
        Some(Self {
            local_comm_id,
            remote_comm_id,
            local_qpn,
            remote_qpn,
            transaction: words[3],
            local: address_of_words([words[4], words[5]]),
            remote: address_of_words([words[6], words[7]]),
            ifindex,
            pkey: (rest >> 8) as u16,
            tos: rest as u8,
        })
    }
}

/// The file with the records of one process. Only the process can write to it. The host service reads it after the process has died.
#[derive(Debug)]
pub(crate) struct Records(SharedFile);

impl Records {
    /// A new file, for a process that gets a slot.
    pub(crate) fn new() -> io::Result<Self> {
        SharedFile::new("rxe-connections", SLOT_BYTES).map(Self)
    }

    /// The file that another process made.
    pub(crate) fn adopt(fd: OwnedFd) -> io::Result<Self> {
        SharedFile::adopt(fd, SLOT_BYTES).map(Self)
    }

    /// The service's descriptor, which is read-only.
    pub(crate) fn for_reading(&self) -> io::Result<Self> {
        self.0.for_reading().map(Self)
    }

    /// The descriptor for writing.
    pub(crate) fn map(&self) -> io::Result<SlotRecords> {
        Ok(SlotRecords { words: self.0.map(SLOT_BYTES / 8)? })
    }

    /// The connections in the records.
    pub(crate) fn read(&self) -> io::Result<Vec<Connection>> {
        let words = self.0.map_for_reading(SLOT_BYTES / 8)?;
        Ok(SlotRecords { words }.iter().collect())
    }
}

impl AsFd for Records {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The records of one slot.
#[derive(Debug)]
pub struct SlotRecords {
    words: SharedWords,
}

impl SlotRecords {
    fn record(&self, index: usize) -> Option<&[AtomicU64]> {
        self.words.words().get((1 + index) * WORDS..(2 + index) * WORDS)
    }

    /// How many records were ever used. The process may have written any number.
    fn used(&self) -> usize {
        let used = self.words.words().first().map_or(0, |used| used.load(Ordering::Acquire));
        usize::try_from(used).unwrap_or(CAPACITY).min(CAPACITY)
    }

    /// Stores a connection at `index`, which is below [`CAPACITY`]. Only one thread may write at a time.
    pub fn set(&self, index: usize, connection: &Connection) {
        let Some(record) = self.record(index) else { return };
        if let Some(used) = self.words.words().first().filter(|_| index < CAPACITY) {
            used.fetch_max(index as u64 + 1, Ordering::AcqRel);
        }
        // A reader after our death finds either the whole record or none.
        record[0].store(0, Ordering::Release);
        let words = connection.words();
        for (word, value) in record.iter().zip(words).skip(1) {
            word.store(value, Ordering::Relaxed);
        }
        record[0].store(words[0], Ordering::Release);
    }

    /// Removes a record.
    pub fn clear(&self, index: usize) {
        if let Some(record) = self.record(index) {
            record[0].store(0, Ordering::Release);
        }
    }

    /// The connections in the records. Records that make no sense are left out, because the process may have written anything.
    pub fn iter(&self) -> impl Iterator<Item = Connection> {
        (0..self.used()).filter_map(|index| {
            let record = self.record(index)?;
            let first = record[0].load(Ordering::Acquire);
            if first != LIVE {
                return None;
            }
            let mut words = [first; 10];
            for (value, word) in words.iter_mut().zip(record).skip(1) {
                *value = word.load(Ordering::Relaxed);
            }
            Connection::from_words(words)
        })
    }
}

/// The service's register of listeners. It is for the next service, which cannot ask a process that is stopped. Only the service that
/// made it can write to it.
#[derive(Debug)]
pub(crate) struct Register {
    /// The descriptor to pass on.
    file: SharedFile,
    words: SharedWords,
}

impl Register {
    pub(crate) fn new() -> io::Result<Self> {
        let file = SharedFile::new("rxe-listeners", REGISTER_WORDS * 8)?;
        Ok(Self { words: file.map(REGISTER_WORDS)?, file: file.for_reading()? })
    }

    /// The register of an earlier service, for reading only.
    pub(crate) fn adopt(fd: OwnedFd) -> io::Result<Self> {
        let file = SharedFile::adopt(fd, REGISTER_WORDS * 8)?;
        Ok(Self { words: file.map_for_reading(REGISTER_WORDS)?, file })
    }

    fn entry(&self, index: usize) -> Option<&[AtomicU64]> {
        self.words.words().get((1 + index) * ENTRY..(2 + index) * ENTRY)
    }

    /// Stores a listener at `index`, or clears the place. A reader finds either the whole listener or none. Listeners beyond the end are
    /// not stored. The next service does not know such a listener until its process has rejoined.
    pub(crate) fn set(&self, index: usize, listener: Option<(u8, u32, Listen)>) {
        let Some(entry) = self.entry(index).filter(|_| index < REGISTER_ENTRIES) else { return };
        entry[0].store(0, Ordering::Release);
        let Some((slot, token, listen)) = listener else { return };
        let [high, low] = listen.address.map_or([0, 0], words_of_address);
        let flags = u64::from(listen.reuse) << 1 | u64::from(listen.address.is_some());
        let values = [LIVE, u64::from(slot) << 32 | u64::from(token), listen.service_id, high, low, flags];
        for (word, value) in entry.iter().zip(values).skip(1) {
            word.store(value, Ordering::Relaxed);
        }
        entry[0].store(LIVE, Ordering::Release);
        if let Some(used) = self.words.words().first() {
            used.fetch_max(index as u64 + 1, Ordering::AcqRel);
        }
    }

    /// How many places were ever used. The number may be wrong, so it is bounded.
    fn used(&self) -> usize {
        let used = self.words.words().first().map_or(0, |used| used.load(Ordering::Acquire));
        usize::try_from(used).unwrap_or(REGISTER_ENTRIES).min(REGISTER_ENTRIES)
    }

    /// Slot, token and content of each listener.
    pub(crate) fn load(&self) -> Vec<(u8, u32, Listen)> {
        let read = |index: usize| {
            let entry = self.entry(index)?;
            (entry[0].load(Ordering::Acquire) == LIVE).then_some(())?;
            let word = |at: usize| entry[at].load(Ordering::Relaxed);
            let (who, flags) = (word(1), word(5));
            let there = flags & 1 != 0;
            let listen = Listen {
                service_id: word(2),
                address: there.then(|| address_of_words([word(3), word(4)])),
                reuse: flags & 2 != 0,
            };
            Some((u8::try_from(who >> 32).ok()?, who as u32, listen))
        };
        (0..self.used()).filter_map(read).collect()
    }
}

impl AsFd for Register {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_service_reads_who_listens() {
        let register = Register::new().unwrap();
        assert!(register.load().is_empty());
        let listen = |address: Option<&str>, reuse| Listen {
            service_id: 0x106_1234,
            address: address.map(|text| text.parse().unwrap()),
            reuse,
        };
        let all = [
            (3, 7, listen(None, true)),
            (255, u32::MAX, listen(Some("10.0.0.1"), false)),
            (1, 0, listen(Some("fd00::1"), false)),
        ];
        for (index, one) in all.into_iter().enumerate() {
            register.set(index, Some(one));
        }
        register.set(REGISTER_ENTRIES, Some(all[0]));
        let again = Register::adopt(register.as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(again.load(), all);
        register.set(0, None);
        assert_eq!(again.load(), all[1..]);
        register.set(0, Some(all[2]));
        assert_eq!(again.load(), [all[2], all[1], all[2]]);
    }

    fn connection(number: u32) -> Connection {
        Connection {
            local_comm_id: 0x0300_0000 | number,
            remote_comm_id: 0xffff_ffff,
            local_qpn: 0x03_0001,
            remote_qpn: 17,
            transaction: u64::MAX,
            local: "10.0.0.1".parse().unwrap(),
            remote: "fd00::2".parse().unwrap(),
            ifindex: 4,
            pkey: 0xffff,
            tos: 0x6a,
        }
    }

    #[test]
    fn what_one_mapping_writes_another_reads() {
        let file = Records::new().unwrap();
        let records = file.map().unwrap();
        let reader =
            Records::adopt(file.for_reading().unwrap().as_fd().try_clone_to_owned().unwrap()).unwrap();
        records.set(0, &connection(1));
        records.set(CAPACITY - 1, &connection(2));
        records.set(CAPACITY, &connection(3));
        assert_eq!(reader.read().unwrap(), [connection(1), connection(2)]);
        records.clear(0);
        assert_eq!(reader.read().unwrap(), [connection(2)]);
        assert!(reader.map().is_err(), "its descriptor is for reading");
    }

    #[test]
    fn memory_that_might_shrink_is_refused() {
        let file = nix::sys::memfd::memfd_create("x", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap();
        assert!(Records::adopt(file).is_err());
    }
}
