//! What the tests share: a host, that is a network namespace, with programs in it.

use super::{
    common::{Background, PATIENCE, good, rxe, text},
    netns::Namespace,
};
use serde_json::Value;
use std::{
    fs::{self, File},
    path::PathBuf,
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

/// A host.
pub(crate) struct Host(Namespace);

impl Host {
    /// A host with a loopback only. `None` if namespaces are not allowed here.
    pub(crate) fn new() -> Option<Self> {
        Namespace::new().map(Self)
    }

    pub(crate) const fn of(namespace: Namespace) -> Self {
        Self(namespace)
    }

    /// Runs a program to its end.
    pub(crate) fn rxe(&self, arguments: &str) -> Output {
        self.output(rxe(arguments))
    }

    pub(crate) fn output(&self, mut command: Command) -> Output {
        self.0.run(move || command.output().unwrap())
    }

    /// Does something in its namespace.
    pub(crate) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        self.0.run(job)
    }

    /// Starts a program.
    pub(crate) fn start(&self, arguments: &str) -> Background {
        let command = rxe(arguments);
        self.0.run(move || Background::spawn(command))
    }

    /// Runs a client as soon as its server listens.
    pub(crate) fn client(&self, arguments: &str) -> Output {
        until_it_listens(|| self.rxe(arguments))
    }

    /// Starts `rxe listen`, and waits until it does.
    pub(crate) fn listen(&self, arguments: &str) -> Watched {
        self.watched(rxe(&format!("listen {arguments}")), "LISTENING")
    }

    /// Starts a program, and waits until it prints something.
    pub(crate) fn watched(&self, mut command: Command, awaited: &str) -> Watched {
        let path = scratch("output");
        command.stdout(File::create(&path).unwrap());
        let program = self.0.run(move || Background::spawn_quiet(command));
        let start = Instant::now();
        while !fs::read_to_string(&path).unwrap().contains(awaited) {
            assert!(start.elapsed() < PATIENCE, "no {awaited}");
            thread::sleep(Duration::from_millis(5));
        }
        Watched { program, path }
    }
}

/// Runs a client again until its server listens.
pub(crate) fn until_it_listens(client: impl Fn() -> Output) -> Output {
    let start = Instant::now();
    loop {
        let output = client();
        let early = text(&output.stderr).contains("start the program on");
        if !early || start.elapsed() > PATIENCE {
            return output;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// A program whose output is in a file.
pub(crate) struct Watched {
    program: Background,
    path: PathBuf,
}

impl Watched {
    /// Its exit status and output.
    pub(crate) fn end(self) -> (Output, String) {
        let output = self.program.finish();
        let text = fs::read_to_string(&self.path).unwrap();
        fs::remove_file(&self.path).unwrap();
        (output, text)
    }

    /// What it printed, when it has ended well.
    pub(crate) fn finish(self) -> String {
        let (output, text) = self.end();
        good(&output);
        text
    }
}

/// A file name that no other test has.
pub(crate) fn scratch(name: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("rxe-cli-cm-{}-{count}-{name}", std::process::id()))
}

/// The lines of `--json`.
pub(crate) fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}")))
        .collect()
}

/// Messages and events by name, in order.
pub(crate) fn names(lines: &[Value]) -> Vec<&str> {
    lines.iter().filter_map(|line| line.get("message").or_else(|| line.get("event"))?.as_str()).collect()
}
