//! Memory that peers write to: taken away while in use, deregistered under traffic, polled by its reader.

mod verbs_common;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
use rxe_verbs::{Access, Completion, Mr, Mtu, QpState, QpType, RecvWr, Remote, SendOp, SendWr, WcStatus};
use std::{
    ffi::c_void,
    num::NonZero,
    os::fd::AsFd,
    ptr::NonNull,
    sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};
use verbs_common::{ALL, End, PATIENCE, connected, everywhere, inproc, udp4};

const PAGE: usize = 4096;

const READ_WRITE: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);
/// At that address or not at all.
const NEW: MapFlags = MapFlags::MAP_FIXED_NOREPLACE;

/// An address far from where the system puts mappings of its own choice. There a hole stays a hole: nothing of another
/// thread moves in, that a late access would hit or that would be taken away in its turn.
fn lonely_place() -> Option<NonZero<usize>> {
    static NEXT: AtomicUsize = AtomicUsize::new(0x1000_0000_0000);
    NonZero::new(NEXT.fetch_add(1 << 24, Ordering::Relaxed))
}

/// Pages of this process that the test may take away from under a region.
struct Pages {
    start: NonNull<c_void>,
    len: usize,
}

impl Pages {
    fn new(count: usize) -> Self {
        let len = NonZero::new(count * PAGE).unwrap();
        // SAFETY: new pages at an address where nothing is.
        let start = unsafe { mmap_anonymous(lonely_place(), len, READ_WRITE, MapFlags::MAP_PRIVATE | NEW) };
        Self { start: start.unwrap(), len: len.get() }
    }

    /// Of a file of that length.
    fn of_file(file: &std::fs::File, count: usize) -> Self {
        let len = NonZero::new(count * PAGE).unwrap();
        file.set_len(len.get() as u64).unwrap();
        // SAFETY: new pages at an address where nothing is.
        let start = unsafe { mmap(lonely_place(), len, READ_WRITE, MapFlags::MAP_SHARED | NEW, file, 0) };
        Self { start: start.unwrap(), len: len.get() }
    }

    fn addr(&self) -> usize {
        self.start.as_ptr() as usize
    }

    fn register(&self, end: &End, access: Access) -> Mr {
        let addr = self.addr();
        // SAFETY: nothing but raw pointers and atomics ever points into the pages.
        unsafe { end.pd.reg_mr_raw(addr, self.len, addr as u64, access) }.unwrap()
    }

    fn protect(&self, protection: ProtFlags) {
        // SAFETY: no Rust reference covers the pages.
        unsafe { mprotect(self.start, self.len, protection) }.unwrap();
    }

    /// Takes them away for good.
    fn unmap(&self) {
        // SAFETY: no Rust reference covers the pages.
        unsafe { munmap(self.start, self.len) }.unwrap();
    }

    /// Puts fresh pages in their place, full of `value`.
    fn replace(&self, value: u8) {
        let len = NonZero::new(self.len).unwrap();
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED;
        // SAFETY: our own pages, which no Rust reference covers.
        unsafe {
            mmap_anonymous(Some(NonZero::new(self.addr()).unwrap()), len, READ_WRITE, flags).unwrap();
            self.start.cast::<u8>().write_bytes(value, self.len);
        }
    }

    /// The bytes as atomics; only while they are mapped.
    fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: mapped for as long as the tests use the slice, and accessed by atomics or the engine only.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: no Rust reference covers the pages; where they are gone already this does nothing.
        unsafe { munmap(self.start, self.len) }.unwrap();
    }
}

/// A way to take memory away.
type Take = fn(&Pages, &std::fs::File);

const WAYS: [(&str, Take); 3] = [
    ("unmapped", |pages, _| pages.unmap()),
    ("no access", |pages, _| pages.protect(ProtFlags::PROT_NONE)),
    ("truncated", |_, file| file.set_len(0).unwrap()),
];

fn remote(mr: &Mr) -> Remote {
    Remote { addr: mr.addr(), rkey: mr.rkey() }
}

