//! One job: the server's command on one host, the client's on the other, both within a time limit that holds on the hosts
//! themselves, so that nothing is left there: the command's shell there ends it after the limit, and at once when this process
//! is gone and with it the shell's input.

use crate::plan::{Job, Plan};
use serde::{Deserialize, Serialize};
use std::{
    collections::VecDeque,
    io::{self, Read},
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// What is kept of an output: its end, bytes.
const KEPT: usize = 16 << 10;
/// What a shell may take beyond a command's own limit to say how it ended.
const GRACE: Duration = Duration::from_secs(15);
/// How long one of the two may go on when the other one has failed.
const APART: Duration = Duration::from_secs(5);
/// How often the two are looked at.
const LOOK: Duration = Duration::from_millis(20);
/// What counts of the time between two looks, however long it was.
const MOST_CHARGED: Duration = Duration::from_secs(1);
/// Between two tries of a client whose server does not listen yet.
const AGAIN: Duration = Duration::from_millis(200);
/// What timeout(1) ends with after the limit; the second where the command had to be killed.
const TIMED_OUT: [i32; 2] = [124, 137];
/// What a shell ends with where there is no such program.
const NOT_FOUND: i32 = 127;

/// What became of a job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Both ended well.
    Pass,
    /// One of the two ended badly.
    Fail,
    /// One of the two did not end in time.
    Hang,
    /// A program is not installed on one of the hosts.
    Absent,
    /// Nobody knows: who played it was gone before it ended.
    Lost,
}

impl Verdict {
    /// All of them, as they are counted.
    pub const ALL: [Self; 5] = [Self::Pass, Self::Fail, Self::Hang, Self::Lost, Self::Absent];

    /// A word for people.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Hang => "hang",
            Self::Absent => "absent",
            Self::Lost => "lost",
        }
    }
}

/// How one end went.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct End {
    /// Exit code; a signal's number is negative. `None` if it did not end by itself.
    pub code: Option<i32>,
    /// The end of what it printed.
    pub output: String,
    /// How often it was started.
    pub tries: u32,
}

/// What came of a job.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// The job.
    pub job: Job,
    /// What became of it.
    pub verdict: Verdict,
    /// Why it is no pass, in one line.
    pub why: String,
    /// How long it took.
    pub seconds: f64,
    /// The server's end.
    pub server: End,
    /// The client's.
    pub client: End,
}

/// A command that runs on a host.
struct Running {
    child: Child,
    /// The remote shell ends the command when this is closed.
    input: Option<ChildStdin>,
    readers: Vec<JoinHandle<()>>,
    kept: Arc<Mutex<VecDeque<u8>>>,
}

/// The command as the host's shell gets it: with the limit, and ended when the input is.
fn guarded(command: &str, limit: u64) -> String {
    let quoted = command.replace('\'', r"'\''");
    // A background command's own input is empty, so the input has a third descriptor. One output keeps the order of what is said.
    format!(
        "exec 3<&0 2>&1; timeout -k 5 {limit} sh -c '{quoted}' </dev/null 3<&- & p=$!; \
         {{ cat <&3 >/dev/null; kill $p; }} >/dev/null 2>&1 & w=$!; exec 3<&-; wait $p; s=$?; kill $w 2>/dev/null; exit $s"
    )
}

fn keep(mut from: impl Read, kept: &Mutex<VecDeque<u8>>) {
    let mut part = [0; 4096];
    while let Ok(len) = from.read(&mut part) {
        if len == 0 {
            return;
        }
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(&part[..len]);
        let excess = kept.len().saturating_sub(KEPT);
        kept.drain(..excess);
    }
}

impl Running {
    fn start(words: &[String]) -> io::Result<Self> {
        // A group of its own, so that a shell that hangs can be killed with all that it has started here.
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let kept = Arc::new(Mutex::new(VecDeque::new()));
        let mut readers = Vec::new();
        if let Some(out) = child.stdout.take() {
            let kept = Arc::clone(&kept);
            readers.push(thread::spawn(move || keep(out, &kept)));
        }
        if let Some(err) = child.stderr.take() {
            let kept = Arc::clone(&kept);
            readers.push(thread::spawn(move || keep(err, &kept)));
        }
        let input = child.stdin.take();
        Ok(Self { child, input, readers, kept })
    }

    fn output(&self) -> String {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(kept.make_contiguous()).into_owned()
    }

    /// Whether it has ended well; `None` while it runs.
    fn ended(&mut self) -> Option<bool> {
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(status.success()),
            Err(_) => Some(false),
        }
    }

    /// Waits until everything is read, but not longer than [`APART`]: a program in the background, such as ssh's master, may keep
    /// the pipes open.
    fn read_to_end(&mut self) {
        let mut left = Left::new(APART);
        while !left.is_over() && !self.readers.iter().all(JoinHandle::is_finished) {
            left.sleep(LOOK);
        }
        self.readers.clear();
    }

    /// Whether what it printed until it ended holds any of these words.
    fn says_one_of(&mut self, words: &[String]) -> bool {
        if words.is_empty() {
            return false;
        }
        self.read_to_end();
        let output = self.output();
        words.iter().any(|words| output.contains(words.as_str()))
    }

    /// Ends it if it has not ended, and says how it went.
    fn finish(mut self, tries: u32) -> End {
        let asked = self.ended().is_none();
        self.input = None;
        let mut left = Left::new(GRACE);
        while self.ended().is_none() && !left.is_over() {
            left.sleep(LOOK);
        }
        if self.ended().is_none() {
            // The group is ours: it has the child's number, which the child keeps until it is waited for.
            let group = format!("-{}", self.child.id());
            let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        }
        let status = self.child.wait();
        self.read_to_end();
        let code = |status: ExitStatus| status.code().or_else(|| status.signal().map(|signal| -signal));
        End { code: if asked { None } else { status.ok().and_then(code) }, output: self.output(), tries }
    }
}

