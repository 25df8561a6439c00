//! Priorities: a packet's class in the system's own queues (`tc`, VLAN tags). Switches look at the DSCP instead.
//!
//! The system derives a priority from the TOS by a rule that is older than DSCP and ignores its class selectors. So the link
//! sets the priority DSCP / 8 itself, as switches do. Since Linux 6.14 the priority is a control message of each batch. Before,
//! a socket has one priority, and a TOS in a control message overrides it. So there both the TOS and the priority are options
//! of the socket, which are set whenever the next batch has another TOS. Packets without a DSCP get no priority.

use crate::sys::{
    control::Control,
    message::{Name, send},
    socket::set_option,
};
use core::net::Ipv4Addr;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

/// The highest priority without privileges. 7 needs CAP_NET_ADMIN or CAP_NET_RAW (`socket(7)`).
const UNPRIVILEGED: u8 = 6;

/// How priorities are set, and the highest priority that this process may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Priorities {
    /// By a control message.
    Message(u8),
    /// By an option of the socket.
    Option(u8),
}

impl Priorities {
    /// Finds out what the system supports by a packet that cannot leave: a broadcast. The system checks the control messages,
    /// and then refuses the broadcast because the socket lacks SO_BROADCAST.
    pub(super) fn find(messages: bool) -> Self {
        let Ok(socket) = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)) else {
            return Self::Option(UNPRIVILEGED);
        };
        let most = if set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_PRIORITY, 7).is_ok() {
            7
        } else {
            UNPRIVILEGED
        };
        let mut control = Control::new();
        control.push_priority(most);
        let name = Name::new(Ipv4Addr::BROADCAST.into(), DISCARD, 0);
        let refusal = send(socket.as_fd(), &name, &control, &[]).err().and_then(|error| error.raw_os_error());
        let knows = !matches!(refusal, Some(libc::EINVAL | libc::EPERM));
        if messages && knows { Self::Message(most) } else { Self::Option(most) }
    }

    /// Sets the TOS and priority of a batch, by control messages or by options of the socket. `marked` is the TOS that the
    /// socket has as an option.
    pub(super) fn say(
        self,
        tos: u8,
        v4: bool,
        (socket, marked): (BorrowedFd<'_>, &mut u8),
        control: &mut Control,
    ) {
        match self {
            Self::Message(_) if tos == 0 => {}
            Self::Message(most) => {
                if v4 {
                    control.push_tos_v4(tos)
                } else {
                    control.push_class_v6(tos)
                }
                if tos >> 5 != 0 {
                    control.push_priority((tos >> 5).min(most));
                }
            }
            Self::Option(_) if tos == *marked => {}
            // If the system refuses the options, a control message still sets the TOS.
            Self::Option(most) => match mark(socket, tos, v4, most) {
                Ok(()) => *marked = tos,
                Err(_) if tos == 0 => {}
                Err(_) if v4 => control.push_tos_v4(tos),
                Err(_) => control.push_class_v6(tos),
            },
        }
    }
}

/// The discard port (RFC 863).
const DISCARD: u16 = 9;

/// Sets the TOS first and then the priority, because setting the TOS changes the priority, too. If only the priority is refused, the TOS is
/// set all the same.
fn mark(socket: BorrowedFd<'_>, tos: u8, v4: bool, most: u8) -> io::Result<()> {
    let (level, option) =
        if v4 { (libc::IPPROTO_IP, libc::IP_TOS) } else { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) };
    set_option(socket, level, option, tos.into())?;
    let _ = set_option(socket, libc::SOL_SOCKET, libc::SO_PRIORITY, (tos >> 5).min(most).into());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{ControlMessageOwned, MsgFlags, getsockopt, recvmsg, sockopt};

    #[test]
    fn a_socket_is_marked_when_the_class_changes() {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
        let mut marked = 0;
        for (tos, priority) in [(0x60, 3), (0x60, 3), (0x00, 0), (0xb8, 5)] {
            let mut control = Control::new();
            Priorities::Option(6).say(tos, true, (socket.as_fd(), &mut marked), &mut control);
            assert_eq!((getsockopt(&socket, sockopt::Priority).unwrap(), marked), (priority, tos));
            assert_eq!(control.as_bytes(), []);
        }
    }

    /// A receiver is told the priority that a packet had in the sender's queues (SO_RCVPRIORITY, Linux 6.14).
    const RCVPRIORITY: libc::c_int = 82;

    fn priority_of_arrival(socket: &Socket) -> i32 {
        let (mut bytes, mut space) = ([0; 8], nix::cmsg_space!([u8; 64]));
        let mut parts = [io::IoSliceMut::new(&mut bytes)];
        let raw = std::os::fd::AsRawFd::as_raw_fd(socket);
        let arrival = recvmsg::<()>(raw, &mut parts, Some(&mut space), MsgFlags::empty()).unwrap();
        // The crate has no name for it; the socket has no other messages.
        let told = arrival.cmsgs().unwrap().any(|message| matches!(message, ControlMessageOwned::Unknown(_)));
        assert!(told, "no priority came");
        // Behind the header of 16 bytes.
        i32::from_ne_bytes(space[16..20].try_into().unwrap())
    }

    #[test]
    fn packets_have_it_in_the_systems_queues() {
        let receiver = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
        if set_option(receiver.as_fd(), libc::SOL_SOCKET, RCVPRIORITY, 1).is_err() {
            return eprintln!(
                "skipped: packets_have_it_in_the_systems_queues: Linux before 6.14 tells no receiver"
            );
        }
        receiver.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        receiver.set_read_timeout(Some(core::time::Duration::from_secs(20))).unwrap();
        let to = receiver.local_addr().unwrap().as_socket().unwrap();
        let name = Name::new(to.ip(), to.port(), 0);
        assert!(matches!(Priorities::find(true), Priorities::Message(6 | 7)));
        for priorities in [Priorities::find(true), Priorities::find(false)] {
            let sender = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
            let mut marked = 0;
            for tos in [0x60, 0, 0x62, 0xb8, 0xb8, 0x20] {
                let mut control = Control::new();
                priorities.say(tos, true, (sender.as_fd(), &mut marked), &mut control);
                send(sender.as_fd(), &name, &control, b"x").unwrap();
                assert_eq!(
                    priority_of_arrival(&receiver),
                    i32::from(tos >> 5),
                    "{priorities:?}, TOS {tos:#x}"
                );
            }
        }
    }

    #[test]
    fn a_batch_says_its_own() {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
        let said = |tos| {
            let mut control = Control::new();
            Priorities::Message(6).say(tos, true, (socket.as_fd(), &mut 0), &mut control);
            control.as_bytes().len()
        };
        // A message takes 24 bytes. Without a DSCP there is none, and ECN alone has no priority.
        assert_eq!((said(0), said(2), said(0x20)), (0, 24, 48));
    }
}
