#!/usr/bin/python3
"""Proves a guest and its agent: kernel rxe against itself, every op once, every byte compared.

  testbed/guest/selftest.py VERSION     boots the guest if it is not up; exit 0 only if all held
"""

import json
import os
import re
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from client import AgentError, Client  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
KERNEL_VM = os.path.join(HERE, "../../scripts/kernel-vm")
ALL = ["LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC", "MW_BIND"]
PATIENCE_MS = 10_000


class Side:
    """One QP of a kind on a device with a region and a CQ for everything."""

    def __init__(self, agent, dev, address, kind="RC", length=1 << 20, access=ALL, srq=False):
        self.agent, self.address, self.kind = agent, address, kind
        self.ctx = agent.open(dev=dev)["handle"]
        self.pd = agent.pd(ctx=self.ctx)["handle"]
        self.channel = agent.channel(ctx=self.ctx)["handle"]
        self.cq = agent.cq(ctx=self.ctx, cqe=256, channel=self.channel)["handle"]
        self.mr = agent.mr(pd=self.pd, length=length, access=access, buf_offset=4096,
                           buf_length=length + 8192)
        self.srq = agent.srq(pd=self.pd)["handle"] if srq else None
        self.qp = agent.qp(pd=self.pd, send_cq=self.cq, type=kind, srq=self.srq, max_inline=64)
        self.qpn = self.qp["qpn"]

    def sge(self, offset, length):
        return [{"mr": self.mr["handle"], "offset": offset, "length": length}]

    def recv(self, wr_id, offset, length):
        wrs = [{"wr_id": wr_id, "sge": self.sge(offset, length)}]
        if self.srq:
            self.agent.post_srq_recv(srq=self.srq, wrs=wrs)
        else:
            self.agent.post_recv(qp=self.qp["handle"], wrs=wrs)

    def send(self, opcode, **wr):
        self.agent.post_send(qp=self.qp["handle"], wrs=[{"opcode": opcode, **wr}])

    def poll(self, count=1):
        return self.agent.poll_cq(cq=self.cq, count=count, timeout_ms=PATIENCE_MS)

    def done(self, opcode, **fields):
        """The next completion, which must be a success of that opcode with those fields."""
        return self.ends("SUCCESS", opcode=opcode, **fields)

    def ends(self, status, **fields):
        found = self.poll()
        equal(len(found), 1, f"a completion ({status} {fields})")
        for name, value in {"status": status, **fields}.items():
            equal(found[0][name], value, f"{name} of {found[0]}")
        return found[0]

    def fill(self, seed, offset, length):
        self.agent.mem_fill(mr=self.mr["handle"], offset=offset, length=length, seed=seed)

    def check(self, seed, offset, length):
        result = self.agent.mem_check(mr=self.mr["handle"], offset=offset, length=length, seed=seed)
        equal(result["equal"], True, f"data {result}")

    def word(self, offset, value=None):
        """Reads (or sets) the 8 bytes at offset."""
        if value is not None:
            data = value.to_bytes(8, "little").hex()
            self.agent.mem_write(mr=self.mr["handle"], offset=offset, hex=data)
        data = self.agent.mem_read(mr=self.mr["handle"], offset=offset, length=8, encoding="hex")
        return int.from_bytes(bytes.fromhex(data["data"]), "little")

    def guards_clean(self):
        length = self.mr["length"]
        for offset in (-4096, length):
            data = self.agent.mem_read(mr=self.mr["handle"], offset=offset, length=4096)["data"]
            equal(set(data) <= {"A", "="}, True, "bytes around the region are still zero")


def equal(found, wanted, what):
    if found != wanted:
        raise AssertionError(f"{what}: found {found!r}, wanted {wanted!r}")


def pair(agent, info, kind="RC", family=4, **options):
    """Two connected QPs on rxe0, which talk through the kernel's own loop-back."""
    address = info[f"guest{family}"]
    sides = [Side(agent, "rxe0", address, kind, **options) for _ in range(2)]
    for mine, other in (sides, sides[::-1]):
        if kind == "UD":
            agent.activate(qp=mine.qp["handle"], qkey=0x1234)
        else:
            agent.connect(qp=mine.qp["handle"], dest_qpn=other.qpn, path_mtu=1024, rq_psn=100,
                          sq_psn=100, av={"dgid": other.address, "sgid": mine.address})
    return sides


def remote(side, offset=0):
    return {"remote_addr": side.mr["addr"] + offset, "rkey": side.mr["rkey"]}


