#!/usr/bin/python3
"""Runs `rxe pingpong` against ibv_*_pingpong on kernel rxe, and every operation, both roles, IPv4 and IPv6; judges the wire.

  run.py [--kernels 6.1,6.12] [--rxe PATH] [--ops PATH] [--cm PATH] [--with-cm] [--lossy] [--only-cm]
         [--brief-cm] [--only-crowd] [--minute] [--storage] [--table FILE] [--keep]

Our side runs as user nobody in the guest's network namespace on this host; and once more inside the guest, in a second
namespace there, so that the guest's UDP stack is our sender. Both sides compare every byte (-c) and both exit codes
count. Meanwhile the kernel captures the wire with segmentation offload off; scripts/icrc-check, which shares no code
with ours, judges each packet's ICRC, and tshark must read the operations.

Then testbed/src/bin/kernel-ops plays each operation, also over bad networks and with a small receive buffer (operations.py);
several of our processes share the port while the host service is killed (crowd.py; with --minute only that, for a minute
and with processes of ours killed too, minute.py); and programs connect by rdma_cm (cm.py). --storage plays storage and file
systems (storage.py) and nothing else.
--table writes the matrix as Markdown (docs/interop.md is one).

Ends with "N passed, N failed, N skipped"; exit 1 if any failed.
"""

import argparse
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import cm
import crowd
import dropin
import iser
import minute
import operations
import storage
from results import Results

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
# What the raw link needs beside that (--link raw).
RAW = ["--inh-caps=+net_raw", "--ambient-caps=+net_raw"]
TIMEOUT = 150
# How long a server may take until it listens.
MEETING = 100
# What the two programs say while nobody listens yet.
NOT_YET = re.compile(r"Connection refused|Couldn't connect to")

# service, path MTU, message bytes, messages
CASES = [
    ("rc", 256, 1, 100),
    ("rc", 256, 5000, 50),
    ("rc", 512, 4097, 50),
    ("rc", 1024, 4096, 100),
    ("rc", 2048, 65536, 20),
    ("rc", 4096, 1048576, 4),
    ("uc", 256, 1000, 50),
    ("uc", 1024, 4096, 50),
    ("uc", 4096, 32768, 10),
    ("ud", None, 1, 50),
    ("ud", None, 1024, 50),
    ("ud", None, 2048, 50),
    ("srq", 1024, 4096, 100),
    ("srq", 4096, 65536, 20),
]
# Opcodes that the wire must have seen, as tshark reads it.
WANTED = [(0, "SEND first"), (4, "SEND only"), (17, "ACK"), (32, "UC SEND first"), (100, "UD SEND")]
# Inside the guest everything is emulated: fewer, but all services.
INNER = [("rc", 1024, 4096, 50), ("rc", 4096, 262144, 8), ("uc", 1024, 4096, 20), ("ud", None, 1024, 20)]


def for_nobody(program, folder):
    """A path under which user nobody can run `program`: its own, or a copy in `folder` if its directories are closed."""
    if subprocess.run([*NOBODY, "test", "-x", program], check=False).returncode == 0:
        return program
    os.chmod(folder, 0o755)
    copy = pathlib.Path(folder) / pathlib.Path(program).name
    shutil.copy(program, copy)
    copy.chmod(0o755)
    return str(copy)


class Guest:
    """A running guest of scripts/kernel-vm."""

    def __init__(self, version, folder, link="udp"):
        self.version = version
        self.rights = [*NOBODY, *RAW] if link == "raw" else NOBODY
        self.variables = [f"RXE_LINK={link}"]
        self.folder = folder
        self.indices = {}
        text = vm("up", version, timeout=600).stdout
        self.info = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def gid_index(self, device, address):
        """Index of one of the guest's addresses in its device's GID table."""
        if (device, address) in self.indices:
            return self.indices[device, address]
        code = (
            f"import sys; sys.path.insert(0, '{ROOT}/testbed/guest'); import names; "
            f"print(names.gid_index('{device}', '{address}'))"
        )
        answer = vm("run", self.version, "--", "/usr/bin/python3", "-c", code)
        self.indices[device, address] = int(answer.stdout)
        return self.indices[device, address]

    def command(self, argv, netns=None):
        inside = ["--netns", netns] if netns else []
        return [str(ROOT / "scripts/kernel-vm"), "run", self.version, *inside, "--", "timeout", str(TIMEOUT), *argv]

    def outside(self, argv, limit=TIMEOUT, variables=()):
        """A command of ours in the guest's namespace on this host, as user nobody; variables as NAME=VALUE."""
        argv = [for_nobody(argv[0], self.folder), *argv[1:]]
        return ["ip", "netns", "exec", self.info["netns"], *self.rights, "env", *self.variables, *variables, "timeout", str(limit), *argv]


