#!/usr/bin/python3
"""Talks to the agent of a guest (agent.py documents the protocol).

  client.py --agent ADDR:PORT ping
  client.py --agent ADDR:PORT run [--netns NAME] -- CMD...    its output and its exit code
  client.py --agent ADDR:PORT OP '{"arg": ...}'               any op; prints the result as JSON
"""

import argparse
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
    import base64
    while True:
        state = client.wait(handle=job, timeout_ms=1000)
        for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
            stream.buffer.write(base64.b64decode(state[name]))
            stream.flush()
        if not state["running"]:
            code = state["exit"]
            return code if code >= 0 else 128 - code


def main():
    parser = argparse.ArgumentParser(description="talks to a guest's agent")
    parser.add_argument("--agent", default=os.environ.get("RXE_VM_AGENT"), required=False)
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("op")
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.agent:
        parser.error("--agent ADDR:PORT is needed")
    try:
        client = Client(options.agent, options.timeout)
        if options.op != "run":
            args = json.loads(options.rest[0]) if options.rest else {}
            print(json.dumps(client.call(options.op, **args), indent=1))
            return 0
        runner = argparse.ArgumentParser(prog="kernel-vm run")
        runner.add_argument("--netns")
        runner.add_argument("--cwd")
        runner.add_argument("command", nargs=argparse.REMAINDER)
        chosen = runner.parse_args(options.rest)
        command = chosen.command[1:] if chosen.command[:1] == ["--"] else chosen.command
        if not command:
            runner.error("no command")
        return run(client, command, chosen.netns, chosen.cwd)
    except (AgentError, OSError) as error:
        print(f"client: {error}", file=sys.stderr)
        return 125


if __name__ == "__main__":
    sys.exit(main())