def rc_operations(agent, info, family):
    a, b = pair(agent, info, family=family)
    state = agent.query_qp(qp=a.qp["handle"])
    equal((state["state"], state["path_mtu"], state["dest_qpn"]), ("RTS", 1024, b.qpn), "query_qp")
    a.fill(1, 0, 70001)
    b.recv(11, 0, 1 << 17)
    a.send("SEND", wr_id=1, sge=a.sge(0, 70001))
    a.done("SEND", wr_id=1)
    b.done("RECV", wr_id=11, byte_len=70001, imm=None)
    b.check(1, 0, 70001)

    b.recv(12, 200_000, 64)
    a.send("SEND_WITH_IMM", sge=a.sge(0, 48), imm=0x01020304, flags=["SIGNALED", "INLINE"])
    a.done("SEND")
    b.done("RECV", wr_id=12, byte_len=48, imm=0x01020304)
    b.check(1, 200_000, 48)

    b.recv(13, 0, 8)
    a.send("SEND")
    a.done("SEND")
    b.done("RECV", wr_id=13, byte_len=0)

    a.fill(2, 0, 1 << 20)
    a.send("RDMA_WRITE", sge=a.sge(0, 1 << 20), **remote(b))
    a.done("RDMA_WRITE")
    b.check(2, 0, 1 << 20)
    b.guards_clean()

    b.recv(14, 0, 0)
    a.fill(3, 0, 5000)
    a.send("RDMA_WRITE_WITH_IMM", sge=a.sge(0, 5000), imm=0xFFFFFFFE, **remote(b, 8192))
    a.done("RDMA_WRITE")
    b.done("RECV_RDMA_WITH_IMM", wr_id=14, byte_len=5000, imm=0xFFFFFFFE)
    b.check(3, 8192, 5000)

    b.fill(4, 0, 300_000)
    a.send("RDMA_READ", sge=a.sge(65536, 300_000), **remote(b))
    a.done("RDMA_READ", byte_len=300_000)
    a.check(4, 65536, 300_000)

    b.word(0, 40)
    a.send("ATOMIC_FETCH_AND_ADD", sge=a.sge(0, 8), add=2, **remote(b))
    a.done("FETCH_ADD")
    equal((a.word(0), b.word(0)), (40, 42), "fetch-and-add")
    a.send("ATOMIC_CMP_AND_SWP", sge=a.sge(0, 8), compare=42, swap=1 << 63, **remote(b))
    a.done("COMP_SWAP")
    equal((a.word(0), b.word(0)), (42, 1 << 63), "compare-and-swap that matches")
    a.send("ATOMIC_CMP_AND_SWP", sge=a.sge(0, 8), compare=42, swap=7, **remote(b))
    a.done("COMP_SWAP")
    equal((a.word(0), b.word(0)), (1 << 63, 1 << 63), "compare-and-swap that does not")


def rc_newer_operations(agent, info):
    if info["version"] == "6.1":
        return "skipped: 6.1 has neither ATOMIC WRITE nor FLUSH"
    a, b = pair(agent, info, access=ALL + ["FLUSH_GLOBAL"])
    flags = [name for name in ALL if name != "MW_BIND"] + ["FLUSH_GLOBAL"]
    for mine, other in ((a, b), (b, a)):
        agent.modify(qp=mine.qp["handle"], state="RESET")
        agent.connect(qp=mine.qp["handle"], dest_qpn=other.qpn, access=flags,
                      av={"dgid": other.address, "sgid": mine.address})
    a.send("ATOMIC_WRITE", wr_id=5, value=0x1122334455667788, **remote(b, 16))
    a.done("ATOMIC_WRITE", wr_id=5)
    equal(b.word(16), 0x1122334455667788, "atomic write")
    a.send("FLUSH", wr_id=6, length=4096, type=1, level=0, **remote(b))
    a.done("FLUSH", wr_id=6)
    a.send("FLUSH", wr_id=7, length=4096, type=1, level=0, remote_addr=b.mr["addr"],
           rkey=b.mr["rkey"] ^ 0x55)
    a.ends("REM_ACCESS_ERR", wr_id=7)


