//! PSNs: the window, its wrap, what is ahead and what is behind (IBTA vol. 1, 9.7.3 and 9.7.5.1).

use crate::{
    case::{Case, must, same, should},
    conn::pattern,
    dut::{Kind, WrOp},
    wire::{MASK24, Packet, op},
};

/// Adds the cases of this theme.
pub(super) fn add(all: &mut Vec<Case>) {
    all.extend_from_slice(WINDOW);
    all.extend_from_slice(AHEAD);
    all.extend_from_slice(BEHIND);
}

const WINDOW: &[Case] = &[
    must(
        "RC.PSN.EXPECTED.1",
        "A request with the expected PSN is executed and acknowledged",
        "IBTA 9.7.3.2",
        |b| {
            let mut c = b.rc()?;
            let posted = c.post_recv(64)?;
            let psn = c.tx(Packet::of(op::SEND_ONLY).data(pattern(1, 20)).ask())?;
            c.acked(psn)?;
            let wc = c.done(Kind::Recv, posted.wr_id)?;
            same("byte_len", wc.byte_len, 20)?;
            c.received(posted.offset, &pattern(1, 20))
        },
    ),
    must(
        "RC.PSN.FIRST.1",
        "The first PSN expected is the one that modify QP has set",
        "IBTA 11.2.5.2 RQ PSN",
        |b| {
            let mut c = b.rc_with(|o| o.psn = 0x12_3456)?;
            c.alive()?;
            same("the next PSN", c.psn, 0x12_3457)
        },
    ),
    must(
        "RC.PSN.FIRST.2",
        "The first PSN sent is the one that modify QP has set",
        "IBTA 11.2.5.2 SQ PSN",
        |b| {
            let mut c = b.rc_with(|o| o.dut_psn = 0xab_cdef)?;
            c.post(WrOp::Send, 4)?;
            c.rx(Packet::of(op::SEND_ONLY).psn(0xab_cdef)).map(|_| ())
        },
    ),
    must("RC.PSN.WRAP.1", "A responder expects PSN 0 after 0xffffff", "IBTA 9.7.1", |b| {
        let mut c = b.rc_with(|o| o.psn = 0xff_fffe)?;
        for _ in 0..4 {
            c.alive()?;
        }
        same("the PSN", c.psn, 2)
    }),
    must("RC.PSN.WRAP.2", "A requester sends PSN 0 after 0xffffff, inside a message", "IBTA 9.7.1", |b| {
        let mut c = b.rc_with(|o| o.dut_psn = 0xff_ffff)?;
        let wr = c.post(WrOp::Send, 1500)?;
        c.request(Packet::of(op::SEND_FIRST))?;
        let last = c.request(Packet::of(op::SEND_LAST))?;
        c.ack(last.psn.unwrap_or(1))?;
        same("the last PSN", last.psn, Some(0))?;
        c.done(Kind::Send, wr).map(|_| ())
    }),
    must("RC.PSN.WRAP.3", "READ responses go on with PSN 0 after 0xffffff", "IBTA 9.7.1, 9.7.5.1.9", |b| {
        let mut c = b.rc_with(|o| o.psn = 0xff_fffe)?;
        c.tx(c.read(0, 4096))?;
        for (opcode, psn) in [
            (op::READ_FIRST, 0xff_fffe),
            (op::READ_MIDDLE, 0xff_ffff),
            (op::READ_MIDDLE, 0),
            (op::READ_LAST, 1),
        ] {
            c.rx(Packet::of(opcode).psn(psn))?;
        }
        c.alive().map(|_| ())
    }),
    must("RC.PSN.WRAP.4", "A duplicate is known as such across the wrap", "IBTA 9.7.1, 9.7.5.1.1", |b| {
        let mut c = b.rc_with(|o| o.psn = 0xff_ffff)?;
        let add = c.fetch_add(0, 1);
        c.tx(add.clone())?;
        c.rx(Packet::of(op::ATOMIC_ACK).original(0))?;
        c.alive()?;
        c.raw(add.psn(0xff_ffff))?;
        c.rx(Packet::of(op::ATOMIC_ACK).psn(0xff_ffff).original(0))?;
        c.holds(0, &1_u64.to_le_bytes())
    }),
    must(
        "RC.PSN.WRAP.5",
        "An acknowledgement behind the wrap acknowledges what is before it",
        "IBTA 9.7.1",
        |b| {
            let mut c = b.rc_with(|o| o.dut_psn = 0xff_ffff)?;
            let first = c.post(WrOp::Send, 4)?;
            let second = c.post(WrOp::Send, 4)?;
            c.request(Packet::of(op::SEND_ONLY))?;
            let last = c.request(Packet::of(op::SEND_ONLY))?;
            c.msn = 1;
            c.ack(last.psn.unwrap_or(7))?;
            c.done(Kind::Send, first)?;
            c.done(Kind::Send, second).map(|_| ())
        },
    ),
];

