//! A reader's machine: a network namespace with a loopback only, no capability, a folder with the course's programs, and terminals.

use super::{
    common::{CONFIG, page::Shown},
    netns::Namespace,
};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::{Pid, getuid},
};
use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs::{self, File},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// A command that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(180);
/// What ends a command that would not end by itself, as the page shows it.
const INTERRUPT: &str = "^C";
/// The comment before a block whose commands fail.
pub(crate) const FAILS: &str = "fails";
/// What clients say whose server does not listen yet. A reader would start them again.
const TOO_EARLY: [&str; 5] = [
    "Connection refused",
    "Couldn't connect",
    "start the program on",
    "invalid service ID",
    "RDMA_CM_EVENT_REJECTED",
];

/// What a command did.
pub(crate) struct Printed {
    pub(crate) text: String,
    pub(crate) status: String,
    pub(crate) success: bool,
}

pub(crate) struct Stage {
    namespace: Namespace,
    folder: PathBuf,
    path: OsString,
    /// Commands by terminal, with their number.
    running: BTreeMap<String, (usize, Program)>,
    printed: Vec<Option<Printed>>,
}

impl Stage {
    /// None where we may not make one.
    pub(crate) fn new(programs: &Path) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let namespace = Namespace::new()?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("rxe-book-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for program in fs::read_dir(programs).unwrap().flatten() {
            fs::copy(program.path(), folder.join(program.file_name())).unwrap();
        }
        // Debian's own programs first, after ours: its Python is the one with pyverbs.
        let mut path = vec![built().to_owned(), PathBuf::from("/usr/bin"), PathBuf::from("/bin")];
        path.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
        let path = env::join_paths(path).unwrap();
        Some(Self { namespace, folder, path, running: BTreeMap::new(), printed: Vec::new() })
    }

    /// Runs what a page shows. Commands of terminals with a name go on beside the others; where one is typed into the same
    /// terminal, the one before it has to end first.
    pub(crate) fn play(&mut self, page: &mut [Shown]) {
        self.printed.resize_with(page.len(), || None);
        for (number, shown) in page.iter_mut().enumerate() {
            let is_interrupted = shown.output.last().is_some_and(|line| line == INTERRUPT);
            if is_interrupted {
                shown.output.pop();
            }
            if shown.terminal.is_empty() {
                let printed = self.run(&shown.command, shown.note == FAILS);
                self.printed[number] = Some(printed);
                continue;
            }
            self.end(&shown.terminal);
            let program = self.start(&shown.command, number, is_interrupted);
            self.running.insert(shown.terminal.clone(), (number, program));
        }
    }

    /// What each command has done, after the end of the last.
    pub(crate) fn finish(mut self) -> Vec<Printed> {
        for terminal in self.running.keys().cloned().collect::<Vec<_>>() {
            self.end(&terminal);
        }
        self.printed.drain(..).map(|printed| printed.expect("it was run")).collect()
    }

    fn end(&mut self, terminal: &str) {
        if let Some((number, program)) = self.running.remove(terminal) {
            self.printed[number] = Some(program.end());
        }
    }

    /// Runs a command to its end; again while its server does not listen yet, if it is not meant to fail.
    fn run(&self, command: &str, fails: bool) -> Printed {
        let start = Instant::now();
        loop {
            let printed = self.start(command, usize::MAX, false).end();
            let early = !printed.success && TOO_EARLY.iter().any(|word| printed.text.contains(word));
            if fails || !early || self.running.is_empty() || start.elapsed() > PATIENCE {
                return printed;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn start(&self, command: &str, number: usize, interrupted: bool) -> Program {
        let output = self.folder.join(format!(".output-{number}"));
        let file = File::create(&output).unwrap();
        // Nothing in the book needs a privilege: whoever runs this test may have some, and gives them up.
        let mut shell = if getuid().is_root() {
            let mut shell = Command::new("setpriv");
            shell.args(["--bounding-set=-all", "--inh-caps=-all", "bash", "-c", command]);
            shell
        } else {
            let mut shell = Command::new("bash");
            shell.args(["-c", command]);
            shell
        };
        shell
            .current_dir(&self.folder)
            .env("PATH", &self.path)
            .env("RXE_CONFIG", CONFIG)
            .env("LC_ALL", "C.UTF-8");
        // Python's output in order with that of others, as on a terminal.
        shell.env("PYTHONUNBUFFERED", "1");
        shell.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file).process_group(0);
        let child = self.namespace.run(move || shell.spawn().expect("setpriv and bash"));
        Program { child: Some(child), output, interrupted }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.running.clear();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A command that runs, and the file that it prints to. What it has started ends with it.
struct Program {
    child: Option<Child>,
    output: PathBuf,
    interrupted: bool,
}

impl Program {
    fn end(mut self) -> Printed {
        let mut child = self.child.take().expect("it has not ended");
        if self.interrupted {
            let _ = killpg(group(&child), Signal::SIGINT);
        }
        let start = Instant::now();
        let status: Option<ExitStatus> = loop {
            match child.try_wait().unwrap() {
                Some(status) => break Some(status),
                None if start.elapsed() > PATIENCE => break None,
                None => thread::sleep(Duration::from_millis(5)),
            }
        };
        if status.is_none() {
            kill(&mut child);
        }
        let text = String::from_utf8_lossy(&fs::read(&self.output).unwrap()).into_owned();
        let success = self.interrupted || status.is_some_and(|status| status.success());
        let status = status.map_or_else(|| "no end".to_owned(), |status| status.to_string());
        Printed { text, status, success }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            kill(child);
        }
    }
}

fn group(child: &Child) -> Pid {
    Pid::from_raw(child.id().try_into().expect("a process's number"))
}

fn kill(child: &mut Child) {
    let _ = killpg(group(child), Signal::SIGKILL);
    let _ = child.wait();
}

/// The folder with `rxe` and what it starts. The drop-in is built, the other programs only if they are not there.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = Path::new(env!("CARGO_BIN_EXE_rxe")).parent().unwrap().to_owned();
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        let run = |program: &str, arguments: &[&str]| {
            let output = Command::new(program).args(arguments).current_dir(root).output().unwrap();
            assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        };
        if ["rxe-dissect", "rxe-sim"].iter().any(|name| !folder.join(name).exists()) {
            run(env!("CARGO"), &["build", "--quiet", "-p", "rxe-lab", "-p", "rxe-sim", "--bins"]);
        }
        run("scripts/build-dropin", &[]);
        folder
    })
}
