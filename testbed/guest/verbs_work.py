"""The agent's ops that post work and poll completions."""

import ctypes
import re
import secrets
import socket
import threading
import time

from pyverbs.mr import MWBind, MWBindInfo
from pyverbs.wr import SGE, RecvWR, SendWR

import names
from verbs_ops import Ah, Cq, Qp, Region, Srq, Window

# The extended post calls hold a lock of the library from wr_start to wr_complete; a second thread
# that waited for it inside the library would never give the interpreter back.
_POSTING = threading.Lock()


def _sges(session, entries):
    made = []
    for entry in entries:
        addr, lkey, length = entry.get("addr"), entry.get("lkey"), entry.get("length")
        if "mr" in entry:
            region = session.get(entry["mr"], Region)
            offset = entry.get("offset", 0)
            addr = region.addr + offset if addr is None else addr
            lkey = region.raw.lkey if lkey is None else lkey
            length = region.length - offset if length is None else length
        if addr is None or lkey is None or length is None:
            raise ValueError("an sge needs mr, or addr, length and lkey")
        made.append(SGE(addr, length, lkey))
    return made


def _receive(session, post, wrs):
    for wr in wrs:
        sges = _sges(session, wr.get("sge", []))
        # pyverbs refuses to make a work request without any SGE; the count is corrected after.
        raw = RecvWR(wr.get("wr_id", 0), max(len(sges), 1), sges or [SGE(0, 0, 0)])
        raw.num_sge = len(sges)
        try:
            post(raw)
        finally:
            raw.close()


def op_post_recv(session, qp, wrs):
    _receive(session, session.get(qp, Qp).raw.post_recv, wrs)


def op_post_srq_recv(session, srq, wrs):
    _receive(session, session.get(srq, Srq).raw.post_recv, wrs)


def op_post_send(session, qp, wrs):
    pair = session.get(qp, Qp)
    for wr in wrs:
        opcode = wr["opcode"]
        names.index(opcode, names.WR_OPCODES, "opcode")
        with _POSTING:
            if opcode in ("ATOMIC_WRITE", "FLUSH") or wr.get("unchecked"):
                _post_extended(session, pair, opcode, wr)
            else:
                _post(session, pair, opcode, wr)


def _post(session, pair, opcode, wr):
    sges = _sges(session, wr.get("sge", []))
    raw = SendWR(
        wr_id=wr.get("wr_id", 0),
        opcode=names.WR_OPCODES[opcode],
        num_sge=max(len(sges), 1),
        sg=sges or [SGE(0, 0, 0)],
        send_flags=names.bits(wr.get("flags", ["SIGNALED"]), names.SEND_FLAGS, "send flag"),
    )
    raw.num_sge = len(sges)
    try:
        if opcode.endswith("_WITH_IMM"):
            raw.imm_data = socket.htonl(wr["imm"])
        elif opcode in ("SEND_WITH_INV", "LOCAL_INV"):
            raw.imm_data = wr["invalidate_rkey"]  # the same union, in host order
        if opcode == "ATOMIC_CMP_AND_SWP":
            raw.set_wr_atomic(wr["rkey"], wr["remote_addr"], wr["compare"], wr["swap"])
        elif opcode == "ATOMIC_FETCH_AND_ADD":
            raw.set_wr_atomic(wr["rkey"], wr["remote_addr"], wr["add"])
        elif opcode.startswith("RDMA_"):
            raw.set_wr_rdma(wr["rkey"], wr["remote_addr"])
        elif "ah" in wr:
            raw.set_wr_ud(session.get(wr["ah"], Ah).raw, wr["remote_qpn"], wr["remote_qkey"])
        pair.raw.post_send(raw)
    finally:
        raw.close()


def _post_extended(session, pair, opcode, wr):
    """Operations that exist only in the extended post calls, or whose arguments only those do not check (RC)."""
    if pair.kind != "RC":
        raise ValueError(f"{opcode} needs an RC QP")
    raw = pair.raw
    wr_id = wr.get("wr_id", 0)
    raw.wr_flags = names.bits(wr.get("flags", ["SIGNALED"]), names.SEND_FLAGS, "send flag")
    raw.wr_start()
    try:
        if opcode == "ATOMIC_WRITE":
            raw.wr_id = wr_id
            raw.wr_atomic_write(wr["rkey"], wr["remote_addr"], wr["value"].to_bytes(8, "little"))
        elif opcode == "ATOMIC_FETCH_AND_ADD":
            raw.wr_id = wr_id
            raw.wr_atomic_fetch_add(wr["rkey"], wr["remote_addr"], wr["add"])
            raw.wr_set_sge(_sges(session, wr["sge"])[0])
        elif opcode == "FLUSH":
            _build_flush(raw, wr_id, wr)
        else:
            raise ValueError(f"{opcode} has no unchecked form")
    except BaseException:
        raw.wr_abort()
        raise
    raw.wr_complete()


