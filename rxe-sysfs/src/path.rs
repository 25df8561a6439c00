//! Which paths are redirected, and where to.

use crate::ask::descriptor;
use core::{
    ffi::{CStr, c_char, c_int},
    sync::atomic::{AtomicPtr, Ordering},
};

/// The longest path of the system, including its zero byte.
const MOST: usize = libc::PATH_MAX as usize;

/// The prefixes that are redirected, and the part of them that remains: `/sys/class/infiniband/rxe0` becomes `infiniband/rxe0`
/// in the folder.
const TREE: &[u8] = b"/sys/class/";
const FOLDERS: [&[u8]; 2] = [b"infiniband", b"infiniband_verbs"];
/// Device nodes, which some programs (UCX) look for before they open a device; `dev/infiniband` in the folder.
const NODES: &[u8] = b"/dev/infiniband";
/// The place where rdma_cm's defaults are set (configfs); `config/rdma_cm` in the folder.
const SETTINGS: &[u8] = b"/sys/kernel/config/rdma_cm";
/// The part of that which remains before its last component.
const SYSTEM: usize = b"/sys/kernel/".len();
/// Its path on a system that has it, and the link to ours in the folder.
const SYSTEM_CONFIG: &[u8] = b"/sys/kernel/config";
const SETTINGS_LINK: &[u8] = b"/config";
/// In the folder: the devices that have such a folder, and its content.
const MADE: &[u8] = b"config/rdma_cm/";
const TO_BE_MADE: &[u8] = b"config/devices/";

/// The folder. The variable is looked up once, because its value stays in place unless the environment is changed. Null means
/// that it was not set.
static FOLDER: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::without_provenance_mut(UNKNOWN));
const UNKNOWN: usize = 1;

fn folder() -> Option<&'static [u8]> {
    let mut value = FOLDER.load(Ordering::Relaxed);
    if value.addr() == UNKNOWN {
        // SAFETY: reads the environment; a program that changes it in another thread at its start has a race of its own.
        value = unsafe { libc::getenv(c"RXE_SYSFS".as_ptr()) };
        // SAFETY: reads what the kernel has told the process at its start.
        if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
            // The program has more rights than the user who has set the variable.
            value = core::ptr::null_mut();
        }
        if !value.is_null() {
            // A copy, because programs that change their title overwrite the environment. It is never freed.
            // SAFETY: a string.
            value = unsafe { libc::strdup(value) };
        }
        FOLDER.store(value, Ordering::Relaxed);
    }
    if value.is_null() {
        return None;
    }
    // SAFETY: the copy made above, or one that another thread made.
    let bytes = unsafe { CStr::from_ptr(value) }.to_bytes();
    (!bytes.is_empty()).then_some(bytes)
}

/// A path for libc: the program's own, or one that was built here.
pub(crate) struct Path {
    given: *const c_char,
    built: Option<[u8; MOST]>,
    /// The length of the folder's path, and of the whole path.
    parts: (usize, usize),
}

impl Path {
    /// Redirects a path of the program, if it is one of ours.
    ///
    /// # Safety
    /// `given` is null or a string.
    pub(crate) unsafe fn of(given: *const c_char) -> Self {
        let mut path = Self { given, built: None, parts: (0, 0) };
        if given.is_null() {
            return path;
        }
        // SAFETY: the caller's promise.
        let bytes = unsafe { CStr::from_ptr(given) }.to_bytes();
        // This is the case for nearly all paths.
        if bytes.first() == Some(&b'/')
            && let Some(rest) = taken(bytes)
            && let Some(folder) = folder()
            && let Some(end) = folder.len().checked_add(1 + rest.len()).filter(|end| *end < MOST)
        {
            let built = path.built.insert([0; MOST]);
            built[..folder.len()].copy_from_slice(folder);
            built[folder.len()] = b'/';
            built[folder.len() + 1..end].copy_from_slice(rest);
            path.parts = (folder.len(), end);
        }
        path
    }

