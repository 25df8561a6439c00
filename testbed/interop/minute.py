"""A minute with several processes of ours on one port: pairs play with programs on the kernel again and again, a process is
killed about each second, the host service every ten. And one process that lives through it all: what it received must be
what the capture has for its slot."""

import json
import pathlib
import re
import subprocess
import sys
import threading
import time
import traceback

import crowd
import steering

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from process import Process  # noqa: E402

SECTION = crowd.SECTION
# A few seconds each, where the kernel is emulated on processors that are shared; of one packet, see crowd.py.
CASE = ("rc", 4096, 4096, 1000)
SECONDS = 60
SERVICE_EVERY = 10
# So many at a time, since each takes some seconds; and how many must come about.
VICTIMS = 5
LEAST = 10
# Ports of the pairs and of the one that stays; victims have one each from there on.
PORT = 18600
STAYING = 18700
VICTIM = 18800
# Pings of a client of the one that stays.
PINGS = 25
# Seconds until a program on the kernel must have been told of the death of its peer; and until two have met, in a guest that
# may take long to start a program.
NOTICE = 30
MEETING = 45
# Seconds for all to become still after the minute, and how long it is to be so.
SETTLES = 60
STILL = 2
# A busy machine may be late once.
MISSED = 1


class Minute:
    """One family's minute."""

    def __init__(self, guest, rxe, family, pair):
        self.guest, self.rxe, self.family, self.pair = guest, rxe, family, pair
        self.here, self.there = guest.info[f"guest{family}"], guest.info[f"host{family}"]
        self.wrong = []
        self.counts = {"killed": 0, "noticed": 0, "services": 0, "served": 0}
        self.rounds = [0] * crowd.COUNT
        self.lock = threading.Lock()
        self.slowest = 0
        self.until = 0

    def count(self, name):
        with self.lock:
            self.counts[name] += 1

    def is_on(self):
        return time.monotonic() < self.until

    def guarded(self, action, *arguments):
        """A thread for this; what it raises is a failure."""

        def run():
            try:
                action(*arguments)
            # Whatever it is.
            except Exception:
                self.wrong.append(traceback.format_exc())

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def pairs(self, number):
        """One pair after the other."""
        while self.is_on():
            text = self.pair(CASE, self.family, PORT + number)
            if text:
                self.wrong.append(text)
            else:
                self.rounds[number] += 1

    def victims(self, number):
        """One process of ours after the other is killed in the midst of its pings; its peer is told, and ends."""
        port = VICTIM + 1000 * number
        while self.is_on():
            port += 1
            wrong = self.victim(str(port))
            if wrong:
                self.wrong.append(f"port {port}: {wrong}")

    def victim(self, port):
        theirs = Process(self.guest.command(["rping", "-s", "-a", self.here, "-p", port, "-S", "4000"]))
        # `timeout` has become what is started; the program is its child.
        command = [self.rxe, "rping", self.here, "-p", port, "-s", "4000", "-v"]
        begin = time.monotonic()
        while True:
            ours = Process(self.guest.outside(command))
            if ours.wait_for("ping data", MEETING):
                break
            # Nobody listens yet: it was refused.
            running = ours.runs()
            ours.process.kill()
            ours.end(NOTICE)
            if running or not theirs.runs() or time.monotonic() - begin > MEETING:
                theirs.process.kill()
                theirs.end(NOTICE)
                return f"ours got to no ping:\n{ours.told()}\nthe kernel's program:\n{theirs.told()}"
            time.sleep(0.3)
        if not theirs.runs():
            return f"the program on the kernel ended before its peer was killed:\n{theirs.told()}"
        killed = subprocess.run(["pkill", "-9", "-P", str(ours.process.pid)], check=False).returncode == 0
        code = ours.end(NOTICE)
        # `timeout` ends as its child did.
        if not killed or code != -9:
            return f"ours was to be killed, and ended with {code}:\n{ours.told()}"
        self.count("killed")
        begin = time.monotonic()
        told = theirs.wait_for("DISCONNECT EVENT", NOTICE)
        after = time.monotonic() - begin
        # It may hang then all the same: rping waits for a thread of its own that waits for a completion.
        theirs.end(5)
        if not told:
            return f"the program on the kernel was not told that its peer was killed:\n{theirs.told()}"
        self.count("noticed")
        with self.lock:
            self.slowest = max(self.slowest, after)
        return None

    def clients(self):
        """One client on the kernel after the other of the process that stays."""
        argv = ["rping", "-c", "-a", self.there, "-p", str(STAYING), "-C", str(PINGS), "-V", "-S", "3000"]
        while self.is_on():
            client = Process(self.guest.command(argv))
            code = client.end(NOTICE + 30)
            if code == 0:
                self.count("served")
            else:
                self.wrong.append(f"a client of the process that stays ended with {code}:\n{client.told()}")

    def services(self):
        """Kills the host service every ten seconds."""
        killed = set()
        for second in range(SERVICE_EVERY, SECONDS, SERVICE_EVERY):
            time.sleep(max(0, self.until - SECONDS + second - time.monotonic()))
            # The one before may just have been killed.
            for _ in range(10):
                pid = crowd.service(self.guest, self.rxe)
                if pid:
                    break
                time.sleep(0.3)
            if pid in killed:
                self.wrong.append(f"service {pid} was killed, and is there again")
            elif pid and subprocess.run(["kill", "-9", str(pid)], check=False).returncode == 0:
                killed.add(pid)
                self.count("services")

    def play(self):
        self.until = time.monotonic() + SECONDS
        threads = [self.guarded(self.pairs, number) for number in range(crowd.COUNT)]
        threads += [self.guarded(self.victims, number) for number in range(VICTIMS)]
        threads += [self.guarded(self.clients), self.guarded(self.services)]
        for thread in threads:
            thread.join()
        counts, planned = self.counts, len(range(SERVICE_EVERY, SECONDS, SERVICE_EVERY))
        happened = (
            counts["services"] + MISSED >= planned,
            counts["killed"] == counts["noticed"] >= LEAST,
            counts["served"] > 0,
            all(self.rounds),
        )
        if not all(happened):
            self.wrong.append(f"not everything happened that should have: {counts}, rounds {self.rounds}")
        return (
            f"rounds right {self.rounds}, {counts['killed']} processes killed and {counts['noticed']} peers told "
            f"(the slowest after {self.slowest:.1f} s), "
            f"{counts['services']} services killed, {counts['served']} clients served by the process that stays"
        )


