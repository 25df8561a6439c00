//! Running the program, and what is asked of how it ends.

#![allow(dead_code, reason = "each test program uses a part")]

pub(crate) mod page;

use std::{
    net::TcpStream,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn rxe(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rxe"));
    command.args(arguments.split_whitespace()).stdin(Stdio::null()).env("RXE_CONFIG", CONFIG);
    command
}

/// A host service that ends soon after the programs that need it: later tests want the port for themselves.
pub(crate) const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/short.toml");

/// A host service that is there for the whole of a test that needs it, however busy the machine is; the test ends it.
pub(crate) const LASTING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/long.toml");

/// Ends it if a test fails.
pub(crate) struct Background(Option<Child>);

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
        Self(Some(command.stderr(Stdio::piped()).spawn().unwrap()))
    }

    pub(crate) fn finish(mut self) -> Output {
        let mut child = self.0.take().unwrap();
        let start = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if start.elapsed() > PATIENCE {
                child.kill().unwrap();
                panic!("it does not end: {:?}", child.wait_with_output());
            }
            thread::sleep(Duration::from_millis(5));
        }
        child.wait_with_output().unwrap()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
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

/// It failed with one sentence, which has this in it.
pub(crate) fn failed(output: &Output, part: &str) {
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(message.starts_with("rxe: ") && message.contains(part), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
}