const AHEAD: &[Case] = &[
    must(
        "RC.PSN.AHEAD.1",
        "A PSN ahead is answered by a NAK with the PSN that is expected",
        "IBTA 9.7.5.1.2, 9.7.5.2.1",
        |b| {
            let mut c = b.rc()?;
            c.raw(c.write(0, &[1; 8]).psn(c.psn + 1))?;
            c.naked(c.psn, 0x60)?;
            c.alive()?;
            c.holds(0, &[0; 8])
        },
    ),
    must("RC.PSN.AHEAD.2", "The NAK is sent once until the missing packet comes", "IBTA 9.7.5.2.8", |b| {
        let mut c = b.rc()?;
        for ahead in 1..5 {
            c.raw(c.write(0, &[1; 8]).psn(c.psn + ahead))?;
        }
        c.naked(c.psn, 0x60)?;
        c.alive().map(|_| ())
    }),
    must(
        "RC.PSN.AHEAD.3",
        "After the missing packet has come, the next gap is told again",
        "IBTA 9.7.5.2.8",
        |b| {
            let mut c = b.rc()?;
            for _ in 0..3 {
                c.raw(c.write(0, &[1; 8]).psn(c.psn + 1))?;
                c.naked(c.psn, 0x60)?;
                c.alive()?;
            }
            Ok(())
        },
    ),
    must("RC.PSN.AHEAD.4", "A PSN almost half the number space ahead is ahead", "IBTA 9.7.3.1", |b| {
        let mut c = b.rc()?;
        c.raw(c.write(0, &[1; 8]).psn((c.psn + 0x7f_ffff) & MASK24))?;
        c.naked(c.psn, 0x60)?;
        c.alive()?;
        c.holds(0, &[0; 8])
    }),
    must(
        "RC.PSN.AHEAD.5",
        "A gap inside a message is told with the missing packet's PSN",
        "IBTA 9.7.5.2.1",
        |b| {
            let mut c = b.rc()?;
            let data = pattern(3, 3072);
            let (va, rkey) = c.at(0);
            let part = |n: usize| data[n * 1024..(n + 1) * 1024].to_vec();
            c.tx(Packet::of(op::WRITE_FIRST).reth(va, rkey, 3072).data(part(0)))?;
            c.raw(Packet::of(op::WRITE_LAST).data(part(2)).ask().psn(c.psn + 1))?;
            c.naked(c.psn, 0x60)?;
            c.tx(Packet::of(op::WRITE_MIDDLE).data(part(1)))?;
            let last = c.tx(Packet::of(op::WRITE_LAST).data(part(2)).ask())?;
            c.acked(last)?;
            c.holds(0, &data)
        },
    ),
    must("RC.PSN.AHEAD.6", "A SEND that is ahead takes no receive", "IBTA 9.7.5.1.2", |b| {
        let mut c = b.rc()?;
        let posted = c.post_recv(64)?;
        c.raw(Packet::of(op::SEND_ONLY).data(vec![9; 8]).ask().psn(c.psn + 1))?;
        c.naked(c.psn, 0x60)?;
        let psn = c.tx(Packet::of(op::SEND_ONLY).data(vec![7; 8]).ask())?;
        c.acked(psn)?;
        c.done(Kind::Recv, posted.wr_id)?;
        c.received(posted.offset, &[7; 8])
    }),
    must("RC.PSN.AHEAD.7", "An atomic that is ahead is not executed", "IBTA 9.7.5.1.2", |b| {
        let mut c = b.rc()?;
        c.raw(c.fetch_add(0, 5).psn(c.psn + 1))?;
        c.naked(c.psn, 0x60)?;
        c.alive()?;
        c.holds(0, &[0; 8])
    }),
    must("RC.PSN.AHEAD.8", "A READ that is ahead is not answered with data", "IBTA 9.7.5.1.2", |b| {
        let mut c = b.rc()?;
        c.raw(c.read(0, 64).psn(c.psn + 1))?;
        c.naked(c.psn, 0x60)?;
        c.alive().map(|_| ())
    }),
    should("RC.PSN.AHEAD.9", "The NAK's MSN counts the messages completed so far", "IBTA 9.7.7.1", |b| {
        let mut c = b.rc()?;
        c.alive()?;
        c.alive()?;
        c.raw(c.write(0, &[1; 8]).psn(c.psn + 1))?;
        let nak = c.naked(c.psn, 0x60)?;
        same("the MSN", nak.msn, Some(2))
    }),
];

