//! Bytes that both sides can make from a seed; the guest's agent defines them (`testbed/guest/agent.py`, PATTERN).

/// Length of the period, a prime.
const PERIOD: usize = 65_521;

/// The first `len` bytes of the pattern of `seed`: splitmix64, little-endian, repeated after 65521 bytes.
#[must_use]
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let mut block = Vec::with_capacity(PERIOD + 8);
    while block.len() < PERIOD {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        block.extend_from_slice(&(z ^ z >> 31).to_le_bytes());
    }
    block.truncate(PERIOD);
    block.iter().copied().cycle().take(len).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn as_the_agent_makes_it() {
        assert_eq!(super::pattern(1, 8), [0xc1, 0x5c, 0x02, 0x89, 0xec, 0x2d, 0x0a, 0x91]);
    }
}
