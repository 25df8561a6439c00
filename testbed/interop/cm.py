"""Programs that connect by rdma_cm on the kernel's rxe, against ours, in both roles: `rxe` itself, testbed/src/bin/cm-peer, or the
same program on the drop-in."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import dropin
import shark
from results import parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from holding import Requests, listener_here  # noqa: E402

SECTION = "Programs that connect by rdma_cm"
CASES = "The connection manager step by step (`cm-peer cases`)"
LOSS = "Connections while each way loses 1 %"
MESSAGES = "Messages of the connection manager as tshark reads them"
# Seconds for all cases of one family.
CASES_LIMIT = 500
# Seconds for one pair; until a server listens, in a guest that may take long to start a program; and for a server without its client,
# which may be at its end.
LIMIT = 120
READY = 60
REST = 10
# perftest gives no report on a machine too busy to measure its clock: both ends are started anew, so often.
ANEW = 6
BUSY = re.compile(r"Correlation coefficient")
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
    # Whether the kernel's server has no listener that could be waited for: that of a group.
    no_listener: bool = False
    # Its server may tell the client to connect before it listens, and the client does not survive a refusal: so many connections are
    # held back, each until the server listens.
    races: int = 0
    # Whether it talks about its connections over TCP first.
    by_tcp: bool = True
    # Why it has no IPv6, if so.
    no_ipv6: str = ""
    # What the kernel's program says when its kernel does not have what it needs; by family.
    absent: tuple = ()


def peer(name, more=""):
    """Our ends as cm-peer plays them."""
    return [f"{{cm}} {name} {role} {{there}} {{here}} port={{port}} sent={{sent}} {more}" for role in ("server", "client")]


PROGRAMS = [
    Program(
        "rping, 20 pings, each compared at both ends",
        "rping -s -a {here} -p {port} -C 20 -V -S 3000",
        "rping -c -a {there} -p {port} -C 20 -V -S 3000",
        "{rxe} rping -b {there} -p {port} -c",
        "{rxe} rping {here} -b {there} -p {port} -n 20 -c -s 3000",
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
        "{rxe} cmtime {here} -b {there} -p {port} -n 100",
        endless=("server", "our_server"),
    ),
    *(
        Program(
            f"qperf -cm1 {test}; ours on the drop-in",
            "qperf -lp {port}",
            f"qperf -lp {{port}} -cm1 -t 1 {{there}} {test}",
            "{dropin} qperf -lp {port}",
            f"{{dropin}} qperf -lp {{port}} -cm1 -t 1 {{here}} {test}",
            endless=("server", "our_server"),
            races=1,
            no_ipv6="qperf knows IPv4 alone",
        )
        for test in ("rc_lat", "rc_bw", "rc_rdma_write_bw")
    ),
    Program(
        "ib_write_bw -R, 200 x 4096 B; ours on the drop-in",
        "ib_write_bw -R -x 1 -n 200 -s 4096 -p {port}",
        "ib_write_bw -R -x 1 -n 200 -s 4096 -p {port} {there}",
        "{dropin} ib_write_bw -R -x 1 -n 200 -s 4096 -p {port}",
        "{dropin} ib_write_bw -R -x 1 -n 200 -s 4096 -p {port} {here}",
        # Two: by the first its ends talk about the second.
        races=2,
        by_tcp=False,
        no_ipv6="perftest 4.5 resolves IPv4 alone with -R",
    ),
    Program(
        "mckey, 10 datagrams to a group",
        "mckey -b {here} -m {group}",
        # It destroys its queue pairs as soon as it has posted, sent or not: those of the first ids get their time.
        "mckey -b {here} -m {group} -s -c 20",
        *peer("mckey", "group={group}"),
        no_listener=True,
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
        self.reader = threading.Thread(target=self._read, daemon=True)
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


def pair(server, client, *rules):
    """Plays a pair, as `played` says; whatever becomes of it, the server ends."""
    server = Side(server)
    try:
        return played(server, client, *rules)
    finally:
        if server.process.poll() is None:
            server.end()


def played(server, client, wait, endless_server, endless_client, requests=None):
    """The client after `wait`; what went wrong, or nothing."""
    wait(server)
    client_side = Side(client)
    if requests:
        requests.play(lambda: client_side.process.poll() is None)
    if endless_client:
        server_code = server.finish()
        client_code = client_side.end()
    else:
        client_code = client_side.finish()
        # A server without its client would wait for ever.
        server_code = server.end() if endless_server else server.finish(LIMIT if client_code == 0 else REST)
    if (client_code, server_code) == (0, 0):
        return None
    return f"client ended with {client_code}:\n{client_side.output}\nserver with {server_code}:\n{server.output}"


class Column:
    """All programs of one kernel over one family."""

    def __init__(self, guest, cm, rxe, results, family, sent):
        self.guest, self.results, self.family = guest, results, family
        self.section, self.variables = SECTION, ()
        # What was seen when it was last looked for a listener.
        self.seen = ""
        self.values = {
            "cm": cm,
            "rxe": rxe,
            "dropin": " ".join(dropin.words(rxe, guest.folder)),
            "sent": sent,
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
        """One cell of the matrix: plays it; its verdict, and what went wrong."""
        for _ in range(ANEW):
            wrong = self.once(program, whose)
            if not wrong or not BUSY.search(wrong):
                break
            self.port += 1
        return ("FAILED", wrong) if wrong else ("ok", "")

    def look(self, command, wanted):
        """What of a command's output is like that, or nothing."""
        found = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        # There may be no host service yet, or none any more, or one that just ends.
        self.seen = found.stdout + found.stderr
        match = found.returncode == 0 and re.search(wanted, found.stdout)
        return match[0] if match else None

    def waits_for_tcp(self, server, port, inside):
        """Until a server takes the TCP connection over which its client hears of the rest."""
        ss = ["ss", "-Hltn", f"sport = :{port}"]
        self.waits(server, self.guest.command(ss) if inside else ["ip", "netns", "exec", self.guest.info["netns"], *ss], "LISTEN")

    def waits(self, server, command, wanted):
        """Until a command's output says that a server listens, or it has ended."""
        until = time.monotonic() + READY
        while server.process.poll() is None and not self.look(command, wanted):
            if time.monotonic() > until:
                print(f"the server was not seen to listen within {READY} s: {command}: {self.seen[-500:]}", flush=True)
                return
            time.sleep(0.1)

    def waits_for_port(self, server, port, inside):
        """Until a server listens to a port of rdma_cm's: what listens in the guest its kernel knows, here the host service."""
        if inside:
            # By its address, too: where a program has one port of its own, the other family's server listens to the same.
            address = rf"\[?({re.escape(self.values['here'])}|0\.0\.0\.0|::)\]?"
            listening = rf"state LISTEN .*src-addr {address}:{port}\b"
            self.waits(server, self.guest.command(["rdma", "resource", "show", "cm_id"]), listening)
        else:
            status = self.guest.outside([self.values["rxe"], "service", "status", "--json"])
            self.waits(server, status, rf'"service_id": *({0x1060000 + port}|{0x1110000 + port})\b')

    def once(self, program, whose):
        """Plays a pair; what went wrong, or nothing."""
        port = program.port or self.port
        if whose == "ours":
            theirs, ours = program.server, program.our_client
        else:
            theirs, ours = program.client, program.our_server
        theirs = self.guest.command(self.words(theirs, port))
        ours = self.guest.outside(self.words(ours, port), variables=self.variables)
        ends = ("server", "our_client") if whose == "ours" else ("our_server", "client")
        endless = [end in program.endless for end in ends]
        if program.races:
            we_ask = whose == "ours"
            if we_ask:
                # By its name: the programs of the other family are there, too.
                name = re.escape(program.server.split()[0])
                at = self.guest.command(["rdma", "resource", "show", "cm_id"]), f"cm-idn [0-9]+ state LISTEN .*comm {name} "
                listens = lambda: self.look(*at)
            else:
                name = re.escape(program.our_server.replace("{dropin}", "").split()[0])
                status = self.guest.outside([self.values["rxe"], "service", "status", "--json"])
                listens = lambda: listener_here(self.look(status, r"(?s).*") or "", name)
            direction = "egress" if we_ask else "ingress"
            inside = ["ip", "netns", "exec", self.guest.info["netns"]]
            with Requests(inside, direction, program.races, listens) as requests:
                first, second = (theirs, ours) if we_ask else (ours, theirs)
                wait = lambda server: program.by_tcp and self.waits_for_tcp(server, port, we_ask)
                return pair(first, second, wait, *endless, requests)
        if whose == "ours":
            wait = lambda server: program.no_listener or self.waits_for_port(server, port, True)
            return pair(theirs, ours, wait, *endless)
        if program.our_server.startswith("{cm}"):
            return pair(ours, theirs, lambda server: server.listening.wait(READY), *endless)
        return pair(ours, theirs, lambda server: self.waits_for_port(server, port, False), *endless)

    def cases(self, section, which):
        """What each side's program sees of refusals, private data and endings."""
        info = self.guest.info
        more = [f"port={self.port + 1000}", f"set={which}", f"sent={self.values['sent']}"]
        words = [self.values["cm"], "cases", info["agent"], self.values["there"], self.values["here"], *more]
        side = Side(self.guest.outside(words, CASES_LIMIT, variables=self.variables))
        code = side.finish(CASES_LIMIT + 10)
        failed = 0
        for line in side.output.splitlines():
            print(f"  IPv{self.family} {line}", flush=True)
            found = parse(line)
            if not found:
                continue
            verdict, role, name, _, _ = found
            self.results.add(section, name, self.guest.version, role, self.family, verdict)
            if verdict == "FAILED":
                failed += 1
                self.results.fail(f"kernel {self.guest.version}, IPv{self.family}, {section}: {line}")
        if code != 0 and not failed or not any(parse(line) for line in side.output.splitlines()):
            self.results.add(section, "to its end", self.guest.version, "both", self.family, "FAILED")
            self.results.fail(f"kernel {self.guest.version}, IPv{self.family}, {section}: ended with {code}:\n{side.output}")

    def play(self, whole):
        self.programs(PROGRAMS)
        self.cases(CASES, "whole" if whole else "brief")

    def losing(self):
        self.section, self.variables = LOSS, ("RXE_FAULT=loss=10,seed=11",)
        self.port += 100
        self.cases(LOSS, "lossy")

    def lossy(self):
        self.losing()
        self.programs(LOSSY)

    def programs(self, programs):
        for program in programs:
            if self.absent(program):
                continue
            for whose in ("ours", "kernel"):
                self.port += 1
                if program.no_ipv6 and self.family == "6":
                    self.told(program, whose, "absent", program.no_ipv6)
                    self.results.note(program.title, self.guest.version, program.no_ipv6)
                    continue
                if program.no_server6 and (whose, self.family) == ("ours", "6"):
                    self.told(program, whose, "skipped", program.no_server6)
                    print(f"skipped: {program.title}, IPv6, we connect: {program.no_server6}", flush=True)
                    continue
                began = time.monotonic()
                verdict, text = self.cell(program, whose)
                self.told(program, whose, verdict, text or f"{time.monotonic() - began:.1f} s")


