"""Programs that connect by rdma_cm on the kernel's rxe, against ours: `rxe` itself or testbed/src/bin/cm-peer, in both roles."""

import os
import re
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from results import parse

SECTION = "Programs that connect by rdma_cm"
CASES = "The connection manager step by step (`cm-peer cases`)"
LOSS = "Connections while each way loses 1 %"
# Seconds for all cases of one family.
CASES_LIMIT = 500
# Seconds for one pair; and for a server of ours to say that it listens.
LIMIT = 60
READY = 20
# A client is started again, so often, while nobody listens yet.
TRIES = 20
# A listener on another address of the device makes it a rejection.
NOBODY_LISTENS = re.compile(r"invalid service ID|REJECTED, error:? 8\b|service ID not supported|rejected by the service")
# Our ports rise from here, so that what a program has left behind can't meet the next one.
PORT = 21000


class Program(NamedTuple):
    """Two ends of one protocol. In the words, {here} and {there} are the kernel's address and ours."""

    title: str
    server: str
    client: str
    our_server: str
    our_client: str
    # The port, if it can't be chosen.
    port: int = 0
    # Whose end goes on for ever, of the roles: it is ended when the other one has ended well.
    endless: tuple = ()
    # Why the kernel's server can't be reached over IPv6, if so.
    no_server6: str = ""
    # What the kernel's program says when its kernel does not have what it needs; by family.
    absent: tuple = ()


def peer(name, more=""):
    """Our ends as cm-peer plays them."""
    return [f"{{cm}} {name} {role} {{there}} {{here}} port={{port}} {more}" for role in ("server", "client")]


PROGRAMS = [
    Program(
        "rping, 20 pings, each compared at both ends",
        "rping -s -a {here} -p {port} -C 20 -V -S 3000",
        "rping -c -a {there} -p {port} -C 20 -V -S 3000",
        "{rxe} rping -s -a {there} -p {port} -V",
        "{rxe} rping -c -a {here} -I {there} -p {port} -C 20 -V -S 3000",
    ),
    Program(
        "ucmatose, 50 connections, 10 messages each way",
        "ucmatose -b {here} -p {port} -c 50",
        "ucmatose -s {there} -p {port} -c 50",
        *peer("ucmatose", "connections=50"),
    ),
    Program(
        "rdma_server, rdma_client",
        "rdma_server -s {here} -p {port}",
        "rdma_client -s {there} -p {port}",
        *peer("rdma_client"),
    ),
    Program(
        "rdma_xserver, rdma_xclient (RC)",
        "rdma_xserver -p {port}",
        "rdma_xclient -s {there} -p {port}",
        *peer("rdma_xclient"),
        no_server6="rdma_xserver takes no address and listens on IPv4 alone",
    ),
    Program(
        "udaddy, 10 ids, 10 datagrams each way",
        "udaddy -b {here} -c 10",
        "udaddy -b {here} -s {there} -c 10",
        *peer("udaddy", "connections=10"),
        port=7174,
    ),
    Program(
        "cmtime, 100 connections",
        "cmtime -b {here} -p {port}",
        "cmtime -s {there} -p {port} -c 100",
        "{rxe} cmtime -b {there} -p {port}",
        "{rxe} cmtime -b {there} -s {here} -p {port} -c 100",
        endless=("server", "our_server"),
    ),
    Program(
        "mckey, 10 datagrams to a group",
        "mckey -b {here} -m {group}",
        # It destroys its queue pairs as soon as it has posted, sent or not: those of the first ids get their time.
        "mckey -b {here} -m {group} -s -c 20",
        *peer("mckey", "group={group}"),
        endless=("our_client",),
        absent=(
            ("6", r"failure joining: Unknown error 524", "kernel rxe has no IPv6 groups: the join ends with ENOTSUPP"),
        ),
    ),
    Program(
        "udpong",
        "udpong -b {here} -p {port}",
        "udpong -s {there} -p {port} -T e -C 10",
        "",
        "",
        absent=tuple(
            (family, r"rconnect: ", "rsocket's datagrams need an address handle without GRH, which RoCE has not")
            for family in "46"
        ),
    ),
]
# Messages repeated by a kernel come after 4.6 s (6.12) or 6.1 s (6.1), so the connections are made at the same time.
LOSSY = [
    Program(
        "ucmatose, 100 connections, 10 messages each way",
        "ucmatose -b {here} -p {port} -c 100",
        "ucmatose -s {there} -p {port} -c 100",
        *peer("ucmatose", "connections=100"),
    ),
]
NETEM = ["tc", "qdisc", "replace", "dev", "eth0", "root", "netem", "limit", "100000", "loss", "1%"]
NO_NETEM = ["tc", "qdisc", "del", "dev", "eth0", "root"]
GROUPS = {"4": "239.1.2.3", "6": "ff0e::1:2"}


