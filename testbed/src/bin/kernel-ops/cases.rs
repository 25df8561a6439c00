//! The cases: one operation each, in one direction.

use crate::bench::Pair;
use rxe_verbs::{Completion, Key, RecvWr, Remote, SendOp, SendWr, WcExtra, WcOpcode, WcStatus};
use serde_json::{Value, json};
use testbed::{agent::Failure, pattern::pattern};

/// One case.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Whether the kernel must have ATOMIC WRITE and FLUSH.
    pub(crate) new: bool,
    pub(crate) run: fn(&mut Pair<'_>) -> Result<(), Failure>,
}

const fn case(name: &'static str, run: fn(&mut Pair<'_>) -> Result<(), Failure>) -> Case {
    Case { name, new: false, run }
}

const fn new(name: &'static str, run: fn(&mut Pair<'_>) -> Result<(), Failure>) -> Case {
    Case { name, new: true, run }
}

/// All of them.
pub(crate) const ALL: &[Case] = &[
    case("we SEND, 0 to 100000 bytes", we_send),
    case("we SEND with immediate", we_send_imm),
    case("we WRITE, 0 bytes to 1 MiB", we_write),
    case("we WRITE with immediate", we_write_imm),
    case("we READ, 0 bytes to 1 MiB", we_read),
    case("we compare and swap", we_compare_swap),
    case("we fetch and add", we_fetch_add),
    case("we wait for a late receive", we_meet_rnr),
    case("we WRITE with a wrong key", we_are_refused),
    new("we ATOMIC WRITE", we_atomic_write),
    new("we FLUSH", we_flush),
    case("the kernel SENDs, 0 to 100000 bytes", they_send),
    case("the kernel SENDs with immediate", they_send_imm),
    case("the kernel WRITEs, up to 1 MiB", they_write),
    case("the kernel WRITEs with immediate", they_write_imm),
    case("the kernel READs, up to 1 MiB", they_read),
    case("the kernel compares and swaps", they_compare_swap),
    case("the kernel fetches and adds", they_fetch_add),
    case("the kernel waits for a late receive", they_meet_rnr),
    case("the kernel WRITEs with a wrong key", they_are_refused),
    new("the kernel ATOMIC WRITEs", they_atomic_write),
    new("the kernel FLUSHes", they_flush),
];

const LENGTHS: [usize; 6] = [0, 1, 1023, 1024, 4097, 100_000];
const MIB: usize = 1 << 20;

fn expect(wc: &Completion, status: WcStatus, opcode: WcOpcode) -> Result<(), Failure> {
    let opcode_matters = status == WcStatus::Success;
    if wc.status == status && (!opcode_matters || wc.opcode == opcode) {
        Ok(())
    } else {
        Err(format!("our completion is {wc:?}, expected {status:?} of {opcode:?}").into())
    }
}

fn expect_theirs(wc: &Value, status: &str, opcode: &str) -> Result<(), Failure> {
    if wc["status"] == status && (status != "SUCCESS" || wc["opcode"] == opcode) {
        Ok(())
    } else {
        Err(format!("their completion is {wc}, expected {status} of {opcode}").into())
    }
}

fn same(what: &str, found: &[u8], expected: &[u8]) -> Result<(), Failure> {
    match found.iter().zip(expected).position(|(a, b)| a != b) {
        None if found.len() == expected.len() => Ok(()),
        at => Err(format!("{what}: differs at byte {at:?} of {}", expected.len()).into()),
    }
}

fn remote(pair: &Pair<'_>, offset: usize) -> Remote {
    Remote { addr: pair.their_addr + offset as u64, rkey: Key(pair.their_rkey) }
}

fn post(pair: &Pair<'_>, op: SendOp, offset: usize, len: usize) -> Result<(), Failure> {
    let sges = [pair.mr.sge(offset, u32::try_from(len)?)];
    let list = if len == 0 { &sges[..0] } else { &sges[..] };
    Ok(pair.qp.post_send(&SendWr::new(1, op, list))?)
}

fn we_send_as(pair: &mut Pair<'_>, op: SendOp, len: usize, seed: u64) -> Result<Value, Failure> {
    pair.they_receive(0, 200_000)?;
    pair.mr.write_at(0, &pattern(seed, len))?;
    post(pair, op, 0, len)?;
    expect(&pair.ours()?, WcStatus::Success, WcOpcode::Send)?;
    let wc = pair.theirs()?;
    expect_theirs(&wc, "SUCCESS", "RECV")?;
    if wc["byte_len"] != len {
        return Err(format!("byte_len of {wc} is not {len}").into());
    }
    pair.they_check(0, len, seed)?;
    Ok(wc)
}

