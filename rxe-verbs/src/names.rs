//! Numbers and names of devices: which interface's device is rxe0, which rxe1, and which has another name.
//!
//! All processes of a user see the same ones, also after interfaces have come and gone. A process that numbers or names a device
//! writes this to files in the user's folder (`rxe-names`, `rxe-given`). If there can be no such files, each process has its
//! own numbers.

use crate::{host, sys::process::namespace_cookie};
use nix::fcntl::{Flock, FlockArg};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
};

/// Numbers of devices, by the names of their interfaces.
pub(crate) type Numbers = BTreeMap<String, usize>;

/// Names of devices, by the names of their interfaces.
pub(crate) type Given = BTreeMap<String, String>;

/// Length of the longest device name: the kernel's IB_DEVICE_NAME_MAX, less the zero at its end.
const LONGEST: usize = 63;
/// Prefix of numbered names. No device can be renamed to such a name.
const PREFIX: &str = "rxe";

/// Most absent interfaces whose numbers are kept, because they may come back. If there are more, all absent interfaces lose
/// their numbers.
const MOST_GONE: usize = 64;
/// Most lines of a file. The oldest lines of other namespaces are dropped.
const MOST_LINES: usize = 1024;

/// Numbers those of `interfaces` that have no number yet, in this order. `known` has this process's numbers so far.
pub(crate) fn number(interfaces: &[&str], known: &mut Numbers) {
    if interfaces.iter().all(|name| known.contains_key(*name)) {
        return;
    }
    let shared = file("rxe-names").map(|(path, cookie)| share(&path, cookie, interfaces, known));
    if !matches!(shared, Some(Ok(()))) {
        assign(interfaces, known);
    }
}

/// Gives the lowest free numbers.
fn assign(interfaces: &[&str], known: &mut Numbers) {
    let gone = known.keys().filter(|name| !interfaces.contains(&name.as_str())).count();
    if gone > MOST_GONE {
        known.retain(|name, _| interfaces.contains(&name.as_str()));
    }
    for name in interfaces {
        if !known.contains_key(*name) {
            let free = (0..).find(|number| !known.values().any(|taken| taken == number));
            known.insert((*name).to_owned(), free.unwrap_or(0));
        }
    }
}

/// Parses a line of `rxe-names`: the cookie of the network namespace, the number, the interface. `None` for any other line.
fn parse(line: &str) -> Option<(u64, usize, &str)> {
    let mut words = line.split(' ');
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?))
}

/// Path of a file in the user's folder, and the cookie that marks this network namespace's lines in it.
fn file(name: &str) -> Option<(PathBuf, u64)> {
    host::own_folder().and_then(|folder| namespace_cookie().map(|cookie| (folder.join(name), cookie)))
}

/// The kernel's ID of this boot.
fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// A name for the calling thread's network namespace, of letters, digits and `-`. No other namespace has or ever had the same.
/// Linux before 5.14 gives no cookie: the name is the boot's ID then, the same for all namespaces.
#[must_use]
pub fn network_namespace() -> String {
    let boot = boot_id().unwrap_or_default();
    namespace_cookie().map_or_else(|| boot.clone(), |cookie| format!("{boot}-{cookie}"))
}

/// The lines of a file that a user's processes share, locked against other processes. Lines of an earlier boot are ignored,
/// because cookies of namespaces start anew with each boot.
struct Lines {
    file: Flock<File>,
    boot: String,
    lines: Vec<String>,
}

impl Lines {
    fn open(path: &Path) -> io::Result<Self> {
        let boot = boot_id()?;
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        let mut file = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let mut lines = text.lines().map(str::to_owned);
        let lines = if lines.next().as_deref() == Some(&boot) { lines.collect() } else { Vec::new() };
        Ok(Self { file, boot, lines })
    }

    /// Replaces the lines for which `is_own` is true by `own`, and writes the file.
    fn replace(mut self, is_own: impl Fn(&str) -> bool, own: Vec<String>) -> io::Result<()> {
        self.lines.retain(|line| !is_own(line));
        let excess = (1 + self.lines.len() + own.len()).saturating_sub(MOST_LINES).min(self.lines.len());
        self.lines.drain(..excess);
        self.lines.extend(own);
        self.file.rewind()?;
        self.file.set_len(0)?;
        self.file.write_all((self.boot + "\n" + &self.lines.join("\n") + "\n").as_bytes())
    }
}