fn scratch_file() -> std::fs::File {
    use nix::sys::memfd::{MFdFlags, memfd_create};
    memfd_create("rxe-test", MFdFlags::MFD_CLOEXEC).unwrap().into()
}

#[test]
fn a_descriptor_is_read_into_a_region_and_written_from_it() {
    let context =
        rxe_verbs::Context::open_inproc(&rxe_verbs::net::InprocNet::new(), &["10.0.0.1".parse().unwrap()]);
    let mr = context.unwrap().alloc_pd().unwrap().alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    let (from, into) = std::io::pipe().unwrap();
    mr.write_at(8, b"straight").unwrap();
    assert_eq!(mr.write_to(into.as_fd(), 8, 8).unwrap(), 8);
    assert_eq!(mr.read_from(from.as_fd(), 60, 4).unwrap(), 4, "no more than there is room for");
    assert_eq!(mr.read_from(from.as_fd(), 0, 64).unwrap(), 4);
    assert_eq!(
        (mr.read_vec(60, 4).unwrap(), mr.read_vec(0, 4).unwrap()),
        (b"stra".to_vec(), b"ight".to_vec())
    );
    for (offset, len) in [(0, 65), (64, 1), (usize::MAX, 2)] {
        assert_eq!(mr.write_to(into.as_fd(), offset, len).unwrap_err().raw_os_error(), Some(libc::EFAULT));
        assert_eq!(mr.read_from(from.as_fd(), offset, len).unwrap_err().raw_os_error(), Some(libc::EFAULT));
    }
    // Of the wrong kind.
    assert_eq!(mr.read_from(into.as_fd(), 0, 1).unwrap_err().raw_os_error(), Some(libc::EBADF));
}

#[test]
fn memory_taken_from_the_responder() {
    everywhere(|two| {
        for (way, take) in WAYS {
            for operation in 0..4 {
                let (a, b) = connected(two, QpType::Rc, 4 * PAGE, Mtu::M1024);
                let file = scratch_file();
                let pages = Pages::of_file(&file, 4);
                let mr = pages.register(&b, ALL);
                let len = 4 * PAGE as u32;
                let sges = [a.mr.sge(0, len)];
                a.qp.post_send(&SendWr::new(0, SendOp::Write(remote(&mr)), &sges)).unwrap();
                a.good();
                take(&pages, &file);
                b.qp.post_recv(&RecvWr { wr_id: 1, sges: &[mr.sge(0, len)] }).unwrap();
                let atomic = [a.mr.sge(0, 8)];
                let wr = match operation {
                    0 => SendWr::new(1, SendOp::Write(remote(&mr)), &sges),
                    1 => SendWr::new(1, SendOp::Read(remote(&mr)), &sges),
                    2 => SendWr::new(1, SendOp::FetchAdd { remote: remote(&mr), add: 1 }, &atomic),
                    _ => SendWr::new(1, SendOp::Send, &sges),
                };
                a.qp.post_send(&wr).unwrap();
                let status = a.wait().status;
                // Key, range and rights were right: the responder failed on its own account.
                let expected = WcStatus::RemoteOperation;
                assert_eq!(status, expected, "{way}, operation {operation}");
                let own = b.wait().status;
                let expected =
                    if operation == 3 { WcStatus::LocalProtection } else { WcStatus::WorkRequestFlushed };
                assert_eq!(own, expected, "{way}, operation {operation}");
                assert_eq!(b.qp.state(), QpState::Error);
            }
        }
    });
}

#[test]
fn memory_taken_from_the_requester() {
    everywhere(|two| {
        for (way, take) in WAYS {
            for operation in 0..4 {
                let (a, b) = connected(two, QpType::Rc, 4 * PAGE, Mtu::M1024);
                b.qp.post_recv(&RecvWr { wr_id: 1, sges: &[b.mr.sge(0, 4 * PAGE as u32)] }).unwrap();
                let file = scratch_file();
                let pages = Pages::of_file(&file, 4);
                let mr = pages.register(&a, ALL);
                take(&pages, &file);
                let op = match operation {
                    0 => SendOp::Write(remote(&b.mr)),
                    1 => SendOp::Read(remote(&b.mr)),
                    2 => SendOp::FetchAdd { remote: remote(&b.mr), add: 1 },
                    _ => SendOp::Send,
                };
                let len = if operation == 2 { 8 } else { 4 * PAGE as u32 };
                a.qp.post_send(&SendWr::new(1, op, &[mr.sge(0, len)])).unwrap();
                assert_eq!(a.wait().status, WcStatus::LocalProtection, "{way}, operation {operation}");
                assert_eq!(a.qp.state(), QpState::Error);
            }
        }
    });
}

