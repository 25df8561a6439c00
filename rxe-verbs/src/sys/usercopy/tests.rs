use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::{Duration, Instant};

use super::{Atomic, Fault, Region, fixup, kernel, tail};

mod futex;

const PAGE: usize = 4096;

/// One way to access memory, so that the tests can run each way, whichever is chosen by default.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    read: unsafe fn(usize, &mut [u8]) -> Result<(), Fault>,
    write: unsafe fn(usize, &[u8], usize) -> Result<(), Fault>,
    atomic: unsafe fn(usize, Atomic) -> Result<u64, Fault>,
}

fn ways() -> Vec<Way> {
    let mut ways = vec![
        Way { name: "kernel", read: kernel::read, write: kernel::write, atomic: kernel::atomic },
        Way {
            name: "memory file",
            read: kernel::memory_file_read,
            write: kernel::memory_file_write,
            atomic: kernel::atomic,
        },
    ];
    if cfg!(target_arch = "x86_64") {
        assert!(fixup::usable(), "the fix-up must be usable in this test program");
        ways.push(Way { name: "fix-up", read: fixup::read, write: fixup::write, atomic: fixup::atomic });
    }
    ways
}

impl Way {
    fn read(&self, address: usize, len: usize) -> Result<Vec<u8>, Fault> {
        let mut out = vec![0xee; len];
        // SAFETY: the tests' mappings are reached by nothing else.
        unsafe { (self.read)(address, &mut out) }.map(|()| out)
    }

    fn write(&self, address: usize, data: &[u8]) -> Result<(), Fault> {
        // SAFETY: as above.
        unsafe { (self.write)(address, data, tail(address, data.len())) }
    }

    fn atomic(&self, address: usize, operation: Atomic) -> Result<u64, Fault> {
        // SAFETY: as above.
        unsafe { (self.atomic)(address, operation) }
    }
}

/// Pages of memory, unmapped at the end.
struct Pages {
    start: usize,
    len: usize,
}