class Side:
    """A program that runs, and what it has said."""

    def __init__(self, argv):
        self.output = ""
        self.listening = threading.Event()
        # A group of its own: its children have the pipe too, and the guest's end dies with the one that speaks to the guest.
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.output += line
            if line == "listening\n":
                self.listening.set()
        self.listening.set()

    def finish(self, limit=LIMIT):
        """Its exit code; killed, and said so, after that many seconds."""
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            code = self.process.wait()
            self.output += f"[killed: it did not end within {limit} s]\n"
        self.reader.join()
        return code

    def end(self):
        """Ends one that goes on for ever; 0 if it was still there."""
        if self.process.poll() is not None:
            return self.finish() or "0 before it was told to"
        os.killpg(self.process.pid, signal.SIGTERM)
        self.finish()
        return 0


def pair(server, client, says_ready, endless_server, endless_client):
    """Plays a pair; what went wrong, or nothing."""
    server = Side(server)
    if says_ready:
        server.listening.wait(READY)
    for _ in range(TRIES):
        client_side = Side(client)
        if endless_client:
            server_code = server.finish()
            client_code = client_side.end()
            break
        client_code = client_side.finish()
        if client_code != 0 and NOBODY_LISTENS.search(client_side.output) and server.process.poll() is None:
            time.sleep(0.3)
            continue
        # A server without its client would wait for ever.
        server_code = server.end() if endless_server else server.finish(LIMIT if client_code == 0 else 3)
        break
    else:
        server_code = server.end()
    if (client_code, server_code) == (0, 0):
        return None
    return f"client ended with {client_code}:\n{client_side.output}\nserver with {server_code}:\n{server.output}"


