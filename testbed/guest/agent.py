#!/usr/bin/python3
"""Takes orders inside a guest: runs programs and drives its kernel rxe through verbs (pyverbs).

PROTOCOL
  TCP port 7000. One JSON object a line, answered by one JSON object a line, in order:
      {"op": "poll_cq", "args": {"cq": 7, "timeout_ms": 1000}}
      {"ok": true, "result": [...]}     or     {"ok": false, "error": "text", "errno": 22}
  ("errno" only where the failure has one.) Any number of connections, each served by a thread of
  its own. Objects and programs are named by integers, valid on every connection, and belong to
  the connection that made them: when it ends they are destroyed, newest first, so a client that
  dies leaves nothing behind. An argument shown as name=value is optional with that default.
  Numbers of 64 bits are plain JSON integers; byte strings are base64. Addresses and GIDs are text:
  "10.61.0.2", "fd00:61::2", "::ffff:10.61.0.2"; an IPv4 address given as a GID is v4-mapped.
  Flag sets are lists of names (or one integer). QP numbers, keys, PSNs are integers.

  An agent that was started with --token is for hosts which others can reach: a connection has to begin with a hello that
  has the token within 20 seconds (less where many wait that have said nothing), else it is ended, and only the ops on verbs and rdma_cm are there (no programs, files or network faults).

GENERAL
  ping {}                               -> "pong"
  hello {token=""}                      -> {kernel, arch, rdma_core, devices: [name], protocol: 1}
  close {handle}                        -> null       destroys one object (or kills one program)
  close_all {}                          -> null       all of this connection's

PROGRAMS
  exec {argv, env={}, stdin="", timeout_s=60, netns=null, cwd=null, binary=false}
      -> {exit, stdout, stderr, timed_out}   runs it to its end; exit is -N after signal N. Output
      is text (UTF-8, wrong bytes replaced) or base64 with binary=true. env adds to the guest's.
      netns="ours" runs it in that namespace of the guest.
  spawn {argv, env={}, netns=null, cwd=null, binary=false}    -> {handle, pid}
  wait {handle, timeout_ms=0}           -> {running, exit, stdout, stderr}   the output since the
      last wait; returns early as soon as there is some, or at the end. exit is null while running.
      At its end all output has been returned with (or before) running=false.
  write {handle, data, eof=false}       -> null       data is text for its standard input
  kill {handle, signal=15}              -> null       its whole process group
  put {path, data, mode=420, append=false} -> {size}  writes a file in the guest's own layer
  get {path, offset=0, length=16777216} -> {data, size}

NETWORK FAULTS (sch_netem; only traffic of that device, never the agent's own connection)
  netem {dev="eth0", direction="egress", netns=null, loss=0, duplicate=0, reorder=0, corrupt=0,
         delay_ms=0, jitter_ms=0, keep=false}  -> null   percentages. direction "egress" hits what the
      guest sends on dev, "ingress" what it receives. reorder lets that share overtake the others,
      which wait delay_ms (1 if not given). A second call replaces the first of that direction.
      The end of the connection clears both directions, unless keep=true.
  netem_clear {dev="eth0", netns=null}  -> null       both directions
  netem_stats {dev="eth0", direction="egress", netns=null}  -> {sent, dropped}   packets

VERBS: devices
  gids {dev}                            -> [{index, gid, type, netdev}]     non-zero entries
  counters {dev}                        -> {name: value}   rxe's hw_counters (sent_pkts, ...)
  open {dev="rxe0"}                     -> {handle, features=[]}   a context; parent of the rest. agent.c names what
      its device has beyond the usual: "multicast", "xrc"
  query_device {ctx}                    -> {max_qp_wr, max_sge, max_mr, ...}
  query_port {ctx, port=1}              -> {state, active_mtu, max_mtu, ...}  MTUs in bytes
  async_event {ctx, timeout_ms=0}       -> {event} or null   e.g. "SRQ_LIMIT_REACHED"

VERBS: memory
  pd {ctx}                              -> {handle}
  mr {pd, length, access=["LOCAL_WRITE"], buf_length=null, buf_offset=0, of=null}
      -> {handle, addr, length, lkey, rkey}   registers `length` bytes at buf_offset of a fresh
      zeroed buffer of buf_length (default buf_offset + length): bytes outside the region can be
      inspected. of=another mr: registers part of that one's buffer instead (buf_offset is from
      the buffer's start).
      access: LOCAL_WRITE REMOTE_WRITE REMOTE_READ REMOTE_ATOMIC MW_BIND ZERO_BASED FLUSH_GLOBAL
      FLUSH_PERSISTENT RELAXED_ORDERING
  mem_write {mr, offset=0, data | hex}  -> null       offsets count from the region's start and
      may be negative or past its end as long as they are inside its buffer (all mem_ ops)
  mem_read {mr, offset=0, length, encoding="base64"}  -> {data}      or encoding "hex"
  mem_set {mr, offset=0, length, byte=0}              -> null
  mem_fill {mr, offset=0, length, seed, start=0}      -> null        with PATTERN(seed)[start..]
  mem_check {mr, offset=0, length, seed, start=0}
      -> {equal, first_diff, expected, found}   first_diff counts from offset; up to 16 bytes hex
  mem_hash {mr, offset=0, length}       -> {sha256, crc32}   hex; crc32 as zlib's
  mw {pd, type=1}                       -> {handle, rkey}    type 1 or 2
  bind_mw {qp, mw, mr, offset=0, length, access, wr_id=0, flags=["SIGNALED"]}
      -> {rkey}    posts the bind. Type 1 by ibv_bind_mw; type 2 by a BIND_MW work request with
      the next key of the window, which must be unbound (fresh or invalidated). length 0 unbinds
      type 1. Poll its completion (opcode BIND_MW).

  PATTERN(seed) is endless and cheap to make anywhere: take splitmix64 with the 64-bit state
  `seed` (each step: state += 0x9e3779b97f4a7c15; z = state; z = (z ^ z>>30) *
  0xbf58476d1ce4e5b9; z = (z ^ z>>27) * 0x94d049bb133111eb; z ^= z>>31, modulo 2**64), write its
  numbers as little-endian 8-byte words, keep the first 65521 bytes (a prime) and repeat them.
  PATTERN(1) begins c15c0289ec2d0a91.

VERBS: queues
  channel {ctx}                         -> {handle}
  cq {ctx, cqe=128, channel=null}       -> {handle, cqe}
  resize_cq {cq, cqe}                   -> {cqe}
  req_notify {cq, solicited=false}      -> null
  cq_event {channel, cq, timeout_ms=0}  -> true if one came (it is acknowledged), else false
  srq {pd, max_wr=128, max_sge=4, limit=0}  -> {handle}
  modify_srq {srq, limit=null, max_wr=null} -> null
  query_srq {srq}                       -> {max_wr, max_sge, limit}
  qp {pd, type="RC", send_cq, recv_cq=send_cq, srq=null, max_send_wr=128, max_recv_wr=128,
      max_send_sge=4, max_recv_sge=4, max_inline=0, sig_all=false}   -> {handle, qpn}  RC UC UD
  modify {qp, state=null, attrs={}, mask=null}  -> null      exactly the given attributes (mask: a
      list of IBV_QP_* names without prefix, or an integer, instead of what attrs implies).
      attrs: port pkey_index access qkey path_mtu(bytes) dest_qpn rq_psn sq_psn max_dest_rd_atomic
      max_rd_atomic min_rnr_timer timeout retry_cnt rnr_retry en_sqd_async_notify cur_state av
      av: {dgid, sgid_index | sgid, dev, hop_limit=64, traffic_class=0, flow_label=0, sl=0, port=1,
           is_global=1, gid_type="v2"}    sgid is an address of ours, looked up in the GID table among those
           of that RoCE, "v1" or "v2"
      state: RESET INIT RTR RTS SQD SQE ERR
  connect {qp, dest_qpn, av, path_mtu=1024, rq_psn=0, sq_psn=0, access=[all remote],
           max_dest_rd_atomic=16, max_rd_atomic=16, min_rnr_timer=12, timeout=14, retry_cnt=7,
           rnr_retry=7, upto="RTS"}     -> null      RC or UC, from RESET through INIT and RTR
  attach_mcast {qp, group}, detach_mcast {qp, group}   -> null        only in agent.c; group is an address
  activate {qp, qkey, sq_psn=0, pkey_index=0, port=1} -> null         UD, from RESET to RTS
  query_qp {qp}                         -> {state, qpn, dest_qpn, path_mtu, rq_psn, sq_psn, ...}
  ah {pd, av}                           -> {handle}   av as in modify

VERBS: work
  post_recv {qp, wrs}, post_srq_recv {srq, wrs}       -> null
      wr: {wr_id=0, sge=[]}   sge: {mr, offset=0, length=to its end} or {addr, length, lkey};
      an lkey or addr beside mr overrides that part
  post_send {qp, wrs}                   -> null       stops at the first that is refused
      wr: {opcode, wr_id=0, sge=[], flags=["SIGNALED"], ...}; flags SIGNALED FENCE SOLICITED INLINE
        SEND  SEND_WITH_IMM {imm}  SEND_WITH_INV {invalidate_rkey}
        RDMA_WRITE {remote_addr, rkey}  RDMA_WRITE_WITH_IMM {remote_addr, rkey, imm}
        RDMA_READ {remote_addr, rkey}
        ATOMIC_CMP_AND_SWP {remote_addr, rkey, compare, swap}
        ATOMIC_FETCH_AND_ADD {remote_addr, rkey, add, unchecked=false}   unchecked: also to an
              address that is no multiple of 8, which ibv_post_send refuses. RC QPs only
        ATOMIC_WRITE {remote_addr, rkey, value}       8 bytes, little-endian; kernel 6.12 on
        FLUSH {remote_addr, rkey, length, type=1, level=0}   type 1 global, 2 persistent; level 0
              range, 1 whole MR; kernel 6.12 on. RC QPs only
        LOCAL_INV {invalidate_rkey}
        (UD: SEND or SEND_WITH_IMM with {ah, remote_qpn, remote_qkey})
      imm is the 32-bit value whose big-endian form is on the wire
  poll_cq {cq, count=1, timeout_ms=0}   -> [wc]       waits until `count` have come or time is up;
      the answer may be shorter.
      wc: {wr_id, status, status_code, opcode, byte_len, qp_num, src_qp, wc_flags, imm,
           invalidated_rkey, vendor_err, pkey_index, slid, sl, path_bits}
      status and opcode as in ibv_wc_status and ibv_wc_opcode without IBV_WC_; imm and
      invalidated_rkey null where the flags do not announce them (wc_flags: GRH WITH_IMM WITH_INV;
      kernel rxe reports WITH_INV in the wrong bit, 4 instead of 8: put right here). On an error
      only wr_id, status, qp_num mean something.

CONNECTION MANAGER (librdmacm; ids have no queue pair, and a queue pair number that nobody has)
  cm_channel {}                         -> {handle}
  cm_id {channel, space="TCP"}          -> {handle}        or "UDP"; close {handle} destroys it
  cm_listen {id, addr, port, backlog=0} -> null       binds first
  cm_resolve {id, addr, port, src=null} -> null       address and route; takes their two events
  cm_connect {id, data="", qpn=null}    -> null       data: private data in hex
  cm_accept {id, data="", qpn=null}, cm_reject {id, data=""}  -> null
  cm_reject_ece {id, data=""}           -> null       for connection options that it does not have
  cm_establish {id}, cm_disconnect {id} -> null
  cm_event {channel, timeout_ms=10000}  -> {event, status, data, id, listener} or null   event as in
      rdma_cm_event_type without RDMA_CM_EVENT_; data is the whole field, in hex. A CONNECT_REQUEST's
      id is new and belongs to this connection. The event is acknowledged.
"""

