"""Connection requests that are held back until somebody listens. For programs that ask before the other end listens, and do not
survive a refusal: perftest with -R, qperf. For the tests of both folders, which put this one on the path."""

import json
import re
import select
import struct
import subprocess
import time

# A connection request over IPv4: UDP to port 4791, and the attribute of its MAD, behind headers of 20, 8, 12 and 8 bytes.
REQUEST = "match ip protocol 17 0xff match ip dport 4791 0xffff match u16 0x0010 0xffff at 64"
# Where its sender's number of the connection is (the local communication ID, the first field of a REQ, IBTA 12.6.5), behind the
# MAD's header of 24 bytes; in the frame there are 14 more.
NUMBER_AT = 72
ETHERNET = 14
# Seconds that a server which has told its client to connect has to listen. Ours gives up asking after 26.
LISTENS = 20
# Seconds until the next request: a kernel sends one again after 6.
ASKS = 60


def listener_here(status, name):
    """What a program of that name (a pattern) listens to on our side, by what `rxe service status --json` has said: other words for
    each listener, or nothing."""
    try:
        clients = json.loads(status)["clients"]
    except (ValueError, KeyError):
        # There is no service yet.
        return None
    numbers = [one["number"] for client in clients if re.fullmatch(name, client["name"]) for one in client["listening"]]
    return " ".join(map(str, numbers)) or None


class Requests:
    """Holds the requests of one direction back on the way between a guest and us: they are lost, and their senders ask again. Each
    connection's, known by its number, passes from the moment on at which there is a listener for it; a later one's is held all the
    while.

    `inside` are words in front of a command that is to run where the guest's tap0 is; `direction` is "egress" for what we ask for,
    "ingress" for what the guest does; `listens` names the listener that there is at the moment, or gives nothing."""

    def __init__(self, inside, direction, connections, listens):
        self.inside, self.direction = inside, direction
        self.connections, self.listens = connections, listens
        self.known = set()
        self.held = None

    def order(self, words):
        subprocess.run([*self.inside, *words.split()], check=True)

    def __enter__(self):
        # Nobody has the address of what is sent there; but it can be looked at.
        self.order("ip link add nowhere type veth peer name nobody")
        self.order("ip link set nobody up")
        self.order("ip link set nowhere up")
        words = "tcpdump -i nowhere -U --immediate-mode -n -w - udp port 4791"
        self.held = subprocess.Popen([*self.inside, *words.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
        # It says so when it listens; then comes the file's head.
        self.held.stderr.readline()
        self.read(24)
        self.order("tc qdisc replace dev tap0 clsact")
        self.order(f"tc filter add dev tap0 {self.direction} protocol ip pref 7 u32 {REQUEST} action mirred egress redirect dev nowhere")
        return self

    def __exit__(self, *_):
        self.order("tc qdisc del dev tap0 clsact")
        self.order("ip link del nowhere")
        self.held.kill()
        self.held.communicate()

    def read(self, count):
        data = b""
        while len(data) < count and (more := self.held.stdout.read(count - len(data))):
            data += more
        return data

    def play(self, runs):
        """Until the last connection may be asked for, or there is nobody any more who would: `runs` tells."""
        listener = None
        for _ in range(self.connections):
            number = self.next_request(runs)
            if number is None:
                return
            listener = self.next_listener(runs, listener)
            match = f"match ip protocol 17 0xff match ip dport 4791 0xffff match u32 {number:#010x} 0xffffffff at {NUMBER_AT}"
            # A class, and no action: it is through, and no later filter is asked.
            self.order(f"tc filter add dev tap0 {self.direction} protocol ip pref 6 u32 {match} classid 1:1")

    def next_request(self, runs):
        """Waits for a request of a connection that was not asked for before; its number."""
        end = time.monotonic() + ASKS
        while time.monotonic() < end and runs():
            if not select.select([self.held.stdout], [], [], 0.1)[0]:
                continue
            head = self.read(16)
            if len(head) < 16:
                return None
            frame = self.read(struct.unpack_from("<I", head, 8)[0])
            place = ETHERNET + NUMBER_AT
            number = int.from_bytes(frame[place : place + 4], "big")
            if number not in self.known:
                self.known.add(number)
                return number
        return None

    def next_listener(self, runs, before):
        """Waits for a listener that is not `before`: has another name, or comes after there was none."""
        end, gone = time.monotonic() + LISTENS, False
        while time.monotonic() < end and runs():
            now = self.listens()
            gone = gone or not now
            if now and (gone or now != before):
                return now
            time.sleep(0.1)
        return None
