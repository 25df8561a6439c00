//! The replaced functions. Functions that are variadic in libc always take their optional argument here: the calling
//! conventions of supported hosts put it in the same place, and libc reads it only if it was given.

use crate::{path::Path, real::Real};
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use libc::{DIR, FILE, mode_t, size_t, ssize_t};

/// A file that changes while programs run, opened with these flags.
fn by_flags(path: &Path, flags: c_int) -> Option<c_int> {
    path.live(libc::AT_FDCWD, flags)
}

/// The same, where a path may begin in another folder than the working one.
fn by_flags_at(path: &Path, flags: c_int, dir: c_int) -> Option<c_int> {
    path.live(dir, flags)
}

/// The same as a stream, if it is only to be read.
fn by_mode(path: &Path, mode: *const c_char) -> Option<*mut FILE> {
    // SAFETY: the program promises a string, as it does to libc.
    let letters = unsafe { CStr::from_ptr(mode) }.to_bytes();
    if letters.first() != Some(&b'r') || letters.contains(&b'+') {
        return None;
    }
    let fd = path.live(libc::AT_FDCWD, if letters.contains(&b'e') { libc::O_CLOEXEC } else { 0 })?;
    // SAFETY: a string, and a descriptor that becomes the stream's.
    let stream = unsafe { libc::fdopen(fd, mode) };
    if stream.is_null() {
        // SAFETY: it has stayed ours.
        unsafe { libc::close(fd) };
        return None;
    }
    Some(stream)
}

/// A folder that is created or removed.
fn by_making(path: &Path) -> Option<c_int> {
    by_making_at(path, libc::AT_FDCWD)
}

fn by_making_at(path: &Path, dir: c_int) -> Option<c_int> {
    path.of_settings(dir).as_ref().unwrap_or(path).make_settings()
}

fn by_removing(path: &Path) -> Option<c_int> {
    path.of_settings(libc::AT_FDCWD).as_ref().unwrap_or(path).remove_settings()
}

/// One line for each function: its arguments before the path in brackets, its arguments after the path, and how it opens files
/// that change while programs run.
macro_rules! hooks {
    ($($name:ident = $symbol:literal [$($before:ident: $before_type:ty),*] ($($after:ident: $after_type:ty),*)
        -> $result:ty $(, $live:ident $($asked:ident)*)?;)*) => {$(
        #[doc = concat!("libc's function of this name.")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            $($before: $before_type,)* path: *const c_char $(, $after: $after_type)*
        ) -> $result {
            static REAL: Real = Real::new($symbol);
            type Function = unsafe extern "C" fn($($before_type,)* *const c_char $(, $after_type)*) -> $result;
            // SAFETY: the address is that of libc's function of the same name, whose type this is.
            let real = unsafe { core::mem::transmute::<*mut c_void, Function>(REAL.address()) };
            // SAFETY: the program promises a string, as it does to libc.
            let path = unsafe { Path::of(path) };
            $(if let Some(result) = $live(&path $(, $asked)*) {
                return result;
            })?
            // SAFETY: as the program called us, but for the path, which is a string again.
            unsafe { real($($before,)* path.as_ptr() $(, $after)*) }
        }
    )*};
}

hooks! {
    open = c"open" [] (flags: c_int, mode: mode_t) -> c_int, by_flags flags;
    open64 = c"open64" [] (flags: c_int, mode: mode_t) -> c_int, by_flags flags;
    openat = c"openat" [dir: c_int] (flags: c_int, mode: mode_t) -> c_int, by_flags_at flags dir;
    openat64 = c"openat64" [dir: c_int] (flags: c_int, mode: mode_t) -> c_int, by_flags_at flags dir;
    __open_2 = c"__open_2" [] (flags: c_int) -> c_int, by_flags flags;
    __open64_2 = c"__open64_2" [] (flags: c_int) -> c_int, by_flags flags;
    __openat_2 = c"__openat_2" [dir: c_int] (flags: c_int) -> c_int, by_flags_at flags dir;
    __openat64_2 = c"__openat64_2" [dir: c_int] (flags: c_int) -> c_int, by_flags_at flags dir;
    fopen = c"fopen" [] (mode: *const c_char) -> *mut FILE, by_mode mode;
    fopen64 = c"fopen64" [] (mode: *const c_char) -> *mut FILE, by_mode mode;
    mkdir = c"mkdir" [] (mode: mode_t) -> c_int, by_making;
    mkdirat = c"mkdirat" [dir: c_int] (mode: mode_t) -> c_int, by_making_at dir;
    rmdir = c"rmdir" [] () -> c_int, by_removing;
    opendir = c"opendir" [] () -> *mut DIR;
    scandir = c"scandir" [] (list: *mut c_void, filter: *mut c_void, compare: *mut c_void) -> c_int;
    scandir64 = c"scandir64" [] (list: *mut c_void, filter: *mut c_void, compare: *mut c_void) -> c_int;
    stat = c"stat" [] (out: *mut c_void) -> c_int;
    stat64 = c"stat64" [] (out: *mut c_void) -> c_int;
    lstat = c"lstat" [] (out: *mut c_void) -> c_int;
    lstat64 = c"lstat64" [] (out: *mut c_void) -> c_int;
    __xstat = c"__xstat" [version: c_int] (out: *mut c_void) -> c_int;
    __xstat64 = c"__xstat64" [version: c_int] (out: *mut c_void) -> c_int;
    __lxstat = c"__lxstat" [version: c_int] (out: *mut c_void) -> c_int;
    __lxstat64 = c"__lxstat64" [version: c_int] (out: *mut c_void) -> c_int;
    fstatat = c"fstatat" [dir: c_int] (out: *mut c_void, flags: c_int) -> c_int;
    fstatat64 = c"fstatat64" [dir: c_int] (out: *mut c_void, flags: c_int) -> c_int;
    statx = c"statx" [dir: c_int] (flags: c_int, mask: c_uint, out: *mut c_void) -> c_int;
    access = c"access" [] (mode: c_int) -> c_int;
    eaccess = c"eaccess" [] (mode: c_int) -> c_int;
    euidaccess = c"euidaccess" [] (mode: c_int) -> c_int;
    faccessat = c"faccessat" [dir: c_int] (mode: c_int, flags: c_int) -> c_int;
    readlink = c"readlink" [] (out: *mut c_char, size: size_t) -> ssize_t;
    readlinkat = c"readlinkat" [dir: c_int] (out: *mut c_char, size: size_t) -> ssize_t;
    __readlink_chk = c"__readlink_chk" [] (out: *mut c_char, len: size_t, size: size_t) -> ssize_t;
    realpath = c"realpath" [] (out: *mut c_char) -> *mut c_char;
    __realpath_chk = c"__realpath_chk" [] (out: *mut c_char, size: size_t) -> *mut c_char;
    canonicalize_file_name = c"canonicalize_file_name" [] () -> *mut c_char;
    chdir = c"chdir" [] () -> c_int;
    getxattr = c"getxattr" [] (name: *const c_char, out: *mut c_void, size: size_t) -> ssize_t;
    lgetxattr = c"lgetxattr" [] (name: *const c_char, out: *mut c_void, size: size_t) -> ssize_t;
    listxattr = c"listxattr" [] (out: *mut c_char, size: size_t) -> ssize_t;
    llistxattr = c"llistxattr" [] (out: *mut c_char, size: size_t) -> ssize_t;
}