def stats(guest, rxe):
    """What each process of ours has counted."""
    answer = subprocess.run(guest.outside([rxe, "stat", "--json"]), capture_output=True, text=True, check=True)
    return {
        client["pid"]: {"slot": client["slot"], **dict(client["port"])} for client in json.loads(answer.stdout)["clients"]
    }


def listens(guest, rxe, port):
    """Whether a process of ours listens to a port of rdma_cm's."""
    words = guest.outside([rxe, "service", "status", "--json"])
    status = subprocess.run(words, capture_output=True, text=True, check=False)
    return re.search(rf'"service_id": *{0x1060000 + port}\b', status.stdout) is not None


def still(look, is_enough=lambda _: True):
    """What `look` tells once it has told the same for two seconds, and enough; or what it tells after a minute."""
    until, last, since = time.monotonic() + SETTLES, look(), time.monotonic()
    while time.monotonic() < until:
        time.sleep(0.2)
        now = look()
        if now != last:
            last, since = now, time.monotonic()
        elif is_enough(now) and time.monotonic() - since >= STILL:
            break
    return last


def compare(guest, rxe, capture):
    """Stops the capture; whether the process that stayed received just what came for its slot, and in words."""
    # Peers of those that were killed ask for a while; what has come, tcpdump writes when it gets to it.
    before = still(lambda: stats(guest, rxe), lambda found: len(found) == 1)
    still(lambda: pathlib.Path(capture.path).stat().st_size)
    capture.stop()
    after = stats(guest, rxe)
    if len(after) != 1:
        return False, f"{len(after)} processes are left, not one"
    if before != after:
        return False, f"something still arrived: {before}, {after}"
    (own,) = after.values()
    slots = steering.by_slot(capture.path, [guest.info["host4"], guest.info["host6"]])
    captured = slots[own["slot"]]
    # What the service handed over did not come to its socket.
    received = own["packets_received"] - own["handed_over"]
    lost = own["receive_drops"]
    text = (
        f"slot {own['slot']}: {captured} packets captured, {received} received, {lost} lost, "
        f"{own['dropped_other_slot']} for others; {own['handed_over']} handed over; "
        f"{sum(slots.values())} captured for {len(slots)} slots"
    )
    right = captured == received + lost and own["dropped_other_slot"] == 0 and captured > 100 and len(slots) > 5
    return right, text


def play(guest, rxe, results, pair, capture):
    """Both families, and the reckoning."""
    staying = Process(guest.outside([rxe, "rping", "--persistent", "-p", str(STAYING)], limit=1000))
    until = time.monotonic() + MEETING
    while time.monotonic() < until and staying.runs() and not listens(guest, rxe, STAYING):
        time.sleep(0.1)
    rows = []
    for family in "46":
        minute = Minute(guest, rxe, family, pair)
        text = minute.play()
        row = f"a minute: {crowd.COUNT} x rc mtu {CASE[1]} {CASE[2]} B x {CASE[3]} again and again"
        rows.append((row, family, text, minute.wrong))
    if staying.runs():
        right, text = compare(guest, rxe, capture)
    else:
        right, text = False, "it has ended"
    # The child of `timeout`, whose end is that of all.
    subprocess.run(["pkill", "-P", str(staying.process.pid)], check=False)
    staying.end(NOTICE)
    wrong = [] if right else [f"{text}\n{staying.told()}"]
    rows.append(("the process that stays received what was captured for its slot", "both", text, wrong))
    for row, family, text, wrong in rows:
        verdict = "FAILED" if wrong else "ok"
        named = "both families" if family == "both" else f"IPv{family}"
        results.add(SECTION, row, guest.version, "ours", family, verdict)
        print(f"kernel {guest.version}, {named}: {row}: {text}: {verdict}", flush=True)
        for text in wrong:
            results.fail(f"kernel {guest.version}, {named}, {SECTION}\n{text}")
            print(text, flush=True)
