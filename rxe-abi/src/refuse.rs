//! What the functions that are not here do: refuse as a device without the ability. The stubs of `scripts/build-dropin`
//! end in these.

use crate::border::{UNSUPPORTED, set_errno};
use core::{
    ffi::{c_int, c_void},
    ptr,
};

/// For those that return a number of `errno`'s.
#[unsafe(no_mangle)]
extern "C" fn rxe_refuse_errno() -> c_int {
    set_errno(UNSUPPORTED);
    UNSUPPORTED.0
}

/// For those that return -1.
#[unsafe(no_mangle)]
extern "C" fn rxe_refuse_minus1() -> c_int {
    set_errno(UNSUPPORTED);
    -1
}

/// For those that return a pointer.
#[unsafe(no_mangle)]
extern "C" fn rxe_refuse_null() -> *mut c_void {
    set_errno(UNSUPPORTED);
    ptr::null_mut()
}
