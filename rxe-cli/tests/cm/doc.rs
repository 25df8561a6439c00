//! docs/cm.md shows what the programs print: its commands are run, and their output compared, but for what differs from run
//! to run.

use super::{
    common::{page, rxe, text},
    netns,
    stage::Host,
};

const PAGE: &str = include_str!("../../../docs/cm.md");

/// Fields whose values differ from run to run.
const VARIABLE: [&str; 12] = [
    "transaction",
    "local comm id",
    "remote comm id",
    "request id",
    "local ca guid",
    "local qpn",
    "remote qpn",
    "qpn",
    "starting psn",
    "primary flow label",
    "ip cm header",
    "info",
];

/// Where the name of a field stands in its line, and its value.
const NAME: usize = 18;
const VALUE: usize = 46;

/// One block: the commands, and what the last one prints.
struct Block {
    commands: Vec<String>,
    output: Vec<String>,
}

fn blocks() -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for shown in page::commands(PAGE) {
        let command = shown.command.strip_prefix("rxe ").expect("a command of rxe's").to_owned();
        if shown.block == blocks.len() {
            blocks.push(Block { commands: Vec::new(), output: Vec::new() });
        }
        let block = blocks.last_mut().expect("it has begun");
        assert!(block.output.is_empty(), "only the last command of a block shows what it prints");
        block.commands.push(command);
        block.output = shown.output;
    }
    blocks
}

/// A line without what differs from run to run.
fn mask(line: &str) -> String {
    let line = line.trim_end();
    if let Some((time, rest)) = line.split_once(" ms  ")
        && time.trim().parse::<f64>().is_ok()
    {
        let mut words: Vec<String> = rest.split(' ').map(str::to_owned).collect();
        for word in &mut words {
            let port = word.rsplit_once(':').is_some_and(|(_, port)| port.trim_end_matches(',') != "7471");
            // Numbers of queue pairs have six digits.
            if port && word.contains('.') || word.trim_end_matches(';').len() == 8 && word.starts_with("0x") {
                *word = "?".to_owned();
            }
        }
        return words.join(" ");
    }
    let name = line.get(NAME..VALUE).map_or("", str::trim);
    if !VARIABLE.contains(&name) {
        return line.to_owned();
    }
    let value = &line[VALUE..];
    // A number that is nothing is no number of this run's.
    let nothing = value.starts_with("none") || value.starts_with("0x00000000 ");
    let note = value.split_once("  ").map_or("", |(_, note)| note.trim());
    format!("{name}: {} {note}", if nothing { "0" } else { "?" })
}

/// Whether the output is what the page says, but for what varies.
fn fits(page: &[&str], output: &[&str]) -> bool {
    let page: Vec<_> = page.iter().map(|line| (*line != page::LEFT_OUT).then(|| mask(line))).collect();
    page::fits(&page, output, |wanted, printed| *wanted == mask(printed)).is_ok()
}

#[test]
fn the_page_shows_what_is_printed() {
    let (Some(host), Some((far, _there))) = (Host::new(), netns::pair(1500)) else { return };
    let far = Host::of(far);
    let blocks = blocks();
    for Block { commands, output } in &blocks {
        let (last, before) = commands.split_last().expect("a command");
        let host = if last.contains("10.9.0.2") { &far } else { &host };
        let listener = before.first().map(|command| {
            let arguments = command.strip_prefix("listen ").and_then(|rest| rest.strip_suffix(" &"));
            host.listen(&format!("{} -n 1", arguments.expect("a listener")))
        });
        let ran = host.output(rxe(last));
        let printed = format!("{}{}", text(&ran.stdout), text(&ran.stderr));
        drop(listener.map(|listener| listener.finish()));
        let (want, have): (Vec<_>, Vec<_>) =
            (output.iter().map(String::as_str).collect(), printed.lines().collect());
        assert!(
            fits(&want, &have),
            "docs/cm.md shows something else than `rxe {last}` prints:\n{printed}\nthe page:\n{}",
            output.join("\n")
        );
    }
    // The page is about these.
    for name in ["REQ", "REP", "RTU", "REJ", "MRA", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP"] {
        let shown = |arrow: &str| {
            blocks
                .iter()
                .flat_map(|block| &block.output)
                .any(|line| line.contains(&format!("{arrow} {name} ")))
        };
        assert!(shown("-->") || shown("<--"), "{name} is not on the page");
    }
}

#[test]
fn only_what_varies_is_masked() {
    let field = |name: &str, value: &str, note: &str| format!("{:18}{name:28}{value:20} {note}", "");
    assert_eq!(
        mask(&field("starting psn", "0x123456", "note")),
        mask(&field("starting psn", "0x000001", "note"))
    );
    assert_ne!(
        mask(&field("starting psn", "0x123456", "note")),
        mask(&field("starting psn", "0x123456", "other"))
    );
    assert_ne!(mask(&field("service id", "0x1", "note")), mask(&field("service id", "0x2", "note")));
    assert_ne!(
        mask(&field("remote comm id", "0x00000000", "n")),
        mask(&field("remote comm id", "0x00000001", "n"))
    );
    assert_eq!(mask("      0.1 ms  --> REQ to ::1"), mask("     10.1 ms  --> REQ to ::1"));
    assert_ne!(mask("      0.1 ms  --> REQ to ::1"), mask("      0.1 ms  --> REP to ::1"));
    assert!(fits(&["a", "...", "c"], &["a", "b", "b", "c"]));
    assert!(fits(&["...", "b", "...", "c"], &["b", "a", "c", "b", "c"]) && fits(&["a", "..."], &["a"]));
    assert!(!fits(&["a", "...", "c"], &["a", "b", "c", "d"]) && !fits(&["...", "b", "c"], &["b", "d", "c"]));
    assert!(!fits(&["a"], &["a", "b"]) && !fits(&["a", "b"], &["a"]));
}