const BEHIND: &[Case] = &[
    must(
        "RC.PSN.DUP.1",
        "A duplicate SEND is acknowledged again and takes no receive",
        "IBTA 9.7.5.1.1",
        |b| {
            let mut c = b.rc()?;
            let first = c.post_recv(64)?;
            let second = c.post_recv(64)?;
            let send = Packet::of(op::SEND_ONLY).data(pattern(1, 8)).ask();
            let psn = c.tx(send.clone())?;
            c.acked(psn)?;
            c.done(Kind::Recv, first.wr_id)?;
            c.raw(send.psn(psn))?;
            c.acked(psn)?;
            c.nothing_done(Kind::Recv)?;
            let psn = c.tx(Packet::of(op::SEND_ONLY).data(pattern(2, 8)).ask())?;
            c.acked(psn)?;
            c.done(Kind::Recv, second.wr_id)?;
            c.received(second.offset, &pattern(2, 8))
        },
    ),
    must(
        "RC.PSN.DUP.2",
        "A duplicate WRITE is acknowledged and not placed a second time",
        "IBTA 9.7.5.1.1",
        |b| {
            let mut c = b.rc()?;
            let write = c.write(16, &[5; 8]);
            let psn = c.tx(write.clone())?;
            c.acked(psn)?;
            c.set(16, &[0; 8])?;
            c.raw(write.psn(psn))?;
            c.acked(psn)?;
            c.holds(16, &[0; 8])
        },
    ),
    must(
        "RC.PSN.DUP.3",
        "The answer to a duplicate acknowledges the newest request that was executed",
        "IBTA 9.7.5.1.1",
        |b| {
            let mut c = b.rc()?;
            let write = c.write(0, &[1; 8]);
            let first = c.tx(write.clone())?;
            c.acked(first)?;
            c.alive()?;
            c.alive()?;
            c.raw(write.psn(first))?;
            c.acked(c.psn.wrapping_sub(1)).map(|_| ())
        },
    ),
    must("RC.PSN.DUP.4", "The MSN in the answer to a duplicate is the present one", "IBTA 9.7.7.1", |b| {
        let mut c = b.rc()?;
        let write = c.write(0, &[1; 8]);
        let first = c.tx(write.clone())?;
        c.acked(first)?;
        c.alive()?;
        c.raw(write.psn(first))?;
        let ack = c.acked(c.psn.wrapping_sub(1))?;
        same("the MSN", ack.msn, Some(2))
    }),
    must(
        "RC.PSN.DUP.5",
        "A duplicate atomic gets the result of the first time, and is not executed",
        "IBTA 9.7.5.1.4",
        |b| {
            let mut c = b.rc()?;
            c.set(0, &100_u64.to_le_bytes())?;
            let add = c.fetch_add(0, 1);
            let psn = c.tx(add.clone())?;
            c.rx(Packet::of(op::ATOMIC_ACK).psn(psn).original(100))?;
            c.raw(add.psn(psn))?;
            c.rx(Packet::of(op::ATOMIC_ACK).psn(psn).original(100))?;
            c.holds(0, &101_u64.to_le_bytes())
        },
    ),
    must(
        "RC.PSN.DUP.6",
        "A duplicate compare and swap gets the result of the first time",
        "IBTA 9.7.5.1.4",
        |b| {
            let mut c = b.rc()?;
            let swap = c.compare_swap(0, 0, 7);
            let psn = c.tx(swap.clone())?;
            c.rx(Packet::of(op::ATOMIC_ACK).psn(psn).original(0))?;
            c.raw(swap.psn(psn))?;
            c.rx(Packet::of(op::ATOMIC_ACK).psn(psn).original(0))?;
            c.holds(0, &7_u64.to_le_bytes())
        },
    ),
    must("RC.PSN.DUP.7", "A duplicate READ is answered again", "IBTA 9.7.5.1.3", |b| {
        let mut c = b.rc()?;
        c.set(0, &pattern(4, 100))?;
        let read = c.read(0, 100);
        let psn = c.tx(read.clone())?;
        c.rx(Packet::of(op::READ_ONLY).psn(psn).data(pattern(4, 100)))?;
        c.raw(read.psn(psn))?;
        c.rx(Packet::of(op::READ_ONLY).psn(psn).data(pattern(4, 100)))?;
        c.alive().map(|_| ())
    }),
    must("RC.PSN.DUP.8", "A duplicate READ reads memory as it is now", "IBTA 9.7.5.1.3", |b| {
        let mut c = b.rc()?;
        let read = c.read(0, 8);
        let psn = c.tx(read.clone())?;
        c.rx(Packet::of(op::READ_ONLY).psn(psn).data(vec![0; 8]))?;
        c.set(0, &[3; 8])?;
        c.raw(read.psn(psn))?;
        c.rx(Packet::of(op::READ_ONLY).psn(psn).data(vec![3; 8])).map(|_| ())
    }),
    must("RC.PSN.DUP.9", "A duplicate does not move the PSN that is expected", "IBTA 9.7.5.1.1", |b| {
        let mut c = b.rc()?;
        let write = c.write(0, &[1; 8]);
        let psn = c.tx(write.clone())?;
        c.acked(psn)?;
        for _ in 0..3 {
            c.raw(write.clone().psn(psn))?;
            c.acked(psn)?;
        }
        c.alive().map(|_| ())
    }),
    must("RC.PSN.DUP.10", "Half the number space behind is a duplicate", "IBTA 9.7.3.1", |b| {
        let mut c = b.rc()?;
        c.alive()?;
        c.raw(c.write(0, &[1; 8]).psn(c.psn.wrapping_sub(0x7f_fff0) & MASK24))?;
        c.acked(c.psn.wrapping_sub(1))?;
        c.holds(0, &[0; 8])
    }),
    must(
        "RC.PSN.DUP.11",
        "A duplicate packet inside an open message changes nothing",
        "IBTA 9.7.5.1.1",
        |b| {
            let mut c = b.rc()?;
            let data = pattern(5, 2048);
            let (va, rkey) = c.at(0);
            let first = Packet::of(op::WRITE_FIRST).reth(va, rkey, 2048).data(data[..1024].to_vec());
            let psn = c.tx(first.clone().ask())?;
            c.acked(psn)?;
            c.raw(first.psn(psn).ask())?;
            c.acked(psn)?;
            let last = c.tx(Packet::of(op::WRITE_LAST).data(data[1024..].to_vec()).ask())?;
            c.acked(last)?;
            c.holds(0, &data)
        },
    ),
    must(
        "RC.PSN.DUP.12",
        "A duplicate SEND with invalidate does not invalidate again",
        "IBTA 9.7.5.1.1",
        |b| {
            let mut c = b.rc()?;
            c.post_recv(64)?;
            let psn = c.tx(Packet::of(op::SEND_ONLY).data(vec![1; 8]).ask())?;
            c.acked(psn)?;
            c.raw(
                Packet::of(op::SEND_ONLY_INV).inv_rkey(c.objects.target.rkey).data(vec![1; 8]).ask().psn(psn),
            )?;
            c.acked(psn)?;
            let psn = c.tx(c.write(0, &[9; 8]))?;
            c.acked(psn)?;
            c.holds(0, &[9; 8])
        },
    ),
    must("RC.PSN.DUP.13", "A duplicate with another payload is not executed either", "IBTA 9.7.5.1.1", |b| {
        let mut c = b.rc()?;
        let psn = c.tx(c.write(0, &[1; 8]))?;
        c.acked(psn)?;
        c.raw(c.write(0, &[2; 8]).psn(psn))?;
        c.acked(psn)?;
        c.holds(0, &[1; 8])
    }),
    must(
        "RC.PSN.DUP.14",
        "A duplicate is answered while a gap is open, and the gap stays",
        "IBTA 9.7.5.1.1",
        |b| {
            let mut c = b.rc()?;
            let write = c.write(0, &[1; 8]);
            let psn = c.tx(write.clone())?;
            c.acked(psn)?;
            c.raw(c.write(8, &[2; 8]).psn(c.psn + 1))?;
            c.naked(c.psn, 0x60)?;
            c.raw(write.psn(psn))?;
            c.acked(psn)?;
            c.alive()?;
            c.holds(8, &[0; 8])
        },
    ),
    should(
        "RC.PSN.DUP.15",
        "Four results of atomics are kept for duplicates where four may be outstanding",
        "IBTA 9.7.5.1.4",
        |b| {
            let mut c = b.rc()?;
            let first = c.psn;
            for n in 0..4 {
                c.tx(c.fetch_add(0, 1))?;
                c.rx(Packet::of(op::ATOMIC_ACK).original(n))?;
            }
            for n in 0..4 {
                c.raw(c.fetch_add(0, 1).psn(first + n))?;
                c.rx(Packet::of(op::ATOMIC_ACK).psn(first + n).original(u64::from(n)))?;
            }
            c.holds(0, &4_u64.to_le_bytes())
        },
    ),
];
