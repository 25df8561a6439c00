#!/usr/bin/env python3
"""Bandwidth and latency of unmodified programs: on ours beside kernel rxe, in one boot of a guest.

    scripts/guest-bench --what data [--kernels 6.1,6.12] [--rounds 5] [--only NAME] [--add] [--keep] [--out DIR]

Both processes of a program are in the guest: on kernel rxe with its own address, where packets stay inside the driver; on
the drop-in in the guest's second network namespace, over that one's own address and its UDP sockets. Each round measures
each thing once; medians count. The guest is an emulated machine, so only ratios of one boot mean anything. Prints a table;
DIR (docs/benchmarks) gets guest.md and guest.json, and --add keeps the samples that are there. Standard library only.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
VM = str(ROOT / "scripts/kernel-vm")
# Ours in the guest's memory, as Debian's programs are once they have run. What is built here reaches the guest uncached: each
# start would fetch its pages anew, in the middle of what is measured.
PLACE = "/run/rxe-bench"
RXE = f"{PLACE}/rxe"
KERNEL, OURS = "kernel", "ours"
# Times that a client may come before its server listens, or be refused.
TRIES = 8
UNITS = {"MB/sec": 1, "GB/sec": 1e3, "KB/sec": 1e-3, "us": 1, "ms": 1e3, "ns": 1e-3}


class Figure(NamedTuple):
    """A program, and what in its client's output counts."""

    name: str
    unit: str
    # {port} and {gid}; the client's words also have {peer}.
    server: str
    client: str
    # A number, and its unit unless that is always the one above.
    found: str
    # By kernel: ours divided by the kernel's.
    aims: dict


def qperf(test, unit, aims):
    found = r"(?:bw|latency) += +([\d.,]+) (\S+)"
    return Figure(f"qperf {test}", unit, "qperf -lp {port}", f"qperf -cm1 {{peer}} -lp {{port}} -t 2 {test}", found, aims)


def perftest(words, unit, column):
    text = words.replace(" ", " -d rxe0 -x {gid} -F -p {port} ", 1)
    return Figure(words, unit, text, f"{text} {{peer}}", rf"(?m)^ *\d+ +\d+(?: +[\d.]+){{{column - 3}}} +([\d.]+)", {})


def rstream(words):
    """Over rsockets: Debian's librdmacm beside the drop-in's. Each way in turns; the time of a transfer, because Gbit/s have no digits in
    an emulated machine. 1.25 is 0.8 of the data."""
    found = r"(?m)^custom +\S+ +\d+ +\d+ +\S+ +[\d.]+s +[\d.]+ +([\d.]+)"
    text = words.replace(" ", " -p {port} ", 1)
    return Figure(words, "us", text, text.replace(" ", " -s {peer} ", 1), found, {"6.1": "<= 1.25", "6.12": "<= 1.25"})


BANDWIDTH = {"6.1": ">= 1.3", "6.12": ">= 1.0"}
LATENCY = {"6.1": "<= 1.0", "6.12": "<= 1.0"}
FIGURES = [
    qperf("rc_rdma_write_bw", "MB/s", BANDWIDTH),
    qperf("rc_bw", "MB/s", BANDWIDTH),
    qperf("rc_lat", "us", LATENCY),
    # The average.
    perftest("ib_write_bw -s 65536 -n 2000", "MB/s", 4),
    # The typical time.
    perftest("ib_send_lat -s 2 -n 2000", "us", 5),
    rstream("rstream -S 65536 -I 20 -C 50"),
]


def end(process):
    """Ends the group of a process that scripts/kernel-vm may have taken to root."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
    except ProcessLookupError:
        pass
    except PermissionError:
        subprocess.run(["sudo", "kill", "-TERM", "--", f"-{process.pid}"], check=False)
    process.communicate()


def place_programs(version):
    """Copies ours into the guest's memory."""
    built = TARGET / "release"
    copy = f"rm -rf {PLACE} && mkdir -p {PLACE}/dropin && cp {built}/rxe {PLACE} && cp -a {built}/dropin/*.so* {PLACE}/dropin"
    subprocess.run([VM, "run", version, "--", "sh", "-c", copy], check=True)