import argparse
import base64
import contextlib
import hmac
import itertools
import json
import os
import platform
import socket
import socketserver
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cm_ops  # noqa: E402
import faults  # noqa: E402
import jobs  # noqa: E402
import names  # noqa: E402
import verbs_ops  # noqa: E402
import verbs_work  # noqa: E402

PORT = 7000
# No request is longer; a client that sends more is cut off.
MAX_LINE = 64 << 20


class Session:
    """What one connection has made. Objects of every session can be used by every session."""

    objects = {}
    numbers = itertools.count(1)
    lock = threading.Lock()

    def __init__(self):
        self.mine = []

    def add(self, thing):
        """Gives `thing` (anything with close()) a handle."""
        with Session.lock:
            handle = next(Session.numbers)
            Session.objects[handle] = thing
        self.mine.append(handle)
        return handle

    def get(self, handle, kind):
        """The object of that handle, which must be of class `kind`."""
        thing = Session.objects.get(handle)
        if not isinstance(thing, kind):
            was = "nothing" if thing is None else f"a {type(thing).__name__}"
            raise ValueError(f"handle {handle} is {was}, not a {kind.__name__}")
        return thing

    def close(self, handle):
        """Destroys one object; its handle stays valid if that fails."""
        thing = Session.objects.get(handle)
        if thing is None:
            raise ValueError(f"handle {handle} is nothing")
        thing.close()
        with Session.lock:
            Session.objects.pop(handle, None)
        if handle in self.mine:
            self.mine.remove(handle)

    def close_all(self):
        """Destroys everything of this session, newest first; returns what resisted."""
        errors = []
        for handle in reversed(list(self.mine)):
            try:
                if handle in Session.objects:
                    self.close(handle)
            except Exception as error:  # the rest must still go
                errors.append(f"{handle}: {error}")
                Session.objects.pop(handle, None)
        self.mine.clear()
        return errors