impl Pages {
    fn new(pages: usize) -> Self {
        Self::map(pages, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    fn map(pages: usize, flags: c_int, fd: c_int) -> Self {
        let len = pages * PAGE;
        // SAFETY: a new mapping at a place the kernel chooses.
        let start = unsafe {
            libc::mmap(core::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0)
        };
        assert_ne!(start, libc::MAP_FAILED);
        Self { start: start as usize, len }
    }

    fn protect(&self, page: usize, protection: c_int) {
        // SAFETY: our own mapping.
        assert_eq!(unsafe { libc::mprotect((self.start + page * PAGE) as *mut c_void, PAGE, protection) }, 0);
    }

    fn unmap(&self, page: usize) {
        // SAFETY: our own mapping.
        assert_eq!(unsafe { libc::munmap((self.start + page * PAGE) as *mut c_void, PAGE) }, 0);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own mapping, unmapped once more where it already was.
        unsafe { libc::munmap(self.start as *mut c_void, self.len) };
    }
}

#[test]
fn copies_are_exact_at_every_length_and_alignment() {
    for way in ways() {
        let pages = Pages::new(2);
        for len in (1..200).chain([255, 256, 1024, 4095, 4096, 4097]) {
            for shift in 0..17 {
                let data: Vec<u8> = (0..len).map(|i| (i * 7 + shift + 1) as u8).collect();
                let at = pages.start + 16 + shift;
                way.write(pages.start, &vec![0xaa; 16 + shift + len + 16]).unwrap();
                way.write(at, &data).unwrap();
                let around = way.read(at - 1, len + 2).unwrap();
                assert_eq!(around[1..=len], data, "{} {len} {shift}", way.name);
                assert_eq!((around[0], around[len + 1]), (0xaa, 0xaa), "{} {len} {shift}", way.name);
            }
        }
    }
    // SAFETY: nothing is accessed.
    unsafe {
        assert_eq!(super::read(8, &mut []), Ok(()));
        assert_eq!(super::write(8, &[]), Ok(()));
    }
}

#[test]
fn missing_and_protected_memory_is_a_fault() {
    for way in ways() {
        let pages = Pages::new(4);
        pages.unmap(1);
        pages.protect(2, libc::PROT_NONE);
        pages.protect(3, libc::PROT_READ);
        let page = |n: usize| pages.start + n * PAGE;
        for bad in [
            page(1),
            page(1) + 8,
            page(2),
            page(2) + 100,
            0,
            8,
            usize::MAX - 4095,
            1 << 63,
            0xdead_beef_0000_0000,
        ] {
            for len in [1, 8, 64, 4096] {
                assert_eq!(way.read(bad, len), Err(Fault), "{} read {bad:#x}", way.name);
                assert_eq!(way.write(bad, &vec![1; len]), Err(Fault), "{} write {bad:#x}", way.name);
            }
            for operation in
                [Atomic::CompareSwap { expected: 0, new: 1 }, Atomic::FetchAdd(1), Atomic::Swap(1)]
            {
                assert_eq!(
                    way.atomic(bad & !7, operation),
                    Err(Fault),
                    "{} {operation:?} {bad:#x}",
                    way.name
                );
            }
        }
        // Readable, not writable.
        assert_eq!(way.read(page(3), 16).unwrap(), [0; 16]);
        assert_eq!(way.write(page(3), &[1; 16]), Err(Fault), "{}", way.name);
        for operation in [Atomic::CompareSwap { expected: 5, new: 1 }, Atomic::FetchAdd(0), Atomic::Swap(0)] {
            assert_eq!(way.atomic(page(3), operation), Err(Fault), "{} {operation:?}", way.name);
        }
        assert_eq!(way.read(page(3), 16).unwrap(), [0; 16], "{}: read-only memory has changed", way.name);
        // From good memory into bad: the last byte is never stored.
        assert_eq!(way.write(page(1) - 100, &[7; 200]), Err(Fault), "{}", way.name);
        assert_eq!(way.read(page(1) - 100, 200), Err(Fault), "{}", way.name);
        assert_eq!(way.write(page(0), &[3; 64]), Ok(()), "{} is usable after faults", way.name);
    }
}

#[test]
fn a_truncated_file_is_a_fault() {
    for way in ways() {
        // SAFETY: a new file in memory, closed at the end.
        let fd = unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: our own file.
        assert_eq!(unsafe { libc::ftruncate(fd, 2 * PAGE as libc::off_t) }, 0);
        let pages = Pages::map(2, libc::MAP_SHARED, fd);
        way.write(pages.start + PAGE - 50, &[9; 100]).unwrap();
        // SAFETY: our own file.
        assert_eq!(unsafe { libc::ftruncate(fd, PAGE as libc::off_t) }, 0);
        let gone = pages.start + PAGE;
        assert_eq!(way.read(gone, 1), Err(Fault), "{}", way.name);
        assert_eq!(way.read(gone - 50, 100), Err(Fault), "{}", way.name);
        assert_eq!(way.write(gone, &[1; 8]), Err(Fault), "{}", way.name);
        assert_eq!(way.write(gone - 50, &[1; 100]), Err(Fault), "{}", way.name);
        assert_eq!(way.atomic(gone, Atomic::FetchAdd(1)), Err(Fault), "{}", way.name);
        assert_eq!(way.read(gone - 8, 8).unwrap().len(), 8, "{}", way.name);
        // SAFETY: ours, closed once.
        unsafe { libc::close(fd) };
    }
}

#[test]
fn atomics_do_what_they_say() {
    for way in ways() {
        let pages = Pages::new(1);
        let word = pages.start + 64;
        assert_eq!(way.atomic(word, Atomic::FetchAdd(5)), Ok(0));
        assert_eq!(way.atomic(word, Atomic::FetchAdd(u64::MAX)), Ok(5));
        assert_eq!(way.atomic(word, Atomic::CompareSwap { expected: 9, new: 1 }), Ok(4));
        assert_eq!(way.atomic(word, Atomic::CompareSwap { expected: 4, new: 1 << 40 }), Ok(4));
        assert_eq!(way.atomic(word, Atomic::Swap(7)), Ok(1 << 40));
        assert_eq!(way.read(word, 8).unwrap(), 7u64.to_ne_bytes());
        assert_eq!(way.read(word + 8, 8).unwrap(), [0; 8]);
    }
    let pages = Pages::new(1);
    // SAFETY: nothing else reaches the mapping.
    assert_eq!(unsafe { super::atomic(pages.start + 4, Atomic::FetchAdd(1)) }, Err(Fault));
}

#[test]
fn additions_of_all_ways_are_atomic_together() {
    const EACH: u64 = 20_000;
    let pages = Pages::new(1);
    let (start, ways) = (pages.start, ways());
    std::thread::scope(|scope| {
        for way in &ways {
            scope.spawn(move || {
                for _ in 0..EACH {
                    way.atomic(start, Atomic::FetchAdd(1)).unwrap();
                }
            });
        }
    });
    assert_eq!(ways[0].read(start, 8).unwrap(), (EACH * ways.len() as u64).to_ne_bytes());
}

#[test]
fn a_region_keeps_accesses_inside() {
    let pages = Pages::new(1);
    // SAFETY: nothing else reaches the mapping.
    let region = unsafe { Region::new(pages.start + 16, 100) }.unwrap();
    assert_eq!(region.len(), 100);
    assert_eq!(region.write(0, &[1; 100]), Ok(()));
    assert_eq!(region.write(1, &[1; 100]), Err(Fault));
    assert_eq!(region.write(usize::MAX, &[1]), Err(Fault));
    assert_eq!(region.read(100, &mut []), Ok(()));
    assert_eq!(region.read(101, &mut []), Err(Fault));
    assert_eq!(region.atomic(0, Atomic::Swap(3)), Ok(0x0101_0101_0101_0101));
    assert_eq!(region.atomic(96, Atomic::Swap(3)), Err(Fault));
    // SAFETY: never used.
    assert_eq!(unsafe { Region::new(usize::MAX, 2) }, None);
}

/// Polls a condition. If it does not become true at once, yields the processor to the other side, which may have none.
fn spin_until(mut done: impl FnMut() -> bool) {
    let mut tries = 0_u32;
    while !done() {
        tries += 1;
        if tries.is_multiple_of(4096) {
            std::thread::yield_now();
        }
        core::hint::spin_loop();
    }
}

/// Counts the messages of `len` bytes in which a reader finds old bytes. The reader does as programs do: it polls the last byte, and
/// then reads the rest. There are `rounds` messages, or fewer if time runs out on a busy machine.
fn torn_messages(len: usize, write: &(dyn Fn(usize, &[u8]) + Sync), rounds: u32) -> u32 {
    let pages = Pages::new(3);
    let start = pages.start;
    // SAFETY: the bytes are only reached as atomics here, and by the copies under test.
    let cell = |i: usize| unsafe { AtomicU8::from_ptr((start + i) as *mut u8) };
    let (done, ended) = (AtomicU8::new(0), AtomicBool::new(false));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut data = vec![0u8; len];
            for round in (1..=rounds).take_while(|round| *round <= 20 || begun.elapsed() < ENOUGH) {
                data.fill(round as u8);
                spin_until(|| done.load(Ordering::Acquire) == (round - 1) as u8);
                write(start, &data);
            }
            ended.store(true, Ordering::Release);
        });
        let mut torn = 0;
        for round in 1..=rounds {
            let is_there = || cell(len - 1).load(Ordering::Acquire) == round as u8;
            spin_until(|| is_there() || ended.load(Ordering::Acquire));
            if !is_there() {
                break;
            }
            // The bytes most likely to be late are the ones before the last.
            if (0..len - 1).rev().any(|i| cell(i).load(Ordering::Relaxed) != round as u8) {
                torn += 1;
            }
            done.store(round as u8, Ordering::Release);
        }
        torn
    })
}

