"""The agent's ops on verbs objects; posting and polling is in verbs_work.py."""

import base64
import ctypes
import functools
import hashlib
import mmap
import os
import select
import subprocess
import threading
import zlib

from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR, MW
from pyverbs.pd import PD
from pyverbs.qp import QPAttr, QPCap, QPEx, QPInitAttrEx
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr

import names

_PATTERN_PERIOD = 65521
_MASK64 = (1 << 64) - 1
# Which file descriptor a new context or channel opened is found by looking before and after:
# meanwhile none may go, as its number would be used again.
_EVENT_FDS = threading.Lock()


def rdma_core_version():
    asked = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", "libibverbs1"],
                           capture_output=True, text=True)
    return asked.stdout


def device_names():
    return sorted(device.name.decode() for device in get_device_list())


class Owned:
    """A verbs object under a handle; `raw` is pyverbs' own."""

    def __init__(self, raw):
        self.raw = raw

    def close(self):
        self.raw.close()


class WithEvents(Owned):
    """An object with an event descriptor."""

    def close(self):
        with _EVENT_FDS:
            super().close()


class Ctx(WithEvents):
    def __init__(self, dev):
        self.dev = dev
        self.event_fd, raw = _opening(lambda: Context(name=dev))
        super().__init__(raw)


class Channel(WithEvents):
    def __init__(self, ctx):
        self.event_fd, raw = _opening(lambda: CompChannel(ctx.raw))
        super().__init__(raw)


class Pd(Owned):
    def __init__(self, ctx):
        super().__init__(PD(ctx.raw))
        self.ctx = ctx


class Buffer:
    """Zeroed shared memory: a fork for a new program never moves or copies it."""

    def __init__(self, length):
        self.length = length
        self.map = mmap.mmap(-1, max(length, 1))
        self.view = memoryview(self.map)
        self.addr = ctypes.addressof(ctypes.c_char.from_buffer(self.map))


class Region(Owned):
    def __init__(self, pd, buffer, offset, length, access):
        if offset < 0 or length < 0 or offset + length > buffer.length:
            raise ValueError(f"[{offset}, +{length}) is not inside a buffer of {buffer.length}")
        super().__init__(MR(pd.raw, length, access, address=buffer.addr + offset))
        self.buffer, self.offset, self.length = buffer, offset, length
        self.addr = buffer.addr + offset

    def part(self, offset, length):
        """A view of bytes counted from the region's start, anywhere in its buffer."""
        start = self.offset + offset
        if start < 0 or length < 0 or start + length > self.buffer.length:
            raise ValueError(f"offset {offset} length {length} is outside the buffer")
        return self.buffer.view[start:start + length]


class Window(Owned):
    def __init__(self, pd, kind):
        super().__init__(MW(pd.raw, kind))
        self.kind = kind
        self.rkey = self.raw.rkey


class Cq(Owned):
    pass


class Srq(Owned):
    pass


class Ah(Owned):
    pass


class Qp(Owned):
    def __init__(self, raw, kind, pd):
        super().__init__(raw)
        self.kind, self.pd = kind, pd


