//! The view of sysfs by mounts, for programs that a preloaded library cannot reach: static ones, and those that make system
//! calls themselves. They get a mount namespace. For ordinary users this needs a user namespace, in which they keep their user
//! ID.

use crate::Result;
use nix::{
    errno::Errno,
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};
use std::{
    fs::{self, File},
    io,
    os::fd::AsRawFd,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

const CLASS: &str = "/sys/class";
const OURS: [&str; 2] = ["infiniband", "infiniband_verbs"];

/// Moves this process, which then executes the program, to a namespace in which `/sys/class` also has the folders of the view.
/// Folders cannot be created in sysfs itself, so a new folder with the old ones in it is mounted over it.
pub(super) fn enter(view: &Path) -> Result<()> {
    let apart = || -> io::Result<()> {
        let about = fs::metadata("/proc/self")?;
        if unshare(CloneFlags::CLONE_NEWNS).is_err() {
            unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
            // Otherwise only privileged processes may set the group mapping.
            fs::write("/proc/self/setgroups", "deny")?;
            fs::write("/proc/self/uid_map", format!("{0} {0} 1", about.uid()))?;
            fs::write("/proc/self/gid_map", format!("{0} {0} 1", about.gid()))?;
        }
        Ok(())
    };
    apart().map_err(|error| {
        format!(
            "--sysfs=mount needs a mount namespace, and this system gives none to ordinary users ({error}): see \
             user.max_user_namespaces, kernel.unprivileged_userns_clone and the sandbox around this process; \
             --sysfs=hooks, which serves programs that are not static, needs nothing"
        )
    })?;
    cover(view).map_err(|error| format!("cannot mount the view on {CLASS}: {error}").into())
}

fn cover(view: &Path) -> io::Result<()> {
    let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
    // The mounts are not propagated to other namespaces.
    put("none", "/", "", MsFlags::MS_REC | MsFlags::MS_PRIVATE, "")?;
    let old = File::open(CLASS)?;
    let names = fs::read_dir(CLASS)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
    let plain = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    put("rxe", CLASS, "tmpfs", plain, "mode=755,size=1m")?;
    // By descriptors, because under a run with hooks the paths themselves lead to the view of that run.
    let new = File::open(CLASS)?;
    let [old, class] =
        [&old, &new].map(|folder| PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())));
    for name in names.iter().filter(|name| !OURS.iter().any(|ours| name == ours)) {
        let (from, to) = (old.join(name), class.join(name));
        if from.is_dir() {
            fs::create_dir(&to)?;
            mount(Some(&from), &to, None::<&str>, bind, None::<&str>).map_err(io::Error::from)?;
        }
    }
    for name in OURS {
        let to = class.join(name);
        fs::create_dir(&to)?;
        mount(Some(&view.join(name)), &to, None::<&str>, bind, None::<&str>).map_err(io::Error::from)?;
    }
    put("none", CLASS, "", MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY | plain, "")
}

fn put(what: &str, place: &str, kind: &str, flags: MsFlags, data: &str) -> io::Result<()> {
    mount(Some(what), place, Some(kind), flags, Some(data)).map_err(|errno: Errno| errno.into())
}
