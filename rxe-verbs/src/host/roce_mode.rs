//! The RoCE version by which rdma_cm connects, as set by `/sys/kernel/config/rdma_cm/DEV/ports/1/default_roce_mode`. `rxe-sysfs`
//! redirects that path to the folder that `rxe run` has written (`rxe-cli/src/run/view.rs`).

use crate::trust::variable;
use rxe_core::work::GidType;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The variable that names that folder.
const FOLDER: &str = "RXE_SYSFS";
/// The file beside it with the configuration's mode at the time when the folder was written. If both files are equal, the mode was not set.
pub const CONFIGURED_MODE: &str = ".configured";
/// Most bytes of a mode.
const MOST: usize = 64;

/// The mode that was set for an interface's device. `None` if none was set, or if the text is no mode.
pub(super) fn set_for(interface: &str) -> Option<GidType> {
    let folder = PathBuf::from(variable(FOLDER).filter(|folder| !folder.is_empty())?);
    set_below(&folder, interface)
}

fn set_below(folder: &Path, interface: &str) -> Option<GidType> {
    let devices = fs::read_dir(folder.join("config/devices")).ok()?;
    let of_interface = |device: &fs::DirEntry| {
        let net = folder.join("infiniband").join(device.file_name()).join("device/net").join(interface);
        fs::symlink_metadata(net).is_ok()
    };
    let device = devices.flatten().find(of_interface)?;
    let port = device.path().join("ports/1");
    let text = fs::read(port.join("default_roce_mode")).ok()?;
    if fs::read(port.join(CONFIGURED_MODE)).is_ok_and(|configured| configured == text) {
        return None;
    }
    mode_of(text.get(..MOST.min(text.len()))?)
}

/// The two texts that kernels write and accept (drivers/infiniband/core/cache.c).
fn mode_of(text: &[u8]) -> Option<GidType> {
    match text.trim_ascii() {
        b"IB/RoCE v1" => Some(GidType::RoceV1),
        b"RoCE v2" => Some(GidType::RoceV2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_counts_if_it_is_a_mode() {
        let folder = std::env::temp_dir().join(format!("rxe-mode-{}", std::process::id()));
        let (net, port) =
            (folder.join("infiniband/rxe7/device/net"), folder.join("config/devices/rxe7/ports/1"));
        fs::create_dir_all(net.join("eth7")).unwrap();
        fs::create_dir_all(&port).unwrap();
        for (text, mode) in [
            ("IB/RoCE v1\n", Some(GidType::RoceV1)),
            ("RoCE v2", Some(GidType::RoceV2)),
            ("RoCE v3\n", None),
            ("", None),
        ] {
            fs::write(port.join("default_roce_mode"), text).unwrap();
            assert_eq!(set_below(&folder, "eth7"), mode, "{text:?}");
            assert_eq!(set_below(&folder, "eth8"), None);
        }
        // What the configuration said is not what somebody has set.
        fs::write(port.join("default_roce_mode"), "IB/RoCE v1\n").unwrap();
        fs::write(port.join(CONFIGURED_MODE), "IB/RoCE v1\n").unwrap();
        assert_eq!(set_below(&folder, "eth7"), None);
        fs::write(port.join("default_roce_mode"), "RoCE v2\n").unwrap();
        assert_eq!(set_below(&folder, "eth7"), Some(GidType::RoceV2));
        fs::remove_dir_all(folder).unwrap();
    }
}