/// Where the memory is that goes away while messages of a megabyte are under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    WriteSource,
    SendSource,
    ReadTarget,
    WriteTarget,
    ReceiveTarget,
    ReadSource,
}

impl Role {
    const ALL: [Self; 6] = [
        Self::WriteSource,
        Self::SendSource,
        Self::ReadTarget,
        Self::WriteTarget,
        Self::ReceiveTarget,
        Self::ReadSource,
    ];

    /// Whether it is the requester's.
    fn is_near(self) -> bool {
        matches!(self, Self::WriteSource | Self::SendSource | Self::ReadTarget)
    }
}

const BIG: u32 = 1 << 20;

/// Messages one after the other, until one fails: its status, and that of its receive where that is in question.
fn transfer_until_it_fails(
    role: Role,
    (a, near): (&End, &Mr),
    (b, far): (&End, &Mr),
    done: &AtomicU64,
) -> (WcStatus, Option<WcStatus>) {
    loop {
        let number = done.load(Ordering::Relaxed);
        let op = match role {
            Role::WriteSource | Role::WriteTarget => SendOp::Write(remote(far)),
            Role::ReadTarget | Role::ReadSource => SendOp::Read(remote(far)),
            Role::SendSource | Role::ReceiveTarget => SendOp::Send,
        };
        if op == SendOp::Send {
            b.qp.post_recv(&RecvWr { wr_id: number, sges: &[far.sge(0, BIG)] }).unwrap();
        }
        a.qp.post_send(&SendWr::new(number, op, &[near.sge(0, BIG)])).unwrap();
        let status = a.wait().status;
        let received = (role == Role::ReceiveTarget).then(|| b.wait().status);
        if status != WcStatus::Success {
            return (status, received);
        }
        done.store(number + 1, Ordering::Relaxed);
    }
}

#[test]
fn memory_taken_in_the_middle() {
    const LEN: usize = BIG as usize;
    for two in [inproc(), udp4()] {
        for (way, take) in WAYS {
            for role in Role::ALL {
                let (a, b) = connected(&two, QpType::Rc, LEN, Mtu::M1024);
                let file = scratch_file();
                let pages = Pages::of_file(&file, LEN / PAGE);
                let gone = pages.register(if role.is_near() { &a } else { &b }, ALL);
                let (near, far) = if role.is_near() { (&gone, &b.mr) } else { (&a.mr, &gone) };
                let done = &AtomicU64::new(0);
                let (status, received) = thread::scope(|scope| {
                    let traffic = scope.spawn(|| transfer_until_it_fails(role, (&a, near), (&b, far), done));
                    // Somewhere in the third message or behind it.
                    spin_until(|| done.load(Ordering::Relaxed) >= 2 || traffic.is_finished());
                    thread::sleep(Duration::from_micros(300));
                    take(&pages, &file);
                    traffic.join().unwrap()
                });
                let expected =
                    if role.is_near() { WcStatus::LocalProtection } else { WcStatus::RemoteOperation };
                assert_eq!(status, expected, "{way}, {role:?} over {}", two.name);
                let expected = (role == Role::ReceiveTarget).then_some(WcStatus::LocalProtection);
                assert_eq!(received, expected, "{way}, {role:?} over {}", two.name);
            }
        }
    }
}