/// Time for each length.
const ENOUGH: Duration = Duration::from_secs(1);
/// Lengths of messages. For a length that is no multiple of eight, the last store is one byte.
const LENGTHS: [usize; 12] = [2, 9, 16, 63, 64, 256, 257, 512, 1000, 4095, 4096, 8192];

fn torn_reads(write: &(dyn Fn(usize, &[u8]) + Sync), rounds: u32) -> u32 {
    LENGTHS.into_iter().map(|len| torn_messages(len, write, rounds)).sum()
}

#[test]
fn what_is_stored_last() {
    for (address, len, last) in [
        (0, 1, 1),
        (0, 7, 1),
        (0, 8, 8),
        (0, 9, 1),
        (1, 8, 1),
        (3, 13, 8),
        (12, 4, 1),
        (0, 4095, 1),
        (0, 4096, 8),
        (1, 4096, 1),
    ] {
        assert_eq!(tail(address, len), last, "{len} bytes at {address}");
    }
}

#[test]
fn the_last_byte_comes_last() {
    for way in ways() {
        assert_eq!(torn_reads(&|at, data| way.write(at, data).unwrap(), 3000), 0, "{}", way.name);
    }
}

#[test]
fn a_last_byte_that_comes_first_is_noticed() {
    let way = ways()[0];
    let last_first = |at: usize, data: &[u8]| {
        way.write(at + data.len() - 1, &data[data.len() - 1..]).unwrap();
        // Long enough that the reader gets a processor, even on a busy machine.
        std::thread::sleep(Duration::from_millis(2));
        way.write(at, &data[..data.len() - 1]).unwrap();
    };
    assert!(torn_reads(&last_first, 20) > 0);
}

