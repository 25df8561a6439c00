//! Random scripts of messages, commands and time against the machines; the oracle is in `machine_script`. `testbed/fuzz/run
//! connection` finds better ones.

mod machine_script;

use machine_script::play;
use rxe_core::testing::rng::Rng;

#[test]
fn any_script() {
    let mut agreed = 0;
    for seed in 0..if cfg!(miri) { 5 } else { 1500 } {
        let mut rng = Rng::new(seed);
        let script: Vec<u8> = (0..rng.range(20..2000)).map(|_| rng.range(0..256) as u8).collect();
        println!("seed {seed}");
        agreed += usize::from(play(&script).agreed > 0);
    }
    assert!(
        cfg!(miri) || agreed > 250,
        "only {agreed} connections stood at both ends: the scripts are too wild"
    );
}
