//! The `rxe` program.
fn main() {}
