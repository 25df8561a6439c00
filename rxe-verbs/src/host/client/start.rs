//! Finding and starting the host service.

use crate::{
    host::{
        config::{HostConfig, HostConfigError},
        message::printable,
        service::{Place, Service, ServiceError},
    },
    sys::{process::has_more_rights_than_its_starter, signals::block_signals},
    trust::{is_protected, variable},
};
use std::{
    env,
    io::{self, Read},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

/// The variable that says how the service is found: `off`, `embedded`, or the program to run.
pub const VARIABLE: &str = "RXE_SERVICE";
/// The program's name.
const PROGRAM: &str = "rxe";

/// Most bytes of the program's text about why there is no service.
const MAX_WORDS: u64 = 1024;

/// How this process finds a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It uses none, and has the port alone.
    Off,
    /// If there is no service yet, this program is run. If none is given, or it cannot be run, a thread of this process is the service.
    Program(Option<PathBuf>),
}

impl Mode {
    /// What the environment says; else the program beside the running one, else the one in PATH.
    pub(crate) fn from_environment() -> Self {
        match variable(VARIABLE) {
            // Whoever set this variable could set PATH as well, so it is trusted as much.
            _ if has_more_rights_than_its_starter() => Self::Program(None),
            Some(value) if value == "off" => Self::Off,
            Some(value) if value == "embedded" => Self::Program(None),
            Some(value) if !value.is_empty() => Self::Program(Some(value.into())),
            _ => Self::Program(beside().or_else(on_path)),
        }
    }
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
}

fn beside() -> Option<PathBuf> {
    let path = env::current_exe().ok()?.parent()?.join(PROGRAM);
    is_safe(&path).then_some(path)
}

/// Whether a program found beside the running one may be run. Nobody has asked for it, and in a shared folder it may be anything, so it
/// must not belong to another user.
fn is_safe(path: &Path) -> bool {
    is_program(path) && is_protected(path).unwrap_or(false)
}

fn on_path() -> Option<PathBuf> {
    let dirs = env::var_os("PATH")?;
    env::split_paths(&dirs).map(|dir| dir.join(PROGRAM)).find(|path| path.is_absolute() && is_program(path))
}

/// Starts a service, as a program or as a thread. It is no error if another process was quicker.
///
/// # Errors
/// [`StartError`].
pub(crate) fn start(program: Option<&Path>) -> Result<(), StartError> {
    if let Some(program) = program {
        match run(program) {
            Ok(()) => return Ok(()),
            Err(error) if variable(VARIABLE).is_some() => {
                return Err(StartError::Program { program: program.to_owned(), source: error });
            }
            // It was only found by its place, so it may not be meant for this. Do without it.
            Err(_) => {}
        }
    }
    embed()
}

/// Why there is no service.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("{VARIABLE}: cannot run {}: {source}", program.display())]
    Program { program: PathBuf, source: io::Error },
    #[error(transparent)]
    Config(#[from] HostConfigError),
    #[error(transparent)]
    Service(#[from] ServiceError),
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Runs the program, which starts the service and then ends. So the service is not a child of this process: a program that
/// waits for its children must not find one that it did not make.
fn run(program: &Path) -> io::Result<()> {
    let mut child = Command::new(program)
        .args(["service", "start"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .env_remove("LD_PRELOAD")
        .current_dir("/")
        .spawn()?;
    let mut said = String::new();
    if let Some(errors) = child.stderr.take() {
        // Our own programs print less than that.
        let _ = errors.take(MAX_WORDS).read_to_string(&mut said);
    }
    match child.wait() {
        Ok(status) if !status.success() => Err(match said.lines().next() {
            Some(words) => io::Error::other(printable(words.strip_prefix("rxe: ").unwrap_or(words))),
            None => io::Error::other(format!("it ended with {status}")),
        }),
        // If the program ignores SIGCHLD, the system does not tell the exit status.
        _ => Ok(()),
    }
}

fn embed() -> Result<(), StartError> {
    let service = match Service::start(HostConfig::load()?, Place::Embedded) {
        Ok(service) => service,
        Err(ServiceError::Running) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let work = move || {
        block_signals();
        service.run();
    };
    thread::Builder::new().name("rxe-service".to_owned()).spawn(work).map(drop).map_err(StartError::Thread)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs::{self, Permissions},
        os::unix::fs::PermissionsExt,
    };

    #[test]
    fn a_program_planted_in_a_shared_folder_is_not_started() {
        let folder = env::temp_dir().join(format!("rxe-beside-{}", std::process::id()));
        let program = folder.join(PROGRAM);
        fs::create_dir_all(&folder).unwrap();
        fs::write(&program, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        assert!(is_program(&program) && !is_safe(&program));
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        assert!(is_safe(&program));
        fs::remove_dir_all(folder).unwrap();
    }
}
