//! Fields of any number of bits, counted from the most significant one, as in the tables of the specification.

/// Reads up to 64 bits. Bits beyond the end are 0.
pub(super) fn get(bytes: &[u8], at: usize, width: usize) -> u64 {
    let bit = |index: usize| bytes.get(index / 8).is_some_and(|byte| byte >> (7 - index % 8) & 1 != 0);
    (at..at + width).fold(0, |value, index| value << 1 | u64::from(bit(index)))
}

/// Writes the low `width` bits of a number. Bits beyond the end are left out.
pub(super) fn put(bytes: &mut [u8], at: usize, width: usize, value: u64) {
    for step in 0..width {
        let index = at + step;
        let Some(byte) = bytes.get_mut(index / 8) else { return };
        let mask = 0x80 >> (index % 8);
        if value >> (width - 1 - step) & 1 != 0 { *byte |= mask } else { *byte &= !mask }
    }
}

/// Writes bytes, truncated at the end.
pub(super) fn put_bytes(bytes: &mut [u8], at: usize, value: &[u8]) {
    for (place, byte) in bytes.iter_mut().skip(at).zip(value) {
        *place = *byte;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_is_got() {
        let mut bytes = [0xff; 12];
        put(&mut bytes, 3, 13, 0x0abc);
        assert_eq!((get(&bytes, 3, 13), get(&bytes, 0, 3), get(&bytes, 16, 8)), (0x0abc, 7, 0xff));
        put(&mut bytes, 32, 64, 0x0123_4567_89ab_cdef);
        assert_eq!(bytes[4..], [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
        put(&mut bytes, 92, 64, u64::MAX);
        assert_eq!(get(&bytes, 92, 8), 0xf0);
        put_bytes(&mut bytes, 10, &[1, 2, 3]);
        assert_eq!(bytes[10..], [1, 2]);
    }
}
