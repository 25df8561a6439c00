//! Random numbers from a seed, the same everywhere: SplitMix64 (Steele, Lea, Flood 2014).

/// A sequence.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// The sequence of `seed` for one `purpose`, so that drawing more for one does not shift another.
    #[must_use]
    pub(crate) const fn new(seed: u64, purpose: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ purpose.wrapping_mul(0xd1b5_4a32_d192_ed03))
    }

    /// The next 64 bits.
    pub(crate) const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 up to 1, which is not reached.
    pub(crate) const fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Below `end`, which is above 0.
    pub(crate) const fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }
}
