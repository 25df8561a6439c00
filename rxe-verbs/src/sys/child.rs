//! Forked children of unit tests.

use nix::{
    sys::wait::{WaitStatus, waitpid},
    unistd::{ForkResult, alarm, fork},
};

/// Seconds after which a child that hangs is ended.
const LONGEST: u32 = 60;

/// Runs `work` in a forked child, and checks that it returns true. The child has no other thread, and does not return into the test
/// harness. `work` takes no lock that another thread may have held at the fork.
pub(crate) fn in_child(work: impl FnOnce() -> bool) {
    // SAFETY: the child may allocate (glibc sees to that), takes no lock of another thread, and does not return.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            alarm::set(LONGEST);
            let good = work();
            // SAFETY: ends the process without the harness's handlers.
            unsafe { libc::_exit(i32::from(!good)) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
}