/// Plays a job.
#[must_use]
pub fn play(plan: &Plan, job: &Job) -> Outcome {
    let start = Instant::now();
    let mut outcome = Outcome {
        job: job.clone(),
        verdict: Verdict::Fail,
        why: String::new(),
        seconds: 0.0,
        server: End::default(),
        client: End::default(),
    };
    match both(plan, job) {
        Ok((server, client)) => {
            (outcome.verdict, outcome.why) = judge(job, &server, &client);
            (outcome.server, outcome.client) = (server, client);
        }
        Err(why) => outcome.why = why,
    }
    outcome.seconds = start.elapsed().as_secs_f64();
    outcome
}

/// Time that is left. While this process does not run, because it was stopped or the machine slept, hardly any passes: what it
/// waits for was most likely stopped, too.
struct Left {
    time: Duration,
    looked: Instant,
}

impl Left {
    fn new(time: Duration) -> Self {
        Self { time, looked: Instant::now() }
    }

    /// Waits for so long.
    fn sleep(&mut self, time: Duration) {
        thread::sleep(time);
        self.charge(self.looked.elapsed());
        self.looked = Instant::now();
    }

    /// So much has passed since the last look.
    fn charge(&mut self, passed: Duration) {
        self.time = self.time.saturating_sub(passed.min(MOST_CHARGED));
    }

    const fn is_over(&self) -> bool {
        self.time.is_zero()
    }
}

/// Runs the two until both have ended, or the time has. One that waits for another that failed is not waited for long.
fn both(plan: &Plan, job: &Job) -> Result<(End, End), String> {
    let words = |name: &str, command: &str| {
        let host = plan.host(name).ok_or_else(|| format!("there is no host {name}"))?;
        Ok::<_, String>(plan.hosts.words(host, guarded(command, job.limit)))
    };
    let [server_words, client_words] =
        [words(&job.server, &job.commands[0])?, words(&job.client, &job.commands[1])?];
    let start = |words: &[String]| {
        Running::start(words).map_err(|error| format!("{} cannot be started: {error}", words[0]))
    };
    let not_yet = plan.program(job).map_or(&[][..], |program| &program.not_yet);
    let mut left = Left::new(Duration::from_secs(job.limit) + GRACE);
    let mut server = start(&server_words)?;
    let (mut client, mut tries) = (start(&client_words), 1);
    while let Ok(running) = &mut client
        && !left.is_over()
    {
        let (of_server, of_client) = (server.ended(), running.ended());
        if of_server.is_some() && of_client.is_some() {
            break;
        }
        if of_client == Some(false) && running.says_one_of(not_yet) {
            left.sleep(AGAIN);
            tries += 1;
            client = start(&client_words);
            continue;
        }
        if of_server == Some(false) || of_client == Some(false) {
            left.time = left.time.min(APART);
        }
        left.sleep(LOOK);
    }
    let server = server.finish(1);
    Ok((server, client?.finish(tries)))
}

fn last_line(text: &str) -> &str {
    text.lines().rev().map(str::trim).find(|line| line.chars().any(char::is_alphanumeric)).unwrap_or("")
}

/// What two ends make: the worse of the two, and of two bad ones the server's, since a client often only follows.
fn judge(job: &Job, server: &End, client: &End) -> (Verdict, String) {
    let one = |what: &str, host: &str, end: &End| {
        let said = last_line(&end.output);
        let (verdict, how) = match end.code {
            Some(0) => return None,
            Some(code) if TIMED_OUT.contains(&code) => {
                (Verdict::Hang, format!("had not ended after {} s", job.limit))
            }
            // The loader ends with the same where a library is missing.
            Some(NOT_FOUND) if end.output.contains("not found") => {
                (Verdict::Absent, "is not installed".to_owned())
            }
            Some(code) if code < 0 => (Verdict::Fail, format!("was ended by signal {}", -code)),
            Some(code) => (Verdict::Fail, format!("ended with {code}")),
            None => (Verdict::Hang, "went on when the other one had failed".to_owned()),
        };
        let said = if said.is_empty() { String::new() } else { format!(": {said}") };
        Some((verdict, format!("the {what} on {host} {how}{said}")))
    };
    let ends = [one("server", &job.server, server), one("client", &job.client, client)];
    // One that is absent or fails explains one that waits for it.
    let weight = |verdict: Verdict| match verdict {
        Verdict::Absent => 0,
        Verdict::Fail => 1,
        _ => 2,
    };
    ends.into_iter()
        .flatten()
        .min_by_key(|(verdict, _)| weight(*verdict))
        .unwrap_or((Verdict::Pass, String::new()))
}

#[cfg(test)]
#[path = "play/tests.rs"]
mod tests;
