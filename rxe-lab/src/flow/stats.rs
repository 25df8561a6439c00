//! Statistics over packets, in bounded memory.

use serde::Serialize;

/// Buckets of an octave: values in one differ by less than 7 %.
const PARTS: u32 = 16;

/// A histogram of durations. Minimum and maximum are exact, and other values within 7 %.
#[derive(Clone, Debug, Default)]
pub(super) struct Durations {
    count: u64,
    sum: u128,
    least: u64,
    most: u64,
    buckets: Vec<u32>,
}

/// A summary of durations, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Spread {
    /// Number of measurements.
    pub count: u64,
    /// The shortest.
    pub min_ns: u64,
    /// Half are shorter, to 7 %.
    pub median_ns: u64,
    /// 99 of 100 are shorter, to 7 %.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Their mean.
    pub mean_ns: u64,
}

impl Durations {
    pub(super) fn add(&mut self, value: u64) {
        self.least = if self.count == 0 { value } else { self.least.min(value) };
        self.most = self.most.max(value);
        self.count += 1;
        self.sum += u128::from(value);
        let bucket = Self::bucket(value);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] = self.buckets[bucket].saturating_add(1);
    }

    fn bucket(value: u64) -> usize {
        if value < u64::from(PARTS) {
            return value as usize;
        }
        let shift = value.ilog2() - PARTS.ilog2();
        ((shift + 1) * PARTS) as usize + (value >> shift) as usize - PARTS as usize
    }

    /// The middle of a bucket.
    fn middle(bucket: usize) -> u64 {
        let (octave, part) = (bucket as u32 / PARTS, bucket as u64 % u64::from(PARTS));
        if octave == 0 {
            return part;
        }
        let low = (u64::from(PARTS) + part) << (octave - 1);
        low + ((1_u64 << (octave - 1)) >> 1)
    }

    fn below(&self, hundredths: u64) -> u64 {
        let wanted = (self.count * hundredths).div_ceil(100);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= wanted {
                return Self::middle(bucket).clamp(self.least, self.most);
            }
        }
        self.most
    }

    pub(super) fn spread(&self) -> Option<Spread> {
        (self.count > 0).then(|| Spread {
            count: self.count,
            min_ns: self.least,
            median_ns: self.below(50),
            p99_ns: self.below(99),
            max_ns: self.most,
            mean_ns: (self.sum / u128::from(self.count)) as u64,
        })
    }
}

/// Most parts of time.
const BINS: usize = 64;
/// The length of a part at first, in nanoseconds.
const FIRST_WIDTH: u64 = 100_000;

/// Bytes over time. If there are too many parts, pairs of them are merged.
#[derive(Clone, Debug, Default)]
pub(super) struct OverTime {
    start: Option<u64>,
    last: u64,
    width: u64,
    bins: Vec<u64>,
}

/// Bytes in equal parts of time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Goodput {
    /// The start of the first part, when the first operation began, in nanoseconds since 1970.
    pub start_ns: u64,
    /// When the last operation was completed. The last part ends here.
    pub last_ns: u64,
    /// The length of each part.
    pub width_ns: u64,
    /// Acknowledged bytes in each part.
    pub bytes: Vec<u64>,
}

impl OverTime {
    /// Bytes of an operation that began and was acknowledged at these times.
    pub(super) fn add(&mut self, began: u64, time: u64, bytes: u64) {
        if self.width == 0 {
            self.width = FIRST_WIDTH;
        }
        let start = *self.start.get_or_insert(began);
        self.last = self.last.max(time);
        let after = time.saturating_sub(start);
        while after / self.width >= BINS as u64 {
            let halves = self.bins.chunks(2).map(|pair| pair.iter().sum());
            self.bins = halves.collect();
            self.width *= 2;
        }
        let bin = (after / self.width) as usize;
        if self.bins.len() <= bin {
            self.bins.resize(bin + 1, 0);
        }
        self.bins[bin] = self.bins[bin].saturating_add(bytes);
    }

    pub(super) fn told(&self) -> Option<Goodput> {
        let start_ns = self.start?;
        Some(Goodput { start_ns, last_ns: self.last, width_ns: self.width, bytes: self.bins.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_near() {
        let mut durations = Durations::default();
        assert_eq!(durations.spread(), None);
        for value in 1..=10_000 {
            durations.add(value * 1_000);
        }
        let spread = durations.spread().unwrap();
        assert_eq!((spread.min_ns, spread.max_ns, spread.count), (1_000, 10_000_000, 10_000));
        assert!(spread.median_ns.abs_diff(5_000_000) < 350_000, "{spread:?}");
        assert!(spread.p99_ns.abs_diff(9_900_000) < 700_000, "{spread:?}");
        for value in [0, 15, 16, 17, 31, 32, u64::MAX] {
            let middle = Durations::middle(Durations::bucket(value));
            assert!(middle.abs_diff(value) <= value / 15, "{value} {middle}");
            durations.add(value);
        }
    }

    #[test]
    fn bytes_are_kept_whatever_the_times_are() {
        let mut over = OverTime::default();
        let times = [5, 0, 1_000_000, 90_000_000, 89_999_999, 7_000_000_000_000, u64::MAX / 2];
        for time in times {
            over.add(time, time, 10);
        }
        let told = over.told().unwrap();
        assert!(told.bytes.len() <= BINS);
        assert_eq!(told.bytes.iter().sum::<u64>(), 70);
    }

    #[test]
    fn time_runs_from_the_first_request_to_the_last_answer() {
        let mut over = OverTime::default();
        over.add(1_000, 6_000, 1_000_000);
        over.add(2_000, 107_000, 1_000_000);
        let told = over.told().unwrap();
        assert_eq!((told.start_ns, told.last_ns), (1_000, 107_000));
        assert_eq!((told.width_ns, told.bytes), (FIRST_WIDTH, vec![1_000_000; 2]));
    }
}