def vm(*argv, timeout=120):
    return subprocess.run(
        [str(ROOT / "scripts/kernel-vm"), *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=timeout,
        check=True,
    )


def start(argv):
    return subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process, limit=TIMEOUT + 30):
    """Output and exit code; after `limit` seconds it is killed."""
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        output += "\n[killed: it did not end]"
    return output, process.returncode


def kernel_side(case, device, index, host):
    service, mtu, size, count = case
    argv = [f"ibv_{service}_pingpong", "-d", device, "-g", str(index), "-s", str(size), "-n", str(count), "-c"]
    if mtu:
        argv += ["-m", str(mtu)]
    if service == "srq":
        argv += ["-q", "4"]
    return argv + ([host] if host else [])


def our_side(rxe, case, address, host):
    service, mtu, size, count = case
    argv = [rxe, "pingpong", service, "--bind", address, "--size", str(size), "--iters", str(count), "--check"]
    # The address given is the only one of this device. ibv_*_pingpong serves TCP on IPv4 alone, so the two sides may
    # find each other over IPv4 when the packets are IPv6.
    argv += ["--gid", "0"]
    # Emulated machines stall, on a busy host (load 18) for more than 4 s: all retries together are 16 s instead of 0.5.
    argv += ["--ack-timeout", "2"]
    if mtu:
        argv += ["--mtu", str(mtu)]
    if service == "srq":
        argv += ["--num-qp", "4"]
    return argv + ([host] if host else [])


def play(server, client):
    """Runs the server, then the client; what went wrong, or nothing."""
    server = start(server)
    until = time.monotonic() + MEETING
    while time.monotonic() < until:
        time.sleep(0.5)
        client_output, client_code = finish(start(client))
        # The server's TCP port may not be open yet; nothing has crossed the wire then.
        if client_code == 0 or not NOT_YET.search(client_output) or server.poll() is not None:
            break
    if client_code != 0 and server.poll() is None:
        time.sleep(1)
        server.send_signal(signal.SIGTERM)
    server_output, server_code = finish(server)
    if (client_code, server_code) == (0, 0):
        return None
    return f"client ended with {client_code}:\n{client_output}\nserver ended with {server_code}:\n{server_output}"


def cell(guest, rxe, case, role, family, inner):
    """One cell of the matrix: plays the case; what went wrong, or nothing."""
    info = guest.info
    side = "inner" if inner else "guest"
    device, theirs = info[f"{side}_dev"], info[f"{side}{family}"]
    ours = info[f"{'ours' if inner else 'host'}{family}"]
    index = guest.gid_index(device, theirs)
    run_ours = (lambda argv: guest.command(argv, "ours")) if inner else guest.outside
    if role == "client":
        theirs = guest.command(kernel_side(case, device, index, None))
        return play(theirs, run_ours(our_side(rxe, case, ours, info[f"{side}4"])))
    return play(run_ours(our_side(rxe, case, ours, None)), guest.command(kernel_side(case, device, index, ours)))


def pair_of_crowd(guest, rxe, case, family, port):
    """One of several pairs that play at the same time; what went wrong, or nothing."""
    info = guest.info
    index = guest.gid_index(info["guest_dev"], info[f"guest{family}"])
    theirs = [*kernel_side(case, info["guest_dev"], index, None), "-e", "-p", str(port)]
    # By events: so many that poll would take the machine from each other.
    ours = [*our_side(rxe, case, info[f"host{family}"], info["guest4"]), "--events", "--port", str(port)]
    return play(guest.command(theirs), guest.outside(ours))