/// Numbers interfaces as [`number`] does, with the numbers that other processes have written to the file, and adds new ones to it.
fn share(path: &Path, cookie: u64, interfaces: &[&str], known: &mut Numbers) -> io::Result<()> {
    let lines = Lines::open(path)?;
    let mut all = Numbers::new();
    for (of, number, name) in lines.lines.iter().filter_map(|line| parse(line)) {
        if of == cookie {
            all.insert(name.to_owned(), number);
        }
    }
    let before = all.clone();
    // Numbers that this process has told its program stay.
    for (name, number) in &*known {
        all.retain(|other, taken| other == name || taken != number);
        all.insert(name.clone(), *number);
    }
    assign(interfaces, &mut all);
    if all != before {
        let own = all.iter().map(|(name, number)| format!("{cookie} {number} {name}")).collect();
        lines.replace(|line| parse(line).is_some_and(|(of, ..)| of == cookie), own)?;
    }
    *known = all;
    Ok(())
}

/// Whether a device may have this name: 1 to 63 letters, digits, `_`, `-` and `.`, the first a letter, and not a numbered name.
pub(crate) fn is_name(name: &str) -> bool {
    let numbered =
        name.strip_prefix(PREFIX).is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()));
    name.len() <= LONGEST
        && name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
        && !numbered
}

/// The name of a device that was given no other name.
pub(crate) fn numbered(number: usize) -> String {
    format!("{PREFIX}{number}")
}

/// Parses a line of `rxe-given`: the cookie of the network namespace, the interface, its device's name.
fn parse_given(line: &str) -> Option<(u64, &str, &str)> {
    let mut words = line.split(' ');
    Some((words.next()?.parse().ok()?, words.next()?, words.next()?))
}

/// The names that were given in this network namespace since the boot.
pub(crate) fn given() -> Given {
    let read = |(path, cookie): (PathBuf, u64)| -> io::Result<Given> {
        // `given_in` would create the file. Most hosts rename no device and need none.
        if !path.exists() { Ok(Given::new()) } else { given_in(&path, cookie) }
    };
    file("rxe-given").and_then(|place| read(place).ok()).unwrap_or_default()
}

fn given_in(path: &Path, cookie: u64) -> io::Result<Given> {
    let lines = Lines::open(path)?;
    let of_line = |line: &String| {
        let (of, interface, name) = parse_given(line)?;
        (of == cookie).then(|| (interface.to_owned(), name.to_owned()))
    };
    Ok(lines.lines.iter().filter_map(of_line).collect())
}

/// Gives an interface's device a name, for all processes of the user that start from now on.
pub(crate) fn give(interface: &str, name: &str) -> io::Result<()> {
    let (path, cookie) = file("rxe-given").ok_or(io::ErrorKind::PermissionDenied)?;
    give_in(&path, cookie, interface, name)
}

fn give_in(path: &Path, cookie: u64, interface: &str, name: &str) -> io::Result<()> {
    let own = vec![format!("{cookie} {interface} {name}")];
    let is_own =
        |line: &str| parse_given(line).is_some_and(|(of, other, _)| of == cookie && other == interface);
    Lines::open(path)?.replace(is_own, own)
}

