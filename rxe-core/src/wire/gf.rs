//! Arithmetic on CRC-32 registers: polynomials over GF(2), modulo the CRC's polynomial. The highest bit is the lowest power.
//!
//! A CRC is linear: if two messages of equal length differ in a few bytes only, then the difference (exclusive or) of their CRCs is
//! the difference of those bytes times a power of x. The power depends on the number of bytes that follow. So division by that power
//! gives the difference of the bytes.

/// The CRC-32 polynomial in this bit order, x^32 left out (IEEE 802.3, 3.2.9).
const POLY: u32 = 0xedb8_8320;
/// The polynomial 1.
const ONE: u32 = 1 << 31;

/// `v` times x.
pub(super) const fn times_x(v: u32) -> u32 {
    v >> 1 ^ POLY & (v & 1).wrapping_neg()
}

/// `v` divided by x.
const fn over_x(v: u32) -> u32 {
    let carry = v >> 31;
    (v ^ POLY & carry.wrapping_neg()) << 1 | carry
}

/// The product of two polynomials.
const fn times(a: u32, b: u32) -> u32 {
    let (mut a, mut b, mut product) = (a, b, 0);
    while a != 0 {
        product ^= b & (a >> 31).wrapping_neg();
        a <<= 1;
        b = times_x(b);
    }
    product
}

/// The powers of x^(-8 * `stride`), from power 0 on.
const fn inverse_powers<const N: usize>(stride: usize) -> [u32; N] {
    let mut step = ONE;
    let mut i = 0;
    while i < 8 * stride {
        step = over_x(step);
        i += 1;
    }
    let mut powers = [ONE; N];
    let mut i = 1;
    while i < N {
        powers[i] = times(powers[i - 1], step);
        i += 1;
    }
    powers
}

/// x^(-8 i) for i below 256.
static INVERSE_LOW: [u32; 256] = inverse_powers(1);
/// x^(-8 * 256 i) for i below 512.
static INVERSE_HIGH: [u32; 512] = inverse_powers(256);

/// The difference (exclusive or) of four bytes of two messages, in the order in which they are sent. The messages differ in these bytes
/// only, `behind` bytes follow, and the difference of the CRCs is `diff`. `None` if `behind` is more than 131,067.
pub(super) fn difference(diff: u32, behind: usize) -> Option<[u8; 4]> {
    // The register has also been shifted by the 32 bits of the word itself.
    let bytes = behind.checked_add(4)?;
    let power = times(INVERSE_LOW[bytes & 0xff], *INVERSE_HIGH.get(bytes >> 8)?);
    Some(times(diff, power).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn x_and_its_inverse() {
        let mut power = ONE;
        for _ in 0..1000 {
            assert_eq!(over_x(times_x(power)), power);
            assert_eq!(times_x(over_x(power)), power);
            power = times_x(power);
        }
        assert_eq!(times(0x1234_5678, ONE), 0x1234_5678);
        assert_eq!(times(times_x(ONE), 0x9abc_def1), times_x(0x9abc_def1));
    }

    #[test]
    fn finds_what_changed() {
        for behind in [0, 1, 20, 255, 256, 300, 4132, 65_535, 131_067] {
            let mut message = vec![0x5a; behind + 24];
            let before = crc32fast::hash(&message);
            for change in [[0, 1, 0, 0], [0xff, 0, 0x40, 0], [0x80, 0, 0, 1], [1, 2, 3, 4]] {
                for (byte, change) in message[20..].iter_mut().zip(change) {
                    *byte ^= change;
                }
                let diff = before ^ crc32fast::hash(&message);
                assert_eq!(difference(diff, behind), Some(change), "{behind} bytes behind");
                for (byte, change) in message[20..].iter_mut().zip(change) {
                    *byte ^= change;
                }
            }
        }
        assert_eq!(difference(1, 131_068), None);
        assert_eq!(difference(1, usize::MAX), None);
    }
}
