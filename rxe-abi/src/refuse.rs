//! The functions that we do not have refuse, as with a device that does not support them. The stubs of `scripts/build-dropin`
//! jump to these.

use crate::border::{UNSUPPORTED, set_errno};
use core::{
    ffi::{c_int, c_void},
    ptr,
};

/// For functions that return an `errno` value.
#[unsafe(no_mangle)]
extern "C" fn rxe_refuse_errno() -> c_int {
    set_errno(UNSUPPORTED);
    UNSUPPORTED.0
}

/// For functions that return -1.
#[unsafe(no_mangle)]
extern "C" fn rxe_refuse_minus1() -> c_int {
    set_errno(UNSUPPORTED);
    -1
}

/// For functions that return a pointer.
#[unsafe(no_mangle)]
extern "C" fn rxe_refuse_null() -> *mut c_void {
    set_errno(UNSUPPORTED);
    ptr::null_mut()
}
