#!/usr/bin/python3
"""Eight pairs of Debian's programs at once on one address, for a minute, while some of them are killed.

  minute.py --folder DIR [--seconds 60]

Runs inside a network namespace, where scripts/compat starts it; DIR has `rxe` and the drop-in. Half of the pairs are rping,
which connects by rdma_cm and compares its data, half are ib_write_bw in both directions, which agrees by TCP. Of some rounds
one end, whichever, is killed by SIGKILL while the two are at work: its peer is to be told (DISCONNECTED of rdma_cm, or
completions with "transport retry counter exceeded"). All other rounds must end well at both ends: they are to notice nothing.
"""

import argparse
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from process import Process  # noqa: E402

PAIRS = 8
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]
# Seconds: until two have met; until a peer has been told; for a round that nobody disturbs.
MEETING = 20
NOTICE = 30
ROUND = 60
# So many of each kind must come about in a minute.
LEAST = 10


class OnDropin(Process):
    """A program on the drop-in; what it says is looked for by patterns."""

    def __init__(self, folder, argv):
        variables = [f"RXE_CONFIG={folder}/rxe.toml", f"XDG_RUNTIME_DIR={folder}/run"]
        words = [*NOBODY, "env", "-u", "LD_LIBRARY_PATH", *variables, f"{folder}/rxe", "run", "--", "stdbuf", "-oL", *argv]
        # Each of these becomes the next, so that this is the program's number.
        super().__init__(words)

    def says(self, text):
        return any(re.search(text, line) for line in list(self.lines))


class Rping:
    """Connects by rdma_cm, compares what it gets."""

    # What each end says at work, and when its peer is gone.
    server_works = client_works = "ping data"
    gone = r"DISCONNECT EVENT|DISCONNECTED|transport retry counter"

    @staticmethod
    def words(port, pings):
        both = ["-a", "127.0.0.1", "-p", str(port), "-v", "-V", "-S", "200", "-C", str(pings)]
        return ["rping", "-s", *both], ["rping", "-c", *both]

    # Pings of a whole round, and of one that is ended.
    whole, ended = 300, 100_000_000


class WriteBw:
    """Both ends write; they agree by TCP."""

    server_works = client_works = "remote address"
    # The test of its socket to the other end may be what it meets first, once it has seen the completion.
    gone = r"[Ff]ailed status 12|transport retry counter|Completion with error"

    @staticmethod
    def words(port, seconds):
        both = ["ib_write_bw", "-x", "0", "-F", "-b", "-s", "8192", "-D", str(seconds), "-p", str(port)]
        return both, [*both, "127.0.0.1"]

    whole, ended = 2, 60


class Minute:
    """The counts of all pairs, and what went wrong."""

    def __init__(self, folder, seconds, seed):
        self.folder, self.until = folder, time.monotonic() + seconds
        self.seed, self.lock = seed, threading.Lock()
        self.counts = {"whole": 0, "killed": 0, "told": 0}
        self.rounds = [0] * PAIRS
        self.wrong = []

    def count(self, name):
        with self.lock:
            self.counts[name] += 1

    def pair(self, number):
        """One round after the other."""
        chance = random.Random(self.seed + number)
        kind = (Rping, WriteBw)[number % 2]
        port = 20000 + 1000 * number
        while time.monotonic() < self.until:
            port += 1
            victim = chance.choice([None, "server", "client"])
            try:
                wrong = self.round(kind, port, victim, chance.uniform(0.1, 1.5))
            # Whatever it is.
            except Exception:
                wrong = traceback.format_exc()
            if wrong:
                self.wrong.append(f"pair {number}, {kind.__name__}, round {port}, victim {victim}:\n{wrong}")
            else:
                self.rounds[number] += 1

    def round(self, kind, port, victim, after):
        words = kind.words(port, kind.ended if victim else kind.whole)
        server = OnDropin(self.folder, words[0])
        self.wait_listening(server, kind, port)
        client = OnDropin(self.folder, words[1])
        both = {"server": server, "client": client}
        try:
            if victim is None:
                codes = client.end(ROUND), server.end(ROUND)
                if codes != (0, 0):
                    return f"client ended with {codes[0]}:\n{client.told()}\nserver with {codes[1]}:\n{server.told()}"
                self.count("whole")
                return None
            return self.ended(kind, both.pop(victim), *both.values(), after)
        finally:
            for process in (server, client):
                if process.runs():
                    process.end(0)

    def ended(self, kind, victim, survivor, after):
        for process in (victim, survivor):
            if not process.wait_for(kind.client_works, MEETING):
                return f"they did not get to work:\n{process.told()}"
        time.sleep(after)
        if not (victim.runs() and survivor.runs()):
            return f"one ended too early:\n{victim.told()}\nthe other:\n{survivor.told()}"
        os.kill(victim.process.pid, signal.SIGKILL)
        code = victim.end(NOTICE)
        if code != -signal.SIGKILL:
            return f"it was to be killed, and ended with {code}:\n{victim.told()}"
        self.count("killed")
        if not survivor.wait_for(kind.gone, NOTICE):
            return f"the peer was not told:\n{survivor.told()}"
        self.count("told")
        # rping may hang then all the same, under any library: a thread waits for one that waits for a completion.
        survivor.end(2)
        return None

    def wait_listening(self, server, kind, port):
        """Until the server listens: rdma_cm's ports the host service knows, TCP's the kernel."""
        until = time.monotonic() + MEETING
        while server.runs() and time.monotonic() < until:
            if kind is WriteBw:
                found = subprocess.run(["ss", "-Hltn", f"sport = :{port}"], capture_output=True, text=True, check=False).stdout
            else:
                words = [*NOBODY, "env", f"XDG_RUNTIME_DIR={self.folder}/run", f"{self.folder}/rxe", "service", "status", "--json"]
                shown = subprocess.run(words, capture_output=True, text=True, check=False).stdout
                found = re.search(rf'"service_id": *{0x1060000 + port}\b', shown)
            if found:
                return
            time.sleep(0.05)

    def play(self):
        threads = [threading.Thread(target=self.pair, args=(number,)) for number in range(PAIRS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        counts = self.counts
        if min(counts["whole"], counts["killed"]) < LEAST or not all(self.rounds):
            self.wrong.append(f"too little came about: {counts}, rounds {self.rounds}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", required=True, type=pathlib.Path)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    options = parser.parse_args()
    minute = Minute(options.folder, options.seconds, options.seed)
    minute.play()
    for text in minute.wrong:
        print(text)
    counts = minute.counts
    print(
        f"{PAIRS} pairs: {counts['whole']} rounds undisturbed and right, {counts['killed']} ends killed, "
        f"{counts['told']} peers told; rounds of each {minute.rounds}; seed {options.seed}"
    )
    return 1 if minute.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