#[test]
fn read_only_memory_is_not_written() {
    everywhere(|two| {
        let pages = Pages::new(1);
        pages.replace(5);
        pages.protect(ProtFlags::PROT_READ);
        for operation in 0..6 {
            let (a, b) = connected(two, QpType::Rc, PAGE, Mtu::M1024);
            let mr = pages.register(&b, ALL);
            let (sges, word, target) = ([a.mr.sge(0, 64)], [a.mr.sge(0, 8)], remote(&mr));
            b.qp.post_recv(&RecvWr { wr_id: 1, sges: &[mr.sge(0, 64)] }).unwrap();
            let compare_swap =
                SendOp::CompareSwap { remote: target, compare: 0x0505_0505_0505_0505, swap: 1 };
            let wr = match operation {
                0 => SendWr::new(1, SendOp::Write(target), &sges),
                1 => SendWr::new(1, SendOp::AtomicWrite { remote: target, value: [1; 8] }, &[]),
                2 => SendWr::new(1, SendOp::FetchAdd { remote: target, add: 1 }, &word),
                3 => SendWr::new(1, compare_swap, &word),
                4 => SendWr::new(1, SendOp::Send, &sges),
                _ => SendWr::new(1, SendOp::Read(target), &sges),
            };
            a.qp.post_send(&wr).unwrap();
            let expected = if operation == 5 { WcStatus::Success } else { WcStatus::RemoteOperation };
            assert_eq!(a.wait().status, expected, "operation {operation}");
            if operation == 4 {
                assert_eq!(b.wait().status, WcStatus::LocalProtection);
            }
        }
        // What a READ or an atomic brings cannot be put there either; what is there can be sent.
        for operation in 0..3 {
            let (a, b) = connected(two, QpType::Rc, PAGE, Mtu::M1024);
            let mr = pages.register(&a, ALL);
            let (op, expected) = match operation {
                0 => (SendOp::Read(remote(&b.mr)), WcStatus::LocalProtection),
                1 => (SendOp::FetchAdd { remote: remote(&b.mr), add: 1 }, WcStatus::LocalProtection),
                _ => (SendOp::Write(remote(&b.mr)), WcStatus::Success),
            };
            a.qp.post_send(&SendWr::new(1, op, &[mr.sge(0, 8)])).unwrap();
            assert_eq!(a.wait().status, expected, "operation {operation}");
        }
        assert!(pages.bytes().iter().all(|byte| byte.load(Ordering::Relaxed) == 5));
    });
}

#[test]
fn a_region_registered_anew_keeps_its_key() {
    everywhere(|two| {
        let (a, b) = connected(two, QpType::Rc, PAGE, Mtu::M1024);
        let (first, second) = (Pages::new(1), Pages::new(1));
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mut mr = first.register(&b, rights);
        let key = mr.rkey();
        a.mr.write_at(0, &[7; 64]).unwrap();
        let write = |to: u64| {
            let op = SendOp::Write(Remote { addr: to, rkey: key });
            a.qp.post_send(&SendWr::new(1, op, &[a.mr.sge(0, 64)])).unwrap();
            a.wait().status
        };
        assert_eq!(write(first.addr() as u64), WcStatus::Success);
        let range = rxe_verbs::MemoryRange { addr: second.addr(), len: PAGE, iova: 0x1000 };
        // SAFETY: nothing but raw pointers ever points into the pages, which outlive the region.
        unsafe { mr.reregister(None, Some(range), None) }.unwrap();
        assert_eq!((mr.rkey(), mr.addr(), mr.memory_addr()), (key, 0x1000, second.addr() as u64));
        assert_eq!(write(0x1000), WcStatus::Success);
        assert_eq!(mr.read_vec(0, 64).unwrap(), [7; 64]);
        // Rules that refuse leave it as it was.
        // SAFETY: no new memory.
        let refused = unsafe { mr.reregister(None, None, Some(Access::REMOTE_WRITE)) };
        assert!(matches!(refused, Err(rxe_verbs::RegisterError::Region(_))), "{refused:?}");
        assert_eq!(write(0x1000), WcStatus::Success);
        let elsewhere = inproc();
        // SAFETY: no new memory.
        let stranger = unsafe { mr.reregister(Some(&elsewhere.a.alloc_pd().unwrap()), None, None) };
        assert!(matches!(stranger, Err(rxe_verbs::RegisterError::Stranger)), "{stranger:?}");
        for (access, addr) in [(rights | Access::ZERO_BASED, 0), (rights, 0x1000)] {
            // SAFETY: no new memory.
            unsafe { mr.reregister(None, None, Some(access)) }.unwrap();
            assert_eq!((mr.addr(), write(addr)), (addr, WcStatus::Success));
        }
        // SAFETY: no new memory.
        unsafe { mr.reregister(None, None, Some(Access::LOCAL_WRITE)) }.unwrap();
        assert_eq!(write(0x1000), WcStatus::RemoteAccess);
    });
}

