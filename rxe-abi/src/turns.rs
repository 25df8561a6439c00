//! Pairs of calls between which only one thread may be at a time: ibv_start_poll and ibv_end_poll, ibv_wr_start and ibv_wr_complete.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    turn: Mutex<Turn>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Turn {
    taken: bool,
    /// Threads that wait. If there are none, the end of a turn makes no system call.
    waiting: u32,
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the end of another thread's turn.
    pub(crate) fn begin(&self) {
        let mut turn = self.lock();
        while turn.taken {
            turn.waiting += 1;
            turn = self.ended.wait(turn).unwrap_or_else(PoisonError::into_inner);
            turn.waiting -= 1;
        }
        turn.taken = true;
    }

    pub(crate) fn end(&self) {
        let mut turn = self.lock();
        turn.taken = false;
        if turn.waiting > 0 {
            self.ended.notify_one();
        }
    }
}