def at_once(tasks):
    """Runs them in threads; what one of them raises is raised."""
    with ThreadPoolExecutor() as pool:
        for future in [pool.submit(task) for task in tasks]:
            future.result()


def disturbed(guest, order, undo, tasks):
    """Runs them while the guest's network is bad."""
    subprocess.run(guest.command(order), check=True)
    try:
        at_once(tasks)
    finally:
        subprocess.run(guest.command(undo), check=True)


def play(guest, cm, rxe, results, options):
    """All programs, IPv4 and IPv6 at the same time: most of it is waiting. `lossy` of the options: also programs over a bad network,
    where all connections are made, but a program may be gone before its last acknowledgement has arrived, so that the other end of
    now and then one of them reports an error. That is for watching, not for a verdict."""
    print(f"kernel {guest.version}: {SECTION}", flush=True)
    with tempfile.NamedTemporaryFile(prefix="sent-", dir=guest.folder) as sent:
        # User nobody writes to it.
        os.chmod(guest.folder, 0o755)
        os.chmod(sent.name, 0o666)
        capture = shark.Capture(guest)
        try:
            columns = [Column(guest, cm, rxe, results, family, sent.name) for family in "46"]
            whole = options.with_cm or options.only_cm
            at_once([lambda column=column: column.play(whole) for column in columns])
        finally:
            capture.stop()
        wrong = shark.judge(capture.path, sent.name, [guest.info["host4"], guest.info["host6"]])
        results.add(MESSAGES, "each message of ours", guest.version, "both", "both", "FAILED" if wrong else "ok")
        if wrong:
            results.fail(f"kernel {guest.version}: {MESSAGES}\n{wrong}")
            print(f"FAILED {MESSAGES}\n{wrong}", flush=True)
        if options.lossy:
            disturbed(guest, NETEM, NO_NETEM, [column.lossy for column in columns])
        elif whole:
            disturbed(guest, NETEM, NO_NETEM, [column.losing for column in columns])
        else:
            left_out = "private data of each length (each eighth is tried), connections over a network that loses 1 %"
            print(f"kernel {guest.version}: {SECTION}: left to --with-cm: {left_out}", flush=True)