/// The indices in keys are used again after a while; the keys themselves only after long.
#[test]
fn the_key_of_a_removed_region_stays_refused() {
    /// As many rest before the first of them is used again.
    const RESTING: usize = 1024;
    let two = inproc();
    let (a, b) = connected(&two, QpType::Rc, 64, Mtu::M1024);
    let removed = b.pd.alloc_mr(64, ALL).unwrap();
    let old = remote(&removed);
    drop(removed);
    let tries = (0..2 * RESTING).map(|_| b.pd.alloc_mr(64, ALL).unwrap());
    let same_index = |mr: &Mr| mr.rkey().index() == old.rkey.index();
    let successor = { tries }.find(same_index).expect("its index comes round");
    assert_ne!(successor.rkey(), old.rkey);
    let there = Remote { addr: successor.addr(), ..old };
    a.qp.post_send(&SendWr::new(1, SendOp::Write(there), &[a.mr.sge(0, 64)])).unwrap();
    assert_eq!(a.wait().status, WcStatus::RemoteAccess);
    assert_eq!(successor.read_vec(0, 64).unwrap(), [0; 64]);
}

/// How much to do: `RXE_TEST_ROUNDS`, else more in optimised builds.
fn rounds(debug: u64, release: u64) -> u64 {
    let asked = std::env::var("RXE_TEST_ROUNDS").ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(if cfg!(debug_assertions) { debug } else { release })
}

