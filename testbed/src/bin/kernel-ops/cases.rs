//! The cases: one operation each, in one direction.

use crate::{
    bench::{AT_LAST, HASTY, NEW, RC, Setup, UC, UD, UNREADY},
    kernel, ours,
    pair::Pair,
    refusals, srq, uc, ud, windows,
};
use rxe_verbs::QpStats;
use testbed::agent::Failure;

/// What a case does.
pub(crate) type Run = fn(&mut Pair<'_>) -> Result<(), Failure>;

/// Whose requests a case is about.
#[derive(Clone, Copy)]
pub(crate) enum Role {
    Ours,
    Kernels,
}

impl Role {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Kernels => "kernel",
        }
    }
}

/// One case in both roles.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) setup: Setup,
    /// We post the requests.
    pub(crate) ours: Run,
    /// The kernel posts them.
    pub(crate) kernel: Run,
}

/// A case of this name, setup and what happens in each role.
pub(crate) const fn case(name: &'static str, setup: Setup, ours: Run, kernel: Run) -> Case {
    Case { name, setup, ours, kernel }
}

/// How a run went.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
    /// What faults our queue pairs saw, all together.
    pub(crate) stats: QpStats,
}

/// Each operation on its own.
pub(crate) const ALL: &[Case] = &[
    case("RC SEND, 0 to 100000 B", RC, ours::send, kernel::send),
    case("RC SEND with immediate", RC, ours::send_imm, kernel::send_imm),
    case("RC WRITE, 0 B to 1 MiB", RC, ours::write, kernel::write),
    case("RC WRITE with immediate", RC, ours::write_imm, kernel::write_imm),
    case("RC READ, 0 B to 1 MiB", RC, ours::read, kernel::read),
    case("RC compare and swap", RC, ours::compare_swap, kernel::compare_swap),
    case("RC fetch and add", RC, ours::fetch_add, kernel::fetch_add),
    case("RC ATOMIC WRITE", NEW, ours::atomic_write, kernel::atomic_write),
    case("RC FLUSH", NEW, ours::flush, kernel::flush),
    case("RC SEND, receive posted late", RC, ours::late_receive, kernel::late_receive),
    case(
        "RC SEND to an SRQ, limit event",
        Setup { our_srq: true, their_srq: true, ..RC },
        srq::ours,
        srq::kernel,
    ),
    case("RC type 1 window, used, then past its end", RC, windows::one::ours, windows::one::kernel),
    case(
        "RC type 1 window, unbound, then used",
        RC,
        windows::one::ours_unbound,
        windows::one::kernel_unbound,
    ),
    case(
        "RC type 2 window, used, SEND with invalidate, then used",
        RC,
        windows::two::ours,
        windows::two::kernel,
    ),
    case(
        "RC type 2 window, local invalidate, then used",
        RC,
        windows::two::ours_local,
        windows::two::kernel_local,
    ),
    case("RC WRITE, wrong key", RC, refusals::ours::write_key, refusals::kernel::write_key),
    case("RC READ, wrong key", RC, refusals::ours::read_key, refusals::kernel::read_key),
    case("RC WRITE past the end", RC, refusals::ours::write_end, refusals::kernel::write_end),
    case("RC READ past the end", RC, refusals::ours::read_end, refusals::kernel::read_end),
    case("RC WRITE without the right", RC, refusals::ours::write_right, refusals::kernel::write_right),
    case("RC READ without the right", RC, refusals::ours::read_right, refusals::kernel::read_right),
    case("RC atomic without the right", RC, refusals::ours::atomic_right, refusals::kernel::atomic_right),
    case("RC atomic, misaligned", RC, refusals::ours::misaligned, refusals::kernel::misaligned),
    case("RC SEND longer than the receive", RC, refusals::ours::too_long, refusals::kernel::too_long),
    case(
        "RC SEND, no receive, RNR retries used up",
        UNREADY,
        refusals::ours::no_receive,
        refusals::kernel::no_receive,
    ),
    case("RC WRITE, peer gone, retries used up", HASTY, refusals::ours::gone, refusals::kernel::gone),
    case("RC SEND, wrong L_Key", RC, refusals::ours::local_key, refusals::kernel::local_key),
    case(
        "RC SEND with invalidate, wrong key",
        AT_LAST,
        refusals::ours::invalidate_key,
        refusals::kernel::invalidate_key,
    ),
    case("UC SEND, 0 to 20000 B", UC, uc::we_send, uc::they_send),
    case("UC SEND with immediate", UC, uc::we_send_imm, uc::they_send_imm),
    case("UC WRITE, 0 to 20000 B", UC, uc::we_write, uc::they_write),
    case("UC WRITE with immediate", UC, uc::we_write_imm, uc::they_write_imm),
    case("UD SEND, 0 B to the MTU", UD, ud::we_send, ud::they_send),
    case("UD SEND with immediate, 0 B to the MTU", UD, ud::we_send_imm, ud::they_send_imm),
];
