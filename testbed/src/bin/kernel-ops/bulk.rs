//! Much data at once: 1 MiB messages, and messages in a row, that meet a small receive buffer (`RXE_RCVBUF=default`).

use crate::{
    bench::RC,
    cases::{Case, case},
    ours::MIB,
    pair::{Pair, same},
};
use rxe_verbs::{SendOp, WcOpcode};
use testbed::{agent::Failure, pattern::pattern};

const MESSAGES: u64 = 20;
/// WRITEs in a row, which leave in parts, and their bytes: the last packet of each is a short one.
const ROW: u64 = 14;
const LEN: usize = 70_000;
/// READs in a row are asked for in parts if they are no longer than 16 packets, here of 1024 bytes.
const READ_LEN: usize = 15_000;

pub(crate) const ALL: &[Case] = &[
    case("RC READ, 20 x 1 MiB", RC, we_read, they_read),
    case("RC WRITE, 20 x 1 MiB", RC, we_write, they_write),
    case("RC WRITE, 14 x 70000 B in a row", RC, we_write_a_row, they_write_a_row),
    case("RC READ, 14 x 15000 B in a row", RC, we_read_a_row, they_read_a_row),
];

fn told(pair: &mut Pair<'_>) -> Result<(), Failure> {
    let stats = pair.qp.stats();
    let drops = pair.context.link_report().receive_drops;
    pair.note(format!(
        "we sent {} packets again and took {}, {} timeouts, {} PSN NAKs sent, {drops} dropped at our socket so far",
        stats.retransmitted, stats.packets_received, stats.timeouts, stats.psn_naks_sent
    ));
    pair.nothing_more()
}

/// A different offset each time, so that what an earlier message left is no answer.
const fn place(seed: u64) -> usize {
    (seed as usize) * 37
}

fn we_read(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for seed in 1..=MESSAGES {
        pair.they_fill(place(seed), MIB, seed)?;
        pair.post(SendOp::Read(pair.there(place(seed))), 7, MIB)?;
        pair.we_did(WcOpcode::Read)?;
        same("what was read", &pair.mr.read_vec(7, MIB)?, &pattern(seed, MIB))?;
    }
    told(pair)
}

fn we_write(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for seed in 1..=MESSAGES {
        pair.mr.write_at(0, &pattern(seed, MIB))?;
        pair.post(SendOp::Write(pair.there(place(seed))), 0, MIB)?;
        pair.we_did(WcOpcode::Write)?;
        pair.they_check(place(seed), MIB, seed)?;
    }
    told(pair)
}

fn they_read(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for seed in 1..=MESSAGES {
        pair.mr.write_at(place(seed), &pattern(seed, MIB))?;
        let wr = pair.their_wr("RDMA_READ", 5, MIB, pair.here(place(seed)));
        pair.they_post(&[wr])?;
        pair.they_did("RDMA_READ")?;
        pair.they_check(5, MIB, seed)?;
    }
    told(pair)
}

fn they_write(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for seed in 1..=MESSAGES {
        pair.they_fill(0, MIB, seed)?;
        let wr = pair.their_wr("RDMA_WRITE", 0, MIB, pair.here(place(seed)));
        pair.they_post(&[wr])?;
        pair.they_did("RDMA_WRITE")?;
        same("what was written", &pair.mr.read_vec(place(seed), MIB)?, &pattern(seed, MIB))?;
    }
    told(pair)
}

/// Where a message of a row is, and goes.
const fn in_row(seed: u64) -> usize {
    (seed as usize - 1) * LEN
}

fn we_write_a_row(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for seed in 1..=ROW {
        pair.mr.write_at(in_row(seed), &pattern(seed, LEN))?;
    }
    for seed in 1..=ROW {
        pair.post(SendOp::Write(pair.there(in_row(seed))), in_row(seed), LEN)?;
    }
    for _ in 1..=ROW {
        pair.we_did(WcOpcode::Write)?;
    }
    for seed in 1..=ROW {
        pair.they_check(in_row(seed), LEN, seed)?;
    }
    told(pair)
}

pub(crate) fn we_read_a_row(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for seed in 1..=ROW {
        pair.they_fill(in_row(seed), READ_LEN, seed)?;
    }
    for seed in 1..=ROW {
        pair.post(SendOp::Read(pair.there(in_row(seed))), in_row(seed), READ_LEN)?;
    }
    for _ in 1..=ROW {
        pair.we_did(WcOpcode::Read)?;
    }
    for seed in 1..=ROW {
        same("what was read", &pair.mr.read_vec(in_row(seed), READ_LEN)?, &pattern(seed, READ_LEN))?;
    }
    told(pair)
}

pub(crate) fn they_read_a_row(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for seed in 1..=ROW {
        pair.mr.write_at(in_row(seed), &pattern(seed, READ_LEN))?;
    }
    let row =
        (1..=ROW).map(|seed| pair.their_wr("RDMA_READ", in_row(seed), READ_LEN, pair.here(in_row(seed))));
    let row: Vec<_> = row.collect();
    pair.they_post(&row)?;
    for _ in 1..=ROW {
        pair.they_did("RDMA_READ")?;
    }
    for seed in 1..=ROW {
        pair.they_check(in_row(seed), READ_LEN, seed)?;
    }
    told(pair)
}

fn they_write_a_row(pair: &mut Pair<'_>) -> Result<(), Failure> {
    for seed in 1..=ROW {
        pair.they_fill(in_row(seed), LEN, seed)?;
    }
    let row = (1..=ROW).map(|seed| pair.their_wr("RDMA_WRITE", in_row(seed), LEN, pair.here(in_row(seed))));
    let row: Vec<_> = row.collect();
    pair.they_post(&row)?;
    for _ in 1..=ROW {
        pair.they_did("RDMA_WRITE")?;
    }
    for seed in 1..=ROW {
        same("what was written", &pair.mr.read_vec(in_row(seed), LEN)?, &pattern(seed, LEN))?;
    }
    told(pair)
}
