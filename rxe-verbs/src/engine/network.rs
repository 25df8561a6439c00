//! Following the host's network: interfaces and addresses come, change and go while contexts are open.

use crate::{
    net::{
        fault::Outage,
        interfaces::{Interface, Watch, interfaces},
    },
    sys::{
        alarm::Alarm,
        lock,
        poll::{self, AnyReadable},
        process::{is_background, network_namespace},
        socket::Event,
    },
};
use core::time::Duration;
use std::{
    os::fd::{AsFd, BorrowedFd},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Instant,
};

/// If the interfaces cannot be listed, for instance because no descriptor is left, they are listed again after this time.
const AGAIN: Duration = Duration::from_millis(100);

/// Someone who wants to know.
pub(crate) trait Follower: Send + Sync + core::fmt::Debug {
    /// The interfaces are these now.
    fn network_changed(&self, interfaces: &[Interface]);

    /// All followers have been told.
    fn all_told(&self) {}
}

/// Tells that contexts have been told of a change of the network. It holds nothing of the stack, whose own thread tells it.
#[derive(Debug)]
pub struct NetworkWatch(Arc<Notice>);

#[derive(Debug)]
struct Notice {
    /// Whether something has changed, and `readable` is raised for it. Both change under the lock: otherwise a call that takes one change
    /// could clear what was just raised for the next.
    pending: Mutex<bool>,
    readable: Event,
}

impl NetworkWatch {
    /// Whether anything has changed since the last call.
    #[must_use]
    pub fn take(&self) -> bool {
        let mut pending = lock(&self.0.pending);
        if *pending {
            self.0.readable.clear();
        }
        core::mem::take(&mut *pending)
    }
}

/// Readable when something has changed; only to be polled.
impl AsFd for NetworkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.readable.as_fd()
    }
}

impl Follower for Notice {
    fn network_changed(&self, _: &[Interface]) {}

    fn all_told(&self) {
        let mut pending = lock(&self.pending);
        *pending = true;
        self.readable.raise();
    }
}

/// The network as one stack sees it.
#[derive(Debug)]
pub(crate) struct Network {
    /// None where the system does not tell (some sandboxes).
    watch: Option<Watch>,
    /// While it lasts no interface has a carrier.
    outage: Option<Arc<Outage>>,
    /// Set when the interfaces could not be listed.
    again: Alarm,
    /// Readable when something was announced, or is to be looked at again.
    readable: AnyReadable,
    /// The network namespace it is about: a thread may live in another one.
    namespace: Option<PathBuf>,
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    followers: Vec<Weak<dyn Follower>>,
    /// Something was announced that they have not been told of.
    stale: bool,
}

impl Network {
    pub(crate) fn new(outage: Option<Arc<Outage>>) -> std::io::Result<Self> {
        let watch = Watch::new().ok();
        let again = Alarm::new(AGAIN)?;
        let others = outage.iter().map(AsFd::as_fd).chain([again.as_fd()]);
        let fds: Vec<BorrowedFd<'_>> = watch.iter().map(AsFd::as_fd).chain(others).collect();
        let readable = AnyReadable::new(&fds)?;
        Ok(Self { watch, outage, again, readable, namespace: network_namespace(), told: Mutex::default() })
    }

    pub(crate) fn follow(&self, follower: &Arc<impl Follower + 'static>) {
        let weak = Arc::downgrade(follower);
        let mut told = self.told();
        told.followers.retain(|follower| follower.strong_count() > 0);
        told.followers.push(weak);
        // What it knows may be from before we listened.
        told.stale = true;
    }

    /// Tells of changes by a descriptor.
    pub(crate) fn watch(&self) -> std::io::Result<NetworkWatch> {
        let notice = Arc::new(Notice { pending: Mutex::default(), readable: Event::new()? });
        self.follow(&notice);
        Ok(NetworkWatch(notice))
    }

