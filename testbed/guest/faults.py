"""The agent's ops that make the guest's links lossy (tc netem)."""

import json
import subprocess

# Packets netem may hold. Its own default of 1000 would drop bursts nobody asked it to drop.
LIMIT = 100_000


def _run(netns, *argv, check=True):
    prefix = ["ip", "netns", "exec", netns] if netns else []
    done = subprocess.run([*prefix, *argv], capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def _ifb(dev):
    return f"ifb-{dev}"[:15]


def _shaped(dev, direction):
    """The device whose egress carries that direction's traffic."""
    if direction not in ("egress", "ingress"):
        raise ValueError(f"direction is '{direction}', not egress or ingress")
    return dev if direction == "egress" else _ifb(dev)


def _redirect_ingress(netns, dev):
    """Leads what `dev` receives through an ifb device, where a qdisc can act on it."""
    ifb = _ifb(dev)
    _run(netns, "ip", "link", "add", ifb, "mtu", "9000", "type", "ifb", check=False)
    _run(netns, "ip", "link", "set", ifb, "up")
    _run(netns, "tc", "qdisc", "del", "dev", dev, "ingress", check=False)
    _run(netns, "tc", "qdisc", "add", "dev", dev, "handle", "ffff:", "ingress")
    _run(netns, "tc", "filter", "add", "dev", dev, "parent", "ffff:", "protocol", "all",
         "matchall",
         "action", "mirred", "egress", "redirect", "dev", ifb)


class Faults:
    """What a connection did to a device, undone when the connection ends."""

    def __init__(self, dev, netns):
        self.where = (dev, netns)

    def close(self):
        op_netem_clear(None, *self.where)


def op_netem(session, dev="eth0", direction="egress", netns=None, loss=0, duplicate=0, reorder=0,
             corrupt=0, delay_ms=0, jitter_ms=0, keep=False):
    if not keep:
        session.add(Faults(dev, netns))
    shaped = _shaped(dev, direction)
    if direction == "ingress":
        _redirect_ingress(netns, dev)
    rules = []
    if reorder and not delay_ms:
        delay_ms = 1
    if delay_ms:
        rules += ["delay", f"{delay_ms}ms"]
        if jitter_ms:
            rules += [f"{jitter_ms}ms"]
    for name, percent in (("loss", loss), ("duplicate", duplicate), ("corrupt", corrupt),
                          ("reorder", reorder)):
        if percent:
            rules += [name, f"{percent}%"]
    # Deleted first: a replace would keep rules the new call does not name.
    _run(netns, "tc", "qdisc", "del", "dev", shaped, "root", check=False)
    _run(netns, "tc", "qdisc", "add", "dev", shaped, "root", "netem", "limit", str(LIMIT), *rules)


def op_netem_clear(session, dev="eth0", netns=None):
    _run(netns, "tc", "qdisc", "del", "dev", dev, "root", check=False)
    _run(netns, "tc", "qdisc", "del", "dev", dev, "ingress", check=False)
    _run(netns, "ip", "link", "del", _ifb(dev), check=False)


def op_netem_stats(session, dev="eth0", direction="egress", netns=None):
    shown = json.loads(_run(netns, "tc", "-s", "-j", "qdisc", "show", "dev", _shaped(dev, direction)))
    for qdisc in shown:
        if qdisc.get("kind") == "netem":
            return {"sent": qdisc["packets"], "dropped": qdisc["drops"]}
    raise ValueError(f"no netem on {dev} {direction}")
