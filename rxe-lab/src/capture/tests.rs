use super::*;
use std::io::Cursor;

/// A pcapng file in one byte order.
struct File {
    is_big: bool,
    bytes: Vec<u8>,
}

impl File {
    fn new(is_big: bool) -> Self {
        let mut file = Self { is_big, bytes: Vec::new() };
        let body = file.words(&[0x1a2b_3c4d, if is_big { 1 << 16 } else { 1 }, u32::MAX, u32::MAX]);
        file.block(0x0a0d_0d0a, &body);
        file
    }

    fn words(&self, words: &[u32]) -> Vec<u8> {
        words
            .iter()
            .flat_map(|word| if self.is_big { word.to_be_bytes() } else { word.to_le_bytes() })
            .collect()
    }

    fn block(&mut self, kind: u32, body: &[u8]) {
        let (kind, len) = (self.words(&[kind]), self.words(&[body.len() as u32 + 12]));
        self.bytes.extend([&kind[..], &len, body, &len].concat());
    }

    /// An interface with one option of its clock.
    fn interface(&mut self, option: u16, value: &[u8]) {
        let two = |first: u16, second: u16| match self.is_big {
            true => [first.to_be_bytes(), second.to_be_bytes()].concat(),
            false => [first.to_le_bytes(), second.to_le_bytes()].concat(),
        };
        let mut body =
            [two(1, 0), self.words(&[0]), two(option, value.len() as u16), value.to_vec()].concat();
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend([0; 4]);
        self.block(1, &body);
    }

    /// An empty packet of the last interface, at so many units of its clock.
    fn packet(&mut self, interface: u32, units: u64) {
        let body = self.words(&[interface, (units >> 32) as u32, units as u32, 0, 0]);
        self.block(6, &body);
    }

    fn times(&self) -> Vec<u64> {
        let mut capture = Capture::new(Cursor::new(self.bytes.clone())).unwrap();
        std::iter::from_fn(|| capture.next_record().unwrap().map(|record| record.time)).collect()
    }
}

/// The unit of a clock is a power of 10, or of 2 with the highest bit set. Without a possible one it is a microsecond.
#[test]
fn clocks_of_all_units() {
    const SECOND: u64 = 1_000_000_000;
    for is_big in [false, true] {
        for (resolution, units) in [
            (0x94, 1 << 20),
            (0x80, 1),
            (0x80 | 63, 1 << 63),
            (0, 1),
            (9, SECOND),
            (19, 10_u64.pow(19)),
            (20, 1_000_000),
            (0x80 | 64, 1_000_000),
            (0xff, 1_000_000),
        ] {
            let mut file = File::new(is_big);
            file.interface(9, &[resolution]);
            file.packet(0, 0);
            file.packet(0, units);
            assert_eq!(file.times(), [0, SECOND], "{resolution:#x} {is_big}");
        }
    }
}

/// The seconds that are added to a clock are in the byte order of the file. A time before 1970 or far behind our own is 0.
#[test]
fn clocks_with_an_offset() {
    for is_big in [false, true] {
        for (offset, time) in [(1_i64, 1_500_000_000), (-1, 0), (i64::MAX, 0), (i64::MIN, 0)] {
            let mut file = File::new(is_big);
            file.interface(14, &if is_big { offset.to_be_bytes() } else { offset.to_le_bytes() });
            file.packet(0, 500_000);
            assert_eq!(file.times(), [time], "{offset} {is_big}");
        }
    }
}
