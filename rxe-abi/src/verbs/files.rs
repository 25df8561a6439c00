//! Files of sysfs, for programs that read them through libibverbs.

use crate::border::{Errno, OutList, Result, value};
use core::ffi::{CStr, c_char, c_int};
use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

/// ibv_get_sysfs_path: where sysfs is.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// A C string as a path.
struct Text<'a>(&'a CStr);

impl Text<'_> {
    fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.0.to_bytes()))
    }
}

/// ibv_read_sysfs_file: reads a file, leaves out its last line break, and returns the number of bytes.
#[unsafe(no_mangle)]
extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    mut out: OutList<u8>,
    size: usize,
) -> c_int {
    value(|| {
        if dir.is_null() || file.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the program promises two strings.
        let (dir, file) = unsafe { (Text(CStr::from_ptr(dir)), Text(CStr::from_ptr(file))) };
        let content = read(&dir.path().join(file.path()))?;
        let places = out.places(size);
        let len = content.len().min(size);
        for (place, byte) in places.iter_mut().zip(content.iter().take(len).chain([&0])) {
            place.write(*byte);
        }
        c_int::try_from(len).map_err(|_| Errno(libc::EFBIG))
    })
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let mut content =
        std::fs::read(path).map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))?;
    if content.last() == Some(&b'\n') {
        content.pop();
    }
    Ok(content)
}
