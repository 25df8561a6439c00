"""Where programs that are nobody's of ours play: a network namespace of their own, an ordinary user, the drop-in.

Shared by the scripts of this folder. Each plays what somebody else has built, and with --write puts a section into
docs/compat.md; testbed/compat/foreign keeps the sections, from where testbed/compat/table.py takes them, too.
"""

import argparse
import datetime
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECTIONS = ROOT / "testbed" / "compat" / "foreign"
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]


def options(description):
    """The words that all scripts here take; each adds its own."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", action="store_true", help="the drop-in built for release: for figures")
    parser.add_argument("--no-build", action="store_true", help="with what is built already")
    parser.add_argument("--write", action="store_true", help="renew the section in docs/compat.md")
    parser.add_argument("--commit", help="of the copy, where its folder does not say")
    return parser


class Ground:
    """A context: the namespace with lo alone, and a folder which user nobody can read."""

    def __init__(self, release=False, build=True):
        if os.geteuid() != 0:
            sys.exit(f"{sys.argv[0]}: needs root for a network namespace: sudo {' '.join(sys.argv)}")
        self.profile = "release" if release else "debug"
        self.build = build
        self.namespace = f"rxe-foreign-{os.getpid()}"
        self.started = []
        self.copies = {}

    def __enter__(self):
        built = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / self.profile
        if self.build:
            flag = ["--release"] if self.profile == "release" else []
            subprocess.run(["cargo", "build", "--quiet", *flag, "-p", "rxe-cli"], cwd=ROOT, check=True)
            subprocess.run([ROOT / "scripts/build-dropin", *flag], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="rxe-foreign-"))
        self.folder.chmod(0o755)
        shutil.copy(built / "rxe", self.folder)
        shutil.copytree(built / "dropin", self.folder / "dropin", symlinks=True)
        (self.folder / "rxe.toml").write_text("[service]\nidle_seconds = 1\n")
        for name in ("run", "home"):
            (self.folder / name).mkdir(mode=0o700)
            os.chown(self.folder / name, 65534, 65534)
        subprocess.run(["ip", "netns", "add", self.namespace], check=True)
        subprocess.run(["ip", "-n", self.namespace, "link", "set", "lo", "up"], check=True)
        return self

    def __exit__(self, *_):
        for process in self.started:
            end(process)
        # The host service rests for a second, then it ends by itself.
        for _ in range(50):
            listed = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=False)
            if not listed.stdout.strip():
                break
            time.sleep(0.1)
        subprocess.run(["ip", "netns", "del", self.namespace], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def here(self, path):
        """A copy of that file in the folder, where user nobody can read it."""
        source = pathlib.Path(path).resolve()
        if source not in self.copies:
            place = self.folder / pathlib.Path(path).name
            if place.exists():
                # Another file of that name.
                folder = self.folder / f"copy-{len(self.copies)}"
                folder.mkdir()
                folder.chmod(0o755)
                place = folder / place.name
            shutil.copy(path, place)
            place.chmod(0o755)
            self.copies[source] = place
        return self.copies[source]

    def words(self, argv, on_rxe=True, variables=()):
        """The command for a program of user nobody's, on the drop-in or as it is."""
        places = [f"XDG_RUNTIME_DIR={self.folder}/run", f"RXE_CONFIG={self.folder}/rxe.toml", f"HOME={self.folder}/home"]
        run = [str(self.folder / "rxe"), "run", "--"] if on_rxe else []
        start = ["ip", "netns", "exec", self.namespace, *NOBODY, "env", "-u", "LD_LIBRARY_PATH", *places, *variables]
        return [*start, *run, *map(str, argv)]

    def play(self, argv, seconds, on_rxe=True, variables=(), **more):
        """Runs it to its end. A program that is still there after that many seconds is ended, with exit code 124 or 137."""
        limit = ["timeout", "--kill-after=5", str(seconds)]
        words = self.words([*limit, *argv], on_rxe, variables)
        return subprocess.run(words, capture_output=True, text=True, errors="replace", check=False, cwd="/", **more)

    def start(self, argv, output, on_rxe=True, variables=()):
        """Starts a server, which is ended with the ground."""
        with open(output, "w", encoding="utf-8") as file:
            process = subprocess.Popen(self.words(argv, on_rxe, variables), stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd="/")
        self.started.append(process)
        return process


def end(process):
    """Ends a program that was started here."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def commit_of(folder, told=None):
    """The commit of a copy, or what else can be said of it."""
    if told:
        return f"commit {told}"
    asked = subprocess.run(["git", "-C", folder, "log", "-1", "--format=%h of %cs"], capture_output=True, text=True, check=False)
    return f"commit {asked.stdout.strip()}" if asked.returncode == 0 else "a copy without a commit"


def today():
    return datetime.date.today().isoformat()


def write(name, text):
    """Puts the section into docs/compat.md."""
    (SECTIONS / f"{name}.md").write_text(text, encoding="utf-8")
    subprocess.run([sys.executable, ROOT / "testbed/compat/table.py", "--sections"], check=True)