/// A region is deregistered, and its pages given to something else, while a peer writes to it without a pause: nothing
/// of what the peer writes is ever found there. Unreliable connections, because a reliable one would end at the first
/// refused write.
#[test]
fn nothing_is_written_after_deregistration() {
    const CANARY: u8 = 0xaa;
    everywhere(|two| {
        let (a, b) = connected(two, QpType::Uc, 1 << 16, Mtu::M4096);
        a.mr.fill(0x55).unwrap();
        let pages = Pages::new(16);
        let (rkey, stop) = (&AtomicU32::new(0), &AtomicBool::new(false));
        let (mut written, rounds) = (0, rounds(300, 5000));
        thread::scope(|scope| {
            let (a, addr) = (&a, pages.addr() as u64);
            scope.spawn(move || {
                let sges = [a.mr.sge(0, 1 << 16)];
                while !stop.load(Ordering::Relaxed) {
                    let remote = Remote { addr, rkey: rxe_verbs::Key(rkey.load(Ordering::Relaxed)) };
                    a.qp.post_send(&SendWr::new(1, SendOp::Write(remote), &sges)).unwrap();
                    a.good();
                }
            });
            for round in 0..rounds {
                pages.replace(0);
                let mr = pages.register(&b, ALL);
                rkey.store(mr.rkey().0, Ordering::Relaxed);
                // Traffic arrives now; at times this thread is the one that places it. On a busy machine the writer may have no
                // turn for long: where few writes have landed so far, this one is waited for.
                let patience = if written <= (round + 1) / 20 { PATIENCE } else { Duration::from_millis(20) };
                let until = Instant::now() + patience;
                let watched = &pages.bytes()[(round as usize * 4099) % (1 << 16)];
                while watched.load(Ordering::Relaxed) == 0 && Instant::now() < until {
                    if round % 2 == 0 {
                        let _ = b.cq.poll(&mut [Completion::default()]);
                    }
                }
                drop(mr);
                written += u64::from(pages.bytes().iter().any(|byte| byte.load(Ordering::Relaxed) == 0x55));
                pages.replace(CANARY);
                thread::sleep(Duration::from_micros(100));
                let intact = pages.bytes().iter().all(|byte| byte.load(Ordering::Relaxed) == CANARY);
                if !intact {
                    stop.store(true, Ordering::Relaxed);
                }
                assert!(intact, "round {round}: written after deregistration");
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(written > rounds / 20, "hardly any write landed before: {written} of {rounds} rounds");
        eprintln!(
            "{}: {rounds} deregistrations under traffic, {written} of regions just written to",
            two.name
        );
    });
}

/// Spins, but lets others run now and then: there may be more threads than processors.
fn spin_until(done: impl Fn() -> bool) {
    let mut spins = 0u32;
    while !done() {
        spins += 1;
        if spins.is_multiple_of(1 << 9) {
            thread::yield_now();
        }
        std::hint::spin_loop();
    }
}

/// The last byte of a message is never visible before the others: a reader that polls it finds no old byte then. A million
/// messages over each link: `cargo test --release -p rxe-verbs --test verbs_memory the_last_byte -- --nocapture`; fewer in
/// debug builds, or as many as `RXE_TEST_ROUNDS` says. With a plain `memcpy` in place of
/// the ordered copy (in `sys/usercopy`, where its tearing is measured) it fails: 59 of 300,000 messages were torn.
#[test]
fn the_last_byte_comes_last() {
    for two in [inproc(), udp4()] {
        let (a, b) = connected(&two, QpType::Rc, 1 << 16, Mtu::M4096);
        let pages = Pages::new(4);
        let mr = pages.register(&b, ALL);
        let most = rounds(20_000, 1_000_000);
        // Fewer where each costs some of others' time slices.
        let (begun, enough) =
            (Instant::now(), Duration::from_secs(if cfg!(debug_assertions) { 20 } else { 3600 }));
        // What the reader is to expect: where, and how long; and how far it has come.
        let (place, length) = (&AtomicUsize::new(0), &AtomicUsize::new(0));
        let (announced, read) = (&AtomicU64::new(0), &AtomicU64::new(0));
        let memory = pages.bytes();
        let value = |round: u64| (round % 255) as u8 + 1;
        let torn = thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut torn = 0u64;
                for round in 1.. {
                    spin_until(|| announced.load(Ordering::Acquire) >= round);
                    if announced.load(Ordering::Acquire) == u64::MAX {
                        break;
                    }
                    let (place, length) = (place.load(Ordering::Relaxed), length.load(Ordering::Relaxed));
                    let bytes = &memory[place..place + length];
                    let expected = value(round);
                    spin_until(|| bytes[length - 1].load(Ordering::Acquire) == expected);
                    // From the end: what is late arrives while one looks.
                    let mut others = bytes[..length - 1].iter().rev();
                    torn += u64::from(others.any(|byte| byte.load(Ordering::Relaxed) != expected));
                    read.store(round, Ordering::Release);
                }
                torn
            });
            for round in (1..=most).take_while(|round| *round <= 1000 || begun.elapsed() < enough) {
                let size = 2 + (round * 7919 % 8191) as usize;
                let at = (round * 13 % 64) as usize;
                place.store(at, Ordering::Relaxed);
                length.store(size, Ordering::Relaxed);
                // An earlier message may have left the same value there.
                memory[at + size - 1].store(0, Ordering::Relaxed);
                announced.store(round, Ordering::Release);
                a.mr.write_at(0, &[value(round); 8193][..size]).unwrap();
                let remote = Remote { addr: mr.addr() + at as u64, rkey: mr.rkey() };
                a.qp.post_send(&SendWr::new(round, SendOp::Write(remote), &[a.mr.sge(0, size as u32)]))
                    .unwrap();
                a.good();
                spin_until(|| read.load(Ordering::Acquire) >= round);
            }
            announced.store(u64::MAX, Ordering::Release);
            reader.join().unwrap()
        });
        let messages = read.load(Ordering::Relaxed);
        assert_eq!(torn, 0, "of {messages} messages over {}", two.name);
        eprintln!("{}: {messages} messages, none torn", two.name);
    }
}
