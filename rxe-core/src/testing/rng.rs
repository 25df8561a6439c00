//! Random numbers from a seed. A seed always gives the same numbers, on every machine, so that failures can be repeated.

use core::ops::Range;

/// SplitMix64 (Steele, Lea, Flood 2014). Good enough to choose faults and operations; not for cryptography.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The sequence that belongs to `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A separate sequence for one purpose. So a purpose that draws more numbers does not change the numbers of another one.
    #[must_use]
    pub const fn fork(&mut self, purpose: u64) -> Self {
        Self(self.next_u64() ^ purpose.wrapping_mul(0xd1b5_4a32_d192_ed03))
    }

    /// The next 64 bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `range`. If the range is empty: its start.
    pub const fn range(&mut self, range: Range<u64>) -> u64 {
        let width = range.end.saturating_sub(range.start);
        let draw = self.next_u64();
        if width == 0 { range.start } else { range.start + draw % width }
    }

    /// A number below `end`. If `end` is 0: 0.
    pub const fn below(&mut self, end: usize) -> usize {
        self.range(0..end as u64) as usize
    }

    /// True with a probability of `per_mille` thousandths. Always draws one number, even if the probability is 0.
    pub const fn chance(&mut self, per_mille: u16) -> bool {
        self.next_u64() % 1000 < per_mille as u64
    }

    /// One of `from`, which must not be empty.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }
}