/// Names of these interfaces' devices. A name from `given` comes first, then one from the configuration (`said`), then the
/// numbered name. If two devices want one name, the first gets it; those with a `given` name are asked first.
pub(crate) fn called(interfaces: &[&str], numbers: &Numbers, given: &Given, said: &Given) -> Given {
    let mut names = Given::new();
    let (first, then): (Vec<&str>, Vec<&str>) =
        interfaces.iter().partition(|interface| given.contains_key(**interface));
    for interface in first.iter().chain(&then) {
        let Some(own) = numbers.get(*interface).copied().map(numbered) else { continue };
        let wished = given.get(*interface).or_else(|| said.get(*interface));
        let wished = wished.filter(|name| is_name(name) && !names.values().any(|taken| taken == *name));
        names.insert((*interface).to_owned(), wished.cloned().unwrap_or(own));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(list: &[(&str, usize)]) -> Numbers {
        list.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect()
    }

    #[test]
    fn numbers_stay_and_the_lowest_free_ones_are_given() {
        let mut known = Numbers::new();
        assign(&["b", "a", "lo"], &mut known);
        assert_eq!(known, numbers(&[("b", 0), ("a", 1), ("lo", 2)]));
        // One is gone, and may come back.
        assign(&["a", "c", "lo"], &mut known);
        assert_eq!(known, numbers(&[("b", 0), ("a", 1), ("lo", 2), ("c", 3)]));
        for turn in 0..200 {
            let name = format!("veth{turn}");
            assign(&["a", &name], &mut known);
            assert!(known["a"] == 1 && known[&name] <= MOST_GONE + 3, "{known:?}");
        }
    }

    #[test]
    fn processes_that_do_not_know_each_other_agree() {
        let path = std::env::temp_dir().join(format!("rxe-names-{}", std::process::id()));
        let process = |cookie, interfaces: &[&str], mut known: Numbers| {
            share(&path, cookie, interfaces, &mut known).unwrap();
            known
        };
        let first = process(7, &["lo"], Numbers::new());
        assert_eq!(first, numbers(&[("lo", 0)]));
        // Its own order would have been another one.
        let second = process(7, &["eth0", "lo"], Numbers::new());
        assert_eq!(second, numbers(&[("lo", 0), ("eth0", 1)]));
        assert_eq!(process(7, &["eth0", "lo"], first), second);
        // Another namespace, and what is left of another boot or makes no sense.
        assert_eq!(process(8, &["eth0", "lo"], Numbers::new()), numbers(&[("eth0", 0), ("lo", 1)]));
        fs::write(&path, "another boot\n7 5 lo\n").unwrap();
        assert_eq!(process(7, &["lo"], Numbers::new()), numbers(&[("lo", 0)]));
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        fs::write(&path, format!("{boot}7\n7 x lo\n\n7 3 eth0\n")).unwrap();
        assert_eq!(process(7, &["lo", "eth0"], Numbers::new()), numbers(&[("eth0", 3), ("lo", 0)]));
        // The file does not grow without limit.
        for cookie in 0..2000 {
            process(cookie, &["lo"], Numbers::new());
        }
        assert!(fs::read_to_string(&path).unwrap().lines().count() <= MOST_LINES);
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn names_are_given_and_taken_back() {
        let path = std::env::temp_dir().join(format!("rxe-given-{}", std::process::id()));
        let names = |list: &[(&str, &str)]| -> Given {
            list.iter().map(|(interface, name)| ((*interface).to_owned(), (*name).to_owned())).collect()
        };
        give_in(&path, 7, "eth0", "roce_eth0").unwrap();
        give_in(&path, 7, "eth1", "b").unwrap();
        give_in(&path, 8, "eth0", "c").unwrap();
        give_in(&path, 7, "eth1", "storage").unwrap();
        let given = given_in(&path, 7).unwrap();
        assert_eq!(given, names(&[("eth0", "roce_eth0"), ("eth1", "storage")]));
        assert_eq!(given_in(&path, 9).unwrap(), Given::new());
        fs::remove_file(path).unwrap();

        let numbers = numbers(&[("eth0", 0), ("eth1", 1), ("eth2", 2), ("lo", 3)]);
        let interfaces = ["eth0", "eth1", "eth2", "lo"];
        let said = names(&[("eth1", "of the file"), ("eth2", "storage"), ("lo", "loop")]);
        let called = called(&interfaces, &numbers, &given, &said);
        // A given name comes first. A name that another device has, or that is not allowed, is not used.
        assert_eq!(
            called,
            names(&[("eth0", "roce_eth0"), ("eth1", "storage"), ("eth2", "rxe2"), ("lo", "loop")])
        );
    }

    #[test]
    fn not_every_word_is_a_name() {
        for name in ["a", "roce_eth0", "mlx5_0", "rxe", "rxe-0", "rocep0s3.100", &"a".repeat(63)] {
            assert_eq!(is_name(name), name != "rxe", "{name}");
        }
        for name in ["", "rxe0", "rxe17", "0a", "a b", "a/b", "..", "a\n", "-a", "é", &"a".repeat(64)] {
            assert!(!is_name(name), "{name}");
        }
    }
}