    /// A descriptor for reading the file, if it is one that changes while programs run. `dir` is the folder of a relative path,
    /// `flags` are those of open(2).
    pub(crate) fn live(&self, dir: c_int, flags: c_int) -> Option<c_int> {
        const OTHERWISE: c_int = libc::O_ACCMODE | libc::O_PATH | libc::O_DIRECTORY;
        if flags & OTHERWISE != 0 || self.given.is_null() {
            return None;
        }
        // SAFETY: where this thread's number is.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above. Whatever fails here is no error of the program's.
        let had = unsafe { *errno };
        let close_on_exec = flags & libc::O_CLOEXEC != 0;
        let found = match &self.built {
            Some(built) => {
                let (folder, end) = self.parts;
                descriptor(&built[..folder], &built[folder + 1..end], close_on_exec)
            }
            None => self.live_below(dir, close_on_exec),
        };
        // SAFETY: as above.
        unsafe { *errno = had };
        found
    }

    /// The same for a path relative to a folder. This may be one of ours after an earlier chdir(2) or open(2).
    fn live_below(&self, dir: c_int, close_on_exec: bool) -> Option<c_int> {
        // SAFETY: it is not null, so it is the string that `of` was given.
        let path = unsafe { CStr::from_ptr(self.given) }.to_bytes();
        let folder = folder().filter(|_| !path.is_empty() && !path.starts_with(b"/"))?;
        let mut place = [0_u8; MOST];
        let len = where_is(dir, &mut place)?;
        let end = len.checked_add(1 + path.len())?;
        if !place.get(..len)?.starts_with(folder) || !ends(&place[folder.len()..len]) {
            return None;
        }
        place.get_mut(len + 1..end)?.copy_from_slice(path);
        place[len] = b'/';
        descriptor(folder, place.get(folder.len() + 1..end)?, close_on_exec)
    }

    /// The absolute form of a relative path below the folder of rdma_cm's defaults. A path with `..` is left to the system.
    pub(crate) fn of_settings(&self, dir: c_int) -> Option<Self> {
        if self.given.is_null() || self.built.is_some() {
            return None;
        }
        // SAFETY: it is not null, so it is the string that `of` was given.
        let mut path = unsafe { CStr::from_ptr(self.given) }.to_bytes();
        let folder = folder().filter(|_| !path.is_empty() && !path.starts_with(b"/"))?;
        // SAFETY: where this thread's number is.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above. Whatever fails here is no error of the program's.
        let had = unsafe { *errno };
        let (mut place, mut config) = ([0_u8; MOST], [0_u8; MOST]);
        let found = where_is(dir, &mut place).zip(link_in(folder, SETTINGS_LINK, &mut config));
        // SAFETY: as above.
        unsafe { *errno = had };
        let (len, config_len) = found?;
        let (place, config) = (place.get(..len)?, config.get(..config_len)?);
        // The real path of our folder of settings, or that of the system, if it has one.
        let below = [config, SYSTEM_CONFIG].into_iter().find_map(|start| place.strip_prefix(start))?;
        if !ends(below) {
            return None;
        }
        while let Some(rest) = path.strip_prefix(b"./") {
            path = rest;
        }
        let mut whole = [0_u8; MOST];
        let mut end = 0;
        for part in [SYSTEM_CONFIG, below, b"/", path] {
            whole.get_mut(end..end + part.len())?.copy_from_slice(part);
            end += part.len();
        }
        // A zero byte has to follow.
        whole.get(end)?;
        // SAFETY: a string, which is needed no more when this is made: what is ours is copied.
        let found = unsafe { Self::of(whole.as_ptr().cast()) };
        found.settings().is_some().then_some(found)
    }

