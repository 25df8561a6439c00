//! A network namespace for a device of ours that needs whole frames. It has a pair of interfaces, with the provider at one
//! end and the suite at the other. An ordinary user may create one if user namespaces are allowed.

use std::{
    error::Error,
    ffi::OsStr,
    fs,
    net::IpAddr,
    path::PathBuf,
    process::{Command, ExitCode},
};

/// The environment variable that marks the suite inside the namespace.
const INSIDE: &str = "RXE_CONFORM_INSIDE";
/// The suite's interface.
pub(crate) const OWN: &str = "conform0";
/// The device's.
const DEVICE: &str = "conform1";

/// Runs this program again inside a new namespace, with the same arguments. Returns its exit code, or `None` if this process
/// is already inside.
pub(crate) fn enclosed() -> Result<Option<ExitCode>, Box<dyn Error>> {
    if std::env::var_os(INSIDE).is_some() {
        return Ok(None);
    }
    let allowed = |flags: &&str| {
        Command::new("unshare").args([flags, "true"]).output().is_ok_and(|output| output.status.success())
    };
    // Root may create a network namespace even if user namespaces are not allowed.
    let flags = ["-Urn", "-n"].into_iter().find(|flags| allowed(flags)).ok_or(
        "this device needs a network namespace, and unshare(1) may make none: allow user namespaces, or be root",
    )?;
    let status = Command::new("unshare")
        .args([flags, "--"])
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .status()
        .map_err(|error| format!("unshare, for a network namespace: {error}"))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(Some(code.map_or_else(|| ExitCode::from(3), ExitCode::from)))
}

fn ip(words: &str) -> Result<(), Box<dyn Error>> {
    let output =
        Command::new("ip").args(words.split(' ')).output().map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {words}: {}", String::from_utf8_lossy(&output.stderr).trim()).into())
}

/// The pair of interfaces. The kernel removes it together with the namespace.
pub(crate) struct Pair {
    /// The device's address.
    pub(crate) device: IpAddr,
    /// The suite's address, which is assigned to no interface.
    pub(crate) own: IpAddr,
    configuration: PathBuf,
}

impl Pair {
    /// Creates the pair. `v1`: the device's connection manager shall connect by RoCEv1.
    pub(crate) fn new(v1: bool) -> Result<Self, Box<dyn Error>> {
        ip("link set lo up")?;
        ip(&format!("link add {OWN} type veth peer name {DEVICE}"))?;
        ip(&format!("addr add 10.9.0.2/24 dev {DEVICE}"))?;
        ip(&format!("link set {OWN} up mtu 4500"))?;
        ip(&format!("link set {DEVICE} up mtu 4500"))?;
        let configuration = std::env::temp_dir().join(format!("rxe-conform-{}.toml", std::process::id()));
        let mode = if v1 { "v1" } else { "v2" };
        fs::write(&configuration, format!("[[port]]\ninterface = \"{DEVICE}\"\nrdma_cm = \"{mode}\"\n"))
            .map_err(|error| format!("{}: {error}", configuration.display()))?;
        Ok(Self { device: [10, 9, 0, 2].into(), own: [10, 9, 0, 77].into(), configuration })
    }

    /// The provider's configuration file, which exists as long as the pair does.
    pub(crate) fn configuration(&self) -> &OsStr {
        self.configuration.as_os_str()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.configuration);
    }
}
