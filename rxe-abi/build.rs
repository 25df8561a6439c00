//! Compiles the one function that has to be C.

fn main() {
    println!("cargo:rerun-if-changed=src/cancel/sleep.c");
    cc::Build::new().file("src/cancel/sleep.c").warnings(true).extra_warnings(true).compile("rxe_sleep");
}