def op_ping(session):
    return "pong"


def op_hello(session, token=""):
    return {
        "kernel": platform.release(),
        "arch": platform.machine(),
        "rdma_core": verbs_ops.rdma_core_version(),
        "devices": verbs_ops.device_names(),
        "protocol": 1,
    }


def op_close(session, handle):
    session.close(handle)


def op_close_all(session):
    errors = session.close_all()
    if errors:
        raise RuntimeError("; ".join(errors))


def op_put(session, path, data, mode=0o644, append=False):
    with open(path, "ab" if append else "wb") as file:
        file.write(base64.b64decode(data))
        os.fchmod(file.fileno(), mode)
        return {"size": file.tell()}


def op_get(session, path, offset=0, length=16 << 20):
    with open(path, "rb") as file:
        file.seek(offset)
        data = file.read(length)
        return {"data": base64.b64encode(data).decode(), "size": os.fstat(file.fileno()).st_size}


OPS = {
    name[3:]: function
    for module in (globals(), vars(cm_ops), vars(jobs), vars(faults), vars(verbs_ops), vars(verbs_work))
    for name, function in module.items()
    if name.startswith("op_")
}


# What is left of them where strangers may knock.
GUARDED_OPS = {
    name: function
    for name, function in OPS.items()
    if name in ("ping", "hello", "close", "close_all") or function.__module__ in ("verbs_ops", "verbs_work", "cm_ops")
}


