//! The names by which a service is found. The services of all users have the same abstract socket name, because they share one port.
//! The first process to take the name has it, even a hostile one that is no service. So there is a second
//! name: a file in a folder that only the user can write to. It is used if another user's process has the first.

use crate::{
    sys::{process::network_namespace, unix::Channel},
    trust::is_protected,
};
use nix::unistd::{AccessFlags, eaccess, geteuid};
use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

/// The abstract name.
pub(crate) const NAME: &str = "rxe/4791";

/// The file of this user's service of this network namespace. `None` if no folder belongs to the user alone. It is the same for all
/// processes of the user, whatever their environment says.
pub(crate) fn file() -> Option<PathBuf> {
    let namespace = network_namespace()?;
    let number: String = namespace.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    own_folder().map(|folder| folder.join(format!("rxe-4791-{number}")))
}

/// A folder that only this user can enter, the same for all of its processes. Others must not even read there: whoever can open a file
/// can lock it (flock(2)), and our processes would wait for that lock.
pub(crate) fn own_folder() -> Option<PathBuf> {
    let uid = geteuid().as_raw();
    // The session manager makes this one.
    let given = PathBuf::from(format!("/run/user/{uid}"));
    let system = (uid == 0).then(|| PathBuf::from("/run/rxe"));
    let own = Path::new("/tmp").join(format!("rxe-{uid}"));
    let is_ours = |folder: &PathBuf| {
        let is_closed = |about: fs::Metadata| about.is_dir() && about.mode() & 0o077 == 0;
        // In a container the file system may be read-only.
        let is_writable = eaccess(folder, AccessFlags::W_OK).is_ok();
        fs::symlink_metadata(folder).is_ok_and(is_closed)
            && is_protected(folder).unwrap_or(false)
            && is_writable
    };
    if is_ours(&given) {
        return Some(given);
    }
    system.into_iter().chain([own]).find(|folder| {
        let _ = fs::DirBuilder::new().mode(0o700).create(folder);
        is_ours(folder)
    })
}

/// See `file`.
#[must_use]
pub fn service_file() -> Option<PathBuf> {
    file()
}

/// Connects to a service by its file. `None` if there is none.
///
/// # Errors
/// `WouldBlock` if too many connections wait already.
pub(crate) fn connect_by_file() -> io::Result<Option<Channel>> {
    let Some(path) = file() else { return Ok(None) };
    match Channel::connect_at(&path) {
        Ok(channel) => Ok(Some(channel)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::{
        mount::{MsFlags, mount},
        sched::{CloneFlags, unshare},
    };
    use std::{io::Write, thread};

    /// Puts an empty file system that cannot be written in the place of a folder, for this thread.
    fn make_read_only(folder: &Path) -> nix::Result<()> {
        const NONE: Option<&str> = None;
        unshare(CloneFlags::CLONE_NEWNS)?;
        mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)?;
        mount(NONE, folder, Some("tmpfs"), MsFlags::MS_RDONLY, Some("mode=700"))
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_passed_over() {
        let look = || {
            let folder = own_folder().expect("a folder");
            match make_read_only(&folder) {
                Ok(()) => assert_ne!(own_folder(), Some(folder)),
                Err(error) => _ = writeln!(io::stderr(), "skipped: no mount namespace: {error}"),
            }
        };
        thread::spawn(look).join().unwrap();
    }

    #[test]
    fn nobody_else_can_open_what_is_in_our_folder() {
        let folder = own_folder().expect("a folder");
        let about = fs::metadata(&folder).unwrap();
        assert_eq!((about.uid(), about.mode() & 0o077), (geteuid().as_raw(), 0), "{}", folder.display());
    }
}
