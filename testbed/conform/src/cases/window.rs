//! Memory windows and invalidation (IBTA vol. 1, 10.6.7.2 and 9.4.1.1).

use crate::{
    bench::Bench,
    case::{Case, Outcome, must, same},
    conn::Conn,
    dut::{Access, Feature, Handle, Kind, State, WrOp},
    wire::{Packet, op},
};

/// Adds the cases of this theme.
pub(super) fn add(all: &mut Vec<Case>) {
    all.extend(CASES.iter().cloned().map(|case| case.needs(&[Feature::Windows])));
}

/// A connection whose target region has a memory window of type `kind`, bound to bytes 64 to 128. Returns the connection, the
/// window and its R_Key.
fn bound(b: &mut Bench, kind: u8, access: &[Access]) -> Outcome<(Conn, Handle, u32)> {
    let all = [Access::COMMON.to_vec(), vec![Access::MwBind]].concat();
    let c = b.rc_with(|o| o.region = all)?;
    let mut world = c.world.borrow_mut();
    let (window, _) = world.dut.mw(c.objects.pd, kind)?;
    let rkey = world.dut.bind_mw(c.qp.handle, window, &c.objects.target, (64, 64), access)?;
    drop(world);
    same("the bind's status", c.wc(Kind::Send)?.status.as_str(), "SUCCESS")?;
    Ok((c, window, rkey))
}

const SOURCE: &str = "IBTA 10.6.7.2";
const WRITE: &[Access] = &[Access::RemoteWrite];

