#!/usr/bin/python3
"""Migrates a virtual machine of QEMU's to another one by RDMA, and compares their memory.

  migrate.py FOLDER [--pin-all] -- WORDS...

WORDS start a program on the drop-in. The machine is stopped all the while: its memory holds random bytes in the middle and
zeros around, of which QEMU sends the former by RDMA WRITE and the latter as messages. Exit code 0 if all bytes are the same.
"""

import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

MEMORY, START, LENGTH = 64 << 20, 16 << 20, 16 << 20
# Seconds on a busy machine: until one listens, for one answer, and for the migration.
LISTENS, ANSWER, MIGRATION = 120, 60, 180


class Machine:
    """A virtual machine, spoken to by QMP."""

    def __init__(self, folder, run, name, *more):
        place = folder / name
        words = ["qemu-system-x86_64", "-M", "pc,accel=tcg", "-m", str(MEMORY >> 20), "-nodefaults", "-display", "none", "-S"]
        self.process = subprocess.Popen([*run, *words, "-qmp", f"unix:{place},server=on,wait=off", *more])
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(ANSWER)
        until = time.monotonic() + LISTENS
        while self.socket.connect_ex(str(place)):
            if self.process.poll() is not None:
                sys.exit(f"{name}: QEMU has ended with {self.process.returncode}")
            if time.monotonic() > until:
                sys.exit(f"{name}: QEMU does not listen to {place}")
            time.sleep(0.05)
        self.answers = self.socket.makefile("r")
        self.answers.readline()
        self("qmp_capabilities")

    def __call__(self, command, **arguments):
        self.socket.sendall((json.dumps({"execute": command, "arguments": arguments}) + "\n").encode())
        while line := self.answers.readline():
            answer = json.loads(line)
            if "error" in answer:
                sys.exit(f"{command}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]
        sys.exit(f"{command}: QEMU ended")

    def end(self):
        try:
            self("quit")
            return self.process.wait(ANSWER)
        finally:
            self.process.kill()


def migrate(source, target, pinned):
    capabilities = [{"capability": "rdma-pin-all", "state": pinned}]
    for machine in (source, target):
        machine("migrate-set-capabilities", capabilities=capabilities)
    # It answers when it listens.
    target("migrate-incoming", uri="rdma:127.0.0.1:4444")
    source("migrate", uri="rdma:127.0.0.1:4444")
    until = time.monotonic() + MIGRATION
    while time.monotonic() < until:
        state = source("query-migrate")
        if state["status"] == "completed":
            return state["ram"]["transferred"]
        if state["status"] == "failed":
            sys.exit(f"the migration failed: {state.get('error-desc')}")
        time.sleep(0.1)
    sys.exit(f"the migration did not end within {MIGRATION} s: {state}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--pin-all", action="store_true", help="all memory is registered before")
    parser.add_argument("run", nargs="+")
    asked = parser.parse_args()
    data = os.urandom(LENGTH)
    (asked.folder / "data").write_bytes(data)
    loader = f"loader,file={asked.folder / 'data'},addr={START},force-raw=on"
    source = Machine(asked.folder, asked.run, "source", "-device", loader)
    target = Machine(asked.folder, asked.run, "target", "-incoming", "defer")
    moved = migrate(source, target, asked.pin_all)
    memories = []
    for name, machine in (("source", source), ("target", target)):
        place = asked.folder / f"{name}.memory"
        machine("pmemsave", val=0, size=MEMORY, filename=str(place))
        memories.append(place.read_bytes())
        place.unlink()
    codes = [source.end(), target.end()]
    # Zeros alone would be the same after no migration at all.
    same = memories[0] == memories[1] and memories[1][START : START + LENGTH] == data
    print(f"{moved} bytes moved, memory {'the same' if same else 'differs'}, exit codes {codes}")
    return 0 if same and codes == [0, 0] else 1


if __name__ == "__main__":
    sys.exit(main())
