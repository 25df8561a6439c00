//! A timer that wakes another thread (`timerfd_create(2)`).

use super::unix::out_of_the_way;
use core::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use nix::sys::{
    time::TimeSpec,
    timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

/// A descriptor that becomes readable some time after the alarm was set. By it a thread makes another thread check something a
/// little later, without waking it now. While the alarm is set, further calls of [`Self::set`] cost no system call.
#[derive(Debug)]
pub(crate) struct Alarm {
    timer: TimerFd,
    after: Duration,
    set: AtomicBool,
}

impl Alarm {
    /// An alarm that rings this long after [`Self::set`].
    pub(crate) fn new(after: Duration) -> io::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = out_of_the_way(TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?.into());
        // SAFETY: it is a copy of a timer's descriptor.
        let timer = unsafe { TimerFd::from_owned_fd(timer) };
        Ok(Self { timer, after, set: AtomicBool::new(false) })
    }

    /// Sets it, unless it is set. False if the system refused.
    pub(crate) fn set(&self) -> bool {
        if self.set.swap(true, Ordering::SeqCst) {
            return true;
        }
        let once = Expiration::OneShot(TimeSpec::from_duration(self.after));
        let is_set = self.timer.set(once, TimerSetTimeFlags::empty()).is_ok();
        if !is_set {
            self.set.store(false, Ordering::SeqCst);
        }
        is_set
    }

    /// Sets it to ring in `time` from now, even if it is set already. `time` must not be 0, which would turn the timer off.
    pub(crate) fn set_in(&self, time: Duration) {
        self.set.store(true, Ordering::SeqCst);
        let once = Expiration::OneShot(TimeSpec::from_duration(time));
        if self.timer.set(once, TimerSetTimeFlags::empty()).is_err() {
            self.set.store(false, Ordering::SeqCst);
        }
    }

    /// Clears it. The thread that it woke calls this before it checks anything: a `set` from now on wakes the thread again.
    pub(crate) fn clear(&self) {
        // The timer is read first. In the other order a thread could set the alarm between the two steps, and the read would take
        // its ring away: `set` would stay true, and the alarm would never ring again. In this order a thread may find the alarm set
        // between the two steps, and not start the timer. What that thread did before is visible after this swap.
        let _ = self.timer.wait();
        self.set.swap(false, Ordering::SeqCst);
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::poll;

    #[test]
    fn it_rings_once_for_all_who_set_it() {
        let alarm = Alarm::new(Duration::from_millis(1)).unwrap();
        for _ in 0..2 {
            assert_eq!(poll::wait(&[alarm.as_fd()], Some(Duration::from_millis(5))).unwrap(), 0, "not set");
            assert!(alarm.set() && alarm.set());
            assert_eq!(poll::wait(&[alarm.as_fd()], Some(Duration::from_secs(20))).unwrap(), 1);
            alarm.clear();
        }
    }

    /// The alarm is set again while it is cleared, and still rings afterwards. The wrong order in `clear` also passes, unless the
    /// thread that clears loses its processor between the two steps.
    #[test]
    fn no_ring_is_the_last() {
        let alarm = Alarm::new(Duration::from_nanos(1)).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    alarm.set();
                }
            });
            for _ in 0..50_000 {
                let rings = poll::wait(&[alarm.as_fd()], Some(Duration::from_secs(20))).unwrap();
                if rings == 0 {
                    stop.store(true, Ordering::SeqCst);
                    panic!("it is set all the time, and silent");
                }
                alarm.clear();
            }
            stop.store(true, Ordering::SeqCst);
        });
    }
}
