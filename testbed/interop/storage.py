"""Storage and file systems over RDMA: each protocol with one end that is the kernel's and one that is the testbed's
(testbed/src/storage, by its program `storage`). Data are compared by their hashes, which each end takes of what it has.

The kernel's ends are set up by hand in the guest (testbed/guest/storage.sh): Debian's tools are not needed."""

import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECTION = "Storage and file systems over RDMA"
MODULES = ["nvmet_rdma", "nvme_rdma", "brd", "rpcrdma", "nfsd", "nfsv4"]
KERNELS_NQN = "nqn.2014-08.org.nvmexpress:kernel"
OUR_NQN = "nqn.2014-08.org.nvmexpress:rxe-testbed"
# What our ends have of each protocol, for the table's notes.
NVME = "NVMe over Fabrics"
NFS = "NFS 4.1"
HAVE = {
    NVME: "Our initiator: discovery, one admin queue and I/O queues, data in commands up to 8 KiB and by keys up to 128 KiB. Our target: the "
    "same, one namespace in memory, keep alive, shutdown, invalidation of keys by responses; no authentication, no events.",
    NFS: "Our client: one session, files written, read, listed, removed. Our server: files and folders of a folder as they were at its start, "
    "read-only; no symbolic links, locks, delegations or calls back; every user may read all, by AUTH_SYS or none.",
}
# Emulated machines stall.
LIMIT = 180
MIB = 1 << 20
BLOCK = 512
# Reads of the comparison: each end reads as many in turns.
READ, DEPTH, READS, ROUNDS = 131072, 8, 300, 3


class Wrong(Exception):
    """What went wrong, in words."""


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def need(is_so, text):
    if not is_so:
        raise Wrong(text)


