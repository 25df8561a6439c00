"""iSCSI over RDMA (iSER, RFC 7145): Linux's target and Linux's initiator in the guest, and on our side Debian's tgtd and programs that
use libiscsi, which run on the drop-in. Data are compared by their hashes, which each end takes of what it has.

The guest's target is set up by hand (testbed/guest/storage.sh), its initiator by Debian's open-iscsi."""

import os
import signal
import subprocess
import tempfile
import time

import dropin
from storage import LIMIT, MIB, ROOT, Storage, Wrong, need, sha256

MODULES = ["crc32c_generic", "ib_isert", "target_core_iblock", "ib_iser", "sd_mod", "brd"]
KERNELS_NAME = "iqn.2026-11.example:kernel"
OUR_NAME = "iqn.2026-11.example:tgtd"
# Those who ask: the guest, and qemu's programs.
GUEST_NAME = "iqn.2026-11.example:guest"
QEMU_NAME = "iqn.2026-11.example:qemu"
ROW = "iSER: written, read, compared"
NOTE = (
    "Our side's programs are Debian's on the drop-in: qemu-io and qemu-img (libiscsi) as initiators, tgtd as the target; the kernel's "
    "are LIO's target with a disk in memory, and ib_iser with open-iscsi."
)
# Requests of qemu's programs that are longer than the target takes end them.
PIECE = 65536


