"""Programs that connect by rdma_cm on the kernel's rxe, against testbed/src/bin/cm-peer, in both roles."""

import os
import signal
import subprocess
import threading
import time
from typing import NamedTuple

SECTION = "Programs that connect by rdma_cm"
# Seconds for one pair; and for a server of ours to say that it listens.
LIMIT = 60
READY = 20
# Our ports rise from here, so that what a program has left behind can't meet the next one.
PORT = 21000


class Program(NamedTuple):
    """Two ends of one protocol."""

    title: str
    # Arguments of the kernel's end; {here} and {there} are the kernel's address and ours.
    server: list
    client: list
    # What cm-peer calls it, and more for it.
    name: str
    more: tuple = ()
    # The port, if it can't be chosen.
    port: int = 0
    # The server goes on for ever: it is ended when the client has.
    endless: bool = False
    # Why the kernel's server can't be reached over IPv6, if so.
    no_server6: str = ""


PROGRAMS = [
    Program(
        "ucmatose, 50 connections, 10 messages each way",
        ["ucmatose", "-b", "{here}", "-p", "{port}", "-c", "50"],
        ["ucmatose", "-s", "{there}", "-p", "{port}", "-c", "50"],
        "ucmatose",
        ("connections=50",),
    ),
    Program(
        "rdma_server, rdma_client",
        ["rdma_server", "-s", "{here}", "-p", "{port}"],
        ["rdma_client", "-s", "{there}", "-p", "{port}"],
        "rdma_client",
    ),
    Program(
        "rdma_xserver, rdma_xclient (RC)",
        ["rdma_xserver", "-p", "{port}"],
        ["rdma_xclient", "-s", "{there}", "-p", "{port}"],
        "rdma_xclient",
        no_server6="rdma_xserver takes no address and listens on IPv4 alone",
    ),
]


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

    def finish(self, limit):
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
        os.killpg(self.process.pid, signal.SIGTERM)
        self.finish(LIMIT)


def pair(ours, theirs, we_listen, endless):
    """Plays a pair; what went wrong, or nothing. The kernel's end gets SIGTERM if it is a server without end."""
    if we_listen:
        our_side = Side(ours)
        our_side.listening.wait(READY)
        their_side = Side(theirs)
    else:
        their_side = Side(theirs)
        our_side = Side(ours)
    our_code = our_side.finish(LIMIT)
    if endless and not we_listen:
        still = their_side.process.poll() is None
        their_side.end()
        their_code = 0 if still else "(it ended by itself)"
    else:
        # A program without its other end would wait for ever.
        their_code = their_side.finish(LIMIT if our_code == 0 else 3)
    if (our_code, their_code) == (0, 0):
        return None
    return f"ours ended with {our_code}:\n{our_side.output}\nthe kernel's with {their_code}:\n{their_side.output}"


def fill(words, **values):
    return [word.format(**values) for word in words]


def cell(guest, path, program, we_listen, family, port):
    """One cell of the matrix."""
    here, there = guest.info[f"guest{family}"], guest.info[f"host{family}"]
    port = program.port or port
    words = program.client if we_listen else program.server
    theirs = guest.command(fill(words, here=here, there=there, port=port))
    role = "server" if we_listen else "client"
    ours = guest.outside([path, program.name, role, there, here, f"port={port}", *program.more])
    return pair(ours, theirs, we_listen, program.endless)


def column(guest, path, results, family):
    """All programs over one family."""
    port = PORT + (500 if family == "6" else 0)
    for program in PROGRAMS:
        for whose in ("ours", "kernel"):
            port += 1
            where = f"kernel {guest.version}, IPv{family}: {program.title}, connects: {whose}"
            if program.no_server6 and (whose, family) == ("ours", "6"):
                results.add(SECTION, program.title, guest.version, whose, family, "skipped")
                print(f"skipped: {where}: {program.no_server6}", flush=True)
                continue
            began = time.monotonic()
            wrong = cell(guest, path, program, whose == "kernel", family, port)
            took = time.monotonic() - began
            results.add(SECTION, program.title, guest.version, whose, family, "FAILED" if wrong else "ok")
            print(f"  {'FAILED' if wrong else 'ok':7} {took:4.1f} s  {where}\n{wrong or ''}".rstrip(), flush=True)
            if wrong:
                results.fail(f"{where}\n{wrong}")


def play(guest, path, results):
    """All programs, IPv4 and IPv6 at the same time: most of it is waiting."""
    print(f"kernel {guest.version}: {SECTION}", flush=True)
    columns = [threading.Thread(target=column, args=(guest, path, results, family)) for family in "46"]
    for thread in columns:
        thread.start()
    for thread in columns:
        thread.join()