class Guest:
    """A guest, booted if it does not run yet."""

    def __init__(self, version):
        self.version = version
        text = subprocess.run([VM, "up", version], check=True, capture_output=True, text=True).stdout
        self.info = dict(line.split("=", 1) for line in text.split())
        place_programs(version)
        # A port that was used just now can't be had again.
        self.port = 20000 + int(time.time()) % 10000

    def start(self, argv, whose):
        inside = ["--netns", self.info["ours_netns"]] if whose == OURS else []
        program = [RXE, "run", "--", *argv] if whose == OURS else argv
        # A group of its own: the guest's end dies with the one that speaks to the guest.
        return subprocess.Popen([VM, "run", self.version, *inside, "--", "timeout", "60", *program], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)

    def once(self, figure, whose):
        """What the client printed, and its exit code."""
        self.port += 1
        peer = self.info["ours4" if whose == OURS else "guest4"]
        words = {"peer": peer, "port": self.port, "gid": 0 if whose == OURS else 1}
        server = self.start(figure.server.format(**words).split(), whose)
        try:
            # One that comes too early goes away at once.
            time.sleep(1.5)
            client = self.start(figure.client.format(**words).split(), whose)
            return client.communicate()[0], client.returncode
        finally:
            end(server)

    def measure(self, figure, whose):
        for _ in range(TRIES):
            output, code = self.once(figure, whose)
            found = re.search(figure.found, output)
            if code == 0 and found:
                unit = UNITS[found[2]] if found.re.groups > 1 else 1
                return float(found[1].replace(",", "")) * unit
            last = output.strip().splitlines()[-1:] or ["it said nothing"]
            print(f"once more: {figure.name}, {whose}: the client ended with {code}: {last[0]}", file=sys.stderr, flush=True)
        sys.exit(f"guest-bench: {figure.name}, {whose}: the client ended with {code}:\n{output}")


def one_line(*command):
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def text_of(store):
    """The table."""
    lines = [
        "# Ours beside kernel rxe in one guest",
        "",
        f"{store['date']}, commit {store['commit']}. Unmodified programs of Debian, both processes in an emulated machine with 2",
        "processors: on kernel rxe, whose packets to its own address stay inside the driver, and on the drop-in, whose packets",
        "pass the kernel's UDP. Medians of rounds that measure each thing once, and their ranges. Only the ratios mean anything.",
        "",
        "| kernel | program | unit | kernel rxe | ours | ours / kernel | of the rounds | aim |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for version, kernel in store["kernels"].items():
        for figure in FIGURES:
            both = kernel["samples"].get(figure.name)
            if not both:
                continue
            theirs, ours = both[KERNEL], both[OURS]
            ratios = [mine / other for mine, other in zip(ours, theirs)]
            cells = [f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})" for values in (theirs, ours)]
            ratio = statistics.median(ours) / statistics.median(theirs)
            lines.append(f"| {kernel['release']} | `{figure.name}` | {figure.unit} | {cells[0]} | {cells[1]} | **{ratio:.2f}** | "
                         f"{min(ratios):.2f} to {max(ratios):.2f} | {figure.aims.get(version, '')} |")
    return "\n".join(lines) + "\n"


def save(store, out):
    out.mkdir(parents=True, exist_ok=True)
    (out / "guest.json").write_text(json.dumps(store, indent=1) + "\n", encoding="utf-8")
    (out / "guest.md").write_text(text_of(store), encoding="utf-8")


def rounds_of(version, rounds, wanted, store, out):
    guest = Guest(version)
    kernel = store["kernels"].setdefault(version, {"samples": {}})
    kernel["release"] = guest.info["release"]
    for number in range(1, rounds + 1):
        for figure in wanted:
            both = kernel["samples"].setdefault(figure.name, {KERNEL: [], OURS: []})
            # Not before both are there: an interrupted run leaves no half pairs.
            pair = [guest.measure(figure, whose) for whose in (KERNEL, OURS)]
            for whose, value in zip((KERNEL, OURS), pair):
                both[whose].append(value)
            print(f"{version}, round {number}: {figure.name}: kernel {pair[0]:.1f}, ours {pair[1]:.1f} {figure.unit}",
                  file=sys.stderr, flush=True)
            save(store, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--what", choices=["data"], default="data")
    parser.add_argument("--kernels", default="6.1,6.12")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="programs with this in their name")
    parser.add_argument("--add", action="store_true", help="keep the samples that are stored")
    parser.add_argument("--keep", action="store_true", help="leave the guests running")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/benchmarks")
    args = parser.parse_args()
    wanted = [figure for figure in FIGURES if args.only in figure.name]
    subprocess.run(["cargo", "build", "--quiet", "--release", "-p", "rxe-cli"], cwd=ROOT, check=True)
    subprocess.run([str(ROOT / "scripts/build-dropin"), "--release"], check=True, stdout=subprocess.DEVNULL)
    path = args.out / "guest.json"
    commit = one_line("git", "rev-parse", "--short=12", "HEAD")
    store = json.loads(path.read_text(encoding="utf-8")) if args.add else {"commit": commit, "kernels": {}}
    if store["commit"] != commit:
        sys.exit(f"guest-bench: {path} is of commit {store['commit']}, this is {commit}; without --add it is replaced")
    store["date"] = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    for version in args.kernels.split(","):
        try:
            rounds_of(version, args.rounds, wanted, store, args.out)
        finally:
            if not args.keep:
                subprocess.run([VM, "down", version], check=False)
    print(text_of(store), end="")


if __name__ == "__main__":
    main()
