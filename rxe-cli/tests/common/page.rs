//! Pages that show commands and what they print. Commands are found in the Markdown, and output is compared line by line.
//!
//! A code block of the language `console` is a piece of a terminal: a line that begins with a prompt (`$ `, or `NAME$ ` for the
//! terminal NAME) is a command, which goes on below if it ends with a backslash. What follows is its output, in which `...`
//! stands for any lines left out.

/// Stands for lines left out.
pub(crate) const LEFT_OUT: &str = "...";

const OPENING: &str = "```console";
const CLOSING: &str = "```";

/// A command on a page.
#[derive(Debug)]
pub(crate) struct Shown {
    /// The terminal; empty for the one without a name.
    pub(crate) terminal: String,
    pub(crate) command: String,
    /// What it prints, as the page shows it.
    pub(crate) output: Vec<String>,
    /// The line of the page, from 1.
    pub(crate) line: usize,
    /// The code block, from 0.
    pub(crate) block: usize,
    /// The comment (`<!-- ... -->`) in the line before the block; empty without one.
    pub(crate) note: String,
}

/// All commands of a page, in order.
pub(crate) fn commands(page: &str) -> Vec<Shown> {
    let mut found: Vec<Shown> = Vec::new();
    let (mut block, mut is_in) = (0, false);
    let (mut before, mut note) = ("", String::new());
    for (index, line) in page.lines().enumerate() {
        if !is_in {
            is_in = line == OPENING;
            if is_in {
                let comment = before.strip_prefix("<!--").and_then(|rest| rest.strip_suffix("-->"));
                note = comment.unwrap_or_default().trim().to_owned();
            }
            before = line;
            continue;
        }
        if line == CLOSING {
            is_in = false;
            block += 1;
            continue;
        }
        let open = found.last_mut().filter(|last| last.block == block);
        match open {
            Some(last) if last.output.is_empty() && last.command.ends_with('\\') => {
                last.command.push('\n');
                last.command.push_str(line);
                continue;
            }
            _ => {}
        }
        if let Some((terminal, command)) = prompt(line) {
            let (terminal, command) = (terminal.to_owned(), command.to_owned());
            found.push(Shown {
                terminal,
                command,
                output: Vec::new(),
                line: index + 1,
                block,
                note: note.clone(),
            });
        } else {
            let last = found.last_mut().filter(|last| last.block == block);
            last.unwrap_or_else(|| panic!("line {}: output without a command", index + 1))
                .output
                .push(line.to_owned());
        }
    }
    assert!(!is_in, "the last code block does not end");
    found
}

/// The terminal and the command, if a line is one.
fn prompt(line: &str) -> Option<(&str, &str)> {
    let (terminal, command) = line.split_once("$ ")?;
    terminal
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        .then_some((terminal, command))
}

/// Whether `output` is what `page` says, where `None` stands for any number of lines; else how many lines of the page fit.
pub(crate) fn fits<P>(
    page: &[Option<P>],
    output: &[&str],
    same: impl Fn(&P, &str) -> bool,
) -> Result<(), usize> {
    // The place behind the last `None`, and from which line of the output it is being tried.
    let mut gap: Option<(usize, usize)> = None;
    let (mut at, mut line, mut best) = (0, 0, 0);
    loop {
        match page.get(at) {
            Some(None) => {
                at += 1;
                gap = Some((at, line));
            }
            Some(Some(wanted)) if output.get(line).is_some_and(|printed| same(wanted, printed)) => {
                at += 1;
                line += 1;
            }
            None if line == output.len() => return Ok(()),
            _ => {
                let Some((behind, from)) = gap.filter(|(_, from)| *from < output.len()) else {
                    return Err(best.max(at));
                };
                best = best.max(at);
                (at, line) = (behind, from + 1);
                gap = Some((behind, from + 1));
            }
        }
        best = best.max(at);
    }
}
