//! Options of stream sockets (rsetsockopt, rgetsockopt). Options of TCP that RDMA does not need are stored, so that programs
//! can read them back.

use super::{KeepAlive, Stage, StreamSocket};
use crate::{
    error::SocketError,
    lock,
    options::{Name, Value},
};
use rxe_cm::PathRecord;
use rxe_verbs::Gid;
use std::{
    fs,
    time::{Duration, Instant},
};

/// How long a connection is idle before a keep-alive is sent, if the system has no setting.
const KEEP_ALIVE: u64 = 7200;

/// The smallest size of `struct tcp_info` that programs use.
const TCP_INFO: usize = 104;

/// Options that a program has set.
#[derive(Clone, Debug, Default)]
pub(super) struct Options {
    pub(super) receive_timeout: Option<Duration>,
    pub(super) send_timeout: Option<Duration>,
    /// How long close waits. Zero ends the connection at once. `None`: as long as data moves.
    pub(super) linger: Option<Duration>,
    /// Whether the reason for a failed connection was reported.
    pub(super) failure_told: bool,
    no_delay: bool,
    oob_inline: bool,
    keep_alive: bool,
    keep_idle: Option<u64>,
}

impl Options {
    /// The options that a connection gets from its listener.
    pub(super) fn inherited(&self) -> Self {
        Self { failure_told: false, keep_alive: false, ..self.clone() }
    }
}

impl StreamSocket {
    /// Sets an option.
    ///
    /// # Errors
    /// [`SocketError::Unsupported`], [`SocketError::Argument`], [`SocketError::State`] for sizes once they are in use.
    pub fn set_option(&self, name: Name, value: &Value) -> Result<(), SocketError> {
        match name {
            Name::ReuseAddress | Name::V6Only | Name::TypeOfService => self.set_id_option(name, value),
            Name::ReceiveBuffer
            | Name::SendBuffer
            | Name::SendQueue
            | Name::ReceiveQueue
            | Name::Inline
            | Name::IoMapSize => self.set_size(name, value.number()?),
            Name::KeepAlive => self.set_keep_alive(Some(value.flag()?), None),
            Name::KeepIdle => {
                let seconds = value.number()?;
                if seconds == 0 {
                    return Err(SocketError::Argument("a keep-alive time of 0 s".to_owned()));
                }
                self.set_keep_alive(None, Some(seconds.into()))
            }
            Name::Linger => {
                lock(&self.options).linger = value.linger()?;
                Ok(())
            }
            Name::ReceiveTimeout => {
                lock(&self.options).receive_timeout = value.time()?;
                Ok(())
            }
            Name::SendTimeout => {
                lock(&self.options).send_timeout = value.time()?;
                Ok(())
            }
            Name::NoDelay => {
                lock(&self.options).no_delay = value.flag()?;
                Ok(())
            }
            Name::OobInline => {
                lock(&self.options).oob_inline = value.flag()?;
                Ok(())
            }
            // There are no segments, and RDMA repeats by itself.
            Name::MaxSegment | Name::KeepInterval | Name::KeepCount => Ok(()),
            Name::Error
            | Name::Type
            | Name::Domain
            | Name::Protocol
            | Name::Listens
            | Name::Info
            | Name::Route => Err(SocketError::Unsupported(format!("way to set {name:?}"))),
        }
    }

    fn set_id_option(&self, name: Name, value: &Value) -> Result<(), SocketError> {
        let state = self.state();
        let id = state.id()?;
        let mut options = id.options();
        match name {
            Name::ReuseAddress => options.reuse_addr = value.flag()?,
            Name::V6Only => options.family_only = value.flag()?,
            // The two lowest bits are the network's.
            _ => options.tos = Some(value.number()? as u8 & !3),
        }
        Ok(id.set_options(options)?)
    }

    fn set_size(&self, name: Name, number: u32) -> Result<(), SocketError> {
        let mut state = self.state();
        let begun = !matches!(state.phase, Stage::New | Stage::Listening(_));
        match name {
            // Too late, which does no harm.
            Name::ReceiveBuffer | Name::SendBuffer if begun => return Ok(()),
            _ if begun => {
                return Err(SocketError::State { action: "set a size", state: state.phase.doing() });
            }
            _ => {}
        }
        let settings = &mut state.settings;
        match name {
            // As sockets do: the program gets twice what it asks for.
            Name::ReceiveBuffer => settings.set_receive_buffer(number.saturating_mul(2)),
            Name::SendBuffer => settings.set_send_buffer(number.saturating_mul(2)),
            Name::SendQueue => settings.set_sends(number),
            Name::ReceiveQueue => settings.set_receives(number),
            Name::Inline => settings.set_inline(number),
            _ => settings.set_iomap(number),
        }
        Ok(())
    }

