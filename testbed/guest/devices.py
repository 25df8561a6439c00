"""What sysfs tells of the guest's RDMA devices."""

import ipaddress
import os

ROOT = "/sys/class/infiniband"


def _read(path):
    """The text of a sysfs file, or nothing: entries of empty GIDs cannot be read."""
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def device_names():
    """All RDMA devices."""
    return sorted(os.listdir(ROOT)) if os.path.isdir(ROOT) else []


def op_gids(session, dev):
    """The GID table without its empty entries."""
    port = f"{ROOT}/{dev}/ports/1"
    table = []
    for index in sorted(int(name) for name in os.listdir(f"{port}/gids")):
        gid = _read(f"{port}/gids/{index}")
        if not gid.replace(":", "").strip("0"):
            continue
        table.append(
            {
                "index": index,
                "gid": str(ipaddress.IPv6Address(gid)),
                "type": _read(f"{port}/gid_attrs/types/{index}"),
                "netdev": _read(f"{port}/gid_attrs/ndevs/{index}"),
            }
        )
    return table


def op_counters(session, dev):
    """The device's own counters."""
    folder = f"{ROOT}/{dev}/ports/1/hw_counters"
    return {name: int(_read(f"{folder}/{name}") or 0) for name in os.listdir(folder) if name != "lifespan"}


def gid_index(dev, address):
    """Where an address stands in the GID table; None if it does not."""
    address = ipaddress.ip_address(address)
    if address.version == 4:
        address = ipaddress.IPv6Address(f"::ffff:{address}")
    if dev not in device_names():
        return None
    for entry in op_gids(None, dev):
        if ipaddress.IPv6Address(entry["gid"]) == address:
            return entry["index"]
    return None