    /// Creates the folder of rdma_cm's defaults for a device: its content exists already, and gets the name. As in a kernel,
    /// only devices can have such a folder (ENODEV). `None` if the path is another one.
    pub(crate) fn make_settings(&self) -> Option<c_int> {
        let name = self.settings()?;
        let (folder, _) = self.parts;
        let mut place = [0_u8; MOST];
        let parts = [&self.built.as_ref()?[..folder], b"/", TO_BE_MADE, name];
        let mut end = 0;
        for part in parts {
            place.get_mut(end..end + part.len())?.copy_from_slice(part);
            end += part.len();
        }
        // There is room for a zero byte, because `built` had one behind a longer path.
        let target: *const c_char = place.as_ptr().cast();
        // SAFETY: two strings.
        unsafe {
            if libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, target, libc::F_OK) != 0 {
                *libc::__errno_location() = libc::ENODEV;
                return Some(-1);
            }
            let own = self.without_slashes()?;
            Some(libc::syscall(libc::SYS_symlinkat, target, libc::AT_FDCWD, own.as_ptr()) as c_int)
        }
    }

    /// The path that was built, without trailing slashes. It is a link, and with a slash the path would name the folder behind
    /// it.
    fn without_slashes(&self) -> Option<[u8; MOST]> {
        let mut path = self.built?;
        let (_, mut end) = self.parts;
        while end > 0 && path[end - 1] == b'/' {
            end -= 1;
            path[end] = 0;
        }
        Some(path)
    }

    /// Removes such a folder. Its values are kept, as in a kernel.
    pub(crate) fn remove_settings(&self) -> Option<c_int> {
        self.settings()?;
        let own = self.without_slashes()?;
        // SAFETY: a string.
        Some(unsafe { libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, own.as_ptr(), 0) as c_int })
    }

    /// The device of such a folder.
    fn settings(&self) -> Option<&[u8]> {
        let (folder, end) = self.parts;
        let path = self.built.as_ref()?.get(folder + 1..end)?.strip_prefix(MADE)?;
        let length = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let name = path.get(..length)?;
        let is_name = !name.is_empty() && !name.contains(&b'/') && !name.starts_with(b".");
        is_name.then_some(name)
    }

    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.built.as_ref().map_or(self.given, |built| built.as_ptr().cast())
    }
}

/// Writes the path of the working folder, or of an open folder. Returns its length.
fn where_is(dir: c_int, place: &mut [u8; MOST]) -> Option<usize> {
    let len = if dir == libc::AT_FDCWD {
        // SAFETY: writes no more than there is room for.
        unsafe { libc::syscall(libc::SYS_getcwd, place.as_mut_ptr(), place.len()) }.checked_sub(1)?
    } else {
        let link = link_of(dir);
        // SAFETY: a string; writes no more than there is room for. Not by libc's function, which is one of ours.
        unsafe {
            let (out, size) = (place.as_mut_ptr(), place.len());
            libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, link.as_ptr(), out, size)
        }
    };
    usize::try_from(len).ok()
}

/// Writes the target of a link in the folder. Returns its length.
fn link_in(folder: &[u8], name: &[u8], place: &mut [u8; MOST]) -> Option<usize> {
    let mut link = [0_u8; MOST];
    let end = folder.len().checked_add(name.len())?;
    link.get_mut(..folder.len())?.copy_from_slice(folder);
    link.get_mut(folder.len()..end)?.copy_from_slice(name);
    // A zero byte has to follow.
    link.get(end)?;
    // SAFETY: a string; writes no more than there is room for. Not by libc's function, which is one of ours.
    let len = unsafe {
        let (out, size) = (place.as_mut_ptr(), place.len());
        libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, link.as_ptr(), out, size)
    };
    usize::try_from(len).ok()
}

/// The remaining part of a path, if it is one of ours. Doubled slashes at the start are handled here, and others by the system.
fn taken(path: &[u8]) -> Option<&[u8]> {
    let start = path.iter().position(|byte| *byte != b'/')?;
    if path[start - 1..].strip_prefix(NODES).is_some_and(ends) {
        return Some(&path[start..]);
    }
    if path[start - 1..].strip_prefix(SETTINGS).is_some_and(ends) {
        return Some(&path[start - 1 + SYSTEM..]);
    }
    let rest = path[start - 1..].strip_prefix(TREE)?;
    let skip = rest.iter().position(|byte| *byte != b'/')?;
    let rest = &rest[skip..];
    FOLDERS.iter().any(|folder| rest.strip_prefix(*folder).is_some_and(ends)).then_some(rest)
}

/// Whether this byte ends a name.
fn ends(behind: &[u8]) -> bool {
    behind.first().is_none_or(|byte| *byte == b'/')
}

/// `/proc/self/fd/N`, as a string.
fn link_of(fd: c_int) -> [u8; 32] {
    const START: &[u8] = b"/proc/self/fd/";
    let mut link = [0; 32];
    link[..START.len()].copy_from_slice(START);
    let (mut left, mut digits, mut count) = (fd.unsigned_abs(), [0; 10], 0);
    while count == 0 || left > 0 {
        digits[count] = b'0' + (left % 10) as u8;
        (left, count) = (left / 10, count + 1);
    }
    for (place, digit) in link[START.len()..].iter_mut().zip(digits[..count].iter().rev()) {
        *place = *digit;
    }
    link
}