class Capture:
    """tcpdump on the guest's tap, packets as they are on the wire."""

    def __init__(self, guest, path):
        self.path = path
        enter = ["ip", "netns", "exec", guest.info["netns"]]
        subprocess.run(
            [*enter, "ethtool", "-K", "tap0", "tx-udp-segmentation", "off", "gso", "off"],
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.process = subprocess.Popen(
            [*enter, "tcpdump", "-i", "tap0", "-B", "65536", "-Z", "root", "-w", str(path), "udp", "port", "4791"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        # It says so when it listens, or why it does not.
        said = self.process.stderr.readline()
        if "listening on" not in said:
            raise RuntimeError(f"tcpdump does not listen: {said}{self.process.stderr.read()}")

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.communicate(timeout=30)

    def judge(self, operations_wanted):
        """Stops; what is wrong with the packets, or nothing; these operations must be among them."""
        time.sleep(1)
        self.stop()
        # Kernel 6.12 hashes FLUSH's headers twice; towards it ours does so too once the specification's form got no answer.
        check = subprocess.run(
            [str(ROOT / "scripts/icrc-check"), "--rxe-flush", "--min", "1000", str(self.path)],
            capture_output=True,
            text=True,
            check=False,
        )
        print(check.stdout.rstrip())
        shark = subprocess.run(
            ["tshark", "-r", str(self.path), "-T", "fields", "-e", "infiniband.bth.opcode"],
            capture_output=True,
            text=True,
            check=False,
        )
        opcodes = {line for line in shark.stdout.split() if line}
        print(f"tshark reads opcodes {sorted(opcodes, key=lambda value: int(value, 0))}")
        wrong = []
        if check.returncode != 0:
            wrong.append(f"icrc-check ended with {check.returncode}: {check.stderr}")
        for wanted, name in operations_wanted:
            if not any(int(value, 0) == wanted for value in opcodes):
                wrong.append(f"tshark saw no {name} (opcode {wanted})")
        return "\n".join(wrong)


def title_of(case):
    service, mtu, size, count = case
    return f"{service} mtu {mtu or 'port'} {size} B x {count}"


def matrix(guest, rxe, results):
    """All pingpong cells of one kernel."""
    for inner, cases in ((False, CASES), (True, INNER)):
        section = "Pingpong programs" + (", ours in the guest too" if inner else "")
        print(f"kernel {guest.version}: {section}: we are client v4, v6; server v4, v6", flush=True)
        for case in cases:
            marks = []
            for role in ("client", "server"):
                for family in ("4", "6"):
                    wrong = cell(guest, rxe, case, role, family, inner)
                    if wrong:
                        title = f"kernel {guest.version}, {section}: {title_of(case)}, we are {role}, IPv{family}"
                        results.fail(f"{title}\n{wrong}")
                        print(f"FAILED {title}\n{wrong}", flush=True)
                    marks.append("FAIL" if wrong else "ok  ")
                    whose = "ours" if role == "client" else "kernel"
                    results.add(section, title_of(case), guest.version, whose, family, "FAILED" if wrong else "ok")
            print(f"  {title_of(case):44} {' '.join(marks)}", flush=True)


def judged(capture, version, results, wanted):
    """The packets of all cells so far; the capture is kept if they are wrong."""
    wrong = capture.judge(wanted)
    results.add("The wire", "ICRCs and opcodes", version, "both", "both", "FAILED" if wrong else "ok")
    if wrong:
        kept = TARGET / f"interop-{version}.pcap"
        shutil.copy(capture.path, kept)
        results.fail(f"kernel {version}: the wire, kept as {kept}\n{wrong}")
        print(f"FAILED the wire, kept as {kept}\n{wrong}")


# Kernels whose guests run, and folders that are only this run's.
RUNNING = []
FOLDERS = []


def end(number, _frame):
    """Ended from outside it takes its guest down, too, at once: threads that play programs are not waited for."""
    try:
        for version in RUNNING:
            vm("down", version)
    finally:
        for folder in FOLDERS:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(128 + number)


def whole_kernel(version, options, folder, results):
    """Everything against one kernel."""
    RUNNING.append(version)
    guest = Guest(version, folder, options.link)
    results.releases[version] = guest.info["release"]
    print(f"\nkernel {guest.info['release']}", flush=True)

    def run(argv, limit):
        return finish(start(argv), limit)

    kept = options.captures or pathlib.Path(folder)
    capture = Capture(guest, kept / f"{version}.pcap")
    def pair(case, family, port):
        return pair_of_crowd(guest, options.rxe, case, family, port)

    try:
        if options.crowd:
            crowd.play(guest, options.rxe, results, pair)
            return
        if options.storage or options.iser:
            if not options.iser:
                storage.play(guest, options.storage_program, results)
            iser.play(guest, options.rxe, results)
            judged(capture, version, results, [])
            return
        if options.minute:
            minute.play(guest, options.rxe, results, pair, capture)
            judged(capture, version, results, [])
            return
        cm.play(guest, options.cm, options.rxe, results, options)
        if options.only_cm or options.brief_cm:
            judged(capture, version, results, [])
            return
        matrix(guest, options.rxe, results)
        operations.play(guest, options.ops, results, operations.OPERATIONS, "46", run)
        for faults in operations.FAULTS:
            operations.play(guest, options.ops, results, faults, "46", run)
        judged(capture, version, results, WANTED)
        operations.play(guest, options.ops, results, operations.BULK, "46", run)

        crowd.play(guest, options.rxe, results, pair)
    finally:
        capture.stop()
        RUNNING.remove(version)
        if not options.keep:
            vm("down", version)


def table(results, options):
    """The matrix as Markdown; by the raw link it is a page of its own."""
    raw = options.link == "raw"
    flags = " --with-cm" * options.with_cm + " --storage" * options.storage + " --link raw" * raw
    name = "storage" if options.storage else "interop-raw" if raw else "interop"
    ours = "packet sockets (`RXE_LINK=raw`)" if raw else "a UDP socket"
    return results.markdown(f"scripts/interop{flags} --table docs/{name}.md", ours)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", default="6.1,6.12")
    parser.add_argument("--rxe", default=str(TARGET / "debug/rxe"))
    parser.add_argument("--ops", default=str(TARGET / "debug/kernel-ops"))
    parser.add_argument("--cm", default=str(TARGET / "debug/cm-peer"))
    parser.add_argument("--storage-program", default=str(TARGET / "debug/storage"))
    parser.add_argument("--storage", action="store_true", help="only storage and file systems over RDMA")
    parser.add_argument("--iser", action="store_true", help="of these only iSCSI over RDMA")
    parser.add_argument("--with-cm", action="store_true", help="rdma_cm: each length of private data, and a network that loses 1 %%")
    parser.add_argument("--lossy", action="store_true", help="rdma_cm: also whole programs over a network that loses 1 %%")
    parser.add_argument("--only-cm", action="store_true", help="only rdma_cm, and all of that")
    parser.add_argument("--brief-cm", action="store_true", help="only rdma_cm, as much as without flags")
    parser.add_argument("--only-crowd", dest="crowd", action="store_true", help="only several processes on one address")
    parser.add_argument("--minute", action="store_true", help="only several processes on one address, for a minute")
    parser.add_argument("--table", type=pathlib.Path, help="write the matrix to this Markdown file")
    parser.add_argument("--link", choices=["udp", "raw"], default="udp", help="what our side's packets leave by")
    parser.add_argument("--keep", action="store_true", help="leave the guests running")
    parser.add_argument("--captures", type=pathlib.Path, metavar="FOLDER", help="keep each kernel's packets there, for example for "
                        "RXE_CAPTURES=FOLDER cargo test -p rxe-lab --test tshark")
    options = parser.parse_args()
    if not re.fullmatch(r"6\.\d+(,6\.\d+)*", options.kernels):
        parser.error(f"--kernels {options.kernels}: expected something like 6.1,6.12")
    for program in (options.rxe, options.ops, options.cm, options.storage_program):
        if not os.access(program, os.X_OK):
            sys.exit(f"{program} is not there: run `cargo build --workspace --bins` first")
    if not dropin.place(options.rxe).exists():
        sys.exit(f"{dropin.place(options.rxe)} is not there: run scripts/build-dropin first")
    if options.captures:
        options.captures.mkdir(parents=True, exist_ok=True)
    # SIGINT is ignored in what a shell puts into the background.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    results, began = Results(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        FOLDERS.append(folder)
        for version in options.kernels.split(","):
            whole_kernel(version, options, folder, results)
            # After each: what was found stays if the next one is broken off.
            if options.table:
                options.table.write_text(table(results, options), encoding="utf-8")
    for failure in results.failures:
        print(f"\nfailed: {failure}")
    passed, failed, skipped = results.tally()
    print(f"\n{(time.monotonic() - began) / 60:.1f} minutes")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
