//! Checks of one program: how it is linked, and what it needs from libibverbs.

use super::{Finding, State};
use crate::run::library;
use goblin::elf::{Elf, header};
use rxe_verbs::has_file_capabilities;
use std::{
    collections::BTreeSet,
    env,
    ffi::{OsStr, OsString},
    fs,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
};

const CHECK: &str = "program";
const LIBRARIES: &str = "libraries";
/// The largest program that is checked before it is run.
const MOST_BYTES: u64 = 32 << 20;
/// How often scripts that name other scripts are followed.
const MOST_SCRIPTS: usize = 4;

/// What prevents a program from finding our libraries, as text. `None` for a program that is too large to be checked quickly.
pub(super) fn obstacles(program: &OsStr) -> Vec<String> {
    if !locate(program).as_ref().is_some_and(is_small) {
        return Vec::new();
    }
    let bad = |finding: Finding| (finding.state == State::Bad).then(|| finding.in_words());
    examine(program).into_iter().filter_map(bad).collect()
}

/// Libraries of a program that must be loaded before all others, even before preloaded ones: those of gcc's sanitizers.
pub(super) fn first_libraries(program: &OsStr) -> Vec<String> {
    const FIRST: [&str; 4] = ["libasan.so", "libhwasan.so", "liblsan.so", "libtsan.so"];
    let Some(path) = locate(program).filter(is_small) else { return Vec::new() };
    let Ok(bytes) = fs::read(path) else { return Vec::new() };
    let Ok(elf) = Elf::parse(&bytes) else { return Vec::new() };
    let is_first = |name: &&&str| FIRST.iter().any(|first| name.starts_with(first));
    elf.libraries.iter().filter(is_first).map(|name| (*name).to_owned()).collect()
}

fn is_small(path: &PathBuf) -> bool {
    fs::metadata(path).is_ok_and(|about| about.len() <= MOST_BYTES)
}

pub(super) fn examine(program: &OsStr) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(mut path) = locate(program) else {
        let text = format!("{} is not there, or cannot be run", program.display());
        return vec![Finding::bad(CHECK, text, "name its file, or put its folder into PATH")];
    };
    for _ in 0..MOST_SCRIPTS {
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) => {
                let text = format!("{} cannot be read: {error}", path.display());
                findings.push(Finding { check: CHECK, state: State::Unknown, text, cure: None });
                return findings;
            }
        };
        match interpreter(&bytes) {
            Some(next) => {
                let text = format!("{} is a script for {}", path.display(), next.display());
                findings.push(Finding::good(CHECK, text));
                path = next;
            }
            None => {
                binary(&path, &bytes, &mut findings);
                return findings;
            }
        }
    }
    findings
}

/// Finds a program as a shell does.
fn locate(program: &OsStr) -> Option<PathBuf> {
    let runs = |path: &Path| {
        fs::metadata(path).is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
    };
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(|path| runs(path));
    }
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(program)).find(|path| runs(path))
}

/// The program in the first line of a script. `env` is skipped.
fn interpreter(bytes: &[u8]) -> Option<PathBuf> {
    let line = bytes.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let first = OsStr::from_bytes(words.next()?);
    if Path::new(first).file_name() == Some(OsStr::new("env")) {
        let name: OsString = OsStr::from_bytes(words.find(|word| !word.starts_with(b"-"))?).into();
        return locate(&name);
    }
    Some(first.into())
}

fn binary(path: &Path, bytes: &[u8], findings: &mut Vec<Finding>) {
    let name = path.display();
    let Ok(elf) = Elf::parse(bytes) else {
        findings.push(Finding::bad(
            CHECK,
            format!("{name} is no program of Linux'"),
            "rxe runs on Linux only",
        ));
        return;
    };
    if !elf.is_64 || elf.header.e_machine != machine() {
        let text = format!("{name} is for another processor, or for 32 bits");
        findings.push(Finding::bad(CHECK, text, "build it for this machine, with 64 bits"));
        return;
    }
    let Some(loader) = elf.interpreter else {
        let text = format!("{name} is linked statically: it has no loader that could give it our libraries");
        let cure = "link it dynamically with -libverbs (Go: with CGO; Rust: not for a musl target)";
        findings.push(Finding::bad(CHECK, text, cure));
        return;
    };
    if loader.contains("musl") {
        let text = format!("{name} uses musl ({loader}), and the drop-in is built for glibc");
        findings.push(Finding::bad(
            CHECK,
            text,
            "build the program, or the drop-in, for the other C library",
        ));
    }
    let privileged = fs::metadata(path).is_ok_and(|about| about.permissions().mode() & 0o6000 != 0);
    if privileged {
        let text = format!("{name} is set-user-ID or set-group-ID: the loader ignores LD_PRELOAD for it");
        findings.push(Finding::bad(CHECK, text, "run a copy without these bits; rxe needs no privilege"));
    }
    if has_file_capabilities(path) {
        let text = format!("{name} has file capabilities: the loader ignores LD_PRELOAD for it");
        let cure = "run a copy without them (`setcap -r`); rxe needs no privilege";
        findings.push(Finding::bad(CHECK, text, cure));
    }
    needs(&elf, findings);
    copies(path, &elf, findings);
    absolute(bytes, findings);
    if !findings.iter().any(|finding| finding.state == State::Bad) {
        findings.push(Finding::good(CHECK, format!("{name} can run under `rxe run`")));
    }
}

