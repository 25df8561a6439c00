//! Options of datagram sockets (rsetsockopt, rgetsockopt).

use super::DatagramSocket;
use crate::{
    error::SocketError,
    options::{Name, Value},
};
use socket2::SockRef;
use std::io;

impl DatagramSocket {
    /// Sets an option.
    ///
    /// # Errors
    /// [`SocketError::Unsupported`], [`SocketError::Argument`], [`SocketError::System`].
    pub fn set_option(&self, name: Name, value: &Value) -> Result<(), SocketError> {
        let mut state = self.state();
        let system = |result: io::Result<()>| {
            result.map_err(|error| SocketError::system("set an option of a UDP socket", error))
        };
        match name {
            Name::ReuseAddress => system(SockRef::from(&self.udp).set_reuse_address(value.flag()?))?,
            Name::V6Only => system(SockRef::from(&self.udp).set_only_v6(value.flag()?))?,
            Name::ReceiveTimeout => state.receive_timeout = value.time()?,
            Name::SendTimeout => state.send_timeout = value.time()?,
            Name::ReceiveBuffer => state.settings.set_receive_buffer(value.number()?.saturating_mul(2)),
            Name::SendBuffer => state.settings.set_send_buffer(value.number()?.saturating_mul(2)),
            Name::SendQueue => state.settings.set_sends(value.number()?),
            Name::ReceiveQueue => state.settings.set_receives(value.number()?),
            Name::Inline => state.settings.set_inline(value.number()?),
            // These have no effect for datagrams.
            Name::Linger | Name::TypeOfService | Name::KeepAlive => {}
            _ => return Err(SocketError::Unsupported(format!("option {name:?} for datagrams"))),
        }
        Ok(())
    }

    /// The value of an option.
    ///
    /// # Errors
    /// [`SocketError::Unsupported`].
    pub fn option(&self, name: Name) -> Result<Value, SocketError> {
        let state = self.state();
        let number = |number: u32| Ok(Value::Number(number));
        match name {
            Name::Error | Name::Listens | Name::KeepAlive | Name::TypeOfService => number(0),
            Name::Type => number(libc::SOCK_DGRAM as u32),
            Name::Domain => number(self.domain.number() as u32),
            Name::Protocol => number(libc::IPPROTO_UDP as u32),
            Name::ReuseAddress => number(SockRef::from(&self.udp).reuse_address().unwrap_or(false).into()),
            Name::ReceiveBuffer => number(state.settings.receive_buffer),
            Name::SendBuffer => number(state.settings.send_buffer),
            Name::SendQueue => number(state.settings.sends.into()),
            Name::ReceiveQueue => number(state.settings.receives.into()),
            Name::Inline => number(state.settings.inline.into()),
            Name::ReceiveTimeout => Ok(Value::Time(state.receive_timeout)),
            Name::SendTimeout => Ok(Value::Time(state.send_timeout)),
            _ => Err(SocketError::Unsupported(format!("option {name:?} for datagrams"))),
        }
    }
}
