#!/usr/bin/python3
"""Writes docs/compat.md from the lines of a whole run of scripts/compat: name, placement, verdict, remark.

  table.py FILE         prints the page
  table.py --lines      prints the lines of which the page that is there was made
  table.py --sections   renews the sections of the scripts in scripts/foreign, in the page that is there
"""

import pathlib
import re
import subprocess
import sys

import cells

PACKAGES = [
    "ibverbs-utils", "rdmacm-utils", "perftest", "qperf", "infiniband-diags", "python3-pyverbs", "ucx-utils",
    "libfabric-bin", "openmpi-bin", "fio", "qemu-system-x86", "librpma0", "tgt", "libiscsi7", "qemu-utils",
]  # fmt: skip
HEAD = """# What runs on the drop-in

Debian's programs, unmodified, as user nobody without a capability or a device node: `scripts/compat --write` has written
this. Where there are two ends, both have to end well; with `-c` the ibv_ programs compare the data, rping with `-V`.

"""
COLUMNS = """
`ours`: both ends on the drop-in, two processes on one address. `6.1 →`: the server is on that kernel's rxe in an emulated
machine, our end is the client; `6.1 ←`: the other way round. There the command's addresses and GID indices are others.
`none`: the kernel (or ours) lacks what the program needs, and its end said so. Empty: not played there.

Not played against kernels because they did not work there reliably: `ib_write_bw -q 16` with 64 KiB (the sender on 6.1 repeated
a WRITE under other PSNs in 3 of 6 plays, which ended with an error), and `ib_send_lat -e` (6 of 8 plays hung with the client on
6.12, 3 of 4 failed between kernels). Both work where both ends are ours.
Nor `rstream -T a` with rdma-core's rsockets as the client: their rpoll tells of the server's end before all is read, and rstream
gives up then (2 of 2 plays). Ours tells of it when all is read.
Programs that know nothing of RDMA have rdma-core's preload library at the kernel's end. It does not know accept4(2), so redis and
Python's HTTP server are no servers there, and an iperf3 server does not end; `nc.traditional` is one, and serves `nc` and `curl`.
Nor does it know epoll, so it is `redis-cli` that comes from there.
"""
TAIL = """
With `(rxe run --link memory)` both ends send to each other through shared memory. With `(rxe run --rsockets)` a program's TCP
sockets are rsockets; nobody listens by TCP there. `HOST` is another host: a network
namespace of its own. What became of each of pyverbs' tests is in [pyverbs.txt](pyverbs.txt).
"""

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "compat.md"
SECTIONS = pathlib.Path(__file__).resolve().parent / "foreign"
# The sections begin with this line and go on to the page's end.
FOREIGN = """
## Suites and programs that Debian does not carry

Played by the scripts in [scripts/foreign](../scripts/foreign/README.md) on what somebody has built from its sources, when somebody
thinks of it; each says when, and of which commit.

"""


def foreign():
    return FOREIGN + "\n".join(path.read_text(encoding="utf-8") for path in sorted(SECTIONS.glob("*.md")))


def renew_sections():
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page.split(FOREIGN.splitlines()[1])[0].rstrip() + "\n" + foreign(), encoding="utf-8")


def lines():
    """What is in the tables of the page: name, placement, verdict, remark."""
    page = PAGE.read_text(encoding="utf-8").split(FOREIGN)[0]
    notes = dict(re.findall(r"(?m)^([0-9]+)\. (.*)$", page.partition("\n## Notes\n")[2]))
    placements = []
    for line in page.splitlines():
        fields = [field.strip() for field in re.split(r"(?<!\\)\|", line)[1:-1]]
        if line.startswith("| | "):
            placements = [head.replace(" →", " client").replace(" ←", " server") for head in fields[1:]]
        elif len(fields) == len(placements) + 1 and fields[0].startswith("`"):
            name = fields[0].strip("`").replace("\\|", "|")
            for placement, mark in zip(placements, fields[1:]):
                verdict, _, note = mark.rstrip("]").partition(" [")
                if verdict:
                    yield "\t".join((name, placement, verdict, notes.get(note, ""))) + "\n"


def program_of(name):
    return name.split()[0].rstrip(":,").rsplit("/", 1)[-1]


def packages():
    for package in PACKAGES:
        words = ["dpkg-query", "-W", "-f", "* ${Package} ${Version}\n", package]
        yield subprocess.run(words, capture_output=True, text=True, check=False).stdout


def main():
    if sys.argv[1] == "--sections":
        renew_sections()
        return
    if sys.argv[1] == "--lines":
        print("".join(lines()), end="")
        return
    rows, notes, placements = {}, {}, []
    for line in pathlib.Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
        name, placement, verdict, remark = line.split("\t")
        rows.setdefault(program_of(name), {}).setdefault(name, {})[placement] = (verdict, remark)
        if placement not in placements:
            placements.append(placement)
    heads = [placement.replace(" client", " →").replace(" server", " ←") for placement in placements]
    text = HEAD + "".join(packages()) + COLUMNS
    for program, names in rows.items():
        text += f"\n## {program}\n\n| | " + " | ".join(heads) + " |\n" + "|---" * (len(heads) + 1) + "|\n"
        for name, found in names.items():
            marks = []
            for placement in placements:
                verdict, remark = found.get(placement, ("", ""))
                # A line played again takes the place of what it said before.
                marks.append(verdict + (f" [{notes.setdefault(remark, len(notes) + 1)}]" if remark else ""))
            shown = name.replace("|", "\\|")
            text += f"| `{shown}` | " + " | ".join(marks) + " |\n"
    if notes:
        text += "\n## Notes\n\n" + "".join(f"{number}. {remark}\n" for remark, number in notes.items())
    if cells.DIFFERENT:
        text += "\n## Calls that kernel rxe answers in another way\n\nThe C programs `wrong` and `wrong_cm` make each of these; all others give the same.\n\n| call | why ours is another |\n|---|---|\n"
        text += "".join(f"| `{call}` | {why} |\n" for call, why in cells.DIFFERENT.items())
    print(text + TAIL + foreign(), end="")


if __name__ == "__main__":
    main()
