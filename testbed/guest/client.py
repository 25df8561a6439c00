#!/usr/bin/python3
"""Talks to the agent of a guest (agent.py documents the protocol).

  client.py --agent ADDR:PORT ping
  client.py --agent ADDR:PORT run [--netns NAME] -- CMD...    its output and its exit code
  client.py --agent ADDR:PORT OP '{"arg": ...}'               any op; prints the result as JSON
"""

import base64
import json
import os
import socket
import sys


class AgentError(Exception):
    """The agent refused or failed an op; errno is its code or None."""

    def __init__(self, op, reply):
        super().__init__(f"{op}: {reply['error']}")
        self.errno = reply.get("errno")


class Client:
    """One connection: agent.op_name(arg=value, ...) returns the op's result."""

    def __init__(self, address, timeout=120):
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lines = self.socket.makefile("rb")

    def call(self, op, **args):
        request = json.dumps({"op": op, "args": args})
        self.socket.sendall(request.encode() + b"\n")
        line = self.lines.readline()
        if not line:
            raise ConnectionError(f"the agent closed the connection during {op}")
        reply = json.loads(line)
        if not reply["ok"]:
            raise AgentError(op, reply)
        return reply["result"]

    def __getattr__(self, op):
        return lambda **args: self.call(op, **args)

    def close(self):
        self.lines.close()
        self.socket.close()


def run(client, argv, netns, cwd):
    """Runs a program, passing its output on as it comes; returns its exit code as a shell would."""
    job = client.spawn(argv=argv, netns=netns, cwd=cwd, binary=True)["handle"]
    if sys.stdin.isatty():
        client.write(handle=job, data="", eof=True)
    else:
        client.write(handle=job, data=sys.stdin.read(), eof=True)
    while True:
        state = client.wait(handle=job, timeout_ms=1000)
        for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
            stream.buffer.write(base64.b64decode(state[name]))
            stream.flush()
        if not state["running"]:
            code = state["exit"]
            return code if code >= 0 else 128 - code


def run_command(client, words):
    """`[--netns NAME] [--cwd DIR] [--] CMD...`; options end at the first other word."""
    chosen = {"--netns": None, "--cwd": None}
    while len(words) >= 2 and words[0] in chosen:
        chosen[words[0]] = words[1]
        words = words[2:]
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        raise ValueError("run: no command")
    return run(client, words, chosen["--netns"], chosen["--cwd"])


def main():
    words = sys.argv[1:]
    options = {"--agent": os.environ.get("RXE_VM_AGENT"), "--timeout": "120"}
    while len(words) >= 2 and words[0] in options:
        options[words[0]] = words[1]
        words = words[2:]
    if not options["--agent"] or not words:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        client = Client(options["--agent"], float(options["--timeout"]))
        if words[0] == "run":
            return run_command(client, words[1:])
        args = json.loads(words[1]) if len(words) > 1 else {}
        print(json.dumps(client.call(words[0], **args), indent=1))
        return 0
    except (AgentError, OSError, ValueError) as error:
        print(f"client: {error}", file=sys.stderr)
        return 125


if __name__ == "__main__":
    sys.exit(main())
