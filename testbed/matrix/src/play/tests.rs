//! Jobs of shell commands, on "hosts" that are this one.

use super::*;
use crate::{hosts::Hosts, plan::Wish};

fn played(server: &str, client: &str, limit: u64) -> Outcome {
    let text = format!(
        "shell = [\"sh\", \"-c\"]\n[[host]]\nname = \"a\"\naddress = \"127.0.0.1\"\n[[host]]\nname = \"b\"\naddress = \"127.0.0.2\"\n\
         [[program]]\nname = \"x\"\nserver = '''{server}'''\nclient = '''{client}'''\nsizes = false\nnot_yet = [\"not yet\"]\n"
    );
    let wish = Wish {
        programs: vec!["x".into()],
        sizes: vec![],
        count: 1,
        limit: Duration::from_secs(limit),
        first_port: 1,
    };
    let plan = Plan::new(Hosts::parse(&text).unwrap(), &wish).unwrap();
    play(&plan, &plan.jobs[0])
}

#[test]
fn two_that_end_well_pass() {
    let outcome = played("echo served", "echo it is done", 60);
    assert_eq!((outcome.verdict, outcome.why.as_str()), (Verdict::Pass, ""));
    assert_eq!(
        (outcome.server.output.as_str(), outcome.client.output.as_str()),
        ("served\n", "it is done\n")
    );
}

#[test]
fn one_that_fails_is_named_with_its_last_words() {
    let outcome = played("echo one; echo two >&2; echo; exit 3", "true", 60);
    assert_eq!(outcome.verdict, Verdict::Fail);
    assert_eq!(outcome.why, "the server on a ended with 3: two");
    let outcome = played("sleep 1", "kill -9 $$", 60);
    assert_eq!(outcome.verdict, Verdict::Hang, "killed as timeout(1) kills: {}", outcome.why);
}

/// Of a server that waits for a client that has failed the client is told; and nothing is left on the host.
#[test]
fn what_waits_for_one_that_failed_is_ended() {
    let sleep = format!("sleep 98{}", std::process::id());
    let outcome = played(&sleep, "exit 1", 6000);
    assert_eq!((outcome.verdict, outcome.why.as_str()), (Verdict::Fail, "the client on b ended with 1"));
    assert_eq!(outcome.server.code, None);
    let left = Command::new("pgrep").args(["-xf", &sleep]).output().expect("pgrep");
    assert_eq!(String::from_utf8_lossy(&left.stdout), "");
}

#[test]
fn a_client_whose_server_does_not_listen_yet_is_tried_again() {
    let file = std::env::temp_dir().join(format!("rxe-interop-test-{}", std::process::id()));
    let path = file.display();
    let outcome = played(
        &format!("sleep 1; touch {path}; sleep 1"),
        &format!("test -e {path} || {{ echo not yet; exit 1; }}"),
        60,
    );
    std::fs::remove_file(&file).unwrap();
    assert_eq!(outcome.verdict, Verdict::Pass, "{outcome:?}");
    assert!(outcome.client.tries > 1);
}

#[test]
fn two_that_hang_end_by_their_limit() {
    let outcome = played("sleep 87654", "sleep 87654", 1);
    assert_eq!(
        (outcome.verdict, outcome.why.as_str()),
        (Verdict::Hang, "the server on a had not ended after 1 s")
    );
    let outcome = played("sleep 1", "no-such-program-anywhere", 60);
    assert_eq!(outcome.verdict, Verdict::Absent, "{}", outcome.why);
}

/// What a program leaves running may keep its output open, as ssh's master does.
#[test]
fn what_goes_on_in_the_background_is_not_waited_for() {
    let sleep = format!("sleep 60.{}", std::process::id());
    let outcome = played(&format!("echo served; setsid {sleep} &"), "true", 60);
    assert_eq!((outcome.verdict, outcome.server.output.as_str()), (Verdict::Pass, "served\n"));
    let killed = Command::new("pkill").args(["-xf", &sleep]).status().expect("pkill");
    assert!(killed.success(), "it has been waited for");
}

/// The loader has the same exit code for a missing library as a shell for a missing program.
#[test]
fn a_program_without_its_library_is_installed() {
    let words = "./x: error while loading shared libraries: liby.so.1: cannot open shared object file";
    let outcome = played("sleep 1", &format!("echo \"{words}\"; exit 127"), 60);
    assert_eq!(outcome.verdict, Verdict::Fail, "{}", outcome.why);
}

#[test]
fn of_a_long_output_the_end_is_kept() {
    let outcome = played("seq 100000", "true", 60);
    assert!(outcome.server.output.len() <= KEPT && outcome.server.output.ends_with("99999\n100000\n"));
}

/// A day in which nobody looked is not a day of waiting.
#[test]
fn time_in_which_this_process_was_stopped_does_not_count() {
    let mut left = Left::new(Duration::from_secs(20));
    left.charge(Duration::from_millis(500));
    left.charge(Duration::from_secs(86_400));
    assert_eq!(left.time, Duration::from_millis(18_500));
    (0..20).for_each(|_| left.charge(Duration::from_secs(1)));
    assert!(left.is_over());
}
