//! Compiles the one function that has to be C.

fn main() {
    println!("cargo:rerun-if-changed=src/sleep.c");
    cc::Build::new().file("src/sleep.c").warnings(true).extra_warnings(true).compile("rxe_sleep");
}
