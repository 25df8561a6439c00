//! Calls that must not be made by two threads at once.

use crate::{
    error::SocketError,
    link::Until,
    waiters::{Entered, Waiters},
};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// One thread at a time has its turn. As with a call of the system, a signal interrupts a thread that waits for it.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    taken: AtomicBool,
    /// Threads that wait, so that the end of a turn costs nothing if there are none.
    waiting: AtomicUsize,
    waiters: Waiters,
}

impl Turn {
    /// Waits for the turn.
    ///
    /// # Errors
    /// [`SocketError::WouldBlock`] after `until`; [`SocketError::Interrupted`].
    pub(crate) fn take(&self, until: Until) -> Result<Taken<'_>, SocketError> {
        if let Some(taken) = self.try_take() {
            return Ok(taken);
        }
        if until == Until::Now {
            return Err(SocketError::WouldBlock);
        }
        // Sequentially consistent, as the turn itself: either its end is seen here, or this thread is seen there.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let taken = self.wait(until);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        taken
    }

    fn try_take(&self) -> Option<Taken<'_>> {
        (!self.taken.swap(true, Ordering::SeqCst)).then(|| Taken(self))
    }

    fn wait(&self, until: Until) -> Result<Taken<'_>, SocketError> {
        let entered = Entered::new(&self.waiters);
        loop {
            if let Some(taken) = self.try_take() {
                return Ok(taken);
            }
            if until.is_over() {
                return Err(SocketError::WouldBlock);
            }
            entered.waiter.sleep(until)?;
        }
    }
}

/// A thread's turn, until this is dropped.
#[derive(Debug)]
pub(crate) struct Taken<'a>(&'a Turn);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::SeqCst);
        if self.0.waiting.load(Ordering::SeqCst) > 0 {
            self.0.waiters.wake(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        thread,
        time::{Duration, Instant},
    };

    #[test]
    fn one_at_a_time_and_each_has_its_turn() {
        let (turn, inside) = (Turn::default(), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let _turn = turn.take(Until::Ever).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::Relaxed);
                    }
                });
            }
        });
        let _turn = turn.take(Until::Now).unwrap();
        let soon = Until::Then(Instant::now() + Duration::from_millis(20));
        for until in [Until::Now, soon] {
            assert!(matches!(turn.take(until), Err(SocketError::WouldBlock)));
        }
    }
}