const CASES: &[Case] = &[
    must("MW.GRANT.1", "A WRITE through a window of type 1 lands in the region", SOURCE, |b| {
        let (mut c, _, rkey) = bound(b, 1, WRITE)?;
        let psn = c.tx(c.write(64, &[7; 64]).rkey(rkey))?;
        c.acked(psn)?;
        c.holds(64, &[7; 64])
    }),
    must("MW.GRANT.2", "A WRITE through a window of type 2 lands in the region", SOURCE, |b| {
        let (mut c, _, rkey) = bound(b, 2, WRITE)?;
        let psn = c.tx(c.write(64, &[7; 64]).rkey(rkey))?;
        c.acked(psn)?;
        c.holds(64, &[7; 64])
    }),
    must("MW.RANGE.1", "A WRITE in the region but before the window is refused", SOURCE, |b| {
        let (mut c, _, rkey) = bound(b, 2, WRITE)?;
        let psn = c.tx(c.write(56, &[7; 8]).rkey(rkey))?;
        c.naked(psn, 0x62)?;
        c.holds(56, &[0; 8])
    }),
    must("MW.RANGE.2", "A WRITE that reaches beyond the window is refused", SOURCE, |b| {
        let (mut c, _, rkey) = bound(b, 2, WRITE)?;
        let psn = c.tx(c.write(121, &[7; 8]).rkey(rkey))?;
        c.naked(psn, 0x62)?;
        c.holds(121, &[0; 8])
    }),
    must("MW.RIGHT.1", "A READ through a window that only allows WRITEs is refused", SOURCE, |b| {
        let (mut c, _, rkey) = bound(b, 2, WRITE)?;
        let psn = c.tx(c.read(64, 8).rkey(rkey))?;
        c.naked(psn, 0x62).map(|_| ())
    }),
    must("MW.KEY.1", "The key that a window had before it was bound grants nothing", SOURCE, |b| {
        let (mut c, _, rkey) = bound(b, 2, WRITE)?;
        let old = rkey & !0xff | rkey.wrapping_sub(1) & 0xff;
        let psn = c.tx(c.write(64, &[7; 8]).rkey(old))?;
        c.naked(psn, 0x62)?;
        c.holds(64, &[0; 8])
    }),
    must("MW.QP.1", "A window of type 2 is of no use to another queue pair", "IBTA 10.6.7.2.2", |b| {
        let (c, _, rkey) = bound(b, 2, WRITE)?;
        let mut other = c.sibling()?;
        let psn = other.tx(other.write(64, &[7; 8]).rkey(rkey))?;
        other.naked(psn, 0x62)?;
        other.holds(64, &[0; 8])
    }),
    must(
        "MW.QP.2",
        "A window of type 1 is of use to every queue pair of its domain",
        "IBTA 10.6.7.2.1",
        |b| {
            let (c, _, rkey) = bound(b, 1, WRITE)?;
            let mut other = c.sibling()?;
            let psn = other.tx(other.write(64, &[7; 8]).rkey(rkey))?;
            other.acked(psn)?;
            other.holds(64, &[7; 8])
        },
    ),
    must("MW.INVALIDATE.1", "A SEND with invalidate ends a window of type 2", "IBTA 9.4.1.1.1", |b| {
        let (mut c, _, rkey) = bound(b, 2, WRITE)?;
        let posted = c.post_recv(64)?;
        let psn = c.tx(Packet::of(op::SEND_ONLY_INV).inv_rkey(rkey).data(vec![1; 8]).ask())?;
        c.acked(psn)?;
        same("the key told", c.done(Kind::Recv, posted.wr_id)?.invalidated_rkey, Some(rkey))?;
        let psn = c.tx(c.write(64, &[7; 8]).rkey(rkey))?;
        c.naked(psn, 0x62)?;
        c.holds(64, &[0; 8])
    }),
    must(
        "MW.INVALIDATE.2",
        "A long SEND with invalidate invalidates with its last packet",
        "IBTA 9.4.1.1.1",
        |b| {
            let (mut c, _, rkey) = bound(b, 2, WRITE)?;
            let posted = c.post_recv(2000)?;
            let psn = c.tx(Packet::of(op::SEND_FIRST).data(vec![1; 1024]).ask())?;
            c.acked(psn)?;
            let psn = c.tx(Packet::of(op::SEND_LAST_INV).inv_rkey(rkey).data(vec![1; 8]).ask())?;
            c.acked(psn)?;
            same("the key told", c.done(Kind::Recv, posted.wr_id)?.invalidated_rkey, Some(rkey))
        },
    ),
    must(
        "MW.INVALIDATE.3",
        "A SEND that invalidates a key which is none ends the connection",
        "IBTA 9.4.1.1.3",
        |b| {
            let mut c = b.rc()?;
            c.post_recv(64)?;
            c.tx(Packet::of(op::SEND_ONLY_INV).inv_rkey(0x7700_1234).data(vec![1; 8]).ask())?;
            c.in_state(State::Err)
        },
    ),
    must(
        "MW.INVALIDATE.4",
        "A SEND that invalidates a region of plain memory ends the connection and leaves the region",
        "IBTA 9.4.1.1.3",
        |b| {
            let mut c = b.rc()?;
            c.post_recv(64)?;
            c.tx(Packet::of(op::SEND_ONLY_INV).inv_rkey(c.objects.target.rkey).data(vec![1; 8]).ask())?;
            c.in_state(State::Err)?;
            let mut other = c.sibling()?;
            let psn = other.tx(other.write(0, &[7; 8]))?;
            other.acked(psn).map(|_| ())
        },
    ),
    must(
        "MW.INVALIDATE.5",
        "A posted SEND with invalidate carries the key in its last packet",
        "IBTA 9.4.1.1",
        |b| {
            let mut c = b.rc()?;
            c.post(WrOp::SendWithInv { invalidate_rkey: 0xabcd_0123 }, 1500)?;
            c.request(Packet::of(op::SEND_FIRST))?;
            c.request(Packet::of(op::SEND_LAST_INV).inv_rkey(0xabcd_0123)).map(|_| ())
        },
    ),
    must("MW.INVALIDATE.6", "A local invalidate ends a window of type 2", "IBTA 10.8.3.3, 10.6.7.2.6", |b| {
        let (mut c, _, rkey) = bound(b, 2, WRITE)?;
        let wr = c.post(WrOp::LocalInv { invalidate_rkey: rkey }, 0)?;
        c.done(Kind::Send, wr)?;
        let psn = c.tx(c.write(64, &[7; 8]).rkey(rkey))?;
        c.naked(psn, 0x62)?;
        c.holds(64, &[0; 8])
    }),
];
