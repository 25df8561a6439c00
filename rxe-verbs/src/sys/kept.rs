//! Descriptors that the program may close without our knowledge (`close_range(2)`). A file of the program may then get such a number.
//! [`Kept`] notices that, and never closes the program's file.

use super::fork::Tracked;
use core::{
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
};
use std::os::fd::{AsFd, BorrowedFd};

/// An owner of a descriptor, which it closes only if the number still belongs to the same file. In a forked child the descriptor is
/// replaced ([`super::fork`]).
#[derive(Debug)]
pub(crate) struct Kept<T: AsFd> {
    tracked: Tracked,
    item: ManuallyDrop<T>,
}

impl<T: AsFd> Kept<T> {
    pub(crate) fn new(item: T) -> Self {
        Self { tracked: Tracked::new(item.as_fd()), item: ManuallyDrop::new(item) }
    }

    /// Whether the number still belongs to the same file.
    pub(crate) fn is_intact(&self) -> bool {
        self.tracked.is_intact()
    }
}

impl<T: AsFd> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.item
    }
}

impl<T: AsFd> DerefMut for Kept<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.item
    }
}

impl<T: AsFd> AsFd for Kept<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.item.as_fd()
    }
}

impl<T: AsFd> Drop for Kept<T> {
    fn drop(&mut self) {
        let own = self.tracked.is_intact();
        // Before the descriptor is closed: otherwise a forked child might replace the file that gets the number next.
        self.tracked.release();
        if own {
            // SAFETY: dropped nowhere else, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.item) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::dup2_raw;
    use std::{
        fs::File,
        io::{Read, Write, pipe},
        os::fd::AsRawFd,
    };

    #[test]
    fn only_what_is_still_ours_is_closed() {
        let (mut from, into) = pipe().unwrap();
        let kept = Kept::new(into);
        assert!(kept.is_intact());
        drop(kept);
        assert_eq!(from.read(&mut [0]).unwrap(), 0, "nobody can write any more");

        let (_from, into) = pipe().unwrap();
        let (mut other_from, other_into) = pipe().unwrap();
        let kept = Kept::new(into);
        let number = kept.as_raw_fd();
        // SAFETY: puts a file of "the program's" in the place of the kept one, which is what is tested.
        let stranger = unsafe { dup2_raw(&other_into, number) }.unwrap();
        drop(other_into);
        assert!(!kept.is_intact());
        drop(kept);
        let mut stranger = File::from(stranger);
        stranger.write_all(b"x").unwrap();
        assert_eq!(other_from.read(&mut [0; 2]).unwrap(), 1);
    }
}
