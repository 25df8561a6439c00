#!/usr/bin/env python3
"""What an agent with a token has to withstand: wrong words, silence, and requests that lack what they need.

    strangers.py ADDRESS:PORT TOKEN DEVICE

Exit 0 if it does; else the last line says what it did. Standard library only.
"""

import contextlib
import json
import socket
import sys

# First lines of who does not know the token. Each is told so, and hung up on.
WRONG = [
    '{"op": "hello", "args": {"token": "WORDS"}}',
    '{"op": "hello", "args": {"token": ""}}',
    '{"op": "hello", "args": {}}',
    '{"op": "open", "args": {"dev": "rxe0", "token": "WORD"}}',
    '{"op": "hello", "args": {"token": ["WORD"]}}',
    "[" * 2000,
    "GET / HTTP/1.1",
]
# More than an agent keeps of those that say nothing.
SILENT = 40
# Seconds that anything may take on a busy machine: less than the silent ones are given for their first word would not do.
LIMIT = 120


class Tester:
    """Somebody who knows the token."""

    def __init__(self, address, token):
        self.stream = socket.create_connection(address, timeout=LIMIT)
        self.lines = self.stream.makefile("rb")
        self.call("hello", token=token)

    def ask(self, op, **args):
        """The whole answer."""
        self.stream.sendall(json.dumps({"op": op, "args": args}).encode() + b"\n")
        line = self.lines.readline()
        if not line:
            sys.exit(f"strangers: hung up on after {op} {args}")
        return json.loads(line)

    def call(self, op, **args):
        answer = self.ask(op, **args)
        if not answer["ok"]:
            sys.exit(f"strangers: {op} {args}: {answer}")
        return answer["result"]

    def refused(self, op, **args):
        """The request is wrong, and the agent says so and lives on."""
        answer = self.ask(op, **args)
        if answer["ok"] or self.call("ping") != "pong":
            sys.exit(f"strangers: {op} {args} was answered {answer}")


def wrong_words(address):
    for line in WRONG:
        with socket.create_connection(address, timeout=LIMIT) as stream:
            stream.sendall(line.encode() + b"\n")
            answer = b""
            while part := stream.recv(4096):
                answer += part
        if b"wrong token" not in answer or answer.count(b"\n") != 1:
            sys.exit(f"strangers: {line[:80]} was answered {answer}")


def silence(address, token):
    """Those that say nothing shut nobody out: the oldest of them have to go, and who was known before stays."""
    before = Tester(address, token)
    with contextlib.ExitStack() as open_ones:
        silent = [
            open_ones.enter_context(socket.create_connection(address, timeout=LIMIT)) for _ in range(SILENT)
        ]
        Tester(address, token).call("ping")
        # However long this test takes, their own time is up at some point; this is before.
        before.call("ping")
        with contextlib.suppress(ConnectionResetError):
            if silent[0].recv(1):
                sys.exit("strangers: one that said nothing was answered")
    return before


def incomplete(tester, device):
    """Requests to post that lack what the library would take from wherever it lay."""
    context = tester.call("open", dev=device)["handle"]
    pd = tester.call("pd", ctx=context)["handle"]
    cq = tester.call("cq", ctx=context, cqe=16)["handle"]
    connected = tester.call("qp", pd=pd, type="RC", send_cq=cq, recv_cq=cq)["handle"]
    datagrams = tester.call("qp", pd=pd, type="UD", send_cq=cq, recv_cq=cq)["handle"]
    add = {"wr_id": 1, "opcode": "ATOMIC_FETCH_AND_ADD", "remote_addr": 4096, "rkey": 1, "add": 1}
    tester.refused("post_send", qp=connected, wrs=[{**add, "unchecked": True, "sge": []}])
    tester.refused("post_send", qp=connected, wrs=[{**add, "unchecked": True}])
    tester.refused("post_send", qp=datagrams, wrs=[{"wr_id": 1, "opcode": "SEND", "sge": []}])
    tester.refused("post_send", qp=connected, wrs=[{"opcode": "SEND", "sge": 7, "ah": connected}])
    tester.call("close_all")


def main():
    host, _, port = sys.argv[1].rpartition(":")
    address, token = (host, int(port)), sys.argv[2]
    wrong_words(address)
    incomplete(silence(address, token), sys.argv[3])


main()
