//! Which interface's device is called rxe0, which rxe1: the same in all processes of a user, also after interfaces have come and
//! gone. Who names one first writes it down, in a file of the user's; where there is none, each process has its own names.

use crate::{host, sys::process::namespace_cookie};
use nix::fcntl::{Flock, FlockArg};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read, Seek, Write},
    path::Path,
};

/// Numbers of devices by their interfaces.
pub(crate) type Numbers = BTreeMap<String, usize>;

/// Names that are kept for interfaces which are gone: they may come back. Beyond that their numbers are given to others.
const MOST_GONE: usize = 64;
/// Lines of the file; the oldest go.
const MOST_LINES: usize = 1024;

/// Gives those of `interfaces` a number that have none, in this order; `known` are this process's names so far.
pub(crate) fn number(interfaces: &[&str], known: &mut Numbers) {
    if interfaces.iter().all(|name| known.contains_key(*name)) {
        return;
    }
    let written = host::own_folder().and_then(|folder| namespace_cookie().map(|cookie| (folder, cookie)));
    let shared = written.map(|(folder, cookie)| share(&folder.join("rxe-names"), cookie, interfaces, known));
    if !matches!(shared, Some(Ok(()))) {
        assign(interfaces, known);
    }
}

/// Gives the lowest numbers that nobody has.
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

/// A line of the file: the namespace's cookie, the number, the interface. Others are those of an earlier boot.
fn parse(line: &str) -> Option<(u64, usize, &str)> {
    let mut words = line.split(' ');
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?))
}

/// The same with what others have written down, and written down for them.
fn share(path: &Path, cookie: u64, interfaces: &[&str], known: &mut Numbers) -> io::Result<()> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    let mut file = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    // Cookies count from the boot.
    let mut lines: Vec<&str> = text.lines().collect();
    if lines.first() != Some(&boot.trim()) {
        lines = vec![boot.trim()];
    }
    let mut all = Numbers::new();
    for (of, number, name) in lines.iter().filter_map(|line| parse(line)) {
        if of == cookie {
            all.insert(name.to_owned(), number);
        }
    }
    let before = all.clone();
    // What this process has told its program stays so.
    for (name, number) in &*known {
        all.retain(|other, taken| other == name || taken != number);
        all.insert(name.clone(), *number);
    }
    assign(interfaces, &mut all);
    if all != before {
        let own: Vec<String> = all.iter().map(|(name, number)| format!("{cookie} {number} {name}")).collect();
        lines.retain(|line| parse(line).is_none_or(|(of, ..)| of != cookie));
        let excess = (lines.len() + own.len()).saturating_sub(MOST_LINES).min(lines.len() - 1);
        lines.drain(1..=excess);
        lines.extend(own.iter().map(String::as_str));
        file.rewind()?;
        file.set_len(0)?;
        file.write_all((lines.join("\n") + "\n").as_bytes())?;
    }
    *known = all;
    Ok(())
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
        // It does not grow without end.
        for cookie in 0..2000 {
            process(cookie, &["lo"], Numbers::new());
        }
        assert!(fs::read_to_string(&path).unwrap().lines().count() <= MOST_LINES);
        fs::remove_file(path).unwrap();
    }
}