/// Shows why memory is not copied by `memcpy`: its last byte may become visible before others. How often depends on the processor,
/// the C library and other load, so this is no test. With our own ways the same reader finds no torn message
/// (`the_last_byte_comes_last`). Run with
/// `cargo test --release -p rxe-verbs --lib a_plain_memcpy -- --ignored --nocapture` on a machine with two idle processors.
#[test]
#[ignore = "a measurement: cargo test --release -p rxe-verbs --lib a_plain_memcpy -- --ignored --nocapture"]
fn a_plain_memcpy_tears() {
    // SAFETY: inside the mapping that `torn_messages` made; that its reader looks meanwhile is the point.
    let memcpy = |at: usize, data: &[u8]| unsafe {
        core::ptr::copy_nonoverlapping(data.as_ptr(), at as *mut u8, data.len());
    };
    const ROUNDS: u32 = 200_000;
    let mut torn = 0;
    for len in LENGTHS.into_iter().chain([24, 48, 100, 200, 300, 2000, 2048, 3000]) {
        let here = torn_messages(len, &memcpy, ROUNDS);
        println!("memcpy of {len:>4} bytes: {here:>6} of {ROUNDS} torn");
        torn += here;
    }
    assert!(torn > 0, "none seen here; was it optimised, and were two processors free?");
}

/// Runs one of the tests below in a process of its own, because these tests change or end their process. Returns the signal of which
/// the process died. `None` means that the test ran and passed.
fn in_child(test: &str, variables: &[(&str, &str)]) -> Option<c_int> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("sys::usercopy::tests::signals::{test}"), "--ignored", "--test-threads=1"])
        .env("RXE_CHILD", "1")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.signal().is_some() || said.contains("1 passed"), "{}\n{said}", output.status);
    output.status.signal()
}

/// Whether this is a process that `in_child` started. The tests below do nothing in any other process.
fn is_child() -> bool {
    let child = std::env::var_os("RXE_CHILD").is_some();
    if !child {
        println!("skipped: runs only in a process of its own");
    }
    child
}

/// The program may close all descriptors, and open a file that gets the number of the memory file.
#[test]
fn a_file_with_the_memory_files_number_is_left_alone() {
    use std::os::fd::AsRawFd;
    let mut byte = 0_u8;
    let address = (&raw mut byte) as usize;
    // SAFETY: nothing else reaches the byte.
    let write = |value: u8| unsafe { kernel::memory_file_write(address, &[value], 0).unwrap() };
    write(1);
    let is_ours = |fd: &i32| {
        std::fs::read_link(format!("/proc/thread-self/fd/{fd}"))
            .is_ok_and(|name| name.to_string_lossy().contains("rxe-usercopy"))
    };
    let all = std::fs::read_dir("/proc/thread-self/fd").unwrap();
    let numbers = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let ours: Vec<i32> = numbers.filter(is_ours).collect();
    let path = std::env::temp_dir().join(format!("rxe-usercopy-{}", std::process::id()));
    let file = std::fs::File::create(&path).unwrap();
    for number in &ours {
        // SAFETY: it takes the place of a descriptor of the memory file, which is to notice that.
        assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), *number) }, *number);
    }
    write(2);
    let len = file.metadata().unwrap().len();
    std::fs::remove_file(path).unwrap();
    assert_eq!((ours.len(), len, byte), (1, 0, 2));
}

#[cfg(target_arch = "x86_64")]
mod signals {
    use super::*;

