//! Which sockets become rsockets: all TCP and UDP sockets, unless a file says otherwise (`/etc/rdma/rsocket/preload_config`, or
//! the one that `RXE_RSOCKETS_CONFIG` names), as with rdma-core's library.
//!
//! A line of the file has a program's name, a family (INET, INET6), a type (STREAM, DGRAM) and a protocol (TCP, UDP); `*` means
//! any. If there is a file with such lines, only sockets that match a line become rsockets.

use crate::rs;
use core::{
    ffi::{CStr, c_char, c_int},
    sync::atomic::{AtomicU32, Ordering},
};

const FILE: &CStr = c"/etc/rdma/rsocket/preload_config";
const VARIABLE: &CStr = c"RXE_RSOCKETS_CONFIG";
/// Bytes of the file that are read.
const MOST: usize = 8192;

/// Combinations of family and type: a bit for each, once they are known.
static WANTED: AtomicU32 = AtomicU32::new(0);
const KNOWN: u32 = 1 << 31;

const fn bit(domain: c_int, kind: c_int) -> Option<u32> {
    match (domain, kind) {
        (libc::AF_INET, libc::SOCK_STREAM) => Some(1),
        (libc::AF_INET, libc::SOCK_DGRAM) => Some(2),
        (libc::AF_INET6, libc::SOCK_STREAM) => Some(4),
        (libc::AF_INET6, libc::SOCK_DGRAM) => Some(8),
        _ => None,
    }
}

/// Whether a new socket of the program becomes an rsocket.
pub(crate) fn is_wanted(domain: c_int, kind: c_int, protocol: c_int) -> bool {
    let kind = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    let Some(bit) = bit(domain, kind) else { return false };
    let usual = match kind {
        libc::SOCK_STREAM => matches!(protocol, 0 | libc::IPPROTO_TCP),
        _ => matches!(protocol, 0 | libc::IPPROTO_UDP),
    };
    usual && !rs::is_inside() && !is_of_the_library() && wanted() & bit != 0
}

/// Whether the calling thread is one of the drop-in's own threads, which have a certain name.
fn is_of_the_library() -> bool {
    let mut name = [0_u8; 16];
    // SAFETY: the kernel writes 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name.starts_with(b"rxe-")
}

fn wanted() -> u32 {
    let known = WANTED.load(Ordering::Relaxed);
    if known & KNOWN != 0 {
        return known;
    }
    let mut file = [0; MOST];
    let read = read(&mut file);
    let found = KNOWN | parse(&file[..read], program());
    WANTED.store(found, Ordering::Relaxed);
    found
}

/// Reads the file by system calls only. Returns the number of bytes.
fn read(out: &mut [u8; MOST]) -> usize {
    unsafe extern "C" {
        fn secure_getenv(name: *const c_char) -> *mut c_char;
    }
    // SAFETY: glibc's; it reads the environment, but not in a program with more rights than whoever has set it; one that changes it in
    // another thread meanwhile has a race of its own.
    let named = unsafe { secure_getenv(VARIABLE.as_ptr()) };
    let path: *const c_char = if named.is_null() { FILE.as_ptr() } else { named };
    // SAFETY: a string, and memory of that size.
    unsafe {
        let fd = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, libc::O_RDONLY | libc::O_CLOEXEC);
        if fd < 0 {
            return 0;
        }
        let count = libc::syscall(libc::SYS_read, fd, out.as_mut_ptr(), out.len());
        libc::syscall(libc::SYS_close, fd);
        usize::try_from(count).unwrap_or(0)
    }
}

fn program() -> &'static [u8] {
    unsafe extern "C" {
        static program_invocation_short_name: *const c_char;
    }
    // SAFETY: glibc's, a string from before main on.
    unsafe { CStr::from_ptr(program_invocation_short_name) }.to_bytes()
}

/// The combinations in the lines for this program. All if the file has no such lines.
fn parse(text: &[u8], program: &[u8]) -> u32 {
    let (mut all, mut any) = (0, false);
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"#")) {
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let (Some(name), Some(domain), Some(kind), Some(protocol)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            continue;
        };
        let is = |word: &[u8], long: &[u8]| {
            let short = word.strip_prefix(b"AF_").or_else(|| word.strip_prefix(b"PF_"));
            let short =
                short.or_else(|| word.strip_prefix(b"SOCK_")).or_else(|| word.strip_prefix(b"IPPROTO_"));
            word == b"*" || short.unwrap_or(word).eq_ignore_ascii_case(long)
        };
        any = true;
        if name != b"*" && !program.starts_with(name) {
            continue;
        }
        let kinds: [(&[u8], &[u8], c_int); 2] =
            [(b"STREAM", b"TCP", libc::SOCK_STREAM), (b"DGRAM", b"UDP", libc::SOCK_DGRAM)];
        let domains: [(&[u8], c_int); 2] = [(b"INET", libc::AF_INET), (b"INET6", libc::AF_INET6)];
        for (domain_name, domain_number) in domains {
            for (kind_name, protocol_name, kind_number) in kinds {
                if is(domain, domain_name) && is(kind, kind_name) && is(protocol, protocol_name) {
                    all |= bit(domain_number, kind_number).unwrap_or(0);
                }
            }
        }
    }
    if any { all } else { 0xf }
}