    /// Tells the followers if anything was announced since the last time. False, and nothing is done, in a thread that
    /// lives in another namespace: it would see other interfaces.
    pub(crate) fn look(&self) -> bool {
        // The thread that is woken by announcements looks for them.
        if is_background() {
            return true;
        }
        // Programs ask all the time, and which namespace this is takes much longer to find out than whether there is news.
        !self.has_news() || self.look_closely()
    }

    /// Something was announced that the followers have not been told of.
    fn has_news(&self) -> bool {
        let announced =
            |watch: &Watch| poll::wait(&[watch.as_fd()], Some(Duration::ZERO)).is_ok_and(|ready| ready != 0);
        // Held meanwhile: who tells of news has taken it from the descriptor.
        let told = self.told();
        told.stale
            || self.watch.as_ref().is_some_and(announced)
            || self.outage.as_ref().is_some_and(|outage| outage.has_news())
    }

    /// The same, in any thread.
    pub(crate) fn look_closely(&self) -> bool {
        if network_namespace() != self.namespace {
            return false;
        }
        // Kept to the end: whoever asks while we look waits for the answer.
        let mut told = self.told();
        self.note_news(&mut told);
        if told.stale {
            let Ok(mut list) = interfaces() else {
                self.again.set();
                return true;
            };
            told.stale = false;
            let is_down = self.outage.as_ref().is_some_and(|outage| outage.is_on(Instant::now()));
            list.iter_mut().for_each(|interface| interface.running &= !is_down);
            let followers: Vec<_> = told.followers.iter().filter_map(Weak::upgrade).collect();
            followers.iter().for_each(|follower| follower.network_changed(&list));
            followers.iter().for_each(|follower| follower.all_told());
        }
        true
    }

    /// Ends what makes it readable; the next look is to tell the followers.
    pub(crate) fn put_off(&self) {
        self.note_news(&mut self.told());
    }

    /// Takes what was announced from the descriptors.
    fn note_news(&self, told: &mut Told) {
        self.again.clear();
        told.stale |= self.watch.as_ref().is_some_and(Watch::changed);
        told.stale |= self.outage.as_ref().is_some_and(|outage| outage.take_news());
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        lock(&self.told)
    }
}

impl AsFd for Network {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::child::in_child;
    use core::sync::atomic::{AtomicU32, Ordering};
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    use std::thread;

    /// The system announces a change once. No descriptor is left then, and some are a little later.
    #[test]
    fn a_change_is_told_when_descriptors_are_left_again() {
        in_child(|| {
            let network = Network::new(None).unwrap();
            let watch = network.watch().unwrap();
            let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
            setrlimit(Resource::RLIMIT_NOFILE, 3, hard).unwrap();
            let too_early = network.look_closely() && watch.take();
            setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
            let again = poll::wait(&[network.as_fd()], Some(Duration::from_secs(20))).unwrap() != 0;
            !too_early && again && network.look_closely() && watch.take()
        });
    }

    /// Two threads come here as often, and go on at the same moment.
    fn meet(arrived: &AtomicU32, round: u32) {
        arrived.fetch_add(1, Ordering::SeqCst);
        while arrived.load(Ordering::SeqCst) < 2 * round {
            thread::yield_now();
        }
    }

    /// A change is told at the moment at which the one before is taken.
    #[test]
    fn no_change_is_lost_while_another_one_is_taken() {
        const ROUNDS: u32 = 50_000;
        let network = Network::new(None).unwrap();
        let watch = network.watch().unwrap();
        let (notice, begin, end) = (&*watch.0, AtomicU32::new(0), AtomicU32::new(0));
        let told = || poll::wait(&[watch.as_fd()], Some(Duration::ZERO)).unwrap() != 0;
        let lost = thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    meet(&begin, round);
                    notice.all_told();
                    meet(&end, round);
                }
            });
            let rounds = (1..=ROUNDS).filter(|round| {
                notice.all_told();
                meet(&begin, *round);
                let _ = watch.take();
                meet(&end, *round);
                let told = told();
                watch.take() != told
            });
            rounds.count()
        });
        assert_eq!(lost, 0, "changes that are noted and not told");
    }
}