fn we_send(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for (seed, len) in (1..).zip(LENGTHS) {
        we_send_as(pair, SendOp::Send, len, seed)?;
    }
    Ok(())
}

fn we_send_imm(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let wc = we_send_as(pair, SendOp::SendImm([1, 2, 3, 4]), 3000, 9)?;
    if wc["imm"] == 0x0102_0304 { Ok(()) } else { Err(format!("wrong immediate: {wc}").into()) }
}

fn we_write(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for (seed, len) in (1..).zip(LENGTHS.into_iter().chain([MIB])) {
        pair.mr.write_at(0, &pattern(seed, len))?;
        post(pair, SendOp::Write(remote(pair, 64)), 0, len)?;
        expect(&pair.ours()?, WcStatus::Success, WcOpcode::Write)?;
        pair.they_check(64, len, seed)?;
    }
    Ok(())
}

fn we_write_imm(pair: &mut Pair<'_>) -> Result<(), Failure> {
    pair.they_receive(0, 16)?;
    pair.mr.write_at(0, &pattern(5, 5000))?;
    post(pair, SendOp::WriteImm(remote(pair, 100), [9, 8, 7, 6]), 0, 5000)?;
    expect(&pair.ours()?, WcStatus::Success, WcOpcode::Write)?;
    let wc = pair.theirs()?;
    expect_theirs(&wc, "SUCCESS", "RECV_RDMA_WITH_IMM")?;
    pair.they_check(100, 5000, 5)?;
    if wc["imm"] == 0x0908_0706 { Ok(()) } else { Err(format!("wrong immediate: {wc}").into()) }
}

fn we_read(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for (seed, len) in (1..).zip(LENGTHS.into_iter().chain([MIB])) {
        pair.they_fill(32, len.max(1), seed)?;
        pair.mr.fill(0)?;
        post(pair, SendOp::Read(remote(pair, 32)), 7, len)?;
        expect(&pair.ours()?, WcStatus::Success, WcOpcode::Read)?;
        same("what was read", &pair.mr.read_vec(7, len)?, &pattern(seed, len))?;
    }
    Ok(())
}

fn we_compare_swap(pair: &mut Pair<'_>) -> Result<(), Failure> {
    pair.set_their_u64(8, 5)?;
    for (compare, swap, before, after) in [(4, 9, 5, 5), (5, 1 << 40, 5, 1 << 40)] {
        let remote = remote(pair, 8);
        post(pair, SendOp::CompareSwap { remote, compare, swap }, 16, 8)?;
        expect(&pair.ours()?, WcStatus::Success, WcOpcode::CompareSwap)?;
        let seen = (pair.mr.load_u64(16)?, pair.their_u64(8)?);
        if seen != (before, after) {
            return Err(format!("original and new value {seen:?}, expected {:?}", (before, after)).into());
        }
    }
    Ok(())
}

fn we_fetch_add(pair: &mut Pair<'_>) -> Result<(), Failure> {
    pair.set_their_u64(8, u64::MAX - 1)?;
    for round in 0..8_u64 {
        let remote = remote(pair, 8);
        post(pair, SendOp::FetchAdd { remote, add: 3 }, 16, 8)?;
        expect(&pair.ours()?, WcStatus::Success, WcOpcode::FetchAdd)?;
        let (original, expected) = (pair.mr.load_u64(16)?, (u64::MAX - 1).wrapping_add(3 * round));
        if original != expected {
            return Err(format!("original {original}, expected {expected}").into());
        }
    }
    if pair.their_u64(8)? == 22 { Ok(()) } else { Err("the sum is wrong".into()) }
}

fn we_meet_rnr(pair: &mut Pair<'_>) -> Result<(), Failure> {
    pair.mr.write_at(0, &pattern(3, 2000))?;
    post(pair, SendOp::Send, 0, 2000)?;
    std::thread::sleep(std::time::Duration::from_millis(200));
    pair.they_receive(0, 4000)?;
    expect(&pair.ours()?, WcStatus::Success, WcOpcode::Send)?;
    expect_theirs(&pair.theirs()?, "SUCCESS", "RECV")?;
    if pair.qp.stats().rnr_naks_received == 0 {
        return Err("no RNR NAK was received".into());
    }
    pair.they_check(0, 2000, 3)
}

fn we_are_refused(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let wrong = Remote { addr: pair.their_addr, rkey: Key(pair.their_rkey ^ 0x5500) };
    post(pair, SendOp::Write(wrong), 0, 100)?;
    expect(&pair.ours()?, WcStatus::RemoteAccess, WcOpcode::Write)
}