def _build_flush(raw, wr_id, wr):
    """Builds a FLUSH: this rdma-core knows the kernel's operation but has no call for it.

    The send queue is shared with the kernel, and nothing in it counts before wr_complete: a READ
    is built, found in the queue by a random wr_id, and made a FLUSH (struct rxe_send_wr of
    rdma_user_rxe.h: wr_id at 0, opcode at 12, flush.rkey at 36, type at 40, level at 41).
    """
    marker = secrets.randbits(64)
    raw.wr_id = marker
    raw.wr_rdma_read(wr["rkey"], wr["remote_addr"])
    raw.wr_set_sge(SGE(0, wr["length"], 0))  # its length is the RETH's
    place = _find_in_queues(marker)
    ctypes.c_uint32.from_address(place + 12).value = names.WR_OPCODES["FLUSH"]
    ctypes.c_uint32.from_address(place + 36).value = wr["rkey"]
    ctypes.c_uint8.from_address(place + 40).value = wr.get("type", 1)
    ctypes.c_uint8.from_address(place + 41).value = wr.get("level", 0)
    ctypes.c_uint64.from_address(place).value = wr_id


def _find_in_queues(marker):
    needle = marker.to_bytes(8, "little")
    with open("/proc/self/maps") as maps:
        for line in maps:
            match = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw.* /dev/infiniband/uverbs", line)
            if match:
                start, end = (int(text, 16) for text in match.groups())
                at = ctypes.string_at(start, end - start).find(needle)
                if at >= 0:
                    return start + at
    raise RuntimeError("the send queue entry was not found")


def op_bind_mw(session, qp, mw, mr, length, access, offset=0, wr_id=0, flags=("SIGNALED",)):
    pair, window = session.get(qp, Qp), session.get(mw, Window)
    region = session.get(mr, Region)
    info = MWBindInfo(region.raw, region.addr + offset, length,
                      names.bits(access, names.ACCESS, "access flag"))
    bits = names.bits(flags, names.SEND_FLAGS, "send flag")
    with _POSTING:
        if window.kind == 1:
            pair.raw.bind_mw(window.raw, MWBind(info, bits, wr_id))
            window.rkey = window.raw.rkey
        else:
            window.rkey = _bind_type_2(pair.raw, window, info, wr_id, bits)
    return {"rkey": window.rkey}


def _bind_type_2(raw, window, info, wr_id, bits):
    """Posts a BIND_MW with the window's next key, which it returns.

    The application is to write that key into struct ibv_mw afterwards; pyverbs has no way to do
    so, and a later bind would name the window by its first key. So the key in the queue entry
    (struct rxe_send_wr, mw.mw_rkey at 44) is set to the current one, as in _build_flush.
    """
    new = (window.rkey & ~0xFF) | ((window.rkey + 1) & 0xFF)
    marker = secrets.randbits(64)
    raw.wr_start()
    try:
        raw.wr_id, raw.wr_flags = marker, bits
        raw.wr_bind_mw(window.raw, new, info)
        place = _find_in_queues(marker)
        ctypes.c_uint32.from_address(place + 44).value = window.rkey
        ctypes.c_uint64.from_address(place).value = wr_id
    except BaseException:
        raw.wr_abort()
        raise
    raw.wr_complete()
    return new


def _completion(wc):
    flags = int(wc.wc_flags)
    # Kernel rxe writes its own flag bits into the completions of programs: its WITH_INVALIDATE is
    # their IP_CSUM_OK, which it never means.
    if flags & names.WC_FLAGS["IP_CSUM_OK"]:
        flags ^= names.WC_FLAGS["IP_CSUM_OK"] | names.WC_FLAGS["WITH_INV"]
    return {
        "wr_id": wc.wr_id,
        "status": names.named(int(wc.status), names.WC_STATUS),
        "status_code": int(wc.status),
        "opcode": names.named(int(wc.opcode), names.WC_OPCODES),
        "byte_len": wc.byte_len,
        "qp_num": wc.qp_num,
        "src_qp": wc.src_qp,
        "wc_flags": names.listed(flags, names.WC_FLAGS),
        "imm": socket.ntohl(wc.imm_data) if flags & names.WC_FLAGS["WITH_IMM"] else None,
        "invalidated_rkey": wc.imm_data if flags & names.WC_FLAGS["WITH_INV"] else None,
        "vendor_err": wc.vendor_err,
        "pkey_index": wc.pkey_index,
        "slid": wc.slid,
        "sl": wc.sl,
        "path_bits": wc.dlid_path_bits,
    }


def op_poll_cq(session, cq, count=1, timeout_ms=0):
    queue = session.get(cq, Cq).raw
    deadline = time.monotonic() + timeout_ms / 1000
    found = []
    while True:
        _, fresh = queue.poll(count - len(found))
        found += [_completion(wc) for wc in fresh]
        if len(found) >= count or time.monotonic() >= deadline:
            return found
        time.sleep(0.0005)
