//! select(2) and pselect(2), by poll.

use crate::{
    calls::{errno, real, set_errno},
    table,
    time::{milliseconds, now},
    wait::{wait_masked, with_room},
};
use core::{
    ffi::{c_int, c_long},
    ptr, slice,
};
use libc::{pollfd, sigset_t, timespec, timeval};

type Set = *mut libc::fd_set;

/// The events of the three sets, and those by which a descriptor gets into them.
const ASKED: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
const MEANS: [i16; 3] =
    [libc::POLLIN | libc::POLLHUP | libc::POLLERR, libc::POLLOUT | libc::POLLERR, libc::POLLPRI];

/// The sets of a call. They have words for so many descriptors as the program says, which may be fewer than in an `fd_set`.
struct Sets<'a> {
    count: usize,
    words: [Option<&'a mut [u64]>; 3],
}

impl Sets<'_> {
    /// `None` if none of the descriptors is an rsocket. Programs that say a number beyond that of an `fd_set` often have one all the same
    /// (`select(getdtablesize(), …)`), and the system, too, looks at no more than the highest open descriptor. So of these
    /// sets only descriptors up to the highest rsocket are known to be there.
    ///
    /// # Safety
    /// The sets are the program's, for `count` descriptors, or null, which is an empty set.
    unsafe fn of(count: c_int, sets: [Set; 3]) -> Option<Self> {
        let count = usize::try_from(count).ok()?;
        let highest = table::highest();
        let count = count.min(highest.max(libc::FD_SETSIZE));
        let words = sets.map(|set| {
            // SAFETY: the caller's promise.
            (!set.is_null()).then(|| unsafe { slice::from_raw_parts_mut(set.cast(), count.div_ceil(64)) })
        });
        let sets = Self { count, words };
        (0..count.min(highest))
            .any(|fd| sets.events(fd) != 0 && table::rsocket(fd as c_int).is_some())
            .then_some(sets)
    }

    /// What the program wants to know of a descriptor.
    fn events(&self, fd: usize) -> i16 {
        let is_in = |words: &&mut [u64]| words[fd / 64] >> (fd % 64) & 1 != 0;
        let asked = self.words.iter().zip(ASKED);
        asked.filter(|(words, _)| words.as_ref().is_some_and(is_in)).fold(0, |all, (_, one)| all | one)
    }

    fn watched(&self) -> impl Iterator<Item = pollfd> {
        let all = (0..self.count).map(|fd| pollfd { fd: fd as c_int, events: self.events(fd), revents: 0 });
        all.filter(|one| one.events != 0)
    }

    /// Replaces the sets by what was found. Returns how many there are in them.
    fn answer(&mut self, fds: &[pollfd]) -> c_int {
        self.words.iter_mut().flatten().for_each(|words| words.fill(0));
        let mut found = 0;
        for fd in fds {
            for ((words, asked), means) in self.words.iter_mut().zip(ASKED).zip(MEANS) {
                if let (Some(words), true) = (words, fd.events & asked != 0 && fd.revents & means != 0) {
                    words[fd.fd as usize / 64] |= 1 << (fd.fd % 64);
                    found += 1;
                }
            }
        }
        found
    }

    /// Waits by `wait`, which is given what to wait for.
    fn wait(&mut self, wait: impl FnOnce(&mut [pollfd]) -> c_int) -> c_int {
        let count = self.watched().count();
        // SAFETY: the memory is used in there only.
        let done = unsafe {
            with_room(count, |room| {
                for (place, fd) in room.iter_mut().zip(self.watched()) {
                    place.write(fd);
                }
                let fds = slice::from_raw_parts_mut(room.as_mut_ptr().cast::<pollfd>(), count);
                let done = wait(fds);
                if done < 0 {
                    return done;
                }
                if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
                    set_errno(libc::EBADF);
                    return -1;
                }
                self.answer(fds)
            })
        };
        done.unwrap_or_else(|| {
            set_errno(libc::ENOMEM);
            -1
        })
    }
}

/// select(2). In sets for more descriptors than an `fd_set` has, beside rsockets, others beyond the highest rsocket are not seen.
#[unsafe(no_mangle)]
unsafe extern "C" fn select(count: c_int, read: Set, write: Set, except: Set, time: *mut timeval) -> c_int {
    // SAFETY: sets of the program's.
    let Some(mut sets) = (unsafe { Sets::of(count, [read, write, except]) }) else {
        type Time = *mut timeval;
        return real!(c"select" as fn(c_int, Set, Set, Set, Time) -> c_int, count, read, write, except, time);
    };
    // SAFETY: a time or null.
    let time = unsafe { time.as_mut() };
    let begin = now();
    let given = time.as_ref().map(|time| (time.tv_sec, time.tv_usec.saturating_mul(1000)));
    // SAFETY: no mask.
    let done = sets.wait(|fds| unsafe { wait_masked(fds, milliseconds(given), ptr::null()) });
    if let Some(time) = time {
        let before = errno();
        (time.tv_sec, time.tv_usec) = left(time, begin);
        set_errno(before);
    }
    done
}

/// What is left of a time that has begun then. Linux tells programs, and some go on with it.
fn left(time: &timeval, begin: i64) -> (c_long, c_long) {
    let given = time.tv_sec.saturating_mul(1_000_000).saturating_add(time.tv_usec);
    let left = given.saturating_sub(now() - begin).max(0);
    (left / 1_000_000, left % 1_000_000)
}

/// pselect(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn pselect(
    count: c_int,
    read: Set,
    write: Set,
    except: Set,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // This comes before anything is done to the mask: the system's call changes it and waits in one step.
    // SAFETY: sets of the program's.
    let Some(mut sets) = (unsafe { Sets::of(count, [read, write, except]) }) else {
        type Time = *const timespec;
        type Mask = *const sigset_t;
        return real!(
            c"pselect" as fn(c_int, Set, Set, Set, Time, Mask) -> c_int,
            count,
            read,
            write,
            except,
            time,
            mask
        );
    };
    // SAFETY: a time or null.
    let given = unsafe { time.as_ref() }.map(|time| (time.tv_sec, time.tv_nsec));
    // SAFETY: a mask of the program's, or null.
    sets.wait(|fds| unsafe { wait_masked(fds, milliseconds(given), mask) })
}
