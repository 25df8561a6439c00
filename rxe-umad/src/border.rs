//! The border to C: pointers become references here, and results become those of C. As with any libibumad, the program must
//! pass pointers that are null or valid for the type in the header.

use crate::c::{Port, UserMad};
use core::{
    ffi::{CStr, c_char, c_int},
    ptr, slice,
};
use std::io;

/// Sets `errno`.
pub(crate) fn set_errno(number: c_int) {
    // SAFETY: where this thread's number is.
    unsafe { *libc::__errno_location() = number };
}

/// Sets `errno`, and returns the negative error number, as many functions do.
pub(crate) fn refuse(number: c_int) -> c_int {
    set_errno(number);
    -number
}

/// The number of an error.
pub(crate) fn number_of(error: &io::Error) -> c_int {
    match (error.raw_os_error(), error.kind()) {
        (Some(number), _) => number,
        (_, io::ErrorKind::WouldBlock) => libc::EAGAIN,
        (_, io::ErrorKind::Interrupted) => libc::EINTR,
        _ => libc::EIO,
    }
}

/// A string of the program.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// The string; `None` for null. Also `None` if it is not UTF-8, because no name of ours is such a string.
    pub(crate) fn get(&self) -> Option<&str> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: the program promises a string.
        unsafe { CStr::from_ptr(self.0) }.to_str().ok()
    }
}

/// An array of the program.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Array<T>(*mut T);

impl<T: Copy> Array<T> {
    pub(crate) const fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Writes to its beginning. The program says that it has enough places.
    pub(crate) fn write(&self, values: &[T]) {
        if !self.0.is_null() {
            // SAFETY: the program promises room for these, and they are not its.
            unsafe { ptr::copy_nonoverlapping(values.as_ptr(), self.0, values.len()) };
        }
    }

    /// Reads the first `N` elements; `None` for null.
    pub(crate) fn read<const N: usize>(&self) -> Option<[T; N]> {
        // SAFETY: the program promises so many; no alignment is asked of it.
        (!self.0.is_null()).then(|| unsafe { self.0.cast::<[T; N]>().read_unaligned() })
    }
}

/// A datagram's buffer: a header, and the datagram behind it.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Buffer(*mut UserMad);

impl Buffer {
    pub(crate) const fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// The header; `None` for null.
    pub(crate) fn header(&self) -> Option<UserMad> {
        // SAFETY: the program promises a header.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }

    /// Writes the header.
    pub(crate) fn set_header(&self, header: &UserMad) {
        if !self.0.is_null() {
            // SAFETY: the program promises room for a header.
            unsafe { self.0.write_unaligned(*header) };
        }
    }

    /// Changes the header.
    pub(crate) fn change(&self, change: impl FnOnce(&mut UserMad)) {
        if let Some(mut header) = self.header() {
            change(&mut header);
            self.set_header(&header);
        }
    }

    /// The start of the datagram.
    pub(crate) const fn data(&self) -> *mut u8 {
        self.0.cast::<u8>().wrapping_add(size_of::<UserMad>())
    }

    /// The datagram's first `length` bytes.
    pub(crate) fn read(&self, length: usize) -> Vec<u8> {
        // SAFETY: the program promises so many behind the header.
        unsafe { slice::from_raw_parts(self.data(), length) }.to_vec()
    }

    /// Writes the datagram.
    pub(crate) fn write(&self, bytes: &[u8]) {
        // SAFETY: the program promises room for these behind the header.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.data(), bytes.len()) };
    }
}

/// An object of ours that the program keeps, and gives back once.
pub(crate) fn lend<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// Takes it back.
pub(crate) fn take<T>(lent: *mut T) -> Option<T> {
    // SAFETY: one of `lend`'s, which the program gives back once.
    (!lent.is_null()).then(|| *unsafe { Box::from_raw(lent) })
}

/// A table of P_Keys for a port's structure.
pub(crate) fn lend_keys(port: &mut Port, keys: &[u16]) {
    let keys: Box<[u16]> = keys.into();
    port.pkeys_size = keys.len() as u32;
    port.pkeys = Box::into_raw(keys).cast();
}

/// Takes it back.
pub(crate) fn take_keys(port: &mut Port) {
    let (keys, length) = (port.pkeys, port.pkeys_size as usize);
    (port.pkeys, port.pkeys_size) = (ptr::null_mut(), 0);
    if !keys.is_null() {
        // SAFETY: of `lend_keys`, with the length that is noted beside it.
        drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(keys, length)) });
    }
}

/// A structure of one of our lists, as the program has it now.
pub(crate) fn look<'a, T>(at: *mut T) -> Option<&'a mut T> {
    // SAFETY: the program promises null or one of ours that it has not given back, and that nobody else uses it meanwhile.
    unsafe { at.as_mut() }
}

/// A name that we put into a list.
pub(crate) fn name_of(name: *const c_char) -> String {
    Text(name).get().unwrap_or_default().to_owned()
}

/// Takes one back.
pub(crate) fn take_name(name: *const c_char) {
    if !name.is_null() {
        // SAFETY: of `CString::into_raw`, and given back once.
        drop(unsafe { std::ffi::CString::from_raw(name.cast_mut()) });
    }
}