def _fds():
    """Every descriptor that may bring events, and what it is."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[int(number)] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            pass
    return {number: what for number, what in found.items() if what.startswith("anon_inode:") and "event" in what}


def _opening(make):
    """Makes an object and finds the event descriptor that pyverbs keeps to itself.

    A kernel's is called infinibandevent. A library of its own (the drop-in) may open others for itself, but the
    program's has the lowest number of them.
    """
    with _EVENT_FDS:
        before = _fds()
        raw = make()
        new = {number: what for number, what in _fds().items() if number not in before}
    kernel = [number for number, what in new.items() if "infinibandevent" in what]
    if len(kernel) > 1 or not new:
        raise RuntimeError(f"expected one new event descriptor, found {sorted(new.items())}")
    return (kernel[0] if kernel else min(new)), raw


def _readable(fd, timeout_ms):
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(timeout_ms))


# --- devices -------------------------------------------------------------------------------------


def op_gids(session, dev):
    return names.gid_table(dev)


def op_counters(session, dev):
    base = f"/sys/class/infiniband/{dev}/ports/1/hw_counters"
    values = {}
    for name in sorted(os.listdir(base)):
        if name != "lifespan":
            with open(f"{base}/{name}") as file:
                values[name] = int(file.read())
    return values


def op_open(session, dev="rxe0"):
    return {"handle": session.add(Ctx(dev))}


def op_query_device(session, ctx):
    attr = session.get(ctx, Ctx).raw.query_device()
    fields = """vendor_id vendor_part_id max_mr_size max_qp max_qp_wr device_cap_flags max_sge
        max_sge_rd max_cq max_cqe max_mr max_pd max_qp_rd_atom max_qp_init_rd_atom max_mw
        max_mcast_grp max_ah max_srq max_srq_wr max_srq_sge max_pkeys local_ca_ack_delay
        atomic_caps phys_port_cnt""".split()
    return {field: int(getattr(attr, field)) for field in fields}


def op_query_port(session, ctx, port=1):
    attr = session.get(ctx, Ctx).raw.query_port(port)
    fields = """state gid_tbl_len max_msg_sz bad_pkey_cntr qkey_viol_cntr pkey_tbl_len lid
        active_width active_speed phys_state link_layer""".split()
    shown = {field: int(getattr(attr, field)) for field in fields}
    shown["active_mtu"] = names.mtu_bytes(attr.active_mtu)
    shown["max_mtu"] = names.mtu_bytes(attr.max_mtu)
    return shown


def op_async_event(session, ctx, timeout_ms=0):
    context = session.get(ctx, Ctx)
    if not _readable(context.event_fd, timeout_ms):
        return None
    event = context.raw.get_async_event()
    kind = event.event_type
    event.ack()  # an event not acknowledged blocks the destruction of its object
    return {"event": names.named(kind, names.EVENTS)}


# --- memory --------------------------------------------------------------------------------------


def op_pd(session, ctx):
    return {"handle": session.add(Pd(session.get(ctx, Ctx)))}


def op_mr(session, pd, length, access=("LOCAL_WRITE",), buf_length=None, buf_offset=0, of=None):
    if of is None:
        buffer = Buffer(buf_offset + length if buf_length is None else buf_length)
    else:
        buffer = session.get(of, Region).buffer
    flags = names.bits(access, names.ACCESS, "access flag")
    region = Region(session.get(pd, Pd), buffer, buf_offset, length, flags)
    return {
        "handle": session.add(region),
        "addr": region.addr,
        "length": length,
        "lkey": region.raw.lkey,
        "rkey": region.raw.rkey,
    }


@functools.lru_cache(maxsize=64)
def _period(seed):
    state, words = seed & _MASK64, bytearray()
    while len(words) < _PATTERN_PERIOD:
        state = (state + 0x9E3779B97F4A7C15) & _MASK64
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
        words += (z ^ (z >> 31)).to_bytes(8, "little")
    return bytes(words[:_PATTERN_PERIOD])


def pattern(seed, start, length):
    """`length` bytes of PATTERN(seed) from position `start`; agent.py defines it."""
    period = _period(seed)
    skip = start % _PATTERN_PERIOD
    repeats = (skip + length) // _PATTERN_PERIOD + 1
    return (period * repeats)[skip:skip + length]


def op_mem_write(session, mr, offset=0, data=None, hex=None):
    content = bytes.fromhex(hex) if data is None else base64.b64decode(data)
    session.get(mr, Region).part(offset, len(content))[:] = content


def op_mem_read(session, mr, length, offset=0, encoding="base64"):
    content = bytes(session.get(mr, Region).part(offset, length))
    return {"data": content.hex() if encoding == "hex" else base64.b64encode(content).decode()}


def op_mem_set(session, mr, length, offset=0, byte=0):
    session.get(mr, Region).part(offset, length)[:] = bytes([byte]) * length


def op_mem_fill(session, mr, length, seed, offset=0, start=0):
    session.get(mr, Region).part(offset, length)[:] = pattern(seed, start, length)


def op_mem_check(session, mr, length, seed, offset=0, start=0):
    found = bytes(session.get(mr, Region).part(offset, length))
    expected = pattern(seed, start, length)
    if found == expected:
        return {"equal": True, "first_diff": None, "expected": None, "found": None}
    first = next(i for i in range(length) if found[i] != expected[i])
    return {
        "equal": False,
        "first_diff": first,
        "expected": expected[first:first + 16].hex(),
        "found": found[first:first + 16].hex(),
    }


def op_mem_hash(session, mr, length, offset=0):
    view = session.get(mr, Region).part(offset, length)
    return {"sha256": hashlib.sha256(view).hexdigest(), "crc32": f"{zlib.crc32(view):08x}"}


def op_mw(session, pd, type=1):
    window = Window(session.get(pd, Pd), type)
    return {"handle": session.add(window), "rkey": window.rkey}


# --- completion queues, shared receive queues ----------------------------------------------------


def op_channel(session, ctx):
    return {"handle": session.add(Channel(session.get(ctx, Ctx)))}


def op_cq(session, ctx, cqe=128, channel=None):
    raw_channel = None if channel is None else session.get(channel, Channel).raw
    raw = CQ(session.get(ctx, Ctx).raw, cqe, channel=raw_channel)
    return {"handle": session.add(Cq(raw)), "cqe": raw.cqe}


def op_resize_cq(session, cq, cqe):
    raw = session.get(cq, Cq).raw
    raw.resize(cqe)
    return {"cqe": raw.cqe}


def op_req_notify(session, cq, solicited=False):
    session.get(cq, Cq).raw.req_notify(solicited)


def op_cq_event(session, channel, cq, timeout_ms=0):
    waiting, queue = session.get(channel, Channel), session.get(cq, Cq)
    if not _readable(waiting.event_fd, timeout_ms):
        return False
    waiting.raw.get_cq_event(queue.raw)
    queue.raw.ack_events(1)
    return True


def op_srq(session, pd, max_wr=128, max_sge=4, limit=0):
    init = SrqInitAttr(SrqAttr(max_wr, max_sge, limit))
    return {"handle": session.add(Srq(SRQ(session.get(pd, Pd).raw, init)))}


def op_modify_srq(session, srq, limit=None, max_wr=None):
    mask = (0 if max_wr is None else 1) | (0 if limit is None else 2)
    session.get(srq, Srq).raw.modify(SrqAttr(max_wr or 0, 0, limit or 0), mask)


def op_query_srq(session, srq):
    attr = session.get(srq, Srq).raw.query()
    return {"max_wr": attr.max_wr, "max_sge": attr.max_sge, "limit": attr.srq_limit}


# --- queue pairs ---------------------------------------------------------------------------------

# ibv_qp_create_send_ops_flags, what rxe's provider has per type: bit 0 WRITE, 1 WRITE_IMM, 2 SEND,
# 3 SEND_IMM, 4 READ, 5 CMP_SWP, 6 FETCH_ADD, 7 LOCAL_INV, 8 BIND_MW, 9 SEND_INV, 12 ATOMIC_WRITE.
_SEND_OPS = {"RC": 0x13FF, "UC": 0x030F, "UD": 0x000C}
_INIT_ATTR_PD, _INIT_ATTR_SEND_OPS = 1 << 0, 1 << 6


def op_qp(session, pd, send_cq, type="RC", recv_cq=None, srq=None, max_send_wr=128,
          max_recv_wr=128, max_send_sge=4, max_recv_sge=4, max_inline=0, sig_all=False):
    owner = session.get(pd, Pd)
    scq = session.get(send_cq, Cq).raw
    init = QPInitAttrEx(
        qp_type=names.index(type, names.QP_TYPES, "QP type"),
        scq=scq,
        rcq=scq if recv_cq is None else session.get(recv_cq, Cq).raw,
        srq=None if srq is None else session.get(srq, Srq).raw,
        cap=QPCap(max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline),
        sq_sig_all=int(sig_all),
        comp_mask=_INIT_ATTR_PD | _INIT_ATTR_SEND_OPS,
        pd=owner.raw,
        send_ops_flags=_SEND_OPS[type],
    )
    raw = QPEx(owner.ctx.raw, init)
    return {"handle": session.add(Qp(raw, type, owner)), "qpn": raw.qp_num}


def address_vector(dev, dgid, sgid_index=None, sgid=None, hop_limit=64, traffic_class=0,
                   flow_label=0, sl=0, port=1, is_global=1, gid_type="v2"):
    if sgid_index is None:
        if sgid is None:
            raise ValueError("av needs sgid_index or sgid")
        sgid_index = names.gid_index(dev, sgid, port, gid_type)
        if sgid_index is None:
            raise ValueError(f"{dev} has no RoCE{gid_type} GID for {sgid}")
    route = GlobalRoute(dgid=GID(names.gid_words(dgid)), sgid_index=sgid_index,
                        flow_label=flow_label, hop_limit=hop_limit, traffic_class=traffic_class)
    return AHAttr(sl=sl, port_num=port, is_global=is_global, gr=route)


# Our name of an attribute -> pyverbs' name, name of its mask bit.
_ATTRS = {
    "port": ("port_num", "PORT"), "pkey_index": ("pkey_index", "PKEY_INDEX"),
    "access": ("qp_access_flags", "ACCESS_FLAGS"), "qkey": ("qkey", "QKEY"),
    "path_mtu": ("path_mtu", "PATH_MTU"), "dest_qpn": ("dest_qp_num", "DEST_QPN"),
    "rq_psn": ("rq_psn", "RQ_PSN"), "sq_psn": ("sq_psn", "SQ_PSN"),
    "max_dest_rd_atomic": ("max_dest_rd_atomic", "MAX_DEST_RD_ATOMIC"),
    "max_rd_atomic": ("max_rd_atomic", "MAX_QP_RD_ATOMIC"),
    "min_rnr_timer": ("min_rnr_timer", "MIN_RNR_TIMER"), "timeout": ("timeout", "TIMEOUT"),
    "retry_cnt": ("retry_cnt", "RETRY_CNT"), "rnr_retry": ("rnr_retry", "RNR_RETRY"),
    "en_sqd_async_notify": ("en_sqd_async_notify", "EN_SQD_ASYNC_NOTIFY"),
    "cur_state": ("cur_qp_state", "CUR_STATE"), "av": ("ah_attr", "AV"),
}


def op_modify(session, qp, state=None, attrs={}, mask=None):
    pair = session.get(qp, Qp)
    attr, implied = QPAttr(), 0
    bit = {name: 1 << number for number, name in enumerate(names.QP_MASK)}
    if state is not None:
        attr.qp_state = names.index(state, names.QP_STATES, "QP state")
        implied |= bit["STATE"]
    for name, value in attrs.items():
        names.index(name, _ATTRS, "QP attribute")
        field, mask_name = _ATTRS[name]
        if name == "access":
            value = names.bits(value, names.ACCESS, "access flag")
        elif name == "path_mtu":
            value = names.mtu_code(value)
        elif name == "cur_state":
            value = names.index(value, names.QP_STATES, "QP state")
        elif name == "av":
            value = address_vector(**{"dev": pair.pd.ctx.dev, **value})
        setattr(attr, field, value)
        implied |= bit[mask_name]
    pair.raw.modify(attr, implied if mask is None else names.bits(mask, bit, "attribute mask"))


_REMOTE = ("LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC")


def op_connect(session, qp, dest_qpn, av, path_mtu=1024, rq_psn=0, sq_psn=0, access=_REMOTE,
               max_dest_rd_atomic=16, max_rd_atomic=16, min_rnr_timer=12, timeout=14,
               retry_cnt=7, rnr_retry=7, upto="RTS"):
    reliable = session.get(qp, Qp).kind == "RC"
    op_modify(session, qp, "INIT", {"port": av.get("port", 1), "pkey_index": 0, "access": access})
    if upto == "INIT":
        return
    rtr = {"av": av, "path_mtu": path_mtu, "dest_qpn": dest_qpn, "rq_psn": rq_psn}
    rts = {"sq_psn": sq_psn}
    if reliable:
        rtr.update(max_dest_rd_atomic=max_dest_rd_atomic, min_rnr_timer=min_rnr_timer)
        rts.update(timeout=timeout, retry_cnt=retry_cnt, rnr_retry=rnr_retry,
                   max_rd_atomic=max_rd_atomic)
    op_modify(session, qp, "RTR", rtr)
    if upto != "RTR":
        op_modify(session, qp, "RTS", rts)


def op_activate(session, qp, qkey, sq_psn=0, pkey_index=0, port=1):
    op_modify(session, qp, "INIT", {"port": port, "pkey_index": pkey_index, "qkey": qkey})
    op_modify(session, qp, "RTR")
    op_modify(session, qp, "RTS", {"sq_psn": sq_psn})


def op_query_qp(session, qp):
    pair = session.get(qp, Qp)
    attr, _ = pair.raw.query((1 << 21) - 1)
    fields = """rq_psn sq_psn qkey pkey_index max_rd_atomic max_dest_rd_atomic min_rnr_timer
        timeout retry_cnt rnr_retry sq_draining""".split()
    shown = {field: int(getattr(attr, field)) for field in fields}
    av = attr.ah_attr
    shown.update(
        state=names.named(attr.qp_state, names.QP_STATES),
        qpn=pair.raw.qp_num,
        dest_qpn=attr.dest_qp_num,
        path_mtu=names.mtu_bytes(attr.path_mtu),
        access=names.listed(attr.qp_access_flags, names.ACCESS),
        port=attr.port_num,
        dgid=str(av.dgid) if av.is_global else None,
        sgid_index=av.sgid_index if av.is_global else None,
        hop_limit=av.hop_limit if av.is_global else None,
        traffic_class=av.traffic_class if av.is_global else None,
        flow_label=av.flow_label if av.is_global else None,
    )
    return shown


def op_ah(session, pd, av):
    owner = session.get(pd, Pd)
    attr = address_vector(**{"dev": owner.ctx.dev, **av})
    return {"handle": session.add(Ah(AH(owner.raw, attr=attr)))}
