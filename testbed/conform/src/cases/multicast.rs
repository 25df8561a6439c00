//! Multicast datagrams (IBTA vol. 1, 10.5 and A17.4; RFC 1112 and RFC 2464 for their way over Ethernet).

use super::unreliable::{QKEY, datagram, ud};
use crate::{
    bench::{Bench, What},
    case::{Case, Outcome, broken, must, same},
    conn::{Conn, pattern},
    dut::{Feature, Kind, WrOp},
    wire::{Packet, ends_of, op},
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The destination queue pair of all multicast packets (IBTA vol. 1, 10.5.2).
const EVERYBODY: u32 = 0x00ff_ffff;

/// Adds the cases of this theme.
pub(super) fn add(all: &mut Vec<Case>) {
    all.extend(CASES.iter().cloned().map(|case| case.needs(&[Feature::Multicast])));
}

/// The group with that number, in the link's address family.
fn group(c: &Conn, number: u8) -> IpAddr {
    match c.world.borrow().ends().src {
        IpAddr::V4(_) => Ipv4Addr::new(239, 19, 7, number).into(),
        IpAddr::V6(_) => Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, 0x1907, number.into()).into(),
    }
}

/// How many datagrams without an arrival mean that the group was not joined.
const TRIES: u32 = 10;

fn attach(c: &Conn, number: u8) -> Outcome {
    let group = group(c, number);
    c.world.borrow_mut().note(format!("attach QP {:#x} to {group}", c.qp.qpn));
    Ok(c.world.borrow_mut().dut.attach(c.qp.handle, group)?)
}

fn detach(c: &Conn, number: u8) -> Outcome {
    let group = group(c, number);
    c.world.borrow_mut().note(format!("detach QP {:#x} from {group}", c.qp.qpn));
    Ok(c.world.borrow_mut().dut.detach(c.qp.handle, group)?)
}

/// Attaches the queue pair to a group, and returns when the device's host receives datagrams to this group. An interface takes
/// some time to join, and RFC 3376 has no answer to a report; so another queue pair is attached first and tries it out.
fn join(c: &Conn, number: u8) -> Outcome {
    let mut scout = c.sibling()?;
    attach(&scout, number)?;
    let within = c.patience() / TRIES;
    for tried in 1..=TRIES {
        scout.post_recv(128)?;
        // Each try has another length, so we know when the latest has come and none is on its way any more.
        let len = 4 * tried;
        send(&scout, number, datagram(&scout, &pattern(0, len as usize)))?;
        while let Some(wc) = scout.wc_within(Kind::Recv, within)? {
            if wc.byte_len == 40 + len {
                attach(c, number)?;
                return detach(&scout, number);
            }
        }
    }
    broken(format!(
        "none of {TRIES} datagrams to {} has reached a queue pair that is attached",
        group(c, number)
    ))
}

/// Sends a datagram to a group.
fn send(c: &Conn, number: u8, packet: Packet) -> Outcome {
    let mut world = c.world.borrow_mut();
    let mut ends = world.ends();
    drop(world);
    ends.dst = group(c, number);
    world = c.world.borrow_mut();
    world.send_between(&packet.dest_qp(EVERYBODY), &ends)
}

/// A datagram queue pair in group 1.
fn member(b: &mut Bench) -> Outcome<Conn> {
    let c = ud(b)?;
    join(&c, 1)?;
    Ok(c)
}

/// Nothing arrives of what `first` sends, although a receive is posted; a right datagram to group 1 after it arrives.
fn dropped(c: &mut Conn, first: impl FnOnce(&Conn) -> Outcome) -> Outcome {
    let posted = c.post_recv(128)?;
    first(c)?;
    send(c, 1, datagram(c, &pattern(3, 12)))?;
    c.done(Kind::Recv, posted.wr_id)?;
    c.received(posted.offset + 40, &pattern(3, 12))?;
    c.nothing_done(Kind::Recv)
}

const CASES: &[Case] = &[
    must(
        "UD.MULTICAST.1",
        "A datagram to a group reaches a queue pair that is attached to it",
        "IBTA 10.5.2",
        |b| dropped(&mut member(b)?, |_| Ok(())),
    ),
    must(
        "UD.MULTICAST.2",
        "A datagram to a group reaches each queue pair that is attached to it",
        "IBTA 10.5.2",
        |b| {
            let mut one = member(b)?;
            let mut two = one.sibling()?;
            join(&two, 1)?;
            let posted = [one.post_recv(128)?, two.post_recv(128)?];
            send(&one, 1, datagram(&one, &pattern(5, 20)))?;
            // Both queue pairs share a completion queue; either may complete first.
            let mut told = [one.wc(Kind::Recv)?, one.wc(Kind::Recv)?];
            told.sort_by_key(|wc| wc.wr_id);
            for (posted, (wc, qp)) in posted.iter().zip(told.iter().zip([&one.qp, &two.qp])) {
                same("the request", wc.wr_id, posted.wr_id)?;
                same("qp_num", wc.qp_num, qp.qpn)?;
                same("byte_len", wc.byte_len, 60)?;
            }
            one.received(posted[0].offset + 40, &pattern(5, 20))?;
            two.received(posted[1].offset + 40, &pattern(5, 20))
        },
    ),
    must("UD.MULTICAST.3", "A datagram to another group is dropped", "IBTA 10.5.2", |b| {
        dropped(&mut member(b)?, |c| send(c, 2, datagram(c, &[9; 8])))
    }),
    must(
        "UD.MULTICAST.4",
        "A queue pair that was detached from a group hears it no more",
        "IBTA 10.5.2",
        |b| {
            let mut c = member(b)?;
            join(&c, 2)?;
            detach(&c, 2)?;
            dropped(&mut c, |c| send(c, 2, datagram(c, &[9; 8])))
        },
    ),
    must("UD.MULTICAST.5", "A datagram to a group with another Q_Key is dropped", "IBTA 9.6.1.4.1", |b| {
        dropped(&mut member(b)?, |c| send(c, 1, datagram(c, &[9; 8]).qkey(QKEY ^ 1)))
    }),
    must("UD.MULTICAST.6", "A datagram to a group with a wrong ICRC is dropped", "IBTA 9.8", |b| {
        dropped(&mut member(b)?, |c| send(c, 1, datagram(c, &[9; 8]).icrc_xor(4)))
    }),
    must(
        "UD.MULTICAST.7",
        "A datagram that is posted to a group goes to its address and to queue pair 0xffffff",
        "IBTA 10.5.2, 11.2.2.1",
        |b| {
            let mut c = ud(b)?;
            c.set_local(0, &pattern(6, 30))?;
            let way = crate::dut::Av { dgid: group(&c, 3), ..c.way() };
            let wr = c.post_along(WrOp::Send, 30, (way, EVERYBODY, QKEY))?;
            let patience = c.patience();
            let got = c.world.borrow_mut().take(EVERYBODY, patience)?;
            let expected = Packet::of(op::UD_SEND_ONLY).qkey(QKEY).src_qp(c.qp.qpn).data(pattern(6, 30));
            let wrong = got.map(|got| expected.mismatches(&got.packet));
            same("what is wrong with the packet", wrong, Some(Vec::new()))?;
            let to = c.world.borrow().log.iter().rev().find_map(|entry| match &entry.what {
                What::Got(_, bytes) => ends_of(bytes).map(|ends| ends.dst),
                _ => None,
            });
            same("the address", to, Some(group(&c, 3)))?;
            c.done(Kind::Send, wr).map(|_| ())
        },
    ),
];