fn we_atomic_write(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let value = 0x1122_3344_5566_7788_u64.to_le_bytes();
    let op = SendOp::AtomicWrite { remote: remote(pair, 24), value };
    post(pair, op, 0, 0)?;
    expect(&pair.ours()?, WcStatus::Success, WcOpcode::AtomicWrite)?;
    let found = pair.their_u64(24)?;
    if found == 0x1122_3344_5566_7788 { Ok(()) } else { Err(format!("found {found:#x}").into()) }
}

fn we_flush(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let op = SendOp::Flush { remote: remote(pair, 0), len: 4096, placement: 1, selectivity: 0 };
    post(pair, op, 0, 0)?;
    // The first try carries the specification's ICRC, which this kernel drops; the second one its own.
    expect(&pair.ours()?, WcStatus::Success, WcOpcode::Flush)
}

fn they_send_as(pair: &mut Pair<'_>, opcode: &str, len: usize, seed: u64) -> Result<Completion, Failure> {
    pair.qp.post_recv(&RecvWr { wr_id: 3, sges: &[pair.mr.sge(0, 200_000)] })?;
    pair.they_fill(0, len.max(1), seed)?;
    let sge = json!([{ "mr": pair.their_mr, "offset": 0, "length": len }]);
    let sge = if len == 0 { json!([]) } else { sge };
    pair.they_send(&json!({ "opcode": opcode, "sge": sge, "imm": 0x0102_0304 }))?;
    let wc = pair.ours()?;
    expect(&wc, WcStatus::Success, WcOpcode::Recv)?;
    expect_theirs(&pair.theirs()?, "SUCCESS", "SEND")?;
    if wc.byte_len as usize != len {
        return Err(format!("byte_len of {wc:?} is not {len}").into());
    }
    same("what was received", &pair.mr.read_vec(0, len)?, &pattern(seed, len))?;
    Ok(wc)
}

fn they_send(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for (seed, len) in (1..).zip(LENGTHS) {
        they_send_as(pair, "SEND", len, seed)?;
    }
    Ok(())
}

fn they_send_imm(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let wc = they_send_as(pair, "SEND_WITH_IMM", 3000, 9)?;
    if wc.extra == WcExtra::Immediate([1, 2, 3, 4]) { Ok(()) } else { Err(format!("{wc:?}").into()) }
}

fn our_place(pair: &Pair<'_>, offset: usize) -> (u64, u32) {
    (pair.mr.addr() + offset as u64, pair.mr.rkey().0)
}

fn they_write(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for (seed, len) in (1..).zip([1, 1023, 1024, 4097, 100_000, MIB]) {
        let (addr, rkey) = our_place(pair, 13);
        pair.they_fill(0, len, seed)?;
        let sge = json!([{ "mr": pair.their_mr, "offset": 0, "length": len }]);
        pair.they_send(&json!({ "opcode": "RDMA_WRITE", "sge": sge, "remote_addr": addr, "rkey": rkey }))?;
        expect_theirs(&pair.theirs()?, "SUCCESS", "RDMA_WRITE")?;
        same("what was written", &pair.mr.read_vec(13, len)?, &pattern(seed, len))?;
    }
    Ok(())
}

fn they_write_imm(pair: &mut Pair<'_>) -> Result<(), Failure> {
    pair.qp.post_recv(&RecvWr { wr_id: 3, sges: &[] })?;
    let (addr, rkey) = our_place(pair, 40);
    pair.they_fill(0, 5000, 4)?;
    let sge = json!([{ "mr": pair.their_mr, "offset": 0, "length": 5000 }]);
    pair.they_send(&json!({
        "opcode": "RDMA_WRITE_WITH_IMM", "sge": sge, "remote_addr": addr, "rkey": rkey, "imm": 0x0908_0706,
    }))?;
    let wc = pair.ours()?;
    expect(&wc, WcStatus::Success, WcOpcode::RecvRdmaWithImm)?;
    expect_theirs(&pair.theirs()?, "SUCCESS", "RDMA_WRITE")?;
    same("what was written", &pair.mr.read_vec(40, 5000)?, &pattern(4, 5000))?;
    if wc.extra == WcExtra::Immediate([9, 8, 7, 6]) { Ok(()) } else { Err(format!("{wc:?}").into()) }
}

