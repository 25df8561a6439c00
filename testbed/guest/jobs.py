"""The agent's ops that run programs in the guest."""

import base64
import os
import signal as signals
import subprocess
import threading
import time


class Job:
    """A running program and the output nobody has fetched yet."""

    def __init__(self, argv, env, netns, cwd, binary):
        if not isinstance(argv, list) or not argv:
            raise ValueError("argv must be a list with at least the program")
        if netns:
            argv = ["ip", "netns", "exec", netns, *argv]
        self.binary = binary
        self.unread = {"stdout": bytearray(), "stderr": bytearray()}
        self.changed = threading.Condition()
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **env},
            cwd=cwd,
            start_new_session=True,
        )
        self.readers = [
            threading.Thread(target=self._read, args=(name, pipe), daemon=True)
            for name, pipe in (("stdout", self.process.stdout), ("stderr", self.process.stderr))
        ]
        for reader in self.readers:
            reader.start()
        threading.Thread(target=self._reap, daemon=True).start()
        self.running = True

    def _read(self, name, pipe):
        while data := os.read(pipe.fileno(), 1 << 16):
            with self.changed:
                self.unread[name] += data
                self.changed.notify_all()

    def _reap(self):
        self.process.wait()
        # A grandchild may hold the pipes open: the program's own output is in by then.
        for reader in self.readers:
            reader.join(1.0)
        with self.changed:
            self.running = False
            self.changed.notify_all()

    def _take(self, name):
        data = bytes(self.unread[name])
        self.unread[name].clear()
        return base64.b64encode(data).decode() if self.binary else data.decode(errors="replace")

    def wait(self, seconds, for_end):
        """State and fresh output, once there is any (or the end, if `for_end`) or time is up."""
        deadline = time.monotonic() + seconds
        with self.changed:
            while self.running and (for_end or not any(self.unread.values())):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self.changed.wait(left)
            return {
                "running": self.running,
                "exit": None if self.running else self.process.returncode,
                "stdout": self._take("stdout"),
                "stderr": self._take("stderr"),
            }

    def kill(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def close(self):
        self.kill(signals.SIGKILL)
        self.process.wait()


def op_exec(session, argv, env={}, stdin="", timeout_s=60, netns=None, cwd=None, binary=False):
    job = Job(argv, env, netns, cwd, binary)
    handle = session.add(job)
    try:
        feeder = threading.Thread(target=_feed, args=(job, stdin.encode(), True), daemon=True)
        feeder.start()
        state = job.wait(timeout_s, for_end=True)
        timed_out = state["running"]
        if timed_out:
            job.kill(signals.SIGKILL)
            last = job.wait(5, for_end=True)
            state["exit"] = last["exit"]
            if not binary:
                state["stdout"] += last["stdout"]
                state["stderr"] += last["stderr"]
        del state["running"]
        return {**state, "timed_out": timed_out}
    finally:
        session.close(handle)


def _feed(job, data, eof):
    try:
        job.process.stdin.write(data)
        job.process.stdin.flush()
        if eof:
            job.process.stdin.close()
    except (BrokenPipeError, ValueError):
        pass  # it does not read, or has ended: its exit code tells


def op_spawn(session, argv, env={}, netns=None, cwd=None, binary=False):
    job = Job(argv, env, netns, cwd, binary)
    return {"handle": session.add(job), "pid": job.process.pid}


def op_wait(session, handle, timeout_ms=0):
    return session.get(handle, Job).wait(timeout_ms / 1000, for_end=False)


def op_write(session, handle, data, eof=False):
    _feed(session.get(handle, Job), data.encode(), eof)


def op_kill(session, handle, signal=signals.SIGTERM):
    session.get(handle, Job).kill(signal)
