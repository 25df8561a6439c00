//! Options by name, and the form of their values in C.

use crate::error::SocketError;
use std::time::Duration;

/// The level of options that only rsockets have.
pub const SOL_RDMA: i32 = 0x10000;

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident = $level:expr, $number:expr;)*) => {
        /// An option.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Name {
            $($(#[$doc])* $name,)*
        }

        impl Name {
            /// The option with this level and number in C; `None` if rsockets do not have it.
            #[must_use]
            pub const fn find(level: i32, number: i32) -> Option<Self> {
                match (level, number) {
                    $((level, number) if level == $level && number == $number => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

names! {
    /// SO_ERROR: why the connection could not be established, or has failed. It is reported once.
    Error = libc::SOL_SOCKET, libc::SO_ERROR;
    /// SO_TYPE.
    Type = libc::SOL_SOCKET, libc::SO_TYPE;
    /// SO_DOMAIN.
    Domain = libc::SOL_SOCKET, libc::SO_DOMAIN;
    /// SO_PROTOCOL.
    Protocol = libc::SOL_SOCKET, libc::SO_PROTOCOL;
    /// SO_ACCEPTCONN.
    Listens = libc::SOL_SOCKET, libc::SO_ACCEPTCONN;
    /// SO_REUSEADDR.
    ReuseAddress = libc::SOL_SOCKET, libc::SO_REUSEADDR;
    /// SO_KEEPALIVE.
    KeepAlive = libc::SOL_SOCKET, libc::SO_KEEPALIVE;
    /// SO_OOBINLINE: stored only, because there is no urgent data.
    OobInline = libc::SOL_SOCKET, libc::SO_OOBINLINE;
    /// SO_RCVBUF.
    ReceiveBuffer = libc::SOL_SOCKET, libc::SO_RCVBUF;
    /// SO_SNDBUF.
    SendBuffer = libc::SOL_SOCKET, libc::SO_SNDBUF;
    /// SO_LINGER.
    Linger = libc::SOL_SOCKET, libc::SO_LINGER;
    /// SO_RCVTIMEO.
    ReceiveTimeout = libc::SOL_SOCKET, libc::SO_RCVTIMEO;
    /// SO_SNDTIMEO.
    SendTimeout = libc::SOL_SOCKET, libc::SO_SNDTIMEO;
    /// TCP_NODELAY: stored only, because data is never delayed.
    NoDelay = libc::IPPROTO_TCP, libc::TCP_NODELAY;
    /// TCP_MAXSEG: most data bytes of a packet.
    MaxSegment = libc::IPPROTO_TCP, libc::TCP_MAXSEG;
    /// TCP_INFO: all zero. So a program that asks for retransmissions gets 0, and not what was in its memory before.
    Info = libc::IPPROTO_TCP, libc::TCP_INFO;
    /// TCP_KEEPIDLE: the keep-alive's period in seconds.
    KeepIdle = libc::IPPROTO_TCP, libc::TCP_KEEPIDLE;
    /// TCP_KEEPINTVL: ignored.
    KeepInterval = libc::IPPROTO_TCP, libc::TCP_KEEPINTVL;
    /// TCP_KEEPCNT: ignored.
    KeepCount = libc::IPPROTO_TCP, libc::TCP_KEEPCNT;
    /// IP_TOS.
    TypeOfService = libc::IPPROTO_IP, libc::IP_TOS;
    /// IPV6_V6ONLY.
    V6Only = libc::IPPROTO_IPV6, libc::IPV6_V6ONLY;
    /// RDMA_SQSIZE.
    SendQueue = SOL_RDMA, 0;
    /// RDMA_RQSIZE.
    ReceiveQueue = SOL_RDMA, 1;
    /// RDMA_INLINE.
    Inline = SOL_RDMA, 2;
    /// RDMA_IOMAPSIZE.
    IoMapSize = SOL_RDMA, 3;
    /// RDMA_ROUTE: the path of the connection (`struct ibv_path_data`). It cannot be set with RoCE.
    Route = SOL_RDMA, 4;
}

/// The value of an option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// An `int`.
    Number(u32),
    /// A `struct linger`: the time; `None` means off.
    Linger(Option<Duration>),
    /// A `struct timeval`; `None`, or zero, means for ever.
    Time(Option<Duration>),
    /// A structure of this many bytes, all zero.
    Zero(usize),
    /// A structure's bytes.
    Bytes(Vec<u8>),
}

impl Value {
    /// The value of an option from C's bytes.
    ///
    /// # Errors
    /// [`SocketError::Argument`] if there are too few bytes, or the value is invalid.
    pub fn decode(name: Name, bytes: &[u8]) -> Result<Self, SocketError> {
        let short = || SocketError::Argument(format!("{} bytes for option {name:?}", bytes.len()));
        let int = |at: usize| -> Result<i32, SocketError> {
            let four = bytes.get(at..at + 4).ok_or_else(short)?;
            Ok(i32::from_ne_bytes(four.try_into().unwrap_or_default()))
        };
        let long = |at: usize| -> Result<u64, SocketError> {
            let eight = bytes.get(at..at + 8).ok_or_else(short)?;
            let number = i64::from_ne_bytes(eight.try_into().unwrap_or_default());
            u64::try_from(number).map_err(|_| SocketError::Argument(format!("a time of {number}")))
        };
        match name {
            Name::Linger => {
                let seconds = u64::try_from(int(4)?).unwrap_or(0);
                Ok(Self::Linger((int(0)? != 0).then_some(Duration::from_secs(seconds))))
            }
            Name::ReceiveTimeout | Name::SendTimeout => {
                let time = Duration::from_secs(long(0)?) + Duration::from_micros(long(8)?);
                Ok(Self::Time((!time.is_zero()).then_some(time)))
            }
            _ => {
                let number = int(0)?;
                let number = u32::try_from(number);
                Ok(Self::Number(number.map_err(|_| SocketError::Argument(format!("{name:?} below 0")))?))
            }
        }
    }

    /// The bytes in C.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Number(number) => number.to_ne_bytes().to_vec(),
            Self::Zero(len) => vec![0; *len],
            Self::Bytes(bytes) => bytes.clone(),
            Self::Linger(time) => {
                let seconds = time.map_or(0, |time| time.as_secs() as i32);
                [i32::from(time.is_some()).to_ne_bytes(), seconds.to_ne_bytes()].concat()
            }
            Self::Time(time) => {
                let time = time.unwrap_or_default();
                [time.as_secs().to_ne_bytes(), u64::from(time.subsec_micros()).to_ne_bytes()].concat()
            }
        }
    }

    pub(crate) fn number(&self) -> Result<u32, SocketError> {
        match self {
            Self::Number(number) => Ok(*number),
            other => Err(SocketError::Argument(format!("{other:?} for a number"))),
        }
    }

    pub(crate) fn flag(&self) -> Result<bool, SocketError> {
        Ok(self.number()? != 0)
    }

    pub(crate) fn linger(&self) -> Result<Option<Duration>, SocketError> {
        match self {
            Self::Linger(time) => Ok(*time),
            other => Err(SocketError::Argument(format!("{other:?} for a linger time"))),
        }
    }

    pub(crate) fn time(&self) -> Result<Option<Duration>, SocketError> {
        match self {
            Self::Time(time) => Ok(*time),
            other => Err(SocketError::Argument(format!("{other:?} for a time"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_c() {
        let linger = [1_i32.to_ne_bytes(), 5_i32.to_ne_bytes()].concat();
        let value = Value::decode(Name::Linger, &linger).unwrap();
        assert_eq!(value, Value::Linger(Some(Duration::from_secs(5))));
        assert_eq!(value.encode(), linger);
        let time = [2_i64.to_ne_bytes(), 500_000_i64.to_ne_bytes()].concat();
        let value = Value::decode(Name::ReceiveTimeout, &time).unwrap();
        assert_eq!(value, Value::Time(Some(Duration::from_millis(2500))));
        assert_eq!(value.encode(), time);
        assert_eq!(Value::decode(Name::SendTimeout, &[0; 16]).unwrap(), Value::Time(None));
        assert!(Value::decode(Name::ReceiveBuffer, &[0; 3]).is_err());
        assert!(Value::decode(Name::ReceiveBuffer, &(-1_i32).to_ne_bytes()).is_err());
        assert_eq!(Name::find(SOL_RDMA, 3), Some(Name::IoMapSize));
        assert_eq!(Name::find(SOL_RDMA, 4), Some(Name::Route));
        assert_eq!(Name::find(SOL_RDMA, 5), None);
    }
}