def is_known(line, token):
    """Whether this first line of a connection shows that its sender knows the token."""
    try:
        request = json.loads(line)
        told = str(request["args"].get("token", ""))
        return request["op"] == "hello" and hmac.compare_digest(told.encode(), token.encode())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def answer(session, line, ops=OPS):
    """The answer to one request line, as an object to send."""
    try:
        request = json.loads(line)
        operation = ops.get(request["op"])
        if operation is None:
            raise ValueError(f"no op '{request['op']}'")
        return {"ok": True, "result": operation(session, **request.get("args", {}))}
    except Exception as error:  # every failure goes to the client, the agent lives on
        failure = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        code = getattr(error, "errno", None) or getattr(error, "error_code", None)
        if isinstance(code, int):
            failure["errno"] = code
        return failure


class Strangers:
    """Connections that have not said hello: each for a while, and so many that silence shuts nobody out."""

    def __init__(self, most=16, seconds=20):
        self.most = most
        self.seconds = seconds
        self.lock = threading.Lock()
        self.waiting = []

    def enter(self, stream):
        """One more; where there are too many the oldest is hung up on."""
        stream.settimeout(self.seconds)
        with self.lock:
            self.waiting.append(stream)
            if len(self.waiting) > self.most:
                with contextlib.suppress(OSError):
                    self.waiting.pop(0).shutdown(socket.SHUT_RDWR)

    def leave(self, stream):
        """It has said hello, or is gone."""
        with self.lock:
            if stream in self.waiting:
                self.waiting.remove(stream)


class Connection(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self):
        session = Session()
        token = self.server.token
        unknown, ops = bool(token), GUARDED_OPS if token else OPS
        if unknown:
            self.server.strangers.enter(self.request)
        try:
            while True:
                # A stranger may not fill our memory.
                line = self.rfile.readline(4096 if unknown else MAX_LINE)
                if not line.endswith(b"\n"):
                    break
                if unknown and not is_known(line, token):
                    self.wfile.write(b'{"ok": false, "error": "wrong token"}\n')
                    break
                if unknown:
                    self.server.strangers.leave(self.request)
                    self.request.settimeout(None)
                unknown = False
                reply = json.dumps(answer(session, line, ops))
                self.wfile.write(reply.encode() + b"\n")
        except (ConnectionError, TimeoutError):
            pass
        finally:
            self.server.strangers.leave(self.request)
            for error in session.close_all():
                print(f"agent: left behind: {error}")


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *how):
        super().__init__(*how)
        self.strangers = Strangers()


def wait_gids(wanted, seconds):
    """Waits until each "dev=addr,addr" has GIDs for its addresses."""
    deadline = time.monotonic() + seconds
    for entry in wanted:
        dev, _, addresses = entry.partition("=")
        for address in addresses.split(","):
            while names.gid_index(dev, address) is None:
                if time.monotonic() > deadline:
                    sys.exit(f"agent: {dev} has no GID for {address}")
                time.sleep(0.05)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--wait-gids", nargs="*", default=[], metavar="DEV=ADDR,ADDR")
    parser.add_argument("--bind", default="0.0.0.0", metavar="ADDR", help="listen on this address only")
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--token", default="", metavar="WORD", help="what a client has to know; only verbs are served then")
    options = parser.parse_args()
    wait_gids(options.wait_gids, 20)
    with Server((options.bind, options.port), Connection) as server:
        server.token = options.token
        print("agent: listening", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