const fn machine() -> u16 {
    if cfg!(target_arch = "aarch64") { header::EM_AARCH64 } else { header::EM_X86_64 }
}

/// Libraries that the program finds by its own path (DT_RPATH) before ours. Libraries by DT_RUNPATH come after ours, and
/// libibverbs is loaded already by LD_PRELOAD.
fn copies(path: &Path, elf: &Elf<'_>, findings: &mut Vec<Finding>) {
    const OTHER: &str = "librdmacm.so.1";
    if !elf.runpaths.is_empty() || !elf.libraries.contains(&OTHER) {
        return;
    }
    let origin = path.parent().unwrap_or_else(|| Path::new("/")).to_string_lossy();
    for folder in elf.rpaths.iter().flat_map(|list| list.split(':')) {
        let copy = Path::new(&folder.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin)).join(OTHER);
        if copy.exists() {
            let text = format!("its RPATH has it load {}, which rxe's cannot replace", copy.display());
            let cure = "link it with -Wl,--enable-new-dtags (RUNPATH), or move that file away (patchelf --remove-rpath)";
            findings.push(Finding::bad(LIBRARIES, text, cure));
        }
    }
}

/// Names of the libraries with a folder in the program's data. A library that is loaded by such a name (dlopen) is the
/// system's.
fn absolute(bytes: &[u8], findings: &mut Vec<Finding>) {
    let mut found = BTreeSet::new();
    for name in [&b"/libibverbs.so"[..], b"/librdmacm.so"] {
        for (at, _) in bytes.windows(name.len()).enumerate().filter(|(_, window)| *window == name) {
            let is_path = |byte: &u8| byte.is_ascii_graphic();
            let start = bytes[..at].iter().rposition(|byte| !is_path(byte)).map_or(0, |before| before + 1);
            let end = bytes[at..].iter().position(|byte| !is_path(byte)).map_or(bytes.len(), |len| at + len);
            let text = String::from_utf8_lossy(&bytes[start..end]).into_owned();
            if text.starts_with('/') {
                found.insert(text);
            }
        }
    }
    for path in found {
        let text =
            format!("it has the name {path} in it: if it loads the library by that, it is the system's");
        findings.push(Finding::note(LIBRARIES, text, "have it look for the name without the folder"));
    }
}

/// Compares what the program needs from libibverbs and librdmacm with what the drop-in has.
fn needs(elf: &Elf<'_>, findings: &mut Vec<Finding>) {
    let ours = |name: &str| name.starts_with("libibverbs") || name.starts_with("librdmacm");
    let asked: Vec<&str> = elf.libraries.iter().copied().filter(|name| ours(name)).collect();
    if asked.is_empty() {
        let text = "it does not name libibverbs itself: a library or plug-in of its may";
        findings.push(Finding { check: LIBRARIES, state: State::Good, text: text.into(), cure: None });
        return;
    }
    findings.push(Finding::good(LIBRARIES, format!("it asks for {}", asked.join(" and "))));
    for other in asked.iter().filter(|name| !matches!(**name, "libibverbs.so.1" | "librdmacm.so.1")) {
        let text = format!("{other} is a name of its own: only LD_PRELOAD reaches that");
        findings.push(Finding::note(LIBRARIES, text, "nothing to do as long as it starts under `rxe run`"));
    }
    let offered = match library().and_then(|folder| Ok(fs::read(folder.join("libibverbs.so.1"))?)) {
        Ok(bytes) => versions(&bytes),
        Err(error) => {
            let text = error.to_string();
            findings.push(Finding::bad("drop-in", text, "or scripts/install, which puts it where rxe looks"));
            return;
        }
    };
    let wanted: BTreeSet<&str> = elf
        .verneed
        .iter()
        .flat_map(|section| section.iter())
        .filter(|file| elf.dynstrtab.get_at(file.vn_file).is_some_and(ours))
        .flat_map(|file| file.iter().filter_map(|aux| elf.dynstrtab.get_at(aux.vna_name)).collect::<Vec<_>>())
        .collect();
    let missing: Vec<&str> = wanted.into_iter().filter(|version| !offered.contains(*version)).collect();
    if !missing.is_empty() {
        let text =
            format!("it was built for a newer libibverbs: {} is not in the drop-in", missing.join(", "));
        findings.push(Finding::bad(
            LIBRARIES,
            text,
            "take a newer rxe, or build the program against an older rdma-core",
        ));
    }
}

/// The versions that a library defines.
fn versions(bytes: &[u8]) -> BTreeSet<String> {
    let Ok(elf) = Elf::parse(bytes) else { return BTreeSet::new() };
    let defined = elf.verdef.iter().flat_map(|section| section.iter());
    defined
        .filter_map(|version| elf.dynstrtab.get_at(version.iter().next()?.vda_name).map(str::to_owned))
        .collect()
}
