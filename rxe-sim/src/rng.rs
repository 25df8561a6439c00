//! Random numbers from a seed, the same everywhere: SplitMix64 (Steele, Lea, Flood 2014).

/// A sequence.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// The sequence of `seed` for one `purpose`. Each purpose has its own sequence, so more numbers for one do not change the
    /// numbers of another.
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

    /// A number from 0 up to, but not including, 1.
    pub(crate) const fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number below `end`, which must be above 0.
    pub(crate) const fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }
}
