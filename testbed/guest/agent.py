#!/usr/bin/python3
"""Takes orders inside a guest: runs programs, injects network faults, tells of its rxe devices.

PROTOCOL
  TCP port 7000. One JSON object a line, answered by one JSON object a line, in order:
      {"op": "wait", "args": {"handle": 7, "timeout_ms": 1000}}
      {"ok": true, "result": {...}}     or     {"ok": false, "error": "text", "errno": 22}
  ("errno" only where the failure has one.) Any number of connections, each served by a thread of
  its own. Objects and programs are named by integers, valid on every connection, and belong to
  the connection that made them: when it ends they are destroyed, newest first, so a client that
  dies leaves nothing behind. An argument shown as name=value is optional with that default.
  Numbers of 64 bits are plain JSON integers; byte strings are base64.

GENERAL
  ping {}                               -> "pong"
  hello {}                              -> {kernel, arch, devices: [name], protocol: 1}
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
         delay_ms=0, jitter_ms=0}       -> null       percentages. direction "egress" hits what the
      guest sends on dev, "ingress" what it receives. reorder lets that share overtake the others,
      which wait delay_ms (1 if not given). A second call replaces the first of that direction.
  netem_clear {dev="eth0", netns=null}  -> null       both directions
  netem_stats {dev="eth0", direction="egress", netns=null}  -> {sent, dropped}   packets

DEVICES
  gids {dev}                            -> [{index, gid, type, netdev}]     non-zero entries
  counters {dev}                        -> {name: value}   rxe's hw_counters (sent_pkts, ...)
"""

import argparse
import base64
import itertools
import json
import os
import platform
import socketserver
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import devices  # noqa: E402
import faults  # noqa: E402
import jobs  # noqa: E402

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


def op_hello(session):
    return {
        "kernel": platform.release(),
        "arch": platform.machine(),
        "devices": devices.device_names(),
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
    for module in (globals(), vars(jobs), vars(faults), vars(devices))
    for name, function in module.items()
    if name.startswith("op_")
}


def answer(session, line):
    """The answer to one request line, as an object to send."""
    try:
        request = json.loads(line)
        operation = OPS.get(request["op"])
        if operation is None:
            raise ValueError(f"no op '{request['op']}'")
        return {"ok": True, "result": operation(session, **request.get("args", {}))}
    except Exception as error:  # every failure goes to the client, the agent lives on
        failure = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        code = getattr(error, "errno", None) or getattr(error, "error_code", None)
        if isinstance(code, int):
            failure["errno"] = code
        return failure


class Connection(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self):
        session = Session()
        try:
            while True:
                line = self.rfile.readline(MAX_LINE)
                if not line.endswith(b"\n"):
                    break
                reply = json.dumps(answer(session, line))
                self.wfile.write(reply.encode() + b"\n")
        except ConnectionError:
            pass
        finally:
            for error in session.close_all():
                print(f"agent: left behind: {error}")


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64


def wait_gids(wanted, seconds):
    """Waits until each "dev=addr,addr" has GIDs for its addresses."""
    deadline = time.monotonic() + seconds
    for entry in wanted:
        dev, _, addresses = entry.partition("=")
        for address in addresses.split(","):
            while devices.gid_index(dev, address) is None:
                if time.monotonic() > deadline:
                    sys.exit(f"agent: {dev} has no GID for {address}")
                time.sleep(0.05)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--wait-gids", nargs="*", default=[], metavar="DEV=ADDR,ADDR")
    wanted = parser.parse_args().wait_gids
    wait_gids(wanted, 20)
    with Server(("0.0.0.0", PORT), Connection) as server:
        print("agent: listening")
        server.serve_forever()


if __name__ == "__main__":
    main()