def rc_windows(agent, info):
    a, b = pair(agent, info)
    a.fill(5, 0, 4096)

    def bind(mw, access, **where):
        key = agent.bind_mw(qp=b.qp["handle"], mw=mw["handle"], mr=b.mr["handle"], wr_id=9,
                            access=access, **where)["rkey"]
        b.done("BIND_MW", wr_id=9)
        return key

    def write_through(key):
        agent.mem_set(mr=b.mr["handle"], length=16384)
        a.send("RDMA_WRITE", sge=a.sge(0, 4096), remote_addr=b.mr["addr"] + 4096, rkey=key)
        a.done("RDMA_WRITE")
        b.check(5, 4096, 4096)

    upper = {"offset": 4096, "length": 4096}
    first = agent.mw(pd=b.pd, type=1)
    keys = set()
    for _ in range(2):  # type 1 may be bound over its old binding
        keys.add(bind(first, ["REMOTE_WRITE"], **upper))
        write_through(max(keys, key=lambda key: key & 0xFF))
    equal(len(keys), 2, "number of different keys")
    second = agent.mw(pd=b.pd, type=2)
    for _ in range(2):  # type 2 only after invalidation, by the peer or at home
        key = bind(second, ["REMOTE_WRITE"], **upper)
        write_through(key)
        b.recv(1, 0, 64)
        a.send("SEND_WITH_INV", sge=a.sge(0, 64), invalidate_rkey=key)
        a.done("SEND")
        b.done("RECV", invalidated_rkey=key)
        key = bind(second, ["REMOTE_READ"], length=64)
        b.send("LOCAL_INV", invalidate_rkey=key)
        b.done("LOCAL_INV")
    a.send("RDMA_READ", sge=a.sge(0, 64), remote_addr=b.mr["addr"], rkey=key)
    a.ends("REM_ACCESS_ERR")


def rc_errors(agent, info):
    a, b = pair(agent, info)
    a.send("RDMA_WRITE", sge=a.sge(0, 64), **remote(b, (1 << 20) - 32))
    a.ends("REM_ACCESS_ERR")
    equal(agent.query_qp(qp=a.qp["handle"])["state"], "ERR", "state after a remote error")
    b.guards_clean()
    a, b = pair(agent, info)
    agent.modify(qp=a.qp["handle"], state="RESET")
    agent.connect(qp=a.qp["handle"], dest_qpn=b.qpn, rq_psn=100, sq_psn=100, rnr_retry=1,
                  av={"dgid": b.address, "sgid": a.address})
    a.send("SEND", sge=a.sge(0, 8))
    a.ends("RNR_RETRY_EXC_ERR")
    b.recv(3, 0, 8)
    agent.modify(qp=b.qp["handle"], state="ERR")
    b.ends("WR_FLUSH_ERR", wr_id=3)
    # A dead peer: responses stop, so the retries run out.
    a, b = pair(agent, info)
    agent.modify(qp=a.qp["handle"], state="RESET")
    agent.connect(qp=a.qp["handle"], dest_qpn=b.qpn, rq_psn=100, sq_psn=100, timeout=10,
                  retry_cnt=2, av={"dgid": b.address, "sgid": a.address})
    agent.modify(qp=b.qp["handle"], state="RESET")
    a.send("RDMA_WRITE", sge=a.sge(0, 8), **remote(b))
    a.ends("RETRY_EXC_ERR")
    try:
        agent.modify(qp=a.qp["handle"], state="RTS")
        raise AssertionError("ERR to RTS was allowed")
    except AgentError as error:
        equal(error.errno, 22, "errno of ERR to RTS")


def shared_receives(agent, info):
    a, b = pair(agent, info, srq=True)
    for number in range(4):
        b.recv(number, number * 4096, 4096)
    agent.modify_srq(srq=b.srq, limit=3)
    equal(agent.query_srq(srq=b.srq)["limit"], 3, "SRQ limit")
    for number in range(4):
        a.fill(10 + number, 0, 3000)
        a.send("SEND", sge=a.sge(0, 3000))
        a.done("SEND")
        b.done("RECV", wr_id=number, byte_len=3000)
        b.check(10 + number, number * 4096, 3000)
    event = agent.async_event(ctx=b.ctx, timeout_ms=PATIENCE_MS)
    equal(event, {"event": "SRQ_LIMIT_REACHED"}, "limit event")
    equal(agent.async_event(ctx=b.ctx), None, "no second event")


def completion_events(agent, info):
    a, b = pair(agent, info)
    agent.req_notify(cq=b.cq, solicited=True)
    for flags, expected in ((["SIGNALED"], False), (["SIGNALED", "SOLICITED"], True)):
        b.recv(1, 0, 64)
        a.send("SEND", sge=a.sge(0, 64), flags=flags)
        a.done("SEND")
        b.done("RECV")
        came = agent.cq_event(channel=b.channel, cq=b.cq, timeout_ms=200)
        equal(came, expected, f"event after {flags}")


