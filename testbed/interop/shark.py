"""What tshark reads in the connection manager's messages, beside what was meant by them (testbed/src/bin/cm-peer/record.rs)."""

import collections
import contextlib
import ipaddress
import json
import pathlib
import signal
import subprocess
import time

# infiniband.mad.mgmtclass of the connection manager.
CLASS = 7
NAMES = {0x10: "REQ", 0x11: "MRA", 0x12: "REJ", 0x13: "REP", 0x14: "RTU", 0x15: "DREQ", 0x16: "DREP", 0x17: "SIDR_REQ",
         0x18: "SIDR_REP", 0x19: "LAP", 0x1A: "APR"}
# Management datagrams have 256 bytes behind their headers.
FILTER = "udp port 4791 and greater 300 and less 400"
# Each of them has to be among our messages.
NEEDED = ("REQ", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP")
HEAD = ["ip.src", "ipv6.src", "infiniband.mad.transactionid", "infiniband.mad.attributeid", "infiniband.mad.attributemodifier",
        "_ws.malformed", "_ws.expert.severity", "_ws.expert.message"]
# _ws.expert.severity of an error, from epan/proto.h (PI_ERROR).
ERROR = 0x00800000


# Seconds that the file has to stand still for, after a minute at the latest.
STILL = 2
SETTLES = 60


class Capture:
    """tcpdump of management datagrams on the guest's tap, into a file."""

    def __init__(self, guest):
        self.path = pathlib.Path(guest.folder) / f"cm-{guest.version}.pcap"
        command = ["tcpdump", "-i", "tap0", "-B", "65536", "-U", "-Z", "root", "-w", str(self.path), FILTER]
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", guest.info["netns"], *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        # It says so when it listens, or why it does not.
        said = self.process.stderr.readline()
        if "listening on" not in said:
            raise RuntimeError(f"tcpdump does not listen: {said}{self.process.stderr.read()}")

    def stop(self):
        """Ends it, once nothing more comes: what has just been sent is in the file then."""
        until, size, since = time.monotonic() + SETTLES, -1, 0
        while time.monotonic() < until and time.monotonic() - since < STILL:
            if self.path.stat().st_size != size:
                size, since = self.path.stat().st_size, time.monotonic()
            time.sleep(0.1)
        if self.process.poll() is not None:
            raise RuntimeError(f"tcpdump ended by itself, with {self.process.returncode}: {self.process.stderr.read()}")
        self.process.send_signal(signal.SIGINT)
        _, counts = self.process.communicate(timeout=30)
        print(f"tcpdump: {', '.join(counts.splitlines()[-3:])}", flush=True)


def number(text):
    """A field's value as tshark prints it: a number, an address, or bytes."""
    for read in (lambda: int(text, 0), lambda: str(ipaddress.ip_address(text))):
        with contextlib.suppress(ValueError):
            return read()
    return text.replace(":", "").lower()


def meant(path):
    """What was meant, by (sender, transaction, attribute); and the names of all fields."""
    messages, fields = collections.defaultdict(list), set()
    for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        message = json.loads(line)
        messages[message["from"], message["transaction"], message["attribute"]].append(message)
        fields.update(message["fields"])
    return messages, sorted(fields)


def frames(path, fields):
    """Each message of the connection manager as {field: text}; malformed ones too."""
    names = HEAD + fields
    argv = ["tshark", "-r", str(path), "-Y", f"infiniband.mad.mgmtclass == {CLASS}", "-T", "fields", "-E", "occurrence=f"]
    for name in names:
        argv += ["-e", name]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"tshark ended with {done.returncode}: {done.stderr}")
    for line in done.stdout.splitlines():
        yield dict(zip(names, line.split("\t"), strict=True))


def same(shown, value):
    if isinstance(value, int):
        return number(shown) == value
    # Bytes may look like a number.
    text = shown.replace(":", "").lower()
    return text == value.replace(":", "").lower() or str(number(shown)) == value


def compare(frame, message):
    """The fields in which a frame differs from what was meant."""
    shown = {"infiniband.mad.attributemodifier": message["modifier"], **message["fields"]}
    return [
        f"{name} reads {frame[name] or 'nothing'!r}, not {value!r}" for name, value in shown.items() if not same(frame[name], value)
    ]


def judge(path, sent, ours):
    """What is wrong with our messages, or nothing."""
    messages, fields = meant(sent)
    ours = {str(ipaddress.ip_address(address)) for address in ours}
    wrong, seen, compared, unmeant = [], collections.Counter(), 0, 0
    found = set()
    for frame in frames(path, fields):
        source = str(ipaddress.ip_address(frame["ip.src"] or frame["ipv6.src"]))
        if source not in ours:
            continue
        attribute = int(frame["infiniband.mad.attributeid"], 0)
        name = NAMES.get(attribute, hex(attribute))
        seen[name] += 1
        severity = frame["_ws.expert.severity"]
        if frame["_ws.malformed"] or (severity and int(severity, 0) >= ERROR):
            wrong.append(f"{name} from {source}: {frame['_ws.malformed']} {frame['_ws.expert.message']}")
        key = (source, int(frame["infiniband.mad.transactionid"], 0), attribute)
        if key not in messages:
            # By a program that keeps no account.
            unmeant += 1
            continue
        found.add(key)
        differ = min((compare(frame, message) for message in messages[key]), key=len)
        compared += 1
        if differ:
            wrong.append(f"{name} from {source}: {'; '.join(differ)}")
    wrong += [f"no {name} of ours was seen" for name in NEEDED if not seen[name]]
    if not compared:
        wrong.append("nothing was compared")
    print(
        f"tshark reads {sum(seen.values())} messages of ours ({', '.join(f'{name} {count}' for name, count in sorted(seen.items()))}); "
        f"{compared} compared with what was meant, {len(fields)} fields; {unmeant} by programs that keep no account; "
        f"{len(messages) - len(found)} of {len(messages)} meant were not seen",
        flush=True,
    )
    return "\n".join(wrong[:20]) + (f"\nand {len(wrong) - 20} more" if len(wrong) > 20 else "")