class Iser(Storage):
    """All of it with one kernel."""

    def __init__(self, guest, rxe, results, folder):
        super().__init__(guest, None, results, folder)
        # Before the first look whether user nobody can run what is in there.
        os.chmod(guest.folder, 0o755)
        self.on_rxe = dropin.words(rxe, guest.folder)
        # tgtd and its own command find each other by this.
        self.socket = f"TGT_IPC_SOCKET={self.folder}/socket"

    def foreign(self, *words):
        return self.run(self.guest.outside([*self.on_rxe, *map(str, words)], LIMIT, [self.socket]))

    def bracketed(self, address):
        return f"[{address}]" if ":" in address else address

    # --- our initiator ---------------------------------------------------------------------------

    def disk(self, lun, target, address):
        """What qemu's programs call a target's disk."""
        where = f"file.portal={self.bracketed(address)}:3260,file.target={target},file.lun={lun}"
        return f"driver=raw,file.driver=iscsi,file.transport=iser,{where},file.initiator-name={QEMU_NAME}"

    def qemu_writes(self, disk, at, file):
        data, words = file.read_bytes(), []
        for place in range(0, len(data), PIECE):
            piece = self.file(f"piece-{place}", 0)
            piece.write_bytes(data[place : place + PIECE])
            words += ["-c", f"write -s {piece} {at + place} {piece.stat().st_size}"]
        self.foreign("qemu-io", "--image-opts", *words, disk)

    def qemu_reads(self, disk, at, size):
        back = self.result("iser-out")
        # From the start: what `count` means beside `skip` differs by qemu's version.
        self.foreign("qemu-img", "dd", "--image-opts", f"bs={PIECE}", f"count={(at + size) // PIECE}", f"if={disk}", f"of={back}")
        return back.read_bytes()[at:]

    def to_kernel(self):
        disk = self.disk(0, KERNELS_NAME, self.there)
        size = 2 * MIB
        file = self.file("iser-in", size)
        self.qemu_writes(disk, MIB, file)
        wrote = sha256(file.read_bytes())
        need(self.inside("hash", "/dev/ram1", MIB, size, 4096).split()[0] == wrote, "the kernel has other data")
        need(sha256(self.qemu_reads(disk, MIB, size)) == wrote, "other data are read back")
        filled = self.inside("fill", "/dev/ram1", 4 * MIB, size, 4096).split()[0]
        need(sha256(self.qemu_reads(disk, 4 * MIB, size)) == filled, "not what the kernel has written")

    # --- our target ------------------------------------------------------------------------------

    def offer(self):
        """Starts tgtd with a disk, which is a file."""
        file = self.folder / "iser-disk"
        file.write_bytes(bytes(16 * MIB))
        file.chmod(0o666)
        log = open(self.folder / "served", "w+b")
        argv = [*self.on_rxe, "/usr/sbin/tgtd", "-f", "-C", "0", "--iscsi", "portal=127.0.0.1:3260"]
        argv = self.guest.outside(argv, 3600, [self.socket])
        self.served = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        self.log = log
        for words in (
            ["new", "--mode", "target", "--tid", "1", "--targetname", OUR_NAME],
            ["bind", "--mode", "target", "--tid", "1", "--initiator-address", "ALL"],
            ["bind", "--mode", "target", "--tid", "1", "--initiator-name", GUEST_NAME],
            ["new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "--backing-store", file],
        ):
            self.tgtadm("--op", *words)
        return file

    def tgtadm(self, *words):
        end = time.monotonic() + 60
        while True:
            argv = self.guest.outside(["/usr/sbin/tgtadm", "-C", "0", "--lld", "iser", *map(str, words)], LIMIT, [self.socket])
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return
            # It has not made its socket yet.
            if self.served.poll() is not None or time.monotonic() > end:
                raise Wrong(f"tgtadm {' '.join(map(str, words))}: {done.stderr}{self.said()}")
            time.sleep(0.2)

    def stop(self, how=signal.SIGKILL):
        # With sessions it does not end by a signal that it may refuse.
        super().stop(how)

    def from_kernel(self):
        file = self.offer()
        device = self.inside("iser_login", OUR_NAME, self.bracketed(self.here), GUEST_NAME)
        for piece, at in ((512, 0), (4096, MIB), (131072, 2 * MIB), (MIB, 4 * MIB)):
            size = min(max(piece * 64, 64 << 10), 2 * MIB)
            wrote = self.inside("fill", device, at, size, piece).split()[0]
            need(self.inside("hash", device, at, size, piece).split()[0] == wrote, f"pieces of {piece}: other data are read back")
            self.shell(f"sync {device}")
            need(sha256(file.read_bytes()[at : at + size]) == wrote, f"pieces of {piece}: our target has other data")
        words = "--name=v --direct=1 --rw=randrw --bsrange=4k-128k --size=2m --offset=8m --verify=crc32c --ioengine=libaio --iodepth=8"
        self.shell(f"fio --filename={device} {words}")
        self.inside("iser_logout", OUR_NAME)
        self.stop()

    def target_dies(self):
        self.offer()
        device = self.inside("iser_login", OUR_NAME, self.bracketed(self.here), GUEST_NAME)
        self.shell(f"dd if={device} of=/dev/null bs=64k count=4 iflag=direct status=none")
        self.stop()
        self.shell(f"dd if={device} of=/dev/null bs=64k count=4 iflag=direct status=none", fails=True)
        self.inside("iser_logout", OUR_NAME)
        self.shell(f"for try in $(seq 600); do [ -e {device} ] || exit 0; sleep 0.1; done; exit 1")

    # --- all of it -------------------------------------------------------------------------------

    def play(self):
        began = time.monotonic()
        subprocess.run([str(ROOT / "scripts/kernel-vm"), "load", self.guest.version, *MODULES], check=True, timeout=900)
        info = self.guest.info
        self.inside("iser_target", KERNELS_NAME, info["guest4"], f"[{info['guest6']}]")
        print(f"kernel {self.guest.version}: iSER: set up in {time.monotonic() - began:.0f} s", flush=True)
        for row, whose, families, work in (
            (ROW, "ours", "46", self.to_kernel),
            (ROW, "kernel", "46", self.from_kernel),
            ("iSER: the target is killed", "kernel", "4", self.target_dies),
        ):
            self.results.note(row, self.guest.version, NOTE)
            for family in families:
                self.family = family
                self.cell(row, whose, work)


def play(guest, rxe, results):
    """All of it with one kernel."""
    with tempfile.TemporaryDirectory() as folder:
        # tgtd makes its socket there, as user nobody.
        os.chmod(folder, 0o777)
        Iser(guest, rxe, results, folder).play()