def unreliable_connected(agent, info):
    a, b = pair(agent, info, kind="UC")
    a.fill(20, 0, 50_000)
    b.recv(1, 0, 65536)
    a.send("SEND_WITH_IMM", sge=a.sge(0, 50_000), imm=5)
    a.done("SEND")
    b.done("RECV", byte_len=50_000, imm=5)
    b.check(20, 0, 50_000)
    a.send("RDMA_WRITE", sge=a.sge(0, 50_000), **remote(b, 100_000))
    a.done("RDMA_WRITE")
    deadline = time.monotonic() + 5
    while b.word(100_000) != a.word(0) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    b.check(20, 100_000, 50_000)


def datagrams(agent, info, family):
    a, b = pair(agent, info, kind="UD", family=family)
    ah = agent.ah(pd=a.pd, av={"dgid": b.address, "sgid": a.address, "traffic_class": 0x28})
    a.fill(30, 0, 2000)
    for imm in (None, 77):
        b.recv(1, 0, 4136)
        extra = {} if imm is None else {"imm": imm}
        a.send("SEND" if imm is None else "SEND_WITH_IMM", sge=a.sge(0, 2000), ah=ah["handle"],
               remote_qpn=b.qpn, remote_qkey=0x1234, **extra)
        a.done("SEND")
        wc = b.done("RECV", byte_len=2040, src_qp=a.qpn, imm=imm)
        equal("GRH" in wc["wc_flags"], True, "GRH flag")
        b.check(30, 40, 2000)
        b.agent.mem_set(mr=b.mr["handle"], length=4136)


def from_outside(agent, info):
    """A packet made by hand reaches rxe0 from the host and rxe1 from the guest's "ours"."""
    probe = os.path.join(HERE, "ud_probe.py")
    for family in (4, 6):
        for dev, inner in (("rxe0", False), ("rxe1", True)):
            target = info[f"{'inner' if inner else 'guest'}{family}"]
            source = info[f"{'ours' if inner else 'host'}{family}"]
            side = Side(agent, dev, target, "UD")
            agent.activate(qp=side.qp["handle"], qkey=0x4321)
            side.recv(1, 0, 4136)
            text = f"over IPv{family} to {dev}"
            argv = ["/usr/bin/python3", probe, source, target, str(side.qpn), "0x4321", "99", text]
            if inner:
                ran = agent.exec(argv=argv, netns=info["ours_netns"])
                equal((ran["exit"], ran["stderr"]), (0, ""), "probe in the guest")
            else:
                subprocess.run(argv, check=True)
            side.done("RECV", byte_len=40 + len(text), src_qp=99)
            data = agent.mem_read(mr=side.mr["handle"], offset=40, length=len(text), encoding="hex")
            equal(bytes.fromhex(data["data"]).decode(), text, "payload")


def pingpong_program(agent, info):
    gids = {entry["gid"]: entry["index"] for entry in agent.gids(dev="rxe0")}
    index = gids[f"::ffff:{info['guest4']}"]
    argv = ["ibv_rc_pingpong", "-d", "rxe0", "-g", str(index), "-n", "200", "-s", "65536", "-c"]
    server = agent.spawn(argv=argv)["handle"]
    time.sleep(1)
    client = agent.exec(argv=[*argv, info["guest4"]], timeout_s=60)
    equal(client["exit"], 0, f"client {client}")
    output = ""
    for _ in range(50):
        state = agent.wait(handle=server, timeout_ms=200)
        output += state["stdout"]
        if not state["running"]:
            break
    equal(state["exit"], 0, f"server {output}")
    return re.search(r"iters in .*", client["stdout"])[0]


def lossy_links(agent, info):
    def lost():
        ran = subprocess.run(["ping", "-q", "-c", "100", "-i", "0.01", "-W", "1", info["guest4"]],
                             capture_output=True, text=True)
        return (float(re.search(r"([\d.]+)% packet loss", ran.stdout)[1]),
                "duplicates" in ran.stdout)

    equal(lost(), (0, False), "loss before")
    for direction in ("egress", "ingress"):
        agent.netem(direction=direction, loss=30)
        share, _ = lost()
        equal(10 < share < 55, True, f"{direction} loss of 30% (found {share})")
        equal(agent.netem_stats(direction=direction)["dropped"] > 0, True, "drops counted")
        agent.netem(direction=direction, duplicate=30, reorder=10, delay_ms=1)
        equal(lost(), (0, True), f"{direction} duplication")
        agent.netem_clear()
    equal(lost(), (0, False), "loss after")
    other = Client(info["agent"])
    other.netem(loss=100)
    equal(lost()[0], 100, "loss by another connection")
    other.close()
    for _ in range(100):
        if "netem" not in agent.exec(argv=["tc", "qdisc", "show", "dev", "eth0"])["stdout"]:
            break
        time.sleep(0.1)
    equal(lost(), (0, False), "loss after that connection's end")


