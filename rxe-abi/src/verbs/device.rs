//! Listing devices.

use crate::{
    border::{Errno, Owned, pointer, quietly, set_errno},
    c::{self, value as v},
    convert::text,
    object::Device,
};
use core::{
    ffi::{c_char, c_int},
    mem::MaybeUninit,
    net::IpAddr,
    ptr,
};
use rxe_verbs::PerProcess;
use std::sync::{Mutex, PoisonError, TryLockError};

/// Most devices in a list.
const MOST: usize = 255;

/// The list that ibv_get_device_list returns. It ends with a null pointer.
type DeviceList = [*const Device; MOST + 1];

/// The devices seen so far. They are never freed, because a program may keep the address of one for ever.
static SEEN: PerProcess<Vec<&'static Device>> = PerProcess::new(Vec::new);

/// The variable that restricts the list to one device: the name of the device or its interface, or an address.
const ONLY: &str = "RXE_DEVICE";

/// The devices that this process can see.
pub(crate) fn devices() -> Result<Vec<&'static Device>, Errno> {
    let system = |error: std::io::Error| Errno(error.raw_os_error().unwrap_or(libc::EIO));
    let only = rxe_verbs::variable(ONLY).and_then(|only| only.into_string().ok());
    match only.filter(|only| !only.is_empty()) {
        None => {
            Ok(rxe_verbs::devices().map_err(system)?.into_iter().map(|device| known(device, None)).collect())
        }
        Some(only) => {
            let (device, address) = match only.parse::<IpAddr>() {
                Ok(address) => (rxe_verbs::Device::of_address(address)?, Some(address)),
                Err(_) => (rxe_verbs::Device::find(&only)?, None),
            };
            Ok(vec![known(device, address)])
        }
    }
}

/// The object of a device. There is one for each, and it is brought up to date.
fn known(device: rxe_verbs::Device, only: Option<IpAddr>) -> &'static Device {
    let mut seen = SEEN.lock();
    let same = |have: &&&Device| {
        let known = have.device.lock().unwrap_or_else(PoisonError::into_inner);
        known.name() == device.name() && known.netdev() == device.netdev() && have.only == only
    };
    if let Some(have) = seen.iter().find(same) {
        *have.device.lock().unwrap_or_else(PoisonError::into_inner) = device;
        return have;
    }
    let (name, number) = (device.name(), device.number());
    let c = c::device::Device {
        _ops: [0; 2],
        node_type: v::NODE_CA,
        transport_type: v::TRANSPORT_IB,
        name: text(name),
        dev_name: text(&format!("uverbs{number}")),
        dev_path: text(&format!("/sys/class/infiniband_verbs/uverbs{number}")),
        ibdev_path: text(&format!("/sys/class/infiniband/{name}")),
    };
    let (name, maker) = (name.to_owned(), rxe_verbs::forks());
    let object: &'static Device =
        Box::leak(Box::new(Device { c, name, device: Mutex::new(device), only, maker }));
    seen.push(object);
    object
}

impl Device {
    /// The device as it was last listed. A forked child may have this object from its parent. If a thread of the parent was listing devices
    /// at the fork, the lock is never released in the child, and the device is looked up again.
    pub(crate) fn current(&self) -> Result<rxe_verbs::Device, Errno> {
        if self.maker == rxe_verbs::forks() {
            return Ok(self.device.lock().unwrap_or_else(PoisonError::into_inner).clone());
        }
        match self.device.try_lock() {
            Ok(device) => Ok(device.clone()),
            Err(TryLockError::Poisoned(device)) => Ok(device.into_inner().clone()),
            Err(TryLockError::WouldBlock) => Ok(rxe_verbs::Device::find(&self.name)?),
        }
    }
}

/// ibv_get_device_list(3).
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_list(count: Option<&mut MaybeUninit<c_int>>) -> *mut DeviceList {
    let mut found = 0;
    let list = pointer(|| {
        let devices = devices()?;
        let mut list = [ptr::null(); MOST + 1];
        for (place, device) in list.iter_mut().take(MOST).zip(devices) {
            *place = device;
            found += 1;
        }
        Ok(Box::into_raw(Box::new(list)))
    });
    if let Some(count) = count {
        count.write(found);
    }
    list
}

/// ibv_free_device_list(3): frees the list. The devices stay.
#[unsafe(no_mangle)]
extern "C" fn ibv_free_device_list(list: Owned<DeviceList>) {
    quietly(|| list.free());
}

/// ibv_get_device_name(3).
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_name(device: Option<&Device>) -> *const c_char {
    device.map_or(ptr::null(), |device| device.c.name.as_ptr())
}

/// ibv_get_device_guid(3): in network order.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_guid(device: Option<&Device>) -> u64 {
    let Some(device) = device else {
        set_errno(Errno(libc::EINVAL));
        return 0;
    };
    device.current().map_or(0, |device| u64::from_ne_bytes(device.guid()))
}

/// ibv_get_device_index(3): unknown (-1). The index is the kernel's, by which UCX asks the kernel about the device (NETLINK_RDMA). It
/// does not know ours, and another may have that number.
#[unsafe(no_mangle)]
const extern "C" fn ibv_get_device_index(_device: Option<&Device>) -> c_int {
    -1
}
