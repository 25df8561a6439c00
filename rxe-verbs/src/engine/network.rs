//! Following the host's network: interfaces and addresses come, change and go while contexts are open.

use crate::{
    net::interfaces::{Interface, Watch, interfaces},
    sys::{
        poll::{self, AnyReadable},
        process::{is_background, network_namespace},
    },
};
use core::time::Duration;
use std::{
    os::fd::{AsFd, BorrowedFd},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

/// Someone who wants to know.
pub(crate) trait Follower: Send + Sync + core::fmt::Debug {
    /// The interfaces are these now.
    fn network_changed(&self, interfaces: &[Interface]);
}

/// The network as one stack sees it.
#[derive(Debug)]
pub(crate) struct Network {
    /// None where the system does not tell (some sandboxes).
    watch: Option<Watch>,
    /// Readable when something was announced; of nothing where nothing is.
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
    pub(crate) fn new() -> std::io::Result<Self> {
        let watch = Watch::new().ok();
        let fds: Vec<BorrowedFd<'_>> = watch.iter().map(AsFd::as_fd).collect();
        let readable = AnyReadable::new(&fds)?;
        Ok(Self { watch, readable, namespace: network_namespace(), told: Mutex::default() })
    }

    pub(crate) fn follow(&self, follower: &Arc<impl Follower + 'static>) {
        let weak = Arc::downgrade(follower);
        let mut told = self.told();
        told.followers.push(weak);
        // What it knows may be from before we listened.
        told.stale = true;
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
        told.stale || self.watch.as_ref().is_some_and(announced)
    }

    /// The same, in any thread.
    pub(crate) fn look_closely(&self) -> bool {
        if network_namespace() != self.namespace {
            return false;
        }
        // Kept to the end: whoever asks while we look waits for the answer.
        let mut told = self.told();
        told.stale |= self.watch.as_ref().is_some_and(Watch::changed);
        if told.stale
            && let Ok(list) = interfaces()
        {
            told.stale = false;
            told.followers.retain(|follower| follower.strong_count() > 0);
            for follower in told.followers.iter().filter_map(Weak::upgrade) {
                follower.network_changed(&list);
            }
        }
        true
    }

    /// Ends what makes it readable; the next look is to tell the followers.
    pub(crate) fn put_off(&self) {
        let mut told = self.told();
        told.stale |= self.watch.as_ref().is_some_and(Watch::changed);
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Network {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}