fn they_read(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for (seed, len) in (1..).zip([1, 1023, 1024, 4097, 100_000, MIB]) {
        let (addr, rkey) = our_place(pair, 21);
        pair.mr.write_at(21, &pattern(seed, len))?;
        let sge = json!([{ "mr": pair.their_mr, "offset": 5, "length": len }]);
        pair.they_send(&json!({ "opcode": "RDMA_READ", "sge": sge, "remote_addr": addr, "rkey": rkey }))?;
        expect_theirs(&pair.theirs()?, "SUCCESS", "RDMA_READ")?;
        pair.they_check(5, len, seed)?;
    }
    Ok(())
}

fn they_compare_swap(pair: &mut Pair<'_>) -> Result<(), Failure> {
    pair.mr.swap_u64(8, 5)?;
    let (addr, rkey) = our_place(pair, 8);
    for (compare, swap, after) in [(4_u64, 9_u64, 5_u64), (5, 1 << 40, 1 << 40)] {
        let sge = json!([{ "mr": pair.their_mr, "offset": 0, "length": 8 }]);
        pair.they_send(&json!({
            "opcode": "ATOMIC_CMP_AND_SWP", "sge": sge, "remote_addr": addr, "rkey": rkey,
            "compare": compare, "swap": swap,
        }))?;
        expect_theirs(&pair.theirs()?, "SUCCESS", "COMP_SWAP")?;
        let seen = (pair.their_u64(0)?, pair.mr.load_u64(8)?);
        if seen != (5, after) {
            return Err(format!("original and new value {seen:?}, expected {:?}", (5, after)).into());
        }
    }
    Ok(())
}

fn they_fetch_add(pair: &mut Pair<'_>) -> Result<(), Failure> {
    pair.mr.swap_u64(8, 100)?;
    let (addr, rkey) = our_place(pair, 8);
    for round in 0..8 {
        let sge = json!([{ "mr": pair.their_mr, "offset": 0, "length": 8 }]);
        pair.they_send(&json!({
            "opcode": "ATOMIC_FETCH_AND_ADD", "sge": sge, "remote_addr": addr, "rkey": rkey, "add": 3,
        }))?;
        expect_theirs(&pair.theirs()?, "SUCCESS", "FETCH_ADD")?;
        let original = pair.their_u64(0)?;
        if original != 100 + 3 * round {
            return Err(format!("original {original} in round {round}").into());
        }
    }
    if pair.mr.load_u64(8)? == 124 { Ok(()) } else { Err("the sum is wrong".into()) }
}

fn they_meet_rnr(pair: &mut Pair<'_>) -> Result<(), Failure> {
    pair.they_fill(0, 2000, 3)?;
    let sge = json!([{ "mr": pair.their_mr, "offset": 0, "length": 2000 }]);
    pair.they_send(&json!({ "opcode": "SEND", "sge": sge }))?;
    std::thread::sleep(std::time::Duration::from_millis(200));
    pair.qp.post_recv(&RecvWr { wr_id: 3, sges: &[pair.mr.sge(0, 4000)] })?;
    expect(&pair.ours()?, WcStatus::Success, WcOpcode::Recv)?;
    expect_theirs(&pair.theirs()?, "SUCCESS", "SEND")?;
    if pair.qp.stats().rnr_naks_sent == 0 {
        return Err("no RNR NAK was sent".into());
    }
    same("what was received", &pair.mr.read_vec(0, 2000)?, &pattern(3, 2000))
}

fn they_are_refused(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let (addr, rkey) = our_place(pair, 0);
    let sge = json!([{ "mr": pair.their_mr, "offset": 0, "length": 100 }]);
    pair.they_send(
        &json!({ "opcode": "RDMA_WRITE", "sge": sge, "remote_addr": addr, "rkey": rkey ^ 0x5500 }),
    )?;
    expect_theirs(&pair.theirs()?, "REM_ACCESS_ERR", "RDMA_WRITE")
}

fn they_atomic_write(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let (addr, rkey) = our_place(pair, 24);
    let value = 0x0807_0605_0403_0201_u64;
    pair.they_send(&json!({ "opcode": "ATOMIC_WRITE", "remote_addr": addr, "rkey": rkey, "value": value }))?;
    expect_theirs(&pair.theirs()?, "SUCCESS", "ATOMIC_WRITE")?;
    let found = pair.mr.read_vec(24, 8)?;
    same("what was stored", &found, &value.to_le_bytes())
}

fn they_flush(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let (addr, rkey) = our_place(pair, 0);
    pair.they_send(&json!({
        "opcode": "FLUSH", "remote_addr": addr, "rkey": rkey, "length": 4096, "type": 1, "level": 0,
    }))?;
    expect_theirs(&pair.theirs()?, "SUCCESS", "FLUSH")
}