def fresh_programs(agent, info):
    """What the host builds again is what the guest runs, also right after."""
    path = os.path.join(HERE, f".selftest-{os.getpid()}")
    try:
        for round_number in range(3):
            # As cargo does it: a new file takes the place of the old one.
            with open(path + ".new", "w") as file:
                file.write(f"#!/bin/sh\necho round {round_number} $(printf '%{round_number}s')\n")
            os.chmod(path + ".new", 0o755)
            os.rename(path + ".new", path)
            ran = agent.exec(argv=[path], netns=info["ours_netns"])
            equal(ran["stdout"].strip(), f"round {round_number}", "program in the guest")
        with open("/bin/true", "rb") as file, open(path, "wb") as copy:
            copy.write(file.read())
        os.chmod(path, 0o755)
        equal(agent.exec(argv=[path])["exit"], 0, "a binary rewritten in place")
    finally:
        os.unlink(path)


def nothing_left(info):
    agent = Client(info["agent"])
    for _ in range(100):
        ran = agent.exec(argv=["rdma", "-j", "resource", "show"])
        # The kernel's own MAD layer keeps a PD, a CQ and its QP1 per device.
        left = [(dev["ctx"], dev["pd"], dev["cq"], dev["qp"], dev["mr"], dev["srq"])
                for dev in json.loads(ran["stdout"])]
        if left == [(0, 1, 1, 1, 0, 0)] * 2:
            break
        time.sleep(0.1)
    agent.close()
    equal(left, [(0, 1, 1, 1, 0, 0)] * 2, "ctx, pd, cq, qp, mr, srq of both devices")


def inside(info):
    started = time.monotonic()
    tests = [
        ("RC operations, IPv4", lambda agent: rc_operations(agent, info, 4)),
        ("RC operations, IPv6", lambda agent: rc_operations(agent, info, 6)),
        ("RC ATOMIC WRITE and FLUSH", lambda agent: rc_newer_operations(agent, info)),
        ("memory windows and invalidation", lambda agent: rc_windows(agent, info)),
        ("RC errors and their statuses", lambda agent: rc_errors(agent, info)),
        ("SRQ and its limit event", lambda agent: shared_receives(agent, info)),
        ("completion events, solicited", lambda agent: completion_events(agent, info)),
        ("UC send and write", lambda agent: unreliable_connected(agent, info)),
        ("UD, IPv4", lambda agent: datagrams(agent, info, 4)),
        ("UD, IPv6", lambda agent: datagrams(agent, info, 6)),
        ("packets from the host and from ours", lambda agent: from_outside(agent, info)),
        ("ibv_rc_pingpong in the guest", lambda agent: pingpong_program(agent, info)),
        ("netem in both directions", lambda agent: lossy_links(agent, info)),
        ("programs built while it runs", lambda agent: fresh_programs(agent, info)),
    ]
    failed = 0
    for name, test in tests:
        agent = Client(info["agent"])
        before = time.monotonic()
        try:
            note = test(agent)
            print(f"{'skip' if str(note).startswith('skipped') else 'ok':4}  {name}"
                  f" ({time.monotonic() - before:.1f} s){': ' + note if note else ''}")
        except (AssertionError, AgentError) as error:
            failed += 1
            print(f"FAIL  {name}: {error}")
        agent.close()
    try:
        nothing_left(info)
        print("ok    nothing is left behind when connections end")
    except AssertionError as error:
        failed += 1
        print(f"FAIL  {error}")
    print(f"{info['release']}: {failed} failed of {len(tests) + 1}"
          f" in {time.monotonic() - started:.1f} s")
    return 1 if failed else 0


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    shown = subprocess.run([KERNEL_VM, "up", sys.argv[1]], stdout=subprocess.PIPE, text=True)
    if shown.returncode:
        return shown.returncode
    info = dict(line.split("=", 1) for line in shown.stdout.splitlines())
    if os.environ.get("RXE_SELFTEST_INSIDE") == info["netns"]:
        return inside(info)
    os.environ["RXE_SELFTEST_INSIDE"] = info["netns"]
    os.execvp("ip", ["ip", "netns", "exec", info["netns"], sys.executable, __file__, sys.argv[1]])


if __name__ == "__main__":
    sys.exit(main())
