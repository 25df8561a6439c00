"""A program that is watched while it runs. For the tests of both folders, which put this one on the path."""

import subprocess
import threading
import time


class Process:
    """A program whose output is read while it runs."""

    def __init__(self, argv):
        self.process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        self.lines = []
        self.reader = threading.Thread(target=lambda: self.lines.extend(line[:120].strip() for line in self.process.stdout))
        self.reader.start()

    def runs(self):
        return self.process.poll() is None

    def says(self, text):
        return any(text in line for line in list(self.lines))

    def wait_for(self, text, seconds):
        """Whether it said so before it ended, or it was too late."""
        until = time.monotonic() + seconds
        while not self.says(text) and self.runs() and time.monotonic() < until:
            time.sleep(0.02)
        if not self.runs():
            self.reader.join(2)
        return self.says(text)

    def end(self, seconds):
        """Its exit code, once all it said was read; nothing if it had to be killed."""
        try:
            code = self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = None
        self.reader.join(5)
        return code

    def told(self):
        return "\n".join(self.lines[-6:])