    fn public_write(address: usize) -> Result<(), Fault> {
        // SAFETY: nothing else reaches the tests' mappings.
        unsafe { super::super::write(address, &[1; 32]) }
    }

    fn wait_out_belief() {
        std::thread::sleep(Duration::from_millis(5));
    }

    #[test]
    fn faults_elsewhere_still_kill() {
        assert_eq!(in_child("child_faults_elsewhere", &[]), Some(libc::SIGSEGV));
    }

    #[test]
    #[ignore = "run by faults_elsewhere_still_kill"]
    fn child_faults_elsewhere() {
        if !is_child() {
            return;
        }
        assert!(fixup::usable());
        assert_eq!(public_write(8), Err(Fault));
        // SAFETY: not at all: this is to fault.
        unsafe { core::ptr::write_volatile(core::ptr::without_provenance_mut::<u8>(16), 1) };
    }

    #[test]
    fn a_sent_signal_still_kills() {
        assert_eq!(in_child("child_sends_signal", &[]), Some(libc::SIGBUS));
    }

    #[test]
    #[ignore = "run by a_sent_signal_still_kills"]
    fn child_sends_signal() {
        if !is_child() {
            return;
        }
        // The standard library's handler would swallow a signal that is no fault.
        handle_with(libc::SIG_DFL);
        assert!(fixup::usable());
        // SAFETY: a signal to this thread.
        unsafe { libc::raise(libc::SIGBUS) };
    }

    #[test]
    fn an_earlier_handler_still_gets_its_faults() {
        assert_eq!(in_child("child_earlier_handler", &[]), None);
    }

    static SEEN: AtomicU8 = AtomicU8::new(0);

    extern "C" fn count(_: c_int) {
        SEEN.fetch_add(1, Ordering::SeqCst);
    }

    fn handle_with(handler: usize) {
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            // SAFETY: a handler of the right type that only counts.
            unsafe { libc::signal(signal, handler) };
        }
    }

    #[test]
    #[ignore = "run by an_earlier_handler_still_gets_its_faults"]
    fn child_earlier_handler() {
        if !is_child() {
            return;
        }
        handle_with(count as *const () as usize);
        assert!(fixup::usable());
        // SAFETY: signals to this thread.
        unsafe {
            libc::raise(libc::SIGSEGV);
            libc::raise(libc::SIGBUS);
        }
        assert_eq!(SEEN.load(Ordering::SeqCst), 2);
        assert_eq!(public_write(8), Err(Fault));
        assert_eq!(SEEN.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_handler_for_one_fault_is_called_for_one() {
        assert_eq!(in_child("child_handles_one_fault", &[]), Some(libc::SIGSEGV));
    }

    #[test]
    #[ignore = "run by a_handler_for_one_fault_is_called_for_one"]
    fn child_handles_one_fault() {
        extern "C" fn once(_: c_int) {
            // Not an assertion, which would be no way out of a handler.
            if SEEN.fetch_add(1, Ordering::SeqCst) > 0 {
                std::process::abort();
            }
        }
        if !is_child() {
            return;
        }
        // SAFETY: all zeroes is a valid action, and the handler is of the right type.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = once as *const () as usize;
            action.sa_flags = libc::SA_RESETHAND;
            assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, core::ptr::null_mut()), 0);
        }
        assert!(fixup::usable());
        // SAFETY: not at all: this is to fault.
        unsafe { core::ptr::write_volatile(core::ptr::without_provenance_mut::<u8>(16), 1) };
    }

    /// The program's threads may install handlers while we install ours. If reading the old handler and installing ours were two
    /// steps, this alternation would show it in most runs.
    #[test]
    fn the_handler_that_ours_replaces_is_the_one_called() {
        for _ in 0..20 {
            assert_eq!(in_child("child_installs_all_the_time", &[]), None);
        }
    }

    extern "C" fn count_also(_: c_int) {}

    #[test]
    #[ignore = "run by the_handler_that_ours_replaces_is_the_one_called"]
    fn child_installs_all_the_time() {
        if !is_child() {
            return;
        }
        let handlers = [count as *const () as usize, count_also as *const () as usize];
        // SAFETY: handlers of the right type.
        let install = |handler: usize| unsafe { libc::signal(libc::SIGSEGV, handler) };
        install(handlers[0]);
        let started = &AtomicU8::new(0);
        let replaced = std::thread::scope(|scope| {
            let program = scope.spawn(move || {
                for round in 1_usize.. {
                    let before = install(handlers[round % 2]);
                    if before != handlers[(round + 1) % 2] {
                        // Our handler was installed, and it had replaced the handler of the round before.
                        return handlers[(round + 1) % 2];
                    }
                    started.store(1, Ordering::Release);
                }
                unreachable!("it ends by a return")
            });
            spin_until(|| started.load(Ordering::Acquire) == 1);
            fixup::usable();
            program.join().unwrap()
        });
        assert_eq!(fixup::replaced(libc::SIGSEGV), replaced);
    }

    #[test]
    fn a_later_handler_turns_the_fix_up_off() {
        assert_eq!(in_child("child_later_handler", &[]), None);
    }

    #[test]
    #[ignore = "run by a_later_handler_turns_the_fix_up_off"]
    fn child_later_handler() {
        if !is_child() {
            return;
        }
        assert!(fixup::usable());
        handle_with(count as *const () as usize);
        wait_out_belief();
        assert!(!fixup::usable());
        assert_eq!(public_write(8), Err(Fault));
        assert_eq!(SEEN.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn blocked_signals_turn_the_fix_up_off() {
        assert_eq!(in_child("child_blocked_signals", &[]), None);
    }

    #[test]
    #[ignore = "run by blocked_signals_turn_the_fix_up_off"]
    fn child_blocked_signals() {
        if !is_child() {
            return;
        }
        assert!(fixup::usable());
        // SAFETY: blocks all signals of this thread.
        unsafe {
            let mut all = core::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, core::ptr::null_mut());
        }
        wait_out_belief();
        assert!(!fixup::usable());
        assert_eq!(public_write(8), Err(Fault));
        assert!(std::thread::spawn(|| public_write(8)).join().unwrap().is_err());
    }

    #[test]
    fn the_environment_turns_the_fix_up_off() {
        assert_eq!(in_child("child_forced_off", &[("RXE_USERCOPY", "kernel")]), None);
    }

    #[test]
    #[ignore = "run by the_environment_turns_the_fix_up_off"]
    fn child_forced_off() {
        if !is_child() {
            return;
        }
        assert!(!fixup::usable());
        assert_eq!(public_write(8), Err(Fault));
    }
}

