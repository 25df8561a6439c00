//! Runs `rxe`, and checks how it ends.

#![allow(dead_code, reason = "each test program uses a part")]

pub(crate) mod page;

use std::{
    io::Read,
    net::TcpStream,
    process::{Child, Command, Output, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn rxe(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rxe"));
    command.args(arguments.split_whitespace()).stdin(Stdio::null()).env("RXE_CONFIG", CONFIG);
    command
}

/// A host service that ends soon after the programs that need it, because later tests want the port for themselves.
pub(crate) const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/short.toml");

/// A host service that is there for the whole of a test that needs it, however busy the machine is; the test ends it.
pub(crate) const LASTING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/long.toml");

/// A program beside the test. It is ended if the test fails. What it prints is read all the time, so that it never waits for a reader.
pub(crate) struct Background {
    child: Child,
    printed: [Option<JoinHandle<Vec<u8>>>; 2],
}

impl Background {
    pub(crate) fn start(arguments: &str) -> Self {
        Self::spawn(rxe(arguments))
    }

    pub(crate) fn spawn(mut command: Command) -> Self {
        command.stdout(Stdio::piped());
        Self::spawn_quiet(command)
    }

    /// One whose output goes elsewhere.
    pub(crate) fn spawn_quiet(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let printed = [child.stdout.take().map(all_of), child.stderr.take().map(all_of)];
        Self { child, printed }
    }

    pub(crate) fn finish(mut self) -> Output {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if start.elapsed() > PATIENCE {
                self.child.kill().unwrap();
                self.child.wait().unwrap();
                panic!("it does not end: {:?}", self.printed());
            }
            thread::sleep(Duration::from_millis(5));
        };
        let [stdout, stderr] = self.printed();
        Output { status, stdout, stderr }
    }

    fn printed(&mut self) -> [Vec<u8>; 2] {
        self.printed.each_mut().map(|reader| reader.take().map_or_else(Vec::new, |all| all.join().unwrap()))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads all that comes.
fn all_of(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut all = Vec::new();
        pipe.read_to_end(&mut all).unwrap();
        all
    })
}

/// Runs the client until the server listens.
pub(crate) fn client(arguments: &str) -> Output {
    client_of(|| rxe(arguments))
}

/// The same where the command is not run just here.
pub(crate) fn client_of(command: impl Fn() -> Command) -> Output {
    let start = Instant::now();
    loop {
        let output = command().output().unwrap();
        let waits = text(&output.stderr).contains("cannot reach");
        if !waits || start.elapsed() > PATIENCE {
            return output;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Connects to a server as soon as it listens.
pub(crate) fn stranger(address: &str) -> TcpStream {
    let start = Instant::now();
    loop {
        match TcpStream::connect((address, 18_515)) {
            Ok(tcp) => return tcp,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

pub(crate) fn good(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// Checks that it failed with an error of one sentence that contains this.
pub(crate) fn failed(output: &Output, part: &str) {
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(message.starts_with("rxe: ") && message.contains(part), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
}
