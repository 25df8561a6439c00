//! What the functions that are not here do: refuse as a device without the ability. The stubs of `scripts/build-dropin`
//! end in these.

use crate::border::{UNSUPPORTED, set_errno};
use core::{
    ffi::{c_int, c_void},
    ptr,
};
use std::{
    io::{self, Write},
    sync::Once,
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

/// rsocket(3): there are none. Told once and without being asked: programs hardly say what they miss.
#[unsafe(no_mangle)]
extern "C" fn rsocket(_domain: c_int, _kind: c_int, _protocol: c_int) -> c_int {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        let words =
            "rxe: this program uses rsockets (rsocket(7)), which are not there; verbs and rdma_cm are";
        // Where nobody hears it, nobody needs to.
        let _ = writeln!(io::stderr(), "{words}");
    });
    rxe_refuse_minus1()
}

/// For those that return a pointer.
#[unsafe(no_mangle)]
extern "C" fn rxe_refuse_null() -> *mut c_void {
    set_errno(UNSUPPORTED);
    ptr::null_mut()
}