/// Not a test: prints what a copy costs. Run with `--release -- --ignored --nocapture cost_of_copies`.
#[test]
#[ignore = "a measurement: cargo test --release -p rxe-verbs --lib cost_of_copies -- --ignored --nocapture"]
fn cost_of_copies() {
    let pages = Pages::new(16);
    let per_copy = |name: &str, len: usize, copy: &mut dyn FnMut(usize)| {
        let rounds = 50_000;
        let start = Instant::now();
        for round in 0..rounds {
            copy(pages.start + (round * len.next_power_of_two()) % (15 * PAGE));
        }
        println!(
            "{name:>28} {len:>6} B {:>8.1} ns",
            start.elapsed().as_nanos() as f64 / f64::from(rounds as u32)
        );
    };
    for len in [8, 64, 1024, 4096, 61440] {
        let mut buffer = vec![1u8; len];
        let len_at = |at: usize| if len > PAGE { pages.start } else { at };
        // SAFETY: inside the mapping, for comparison.
        per_copy("memcpy to", len, &mut |at| unsafe {
            core::ptr::copy_nonoverlapping(buffer.as_ptr(), len_at(at) as *mut u8, len);
        });
        for way in ways() {
            // SAFETY: nothing else reaches the mapping.
            per_copy(&format!("{} read", way.name), len, &mut |at| unsafe {
                (way.read)(len_at(at), &mut buffer).unwrap();
            });
            per_copy(&format!("{} write", way.name), len, &mut |at| {
                way.write(len_at(at), &buffer).unwrap();
            });
        }
        per_copy("chosen way, write", len, &mut |at| {
            // SAFETY: nothing else reaches the mapping.
            unsafe { super::write(len_at(at), &buffer) }.unwrap();
        });
    }
    for way in ways() {
        per_copy(&format!("{} fetch-add", way.name), 8, &mut |at| {
            way.atomic(at, Atomic::FetchAdd(1)).unwrap();
        });
    }
}