class Column:
    """All programs of one kernel over one family."""

    def __init__(self, guest, cm, rxe, results, family):
        self.guest, self.results, self.family = guest, results, family
        self.section, self.variables = SECTION, ()
        self.values = {
            "cm": cm,
            "rxe": rxe,
            "here": guest.info[f"guest{family}"],
            "there": guest.info[f"host{family}"],
            "group": GROUPS[family],
        }
        self.port = PORT + (500 if family == "6" else 0)

    def words(self, text, port):
        return text.format(port=port, **self.values).split()

    def told(self, program, whose, verdict, detail=""):
        """Prints and keeps how a cell went."""
        where = f"kernel {self.guest.version}, IPv{self.family}, {self.section}: {program.title}, connects: {whose}"
        self.results.add(self.section, program.title, self.guest.version, whose, self.family, verdict)
        print(f"  {verdict:8}{where}{detail and ': '}{detail}", flush=True)
        if verdict == "FAILED":
            self.results.fail(f"{where}\n{detail}")

    def absent(self, program):
        """What a program needs and the kernel has not, as the program finds out: tells so, in both roles."""
        for family, says, why in program.absent:
            if family != self.family:
                continue
            for whose, words in (("ours", program.server), ("kernel", program.client)):
                if not words or (whose == "ours" and program.our_client == ""):
                    # Its server learns nothing until somebody comes.
                    words = program.client
                side = Side(self.guest.command(self.words(words, self.port)))
                if side.finish() != 0 and re.search(says, side.output):
                    self.told(program, whose, "absent", why)
                    self.results.note(program.title, self.guest.version, why)
                else:
                    self.told(program, whose, "FAILED", f"expected {says!r}, not:\n{side.output}")
            return True
        return False

    def cell(self, program, whose):
        """One cell of the matrix: plays it; what went wrong, or nothing."""
        port = program.port or self.port
        if whose == "ours":
            theirs, ours = program.server, program.our_client
        else:
            theirs, ours = program.client, program.our_server
        theirs = self.guest.command(self.words(theirs, port))
        ours = self.guest.outside(self.words(ours, port), variables=self.variables)
        if whose == "ours":
            return pair(theirs, ours, False, "server" in program.endless, "our_client" in program.endless)
        ready = program.our_server.startswith("{cm}")
        return pair(ours, theirs, ready, "our_server" in program.endless, "client" in program.endless)

    def cases(self):
        """What each side's program sees of refusals, private data and endings."""
        info = self.guest.info
        port = str(self.port + 1000)
        words = [self.values["cm"], "cases", info["agent"], self.values["there"], self.values["here"], f"port={port}"]
        side = Side(self.guest.outside(words, CASES_LIMIT))
        code = side.finish(CASES_LIMIT + 10)
        failed = 0
        for line in side.output.splitlines():
            print(f"  IPv{self.family} {line}", flush=True)
            found = parse(line)
            if not found:
                continue
            verdict, role, name, _, _ = found
            self.results.add(CASES, name, self.guest.version, role, self.family, verdict)
            if verdict == "FAILED":
                failed += 1
                self.results.fail(f"kernel {self.guest.version}, IPv{self.family}, {CASES}: {line}")
        if code != 0 and not failed or not any(parse(line) for line in side.output.splitlines()):
            self.results.add(CASES, "to its end", self.guest.version, "both", self.family, "FAILED")
            self.results.fail(f"kernel {self.guest.version}, IPv{self.family}, {CASES}: ended with {code}:\n{side.output}")

    def play(self):
        self.programs(PROGRAMS)
        self.cases()

    def lossy(self):
        self.section, self.variables = LOSS, ("RXE_FAULT=loss=10,seed=11",)
        self.port += 100
        self.programs(LOSSY)

    def programs(self, programs):
        for program in programs:
            if self.absent(program):
                continue
            for whose in ("ours", "kernel"):
                self.port += 1
                if program.no_server6 and (whose, self.family) == ("ours", "6"):
                    self.told(program, whose, "skipped", program.no_server6)
                    print(f"skipped: {program.title}, IPv6, we connect: {program.no_server6}", flush=True)
                    continue
                began = time.monotonic()
                wrong = self.cell(program, whose)
                took = time.monotonic() - began
                self.told(program, whose, "FAILED" if wrong else "ok", wrong or f"{took:.1f} s")


def at_once(tasks):
    """Runs them in threads; what one of them raises is raised."""
    with ThreadPoolExecutor() as pool:
        for future in [pool.submit(task) for task in tasks]:
            future.result()


def play(guest, cm, rxe, results, lossy):
    """All programs, IPv4 and IPv6 at the same time: most of it is waiting. `lossy`: also over a bad network, where all connections are
    made, but a program may be gone before its last acknowledgement has arrived, so that the other end of now and then one of them
    reports an error. That is for watching, not for a verdict."""
    print(f"kernel {guest.version}: {SECTION}", flush=True)
    columns = [Column(guest, cm, rxe, results, family) for family in "46"]
    at_once([column.play for column in columns])
    if not lossy:
        return
    subprocess.run(guest.command(NETEM), check=True)
    try:
        at_once([column.lossy for column in columns])
    finally:
        subprocess.run(guest.command(NO_NETEM), check=True)
