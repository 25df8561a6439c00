//! Output files for packets. Several processes may be told the same name.

use crate::sys::{kept::Kept, unix::out_of_the_way};
use std::{
    ffi::OsString,
    fs::{File, TryLockError},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// An output file, under a number that is out of the program's way. If the program closes it, and a file of its own gets the number,
/// that file is not written to: writing fails. What a forked child writes is lost.
#[derive(Debug)]
pub(crate) struct Output(Kept<File>);

impl Output {
    pub(crate) fn new(file: File) -> Self {
        Self(Kept::new(out_of_the_way(file.into()).into()))
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.is_intact() { self.0.write(bytes) } else { Err(io::Error::from_raw_os_error(libc::EBADF)) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Creates a file, or empties an existing one. If another process writes to the existing file, this creates a file with this
/// process's number in its name, and prints that name to standard error.
///
/// # Errors
/// The file cannot be created.
pub(crate) fn create(path: &Path) -> io::Result<Output> {
    let (file, there) = create_somewhere(path)?;
    if there != path {
        let (path, there) = (path.display(), there.display());
        eprintln!("rxe: another process writes to {path}; what this one sees is in {there}");
    }
    Ok(Output::new(file))
}

fn create_somewhere(path: &Path) -> io::Result<(File, PathBuf)> {
    let file = File::options().write(true).create(true).truncate(false).open(path)?;
    // Pipes and terminals may be shared by several processes.
    if !file.metadata()?.is_file() {
        return Ok((file, path.to_owned()));
    }
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            let own = with_number(path);
            return Ok((File::create(&own)?, own));
        }
        // An error of `try_lock` is ignored: some file systems have no locks.
        Ok(()) | Err(TryLockError::Error(_)) => {}
    }
    file.set_len(0)?;
    Ok((file, path.to_owned()))
}

/// `dir/name-123.pcapng` for `dir/name.pcapng`.
fn with_number(path: &Path) -> PathBuf {
    let mut name: OsString = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{}", std::process::id()));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_another_process_writes_is_not_emptied() {
        let path = std::env::temp_dir().join(format!("rxe-file-{}.pcapng", std::process::id()));
        let (mut first, there) = create_somewhere(&path).unwrap();
        assert_eq!(there, path);
        first.write_all(b"packets").unwrap();
        let (second, elsewhere) = create_somewhere(&path).unwrap();
        assert_eq!(elsewhere, with_number(&path));
        assert_eq!(fs::read(&path).unwrap(), b"packets");
        drop((first, second));
        // A file that no process writes to any more is emptied.
        assert_eq!(create_somewhere(&path).unwrap().1, path);
        assert_eq!(fs::read(&path).unwrap(), b"");
        let _ = create(Path::new("/dev/null")).unwrap();
        fs::remove_file(path).unwrap();
        fs::remove_file(elsewhere).unwrap();
    }
}
