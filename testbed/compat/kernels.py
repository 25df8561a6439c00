#!/usr/bin/python3
"""Debian's programs in pairs, unmodified: one end on the drop-in, the other on a kernel's rxe in a guest of scripts/kernel-vm.

  kernels.py --version 6.1 --agent ADDR:PORT --folder DIR --here IP4,IP6 --there IP4,IP6 [--full] [--only NAME]

Runs inside the guest's namespace on this host, where scripts/compat starts it. DIR has `rxe`, the drop-in and the C programs
`wrong` and `wrong_cm`; our end is user nobody without a capability. Both ends' exit codes count. Each cell is a line in
DIR/table: name, placement ("6.1 client": ours is the client), verdict, remark. Ends with "N passed, N failed, N skipped".
"""

import argparse
import itertools
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from typing import NamedTuple

import cells

TESTBED = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTBED), str(TESTBED / "guest")]
from client import Client  # noqa: E402
from holding import Requests, listener_here  # noqa: E402

# Plays of a cell that may go wrong without anybody's fault that we could mend: see `again`.
TRIES = 3
# Seconds, in a guest that may take long to start a program: for one end; until a server listens; for the other end when the first has
# failed, or has said what its kernel lacks.
LIMIT = 120
READY = 60
GRACE = 3
# Ports of programs that are told theirs rise from here.
PORT = 20000
# rdma-core's own, for the kernel's end of programs that know nothing of RDMA. Not for all that a cell runs: bash (5.2) does not
# survive it.
PRELOAD = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so.1"
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]


class Place(NamedTuple):
    """Where everything is: addresses by family, GID indices of ours and the kernel's."""

    version: str
    agent: str
    folder: pathlib.Path
    ours: dict
    theirs: dict
    gids: dict


