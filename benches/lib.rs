//! Benches; see `benches/`. Run them with `cargo bench -p benches`.
