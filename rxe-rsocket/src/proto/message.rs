//! The 32 bits that go with an RDMA WRITE as immediate data: three of type, 29 of content.

/// Bits of content.
const CONTENT: u32 = 0x1fff_ffff;

/// What an end tells the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// So many bytes of the stream have been written behind the last ones; 29 bits.
    Data(u32),
    /// Messages up to this number (of 16 bits, counted from 0) may be sent; the directory may have a new entry.
    Credits(u16),
    /// This entry of the table of mapped buffers was written.
    IoMap(u16),
    /// Something about the connection.
    Control(Control),
    /// Of a type that no peer sends; the whole number.
    Reserved(u32),
}

/// What is told about the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    /// The sender neither sends nor receives any more.
    Disconnect,
    /// Nothing, only to see whether the receiver is there.
    KeepAlive,
    /// The sender sends no more.
    Shutdown,
    /// One that is not known; to be passed over.
    Other(u32),
}

impl Message {
    /// As it is carried.
    #[must_use]
    pub fn encode(self) -> [u8; 4] {
        let of = |kind: u32, content: u32| kind << 29 | content & CONTENT;
        let number = match self {
            Self::Data(bytes) => of(0, bytes),
            Self::Credits(limit) => of(4, limit.into()),
            Self::IoMap(index) => of(6, index.into()),
            Self::Control(Control::Disconnect) => of(7, 0),
            Self::Control(Control::KeepAlive) => of(7, 1),
            Self::Control(Control::Shutdown) => of(7, 2),
            Self::Control(Control::Other(kind)) => of(7, kind),
            Self::Reserved(number) => number,
        };
        number.to_be_bytes()
    }

    /// What was carried. Only the low 16 bits of credits and indices count.
    #[must_use]
    pub fn decode(bytes: [u8; 4]) -> Self {
        let number = u32::from_be_bytes(bytes);
        let content = number & CONTENT;
        match number >> 29 {
            0 => Self::Data(content),
            4 => Self::Credits(content as u16),
            6 => Self::IoMap(content as u16),
            7 => Self::Control(match content {
                0 => Control::Disconnect,
                1 => Control::KeepAlive,
                2 => Control::Shutdown,
                other => Control::Other(other),
            }),
            _ => Self::Reserved(number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The types' numbers are those of rdma-core's description.
    #[test]
    fn numbers() {
        for (message, bytes) in [
            (Message::Data(0x1234), [0, 0, 0x12, 0x34]),
            (Message::Data(CONTENT), [0x1f, 0xff, 0xff, 0xff]),
            (Message::Credits(0x180), [0x80, 0, 1, 0x80]),
            (Message::IoMap(3), [0xc0, 0, 0, 3]),
            (Message::Control(Control::Disconnect), [0xe0, 0, 0, 0]),
            (Message::Control(Control::KeepAlive), [0xe0, 0, 0, 1]),
            (Message::Control(Control::Shutdown), [0xe0, 0, 0, 2]),
            (Message::Reserved(0x2000_0001), [0x20, 0, 0, 1]),
        ] {
            assert_eq!(message.encode(), bytes);
            assert_eq!(Message::decode(bytes), message);
        }
    }
}
