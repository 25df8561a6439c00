//! Commands that are separate programs: `rxe WORD` runs `rxe-WORD`, as with git and cargo. So crates with many dependencies
//! need not be linked into `rxe`, and users can add commands.

use crate::{Cli, Result, run::NotRun};
use clap::CommandFactory;
use std::{
    collections::BTreeMap,
    env,
    ffi::{OsStr, OsString},
    fs,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::PermissionsExt,
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Command,
};

/// The prefix of such programs' names.
const PREFIX: &[u8] = b"rxe-";

/// A command line whose first word names such a program.
#[derive(Debug)]
pub(crate) struct External {
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl External {
    /// Finds the program for a command line. `None` if the first word is an option, one of our own commands, or unknown: clap
    /// handles these.
    pub(crate) fn find(arguments: impl IntoIterator<Item = OsString>) -> Option<Self> {
        let mut rest: Vec<_> = arguments.into_iter().skip(1).collect();
        let mut word = rest.first()?.clone();
        // `rxe help WORD`, as for our own commands.
        let asks_for_help = word == "help" && rest.len() == 2;
        if asks_for_help {
            word = rest[1].clone();
        }
        if !is_word(&word) || Cli::command().get_subcommands().any(|ours| answers_to(ours, &word)) {
            return None;
        }
        let program =
            places().into_iter().map(|place| place.join(name_of(&word))).find(|path| can_run(path))?;
        rest.remove(0);
        Some(Self { program, arguments: if asks_for_help { vec!["--help".into()] } else { rest } })
    }

    /// Executes the program in this process. Returns only if that fails.
    pub(crate) fn run(self) -> Result<()> {
        let source = Command::new(&self.program).args(self.arguments).exec();
        Err(NotRun::new(self.program.into_os_string(), source).into())
    }
}

/// The description of the command line, with the found programs at its end.
pub(crate) fn command() -> clap::Command {
    let mut command = Cli::command();
    let mut found: BTreeMap<OsString, PathBuf> = BTreeMap::new();
    for place in places() {
        for word in words_in(&place) {
            if !command.get_subcommands().any(|ours| answers_to(ours, &word)) {
                found.entry(word).or_insert_with(|| place.clone());
            }
        }
    }
    if !found.is_empty() {
        let width = found.keys().map(|word| word.len()).max().unwrap_or(0);
        let lines = found.iter().map(|(word, place)| {
            let path = place.join(name_of(word));
            format!("  {:width$}  {}", word.display().to_string(), path.display())
        });
        let list: Vec<_> = lines.collect();
        command =
            command.after_help(format!("Commands that are programs of their own:\n{}", list.join("\n")));
    }
    command
}

fn answers_to(command: &clap::Command, word: &OsStr) -> bool {
    word == "help" || word.to_str().is_some_and(|word| command.get_name_and_visible_aliases().contains(&word))
}

/// Whether a word may be a command's name. Options and paths are not.
fn is_word(word: &OsStr) -> bool {
    let bytes = word.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte))
}

fn name_of(word: &OsStr) -> OsString {
    OsString::from_vec([PREFIX, word.as_bytes()].concat())
}

/// The folders for programs: that of this program, so that programs of one release are used together, and then those of a
/// shell.
fn places() -> Vec<PathBuf> {
    let own = env::current_exe().ok().and_then(|own| own.parent().map(Path::to_owned));
    let path = env::var_os("PATH").unwrap_or_default();
    // Relative entries are skipped, because the working folder may belong to another user, who must not add commands.
    own.into_iter().chain(env::split_paths(&path).filter(|place| place.is_absolute())).collect()
}

fn can_run(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
}

/// The words whose programs are in a folder.
fn words_in(place: &Path) -> Vec<OsString> {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| {
        let word = entry
            .file_name()
            .as_bytes()
            .strip_prefix(PREFIX)
            .map(|word| OsString::from_vec(word.to_vec()))?;
        (is_word(&word) && can_run(&entry.path())).then_some(word)
    });
    named.collect()
}
