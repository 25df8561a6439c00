//! Which way to compute CRCs is the quicker one here.

use super::clock;
use core::{hint::black_box, time::Duration};
use rxe_core::wire::crc::{Method, update_by, use_method};
use std::sync::Once;

/// As long as what is summed up mostly, in bytes.
const LENGTH: usize = 4096;
/// Times that each is tried. The quickest counts: the others may have been interrupted.
const TRIALS: u32 = 8;

/// Tries both once in the life of the process, and has it go on with the better one. It takes some microseconds where
/// processors multiply without carry, and a few hundred where that is emulated.
pub(super) fn choose_method() {
    static CHOICE: Once = Once::new();
    CHOICE.call_once(|| use_method(quicker(trial)));
}

fn quicker(mut trial: impl FnMut(Method) -> Duration) -> Method {
    let (mut multiply, mut words) = (Duration::MAX, Duration::MAX);
    for _ in 0..TRIALS {
        multiply = multiply.min(trial(Method::Multiply));
        words = words.min(trial(Method::Words));
    }
    if words < multiply { Method::Words } else { Method::Multiply }
}

fn trial(method: Method) -> Duration {
    let bytes = black_box([0x5a; LENGTH]);
    let start = clock::now();
    black_box(update_by(method, 0, [&bytes]));
    clock::now().since(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interruptions_do_not_decide() {
        for (multiply, words, best) in [(90, 600, Method::Multiply), (10_000, 1500, Method::Words)] {
            let mut count = 0;
            let found = quicker(|method| {
                count += 1;
                let quick = if method == Method::Multiply { multiply } else { words };
                Duration::from_nanos(if count % 3 == 0 { quick } else { 50_000 })
            });
            assert_eq!((found, count), (best, 2 * TRIALS));
        }
    }
}
