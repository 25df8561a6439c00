//! What a process may trust: environment variables, and files that another user could have put there.

use nix::unistd::geteuid;
use std::{
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Reads an environment variable. Always `None` in a program with more rights than the user who started it (set-user-ID,
/// set-group-ID, file capabilities: `AT_SECURE`, getauxval(3)). The loader treats its own variables in the same way.
#[must_use]
pub fn variable(name: &str) -> Option<OsString> {
    if crate::sys::process::has_more_rights_than_its_starter() { None } else { std::env::var_os(name) }
}

/// Whether an executable file has capabilities (`setcap(8)`). For such a program the loader ignores `LD_PRELOAD`, and we ignore our
/// variables.
#[must_use]
pub fn has_file_capabilities(path: &Path) -> bool {
    crate::sys::process::has_file_capabilities(path)
}

/// Whether only this user and root can write to a file or folder, or put another one in its place. Folders above it may be
/// writable by all if they are sticky (`/tmp`): there nobody can move the files of others.
///
/// # Errors
/// It does not exist, or may not be read.
pub fn is_protected(path: &Path) -> io::Result<bool> {
    let whole: PathBuf = fs::canonicalize(path)?;
    let own = geteuid().as_raw();
    for part in whole.ancestors() {
        let about = fs::symlink_metadata(part)?;
        let is_sticky = part != whole && about.is_dir() && about.mode() & 0o1000 != 0;
        // In a user namespace that does not map root, files of root show the overflow number, as those of all unmapped users do.
        // `/` and the entries in it are taken for root's.
        let is_top = part.components().count() <= 2;
        let is_root = |uid| uid == 0 || is_top && is_nobody_in_particular(uid);
        let is_trusted = about.uid() == own || is_root(about.uid());
        if !is_trusted || about.mode() & 0o022 != 0 && !is_sticky {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether this user ID is the overflow ID, which stands for all users whom our user namespace does not map. A file with this
/// owner cannot be trusted.
pub(crate) fn is_nobody_in_particular(uid: u32) -> bool {
    let number = |path: &str| fs::read_to_string(path).ok();
    let overflow = number("/proc/sys/kernel/overflowuid").and_then(|text| text.trim().parse().ok());
    if uid != overflow.unwrap_or(65_534) {
        return false;
    }
    // If the namespace maps the number, as the initial namespace does, it means a real user.
    let map = number("/proc/self/uid_map").unwrap_or_default();
    let mapped = map.lines().any(|line| {
        let mut fields = line.split_whitespace().filter_map(|field| field.parse::<u64>().ok());
        match (fields.next(), fields.next(), fields.next()) {
            (Some(inside), Some(_), Some(count)) => {
                (inside..inside.saturating_add(count)).contains(&u64::from(uid))
            }
            _ => false,
        }
    });
    !mapped
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown};

    #[test]
    fn what_others_can_change_is_not_protected() {
        let top = std::env::temp_dir().join(format!("rxe-trust-{}", std::process::id()));
        let file = top.join("folder/file");
        fs::create_dir_all(top.join("folder")).unwrap();
        fs::write(&file, "").unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        for path in [&top, &top.join("folder"), &file] {
            set(path, 0o755);
        }
        // Below a folder that everybody may write to, but that is sticky.
        assert!(is_protected(&file).unwrap());
        for (path, mode) in [(&file, 0o777), (&file, 0o775), (&top.join("folder"), 0o777), (&top, 0o775)] {
            set(path, mode);
            assert!(!is_protected(&file).unwrap(), "{path:?} {mode:o}");
            set(path, 0o755);
        }
        set(&top, 0o1777);
        assert!(is_protected(&file).unwrap() && !is_protected(&top).unwrap());
        if geteuid().is_root() {
            chown(top.join("folder"), Some(12_345), None).unwrap();
            assert!(!is_protected(&file).unwrap(), "its folder is another user's");
        }
        assert!(is_protected(&top.join("nothing")).is_err());
        fs::remove_dir_all(top).unwrap();
    }
}