class Storage:
    """All of it with one kernel."""

    def __init__(self, guest, program, results, folder):
        self.guest, self.program, self.results = guest, program, results
        self.folder = pathlib.Path(folder)
        self.family = "4"
        self.served = None

    # --- the two ends ----------------------------------------------------------------------------

    def run(self, argv, limit=LIMIT, fails=False):
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit + 30)
        if (done.returncode != 0) != fails:
            raise Wrong(f"{' '.join(argv[-8:])} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout + (done.stderr if fails else "")

    def ours(self, *words, fails=False):
        return self.run(self.guest.outside([self.program, *map(str, words)], LIMIT), fails=fails)

    def inside(self, *words, fails=False):
        """A function of storage.sh in the guest."""
        script = str(ROOT / "testbed/guest/storage.sh")
        return self.run(self.guest.command([script, *map(str, words)]), fails=fails).strip()

    def shell(self, text, fails=False):
        return self.run(self.guest.command(["sh", "-c", text]), fails=fails).strip()

    @property
    def here(self):
        return self.guest.info[f"host{self.family}"]

    @property
    def there(self):
        return self.guest.info[f"guest{self.family}"]

    def serve(self, *words):
        """Starts a server of ours and waits until it listens."""
        argv = self.guest.outside([self.program, *map(str, words)], 3600)
        log = open(self.folder / "served", "w+b")
        self.served = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        self.log = log
        end = time.monotonic() + 60
        while "listening" not in self.said():
            if self.served.poll() is not None or time.monotonic() > end:
                raise Wrong(f"our server does not listen: {self.said()}")
            time.sleep(0.1)

    def said(self):
        return (self.folder / "served").read_text()

    def stop(self, how=signal.SIGTERM):
        if self.served:
            pid = self.served.pid
            if how == signal.SIGKILL:
                # It is `timeout` that we know; killed it could not pass that on to its child.
                pid = int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
            os.kill(pid, how)
            self.served.wait(timeout=30)
            self.log.close()
            self.served = None

    def file(self, name, size):
        path = self.folder / name
        path.write_bytes(os.urandom(size))
        path.chmod(0o644)
        return path

    def result(self, name):
        """A file that user nobody may write."""
        path = self.folder / name
        path.write_bytes(b"")
        path.chmod(0o666)
        return path

    # --- NVMe over Fabrics -----------------------------------------------------------------------

    def nvme_discovered(self):
        found = json.loads(self.ours("nvme", "discover", self.there, "--json"))
        names = {(entry["subsystem"], entry["service"]) for entry in found}
        need((KERNELS_NQN, "4420") in names, f"discovery tells {found}")
        about = json.loads(self.ours("nvme", "identify", self.there, "--nqn", KERNELS_NQN, "--json"))
        size = int(self.shell("blockdev --getsize64 /dev/ram0"))
        first = about["namespaces"][0]
        need(about["model"] == "Linux" and first["blocks"] * first["block"] == size, f"identified as {about}")
        self.ours("nvme", "identify", self.there, "--nqn", "nqn.2014-08.org.nvmexpress:none", fails=True)

    def nvme_to_kernel(self):
        # In the command itself, by RDMA READs, and as long as possible.
        for place, (piece, size) in enumerate([(BLOCK, 9 * BLOCK), (4096, 64 << 10), (16384, 256 << 10), (READ, MIB)]):
            at = place * 2 * MIB
            file, back = self.file("nvme-in", size), self.result("nvme-out")
            which = [self.there, "--nqn", KERNELS_NQN]
            self.ours("nvme", "write", *which, file, "--block", at // BLOCK, "--piece", piece)
            wrote = sha256(file.read_bytes())
            need(self.inside("hash", "/dev/ram0", at, size, BLOCK if size % 4096 else 4096).split()[0] == wrote, f"pieces of {piece}: the kernel has other data")
            self.ours("nvme", "read", *which, back, "--block", at // BLOCK, "--piece", piece, "--len", size)
            need(sha256(back.read_bytes()) == wrote, f"pieces of {piece}: other data are read back")
        filled = self.inside("fill", "/dev/ram0", 8 * MIB, 2 * MIB, 4096).split()[0]
        back = self.result("nvme-out")
        self.ours("nvme", "read", self.there, "--nqn", KERNELS_NQN, back, "--block", 8 * MIB // BLOCK, "--len", 2 * MIB)
        need(sha256(back.read_bytes()) == filled, "not what the kernel has written")

    def nvme_from_kernel(self):
        self.serve("nvme", "serve", self.here, "--nqn", OUR_NQN, "--size", 32)
        device = self.inside("nvme_connect", OUR_NQN, self.here)
        for piece, at in ((BLOCK, 0), (4096, MIB), (READ, 2 * MIB), (MIB, 4 * MIB)):
            size = min(max(piece * 64, 64 << 10), 2 * MIB)
            wrote = self.inside("fill", device, at, size, piece).split()[0]
            need(self.inside("hash", device, at, size, piece).split()[0] == wrote, f"pieces of {piece}: other data are read back")
            back = self.result("nvme-out")
            self.ours("nvme", "read", self.here, "--nqn", OUR_NQN, back, "--block", at // BLOCK, "--len", size)
            need(sha256(back.read_bytes()) == wrote, f"pieces of {piece}: our target has other data")
        words = "--name=v --direct=1 --rw=randrw --bsrange=4k-128k --size=2m --offset=8m --verify=crc32c --ioengine=libaio --iodepth=8"
        self.shell(f"fio --filename={device} {words}")
        self.inside("nvme_disconnect")
        need("has ended" not in self.said(), f"our target says {self.said()}")
        self.stop()

    def nvme_target_dies(self):
        self.serve("nvme", "serve", self.here, "--nqn", OUR_NQN, "--size", 32)
        device = self.inside("nvme_connect", OUR_NQN, self.here)
        self.shell(f"dd if={device} of=/dev/null bs=64k count=4 iflag=direct status=none")
        self.stop(signal.SIGKILL)
        # An error to the program, and the device goes.
        self.shell(f"dd if={device} of=/dev/null bs=64k count=4 iflag=direct status=none", fails=True)
        self.shell(f"for try in $(seq 600); do [ -e {device} ] || exit 0; sleep 0.1; done; exit 1")

    def nvme_speed(self):
        """Reads of 128 KiB from the kernel's target: ours from outside, its own in the guest, in turns."""
        device = self.inside("nvme_connect", KERNELS_NQN, self.there)
        ours, its = [], []
        for _ in range(ROUNDS):
            text = self.ours("nvme", "bench", self.there, "--nqn", KERNELS_NQN, "--size", READ, "--depth", DEPTH, "--count", READS)
            ours.append(float(re.match(r"([0-9.]+) MB/s", text)[1]))
            words = f"--name=r --direct=1 --rw=read --bs={READ} --size=12m --io_size={READ * READS} --iodepth={DEPTH} --ioengine=libaio"
            told = json.loads(re.sub(r"^[^{]*", "", self.shell(f"fio --filename={device} {words} --output-format=json")))
            its.append(told["jobs"][0]["read"]["bw_bytes"] / 1e6)
        self.inside("nvme_disconnect")
        ours, its = sorted(ours)[ROUNDS // 2], sorted(its)[ROUNDS // 2]
        self.results.figure(
            f"kernel {self.guest.version}: reads of {READ >> 10} KiB from its NVMe target, {DEPTH} at a time, medians of {ROUNDS}: "
            f"our initiator {ours:.1f} MB/s, its own in the guest {its:.1f} MB/s: {ours / its:.2f} times"
        )

    # --- NFS over RDMA ---------------------------------------------------------------------------

    def nfs_to_kernel(self):
        for piece, size in ((1000, 20_001), (65536, 700_000), (131072, 3_000_001)):
            file, back = self.file("nfs-in", size), self.result("nfs-out")
            self.ours("nfs", "put", self.there, file, "data", "--piece", piece)
            wrote = sha256(file.read_bytes())
            need(self.shell("sha256sum /exp/data").split()[0] == wrote, f"pieces of {piece}: the kernel has other data")
            self.ours("nfs", "get", self.there, "data", back, "--piece", piece)
            need(sha256(back.read_bytes()) == wrote, f"pieces of {piece}: other data are read back")
            self.ours("nfs", "remove", self.there, "data")
        # A list that is too long for a message.
        self.shell("mkdir /exp/many; for n in $(seq 200); do : >/exp/many/file-with-a-long-name-$n; done")
        names = json.loads(self.ours("nfs", "list", self.there, "many", "--json"))
        need(sorted(names) == sorted(f"file-with-a-long-name-{n}" for n in range(1, 201)), f"listed {names}")
        self.ours("nfs", "get", self.there, "nothing", self.result("nfs-out"), fails=True)

    def nfs_from_kernel(self):
        export = self.folder / "export"
        (export / "sub").mkdir(parents=True, exist_ok=True)
        data = os.urandom(3_000_001)
        (export / "data").write_bytes(data)
        (export / "empty").write_bytes(b"")
        for number in range(300):
            (export / "sub" / f"file-with-a-long-name-{number:03}").write_text(f"{number}\n")
        subprocess.run(["chmod", "-R", "a+rX", str(export)], check=True)
        self.serve("nfs", "serve", self.here, export)
        self.inside("nfs_mount", self.here, self.there)
        need(self.shell("sha256sum </mnt-rdma/data").split()[0] == sha256(data), "the kernel reads other data")
        need(self.shell("ls /mnt-rdma; cat /mnt-rdma/empty").split() == ["data", "empty", "sub"], "other names")
        all_of_them = "".join(f"{number}\n" for number in range(300)).encode()
        need(self.shell("cat /mnt-rdma/sub/* | sha256sum").split()[0] == sha256(all_of_them), "other small files")
        # Past the kernel's cache, from the middle.
        part = self.shell("dd if=/mnt-rdma/data bs=4096 skip=100 count=300 iflag=direct status=none | sha256sum").split()[0]
        need(part == sha256(data[409600 : 409600 + 1228800]), "other data from the middle")
        self.shell("cat /mnt-rdma/nothing", fails=True)
        self.shell("mount -o remount,rw /mnt-rdma && echo x >/mnt-rdma/data", fails=True)
        self.shell("umount /mnt-rdma")
        need("has ended" not in self.said(), f"our server says {self.said()}")
        self.stop()

    # --- all of it -------------------------------------------------------------------------------

    def play(self):
        began = time.monotonic()
        subprocess.run([str(ROOT / "scripts/kernel-vm"), "load", self.guest.version, *MODULES], check=True, timeout=900)
        info = self.guest.info
        self.inside("nvme_target", KERNELS_NQN, info["guest4"], info["guest6"])
        self.inside("nfs_server", info["host4"])
        print(f"kernel {self.guest.version}: {SECTION}: set up in {time.monotonic() - began:.0f} s", flush=True)
        for row, whose, families, work in (
            ("NVMe over Fabrics: discovery, identify", "ours", "46", self.nvme_discovered),
            ("NVMe over Fabrics: written, read, compared", "ours", "46", self.nvme_to_kernel),
            ("NVMe over Fabrics: written, read, compared", "kernel", "46", self.nvme_from_kernel),
            ("NVMe over Fabrics: the target is killed", "kernel", "4", self.nvme_target_dies),
            ("NVMe over Fabrics: reads measured beside the kernel's own", "ours", "4", self.nvme_speed),
            ("NFS 4.1: files put, got, listed, compared", "ours", "4", self.nfs_to_kernel),
            ("NFS 4.1: mounted with proto=rdma, read, compared", "kernel", "4", self.nfs_from_kernel),
        ):
            self.results.note(row, self.guest.version, next(text for name, text in HAVE.items() if row.startswith(name)))
            for family in families:
                self.family = family
                self.cell(row, whose, work)

    def cell(self, row, whose, work):
        began = time.monotonic()
        where = f"kernel {self.guest.version}, IPv{self.family}, {row}, asks: {whose}"
        try:
            work()
            verdict, text = "ok", f"{time.monotonic() - began:.1f} s"
        except (Wrong, subprocess.TimeoutExpired) as error:
            verdict, text = "FAILED", f"{error}\nour server: {self.said() if self.served else 'none'}"
            self.results.fail(f"{where}\n{text}")
        finally:
            self.stop()
        self.results.add(SECTION, row, self.guest.version, whose, self.family, verdict)
        print(f"  {verdict:8}{where}: {text}", flush=True)


def play(guest, program, results):
    """All protocols with one kernel."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        Storage(guest, program, results, folder).play()
