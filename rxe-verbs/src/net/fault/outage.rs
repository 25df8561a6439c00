//! A port that a script takes down for a while. No packet passes. A thread that watches the network learns of it as if the
//! interface had lost its carrier and got it back.

use crate::sys::{alarm::Alarm, lock, poll};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

/// The outage of a port. All links of a stack share one, because they belong to one port.
#[derive(Debug)]
pub(crate) struct Outage {
    until: Mutex<Option<Instant>>,
    /// Becomes readable when the port has gone down, and when it is up again.
    changes: Alarm,
}

impl Outage {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { until: Mutex::default(), changes: Alarm::new(Duration::from_nanos(1))? })
    }

    /// Takes the port down from now on for `time`. An outage that already lasts longer stays.
    pub(crate) fn begin(&self, now: Instant, time: Duration) {
        let mut until = self.until();
        *until = (*until).max(now.checked_add(time));
        self.changes.set_in(Duration::from_nanos(1));
    }

    /// Whether the port is down.
    pub(crate) fn is_on(&self, now: Instant) -> bool {
        self.until().is_some_and(|until| now < until)
    }

    /// Whether the port went down or came up, and [`Self::take_news`] has not reported that yet.
    pub(crate) fn has_news(&self) -> bool {
        poll::wait(&[self.as_fd()], Some(Duration::ZERO)).is_ok_and(|ready| ready != 0)
    }

    /// As [`Self::has_news`], and marks the news as reported.
    pub(crate) fn take_news(&self) -> bool {
        // The lock is held to the end. Else an outage that begins meanwhile would be cleared without a report.
        let until = self.until();
        let news = self.has_news();
        if news {
            self.changes.clear();
            let left = until.and_then(|until| until.checked_duration_since(Instant::now()));
            if let Some(left) = left {
                self.changes.set_in(left.max(Duration::from_nanos(1)));
            }
        }
        news
    }

    fn until(&self) -> MutexGuard<'_, Option<Instant>> {
        lock(&self.until)
    }
}

/// Readable while [`Outage::has_news`]. Only poll this descriptor, do not read it.
impl AsFd for Outage {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(1000);

    #[test]
    fn it_tells_of_its_beginning_and_its_end_once_each() {
        let outage = Outage::new().unwrap();
        assert!(!outage.take_news() && !outage.is_on(Instant::now()));
        let start = Instant::now();
        // So long that its beginning is told before its end comes, however busy the machine is.
        outage.begin(start, Duration::from_secs(2));
        outage.begin(start, Duration::from_secs(1));
        assert!(outage.is_on(start + Duration::from_millis(1500)), "the longer one counts");
        poll::wait(&[outage.as_fd()], Some(LONG)).unwrap();
        assert!(outage.take_news());
        poll::wait(&[outage.as_fd()], Some(LONG)).unwrap();
        assert!(!outage.is_on(Instant::now()), "it is not told of its end before that");
        assert!(outage.take_news() && !outage.take_news());
    }

    /// An outage of `Duration::MAX` does not overflow.
    #[test]
    fn it_may_last_for_ever() {
        let outage = Outage::new().unwrap();
        outage.begin(Instant::now(), Duration::from_secs(60));
        outage.begin(Instant::now(), Duration::MAX);
        assert!(outage.is_on(Instant::now()) && outage.take_news() && !outage.has_news());
    }
}
