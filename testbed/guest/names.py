"""Names of verbs constants, as the agent's clients write and read them."""

import ipaddress
import os

ACCESS = {
    "LOCAL_WRITE": 1 << 0, "REMOTE_WRITE": 1 << 1, "REMOTE_READ": 1 << 2, "REMOTE_ATOMIC": 1 << 3,
    "MW_BIND": 1 << 4, "ZERO_BASED": 1 << 5, "ON_DEMAND": 1 << 6, "HUGETLB": 1 << 7,
    "FLUSH_GLOBAL": 1 << 8, "FLUSH_PERSISTENT": 1 << 9, "RELAXED_ORDERING": 1 << 20,
}
SEND_FLAGS = {"FENCE": 1, "SIGNALED": 2, "SOLICITED": 4, "INLINE": 8, "IP_CSUM": 16}
WC_FLAGS = {"GRH": 1, "WITH_IMM": 2, "IP_CSUM_OK": 4, "WITH_INV": 8}
QP_TYPES = {"RC": 2, "UC": 3, "UD": 4}
QP_STATES = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"]
WR_OPCODES = {
    "RDMA_WRITE": 0, "RDMA_WRITE_WITH_IMM": 1, "SEND": 2, "SEND_WITH_IMM": 3, "RDMA_READ": 4,
    "ATOMIC_CMP_AND_SWP": 5, "ATOMIC_FETCH_AND_ADD": 6, "LOCAL_INV": 7, "BIND_MW": 8,
    "SEND_WITH_INV": 9, "FLUSH": 14, "ATOMIC_WRITE": 15,
}
WC_OPCODES = {
    0: "SEND", 1: "RDMA_WRITE", 2: "RDMA_READ", 3: "COMP_SWAP", 4: "FETCH_ADD", 5: "BIND_MW",
    6: "LOCAL_INV", 7: "TSO", 8: "FLUSH", 9: "ATOMIC_WRITE", 128: "RECV",
    129: "RECV_RDMA_WITH_IMM",
}
WC_STATUS = [
    "SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR",
    "MW_BIND_ERR", "BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR",
    "REM_OP_ERR", "RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR", "REM_INV_RD_REQ_ERR",
    "REM_ABORT_ERR", "INV_EECN_ERR", "INV_EEC_STATE_ERR", "FATAL_ERR", "RESP_TIMEOUT_ERR",
    "GENERAL_ERR", "TM_ERR", "TM_RNDV_INCOMPLETE",
]
EVENTS = [
    "CQ_ERR", "QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR", "COMM_EST", "SQ_DRAINED", "PATH_MIG",
    "PATH_MIG_ERR", "DEVICE_FATAL", "PORT_ACTIVE", "PORT_ERR", "LID_CHANGE", "PKEY_CHANGE",
    "SM_CHANGE", "SRQ_ERR", "SRQ_LIMIT_REACHED", "QP_LAST_WQE_REACHED", "CLIENT_REREGISTER",
    "GID_CHANGE", "WQ_FATAL",
]
# ibv_qp_attr_mask, from bit 0.
QP_MASK = [
    "STATE", "CUR_STATE", "EN_SQD_ASYNC_NOTIFY", "ACCESS_FLAGS", "PKEY_INDEX", "PORT", "QKEY",
    "AV", "PATH_MTU", "TIMEOUT", "RETRY_CNT", "RNR_RETRY", "RQ_PSN", "MAX_QP_RD_ATOMIC",
    "ALT_PATH", "MIN_RNR_TIMER", "SQ_PSN", "MAX_DEST_RD_ATOMIC", "PATH_MIG_STATE", "CAP",
    "DEST_QPN", "RATE_LIMIT",
]


def bits(names, table, what):
    """The bits of a list of names; an integer is taken as it is."""
    if isinstance(names, int):
        return names
    value = 0
    for name in names:
        if name not in table:
            raise ValueError(f"no {what} '{name}' (there are: {' '.join(table)})")
        value |= table[name]
    return value


def index(name, names, what):
    """The number of a name in a list or table."""
    if name not in names:
        raise ValueError(f"no {what} '{name}' (there are: {' '.join(names)})")
    return names[name] if isinstance(names, dict) else names.index(name)


def listed(value, table):
    """The names of the bits in value; unknown bits as numbers."""
    found = [name for name, bit in table.items() if value & bit]
    rest = value & ~sum(table.values())
    return found + ([rest] if rest else [])


def named(number, names):
    """The name of a number, or the number itself where none is known."""
    if isinstance(names, dict):
        return names.get(number, number)
    return names[number] if 0 <= number < len(names) else number


def mtu_code(mtu_bytes):
    """ibv_mtu of a path MTU in bytes."""
    codes = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}
    if mtu_bytes not in codes:
        raise ValueError(f"path MTU {mtu_bytes} is not one of 256 512 1024 2048 4096")
    return codes[mtu_bytes]


def mtu_bytes(code):
    return 128 << code if 1 <= code <= 5 else 0


def gid_words(text):
    """An address or GID as the eight full hexadecimal words pyverbs wants; IPv4 is v4-mapped."""
    address = ipaddress.ip_address(text)
    if address.version == 4:
        address = ipaddress.IPv6Address(b"\0" * 10 + b"\xff\xff" + address.packed)
    return address.exploded


def gid_table(dev, port=1):
    """The non-zero entries of a device's GID table, from sysfs."""
    base = f"/sys/class/infiniband/{dev}/ports/{port}"
    if not os.path.isdir(base):
        raise ValueError(f"no device '{dev}' with port {port}")
    entries = []
    for number in sorted(os.listdir(f"{base}/gids"), key=int):
        try:
            with open(f"{base}/gids/{number}") as file:
                gid = ipaddress.IPv6Address(file.read().strip())
            if not int(gid):
                # rxe fills its 1024 entries from the front, with holes only after removals.
                if int(number) > 32:
                    break
                continue
            with open(f"{base}/gid_attrs/types/{number}") as file:
                kind = file.read().strip()
            with open(f"{base}/gid_attrs/ndevs/{number}") as file:
                netdev = file.read().strip()
        except OSError:
            continue  # removed while we look
        text = f"::ffff:{gid.ipv4_mapped}" if gid.ipv4_mapped else str(gid)
        entries.append({"index": int(number), "gid": text, "type": kind, "netdev": netdev})
    return entries


def gid_index(dev, address, port=1, gid_type="v2"):
    """The index of an address in the device's GID table, or None. Cards have an entry for each of both RoCEs."""
    wanted = ipaddress.ip_address(gid_words(address))
    try:
        table = gid_table(dev, port)
    except ValueError:
        return None
    for entry in table:
        if ipaddress.ip_address(entry["gid"]) == wanted and entry["type"].endswith("v2") == (gid_type == "v2"):
            return entry["index"]
    return None