class Ours:
    """A program on the drop-in."""

    def __init__(self, place, argv, rsockets=False):
        variables = [f"RXE_CONFIG={place.folder}/rxe.toml", f"XDG_RUNTIME_DIR={place.folder}/run"]
        run = [str(place.folder / "rxe"), "run", "--device", place.ours["4"], "--"]
        if any(":" in word and word in (place.ours["6"], place.theirs["6"]) for word in argv):
            run[3] = place.ours["6"]
        if rsockets:
            run.insert(2, "--rsockets")
        self.output = ""
        self.process = subprocess.Popen(
            [*NOBODY, "timeout", str(2 * LIMIT), "env", "-u", "LD_LIBRARY_PATH", *variables, *run, "stdbuf", "-oL", *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.output += line

    def runs(self):
        return self.process.poll() is None

    def kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def finish(self, limit):
        """Its exit code; killed, and said so, after that many seconds."""
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self.process.wait()
            self.output += f"[killed: it did not end within {limit} s]\n"
        # The host service, if it is a child, does not hold the pipe for longer than its rest.
        self.reader.join(5)
        return code


class Theirs:
    """A program on the kernel's rxe."""

    def __init__(self, place, argv, _rsockets=False):
        self.agent = Client(place.agent)
        self.output, self.code = "", None
        self.handle = self.agent.spawn(argv=["stdbuf", "-oL", *argv])["handle"]

    def _look(self, milliseconds):
        if self.code is None:
            state = self.agent.wait(handle=self.handle, timeout_ms=milliseconds)
            self.output += state["stdout"] + state["stderr"]
            if not state["running"]:
                self.code = state["exit"]

    def runs(self):
        self._look(0)
        return self.code is None

    def kill(self):
        self.agent.kill(handle=self.handle, signal=signal.SIGKILL)

    def finish(self, limit):
        until = time.monotonic() + limit
        while self.code is None and time.monotonic() < until:
            self._look(500)
        if self.code is None:
            self.kill()
            self.output += f"[killed: it did not end within {limit} s]\n"
            while self.code is None:
                self._look(500)
        self.agent.close()
        return self.code


class Watch:
    """Tells whether a server listens: by TCP, by the connection manager, or by its own words."""

    def __init__(self, place):
        self.place = place
        self.agent = Client(place.agent)

    def is_ready(self, side, listens):
        kind, what = listens
        if kind == "says":
            side.runs()
            return what in side.output
        if isinstance(side, Theirs):
            return self._theirs(kind, what)
        if kind == "socket":
            words = ["ss", "-Hltn", f"sport = :{what}"]
            return bool(subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip())
        number = {"TCP": 0x1060000, "UDP": 0x1110000, "IB": 0x13F0000}[kind] + what
        return re.search(rf'"service_id": *{number}\b', self._status()) is not None

    def _status(self):
        words = [*NOBODY, "env", f"XDG_RUNTIME_DIR={self.place.folder}/run", str(self.place.folder / "rxe")]
        return subprocess.run([*words, "service", "status", "--json"], capture_output=True, text=True, check=False).stdout

    def _theirs(self, kind, port):
        if kind == "socket":
            return bool(self.agent.exec(argv=["ss", "-Hltn", f"sport = :{port}"])["stdout"].strip())
        ids = self.agent.exec(argv=["rdma", "resource", "show", "cm_id"])["stdout"]
        return re.search(rf"state LISTEN ps {kind} .*src-addr \S*:{port}\b", ids) is not None

    def wait(self, side, listens):
        until = time.monotonic() + READY
        while time.monotonic() < until and side.runs():
            if self.is_ready(side, listens):
                return True
            time.sleep(0.05)
        return False

    def listener(self, name, ours):
        """What listens to a port of rdma_cm's by the name of a program: other words for each listener, or nothing."""
        if not ours:
            text = self.agent.exec(argv=["rdma", "resource", "show", "cm_id"])["stdout"]
            found = re.search(rf"cm-idn [0-9]+ state LISTEN .*comm {name} ", text)
        else:
            return listener_here(self._status(), name)
        return found and found[0]


def words(place, text, family, ours, port):
    """The words of one end's command."""
    own, peer = (place.ours, place.theirs) if ours else (place.theirs, place.ours)
    gid = place.gids["ours" if ours else "theirs"][family]
    preload = "env" if ours else f"env LD_PRELOAD={PRELOAD}"
    # The timeout's code; a kernel's end asks without end.
    patience = "-u 19" if ours else ""
    text = text.format(
        rs=preload, here=own[family], peer=peer[family], gid=gid, group=cells.GROUPS[family], port=port, patience=patience
    )
    return shlex.split(text)


def play(place, watch, cell, role, ports):
    """Both ends of one cell, ours as the client or the server: (verdict, remark). Each play has a port of its own, since one that
    was used just now can't be had again."""
    for count in range(TRIES):
        verdict, remark, *said = once(place, watch, cell, role, next(ports))
        found = verdict == "FAILED" and (cell.again and re.search(cell.again, said[0]) or re.search(cells.BUSY, "\n".join(said)))
        if not found:
            break
        print(f"again   {place.version} {role:7} {cell.title}: it says {found[0]!r}", flush=True)
    if count and verdict == "ok":
        remark = f"played {count + 1} times"
    return verdict, remark


def asked(place, watch, cell, role, start):
    """Starts the client; its requests are held back until the server listens, for as many connections as it races for."""
    if not cell.races:
        return start()
    name, direction = re.escape(shlex.split(cell.server)[0]), "egress" if role == "client" else "ingress"
    with Requests([], direction, cell.races, lambda: watch.listener(name, role == "server")) as requests:
        client = start()
        requests.play(client.runs)
    return client


def once(place, watch, cell, role, port):
    """The same, and what the client and the server said."""
    family, listens = cell.family, cell.listens if cell.listens[1] else (cell.listens[0], port)
    kinds = {"client": (Theirs, Ours), "server": (Ours, Theirs)}[role]
    server_words = words(place, cell.server, family, kinds[0] is Ours, port)
    client_words = words(place, cell.client, family, kinds[1] is Ours, port)
    server = kinds[0](place, server_words, cell.rsockets)
    ready = watch.wait(server, listens)
    absent = cell.absent_on(place.version)
    client = asked(place, watch, cell, role, lambda: kinds[1](place, client_words, cell.rsockets))
    kernel = server if role == "client" else client
    if absent:
        # The other end would wait for ever.
        kernel.finish(LIMIT)
        (client if role == "client" else server).finish(GRACE)
    if cell.endless_client:
        server_code = server.finish(LIMIT)
        client.kill()
        client.finish(GRACE)
        client_code = 0
    else:
        client_code = client.finish(LIMIT)
        if cell.endless:
            lives = server.runs()
            server.kill()
            server_code = server.finish(GRACE)
            server_code = 0 if lives else f"{server_code} before its time"
        else:
            server_code = server.finish(LIMIT if client_code == 0 else GRACE)
    if absent:
        if (client_code, server_code) != (0, 0) and cell.is_absent(kernel.output):
            return "none", absent.why, "", ""
        code = server_code if role == "client" else client_code
        return "FAILED", f"the kernel's end was to say {absent.says!r}, not (exit {code}):\n{kernel.output[-500:]}", "", ""
    if (client_code, server_code) != (0, 0):
        late = "" if ready else " (it was not seen to listen)"
        texts = f"client {client_code}:\n{client.output[-700:]}\nserver {server_code}{late}:\n{server.output[-700:]}"
        return "FAILED", texts, client.output, server.output
    if cell.figure and not re.search(cell.figure, client.output):
        return "FAILED", f"no {cell.figure!r} in:\n{client.output[-700:]}", "", ""
    return "ok", "", "", ""


def wrong_calls(place, name):
    """The same C program on both; what it prints must be the same but for lines that are named with their reason."""
    argv = [str(place.folder / name), "print"]
    theirs, ours = (side(place, [*argv, f"here={at['4']}"]) for side, at in ((Theirs, place.theirs), (Ours, place.ours)))
    codes = theirs.finish(LIMIT), ours.finish(LIMIT)
    if codes != (0, 0):
        return "FAILED", f"ended with {codes}:\n{theirs.output[-500:]}\n{ours.output[-500:]}"
    kernel_lines, our_lines = theirs.output.splitlines(), ours.output.splitlines()
    calls = [[line.rsplit(": ", 1)[0] for line in lines] for lines in (kernel_lines, our_lines)]
    if calls[0] != calls[1] or len(kernel_lines) < 20:
        return "FAILED", f"other calls were made, or too few:\n{theirs.output[-500:]}\n{ours.output[-500:]}"
    differ = [pair for pair in zip(kernel_lines, our_lines) if pair[0] != pair[1]]
    used = {line.rsplit(": ", 1)[0] for line, _ in differ}
    unnamed = [f"kernel: {pair[0]}\nours:   {pair[1]}" for pair in differ if pair[0].rsplit(": ", 1)[0] not in cells.DIFFERENT]
    if unnamed:
        return "FAILED", "\n".join(unnamed)
    remark = f"{len(kernel_lines)} calls, {len(used)} differ as named below" if used else f"{len(kernel_lines)} calls, all the same"
    return "ok", remark


class Run:
    """Counts, prints, and keeps the table's lines."""

    def __init__(self, place):
        self.place = place
        self.counts = {"ok": 0, "FAILED": 0, "none": 0, "skipped": 0}

    def skipped(self, title, why):
        self.counts["skipped"] += 1
        print(f"skipped: {self.place.version}: {title}: {why}", flush=True)

    def told(self, title, role, verdict, remark, seconds):
        self.counts[verdict] += 1
        placement = f"{self.place.version} {role}"
        first = remark.split("\n", 1)[0] if verdict != "FAILED" else ""
        print(f"{verdict:8}{placement:12} {title}  ({seconds:.1f} s){first and ': '}{first}", flush=True)
        if verdict == "FAILED":
            print("\n".join(f"        {line[:180]}" for line in remark.splitlines()), flush=True)
        with open(self.place.folder / "table", "a", encoding="utf-8") as table:
            table.write(f"{title}\t{placement}\t{verdict}\t{first}\n")


def gid_indices(agent, address4, address6):
    """Where the kernel's device has its addresses."""
    found = {entry["gid"]: entry["index"] for entry in agent.gids(dev="rxe0")}
    return {"4": found[f"::ffff:{address4}"], "6": found[address6]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", required=True)
    parser.add_argument("--agent", required=True)
    parser.add_argument("--folder", required=True, type=pathlib.Path)
    parser.add_argument("--here", required=True, help="our addresses, IPv4,IPv6")
    parser.add_argument("--there", required=True, help="the guest's")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--only", default="", help="cells with this pattern in their name")
    options = parser.parse_args()
    ours, theirs = (dict(zip("46", text.split(","))) for text in (options.here, options.there))
    agent = Client(options.agent)
    gids = {"ours": {"4": 0, "6": 0}, "theirs": gid_indices(agent, theirs["4"], theirs["6"])}
    place = Place(options.version, options.agent, options.folder, ours, theirs, gids)
    run, watch = Run(place), Watch(place)
    for name in ("wrong", "wrong_cm"):
        if not re.search(options.only, name):
            continue
        if not (place.folder / name).exists():
            run.skipped(name, "it was not compiled")
        else:
            began = time.monotonic()
            run.told(f"{name} (rxe-abi/tests/c)", "client", *wrong_calls(place, name), time.monotonic() - began)
    ports = itertools.count(PORT)
    for cell in cells.CELLS:
        if not re.search(options.only, cell.title) or (cell.full and not options.full):
            continue
        for role in cell.roles:
            began = time.monotonic()
            verdict, remark = play(place, watch, cell, role, ports)
            run.told(cell.title, role, verdict, remark, time.monotonic() - began)
    counts = run.counts
    print(f"kernel {place.version}: {counts['none']} programs ended because the kernel lacks what they need, as they should")
    print(f"{counts['ok'] + counts['none']} passed, {counts['FAILED']} failed, {counts['skipped']} skipped")
    return 1 if counts["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