    fn set_keep_alive(&self, on: Option<bool>, idle: Option<u64>) -> Result<(), SocketError> {
        let period = {
            let mut options = lock(&self.options);
            options.keep_alive = on.unwrap_or(options.keep_alive);
            options.keep_idle = idle.or(options.keep_idle);
            options.keep_alive.then(|| Duration::from_secs(options.keep_idle.unwrap_or_else(system_idle)))
        };
        let next = |period| Instant::now().checked_add(period);
        self.state().keep_alive = period.and_then(|period| Some(KeepAlive { period, next: next(period)? }));
        self.stack.shared().wake();
        Ok(())
    }

    /// What an option is.
    ///
    /// # Errors
    /// [`SocketError::Unsupported`].
    pub fn option(&self, name: Name) -> Result<Value, SocketError> {
        let number = |number: u32| Ok(Value::Number(number));
        let flag = |flag: bool| Ok(Value::Number(flag.into()));
        let settings = self.state().settings;
        match name {
            Name::Error => {
                let connecting = self.state().error.take();
                number(connecting.or_else(|| self.failure_number()).unwrap_or(0).unsigned_abs())
            }
            Name::Type => number(libc::SOCK_STREAM as u32),
            Name::Domain => number(self.domain.number() as u32),
            Name::Protocol => number(libc::IPPROTO_TCP as u32),
            Name::Listens => flag(matches!(self.state().phase, Stage::Listening(_))),
            Name::ReceiveBuffer => number(settings.receive_buffer),
            Name::SendBuffer => number(settings.send_buffer),
            Name::SendQueue => number(settings.sends.into()),
            Name::ReceiveQueue => number(settings.receives.into()),
            Name::Inline => number(settings.inline.into()),
            Name::IoMapSize => number(settings.iomap.into()),
            Name::ReuseAddress => flag(self.state().id()?.options().reuse_addr),
            Name::V6Only => flag(self.state().id()?.options().family_only),
            Name::TypeOfService => number(self.state().id()?.options().tos.unwrap_or(0).into()),
            Name::KeepAlive => flag(lock(&self.options).keep_alive),
            Name::KeepIdle => number(lock(&self.options).keep_idle.unwrap_or_else(system_idle) as u32),
            Name::KeepInterval | Name::KeepCount => number(1),
            Name::Info => Ok(Value::Zero(TCP_INFO)),
            // Without a connection there is none, and nothing is told, as with rdma-core.
            Name::Route => {
                Ok(Value::Bytes(self.state().id()?.path().map_or_else(Vec::new, |path| route(&path))))
            }
            Name::Linger => Ok(Value::Linger(lock(&self.options).linger)),
            Name::ReceiveTimeout => Ok(Value::Time(lock(&self.options).receive_timeout)),
            Name::SendTimeout => Ok(Value::Time(lock(&self.options).send_timeout)),
            Name::NoDelay => flag(lock(&self.options).no_delay),
            Name::OobInline => flag(lock(&self.options).oob_inline),
            Name::MaxSegment => number(self.link.get().map_or(2048, |link| link.path_mtu())),
        }
    }
}

/// A path as `struct ibv_path_data` has it: flags, and a path record as on the wire (IBTA vol. 1, 15.2.5.16).
fn route(path: &PathRecord) -> Vec<u8> {
    // The selectors mean "exactly".
    const EXACTLY: u8 = 2 << 6;
    let mut out = vec![0; 16];
    out.extend(Gid::from(path.av.dst).0);
    out.extend(Gid::from(path.av.src).0);
    out.extend([0; 4]);
    out.extend((path.av.flow_label << 8 | u32::from(path.av.hop_limit)).to_be_bytes());
    // Reversible, and the only path.
    out.extend([path.av.traffic_class, 0x81]);
    out.extend(0xffff_u16.to_be_bytes());
    out.extend(u16::from(path.av.service_level).to_be_bytes());
    out.extend([path.mtu.code() | EXACTLY, path.rate | EXACTLY, path.packet_lifetime | EXACTLY]);
    out.extend([0; 7]);
    out
}

/// The system's setting for TCP.
fn system_idle() -> u64 {
    let text = fs::read_to_string("/proc/sys/net/ipv4/tcp_keepalive_time").ok();
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(KEEP_ALIVE)
}
