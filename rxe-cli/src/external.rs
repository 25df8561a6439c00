//! Commands that are programs of their own: `rxe WORD` runs `rxe-WORD`, as git and cargo do it. So a room with many
//! dependencies needs not be linked into every `rxe`, and anybody can add a command.

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

/// What the names of such programs begin with.
const PREFIX: &[u8] = b"rxe-";

/// A command line whose first word is such a program's.
#[derive(Debug)]
pub(crate) struct External {
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl External {
    /// Finds the program that a command line means. `None` where the first word is an option, a command of ours or
    /// nobody's: all these are for clap, which knows what to say.
    pub(crate) fn find(arguments: impl IntoIterator<Item = OsString>) -> Option<Self> {
        let mut rest: Vec<_> = arguments.into_iter().skip(1).collect();
        let mut word = rest.first()?.clone();
        // `rxe help WORD`, as it is for commands of our own.
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

    /// Becomes the program. Returns only if that fails.
    pub(crate) fn run(self) -> Result<()> {
        let source = Command::new(&self.program).args(self.arguments).exec();
        Err(NotRun::new(self.program.into_os_string(), source).into())
    }
}

/// The command line's description, with the programs that are there at its end.
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

/// What may be a command's name: never an option or a path.
fn is_word(word: &OsStr) -> bool {
    let bytes = word.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte))
}

fn name_of(word: &OsStr) -> OsString {
    OsString::from_vec([PREFIX, word.as_bytes()].concat())
}

/// Where programs are looked for: beside this one, so that those of one release belong together; then as a shell does.
fn places() -> Vec<PathBuf> {
    let own = env::current_exe().ok().and_then(|own| own.parent().map(Path::to_owned));
    let path = env::var_os("PATH").unwrap_or_default();
    // An entry that is not absolute depends on where one stands: a stranger's folder should add no commands.
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
