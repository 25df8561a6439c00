//! Many steps of DCQCN's rate increase at once, in closed form.

/// A rate and its target, bits per second. Each step raises the target, and then moves the rate half-way to it (DCQCN's equations
/// 2 and 3).
#[derive(Clone, Copy, Debug)]
pub(super) struct Climb {
    pub rate: f64,
    pub target: f64,
}

impl Climb {
    /// Does `steps` steps. The first raises the target by `raise`, and each later one by `more` than the one before it. The
    /// target does not exceed `line`. Neither `raise` nor `more` is negative. Except for rounding the result is that of single
    /// steps.
    pub(super) fn steps(&mut self, steps: u64, (raise, more): (f64, f64), line: f64) {
        let raised = |steps: u64| {
            let n = steps as f64;
            self.target + n * raise + n * (n - 1.0) / 2.0 * more
        };
        // The target only rises, so the steps that stay below the line come first. Their number is found by bisection.
        let (mut below, mut beyond) = (0, steps);
        while below < beyond {
            let middle = below + (beyond - below).div_ceil(2);
            if raised(middle) <= line {
                below = middle;
            } else {
                beyond = middle - 1;
            }
        }
        // The distance from rate to target: each step adds the raise and then halves the distance. So it approaches
        // raise + n * more - 2 * more.
        let lacks = self.target - self.rate;
        let steady = raise - 2.0 * more;
        let lacks = below as f64 * more + steady + (lacks - steady) * half_to_the(below);
        self.target = raised(below);
        self.rate = self.target - lacks;
        if below < steps {
            self.target = line;
            self.rate = line - (line - self.rate) * half_to_the(steps - below);
        }
    }
}

/// 2 to the power of -`n`; 0 if that is below the normal numbers of f64.
fn half_to_the(n: u64) -> f64 {
    if n < 1023 { f64::from_bits((1023 - n) << 52) } else { 0.0 }
}

/// `base` to the power of `n`.
pub(super) fn power(mut base: f64, mut n: u64) -> f64 {
    let mut result = 1.0;
    while n > 0 {
        if n % 2 == 1 {
            result *= base;
        }
        base *= base;
        n /= 2;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_steps_are_the_same_as_one_by_one() {
        let line = 40e9;
        for (rate, target) in [(10e6, 20e9), (20e9, 20e9), (39e9, 40e9), (10e6, 10e6), (40e9, 40e9)] {
            for (raise, more) in
                [(0.0, 0.0), (40e6, 0.0), (400e6, 400e6), (1.0, 1.0), (0.0, 7e6), (1e12, 0.0)]
            {
                let start = Climb { rate, target };
                let mut single = start;
                let mut done = 0;
                for steps in [0, 1, 2, 5, 30, 499, 500, 501, 1500, 40_000] {
                    while done < steps {
                        single.target = (single.target + raise + done as f64 * more).min(line);
                        single.rate = f64::midpoint(single.rate, single.target);
                        done += 1;
                    }
                    let mut many = start;
                    many.steps(steps, (raise, more), line);
                    let near = |one: f64, other: f64| (one - other).abs() <= 1e-9 * line;
                    assert!(
                        near(single.rate, many.rate) && near(single.target, many.target),
                        "{steps} steps of {raise} and {more} from {start:?}: {single:?}, at once {many:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn powers_are_products() {
        assert_eq!((power(0.5, 0), power(0.5, 1), power(0.5, 10)), (1.0, 0.5, 1.0 / 1024.0));
        assert_eq!((half_to_the(0), half_to_the(3), half_to_the(u64::MAX)), (1.0, 0.125, 0.0));
        assert_eq!((power(0.9, u64::MAX), power(1.0, u64::MAX)), (0.0, 1.0));
    }
}
