//! The immediate data of an RDMA WRITE: 3 bits of type and 29 bits of content.

/// Bits of content.
const CONTENT: u32 = 0x1fff_ffff;

/// A message to the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// This many more bytes of the stream have been written; 29 bits.
    Data(u32),
    /// Messages up to this number (16 bits, counted from 0) may be sent. The directory may have a new entry.
    Credits(u16),
    /// This entry of the table of mapped buffers was written.
    IoMap(u16),
    /// A message about the connection.
    Control(Control),
    /// An unknown type, with all 32 bits.
    Reserved(u32),
}

/// Messages about the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    /// The sender will neither send nor receive any more.
    Disconnect,
    /// A keep-alive, to check whether the receiver is there.
    KeepAlive,
    /// The sender will send no more.
    Shutdown,
    /// An unknown one, which is to be ignored.
    Other(u32),
}

impl Message {
    /// As immediate data.
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

    /// Parses immediate data. Only the low 16 bits of credits and indices are used.
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

    /// The numbers of the types are from rdma-core's description.
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
