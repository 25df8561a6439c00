"""What was played and how it went: the tally, and the matrix as a table."""

import re

# Verdicts, and their marks in the table.
MARKS = {"ok": "ok", "deviates": "ok*", "FAILED": "**FAILED**", "absent": "none", "skipped": "–"}
COLUMNS = [("ours", "4"), ("ours", "6"), ("kernel", "4"), ("kernel", "6")]


class Results:
    """Cases by section, row, kernel, role and family."""

    def __init__(self):
        self.cells = {}
        self.releases = {}
        self.notes = {}
        self.figures = []
        self.failures = []

    def add(self, section, row, kernel, role, family, verdict):
        """Takes one case; role "ours", "kernel" or "both", family "4", "6" or "both"."""
        key = (section, row, kernel, role, family)
        if key in self.cells:
            raise ValueError(f"{key} was played twice")
        self.cells[key] = verdict

    def fail(self, text):
        self.failures.append(text)

    def note(self, row, kernel, text):
        """What a reader should know about a row, whatever the run."""
        self.notes.setdefault((row, text), set()).add(kernel)

    def figure(self, text):
        """What was counted in this run."""
        self.figures.append(text)

    def tally(self):
        verdicts = list(self.cells.values())
        failed = verdicts.count("FAILED")
        skipped = verdicts.count("skipped")
        return len(verdicts) - failed - skipped, failed, skipped

    def markdown(self, command, ours):
        kernels = list(self.releases)
        passed, failed, skipped = self.tally()
        lines = [
            "# Tried against kernel rxe",
            "",
            f"Written by `{command}`: {passed} passed, {failed} failed, {skipped} skipped. The kernels run in emulated",
            f"machines (`scripts/kernel-vm`). Our side has {ours}; the packets cross a tap device, where the ICRC of each is checked",
            "by a program that shares no code with ours.",
            "",
            "Kernels: " + ", ".join(f"{name} (Debian `{release}`)" for name, release in self.releases.items()) + ".",
            "",
            "`→` we post the requests (of the pingpong programs: ours is the client), `←` the kernel does; 4 and 6 are IPv4 and",
            "IPv6. `ok*`: the kernel does it in a way of its own, named below, which the test expects. `none`: that kernel lacks the",
            "operation, and ended the attempt as it should. `–`: skipped. Empty: not tried there.",
        ]
        numbers = {}
        for section in dict.fromkeys(key[0] for key in self.cells):
            lines += ["", f"## {section}", ""]
            heads = [f"{kernel} {'→' if role == 'ours' else '←'}{family}" for kernel in kernels for role, family in COLUMNS]
            lines += ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
            for row in dict.fromkeys(key[1] for key in self.cells if key[0] == section):
                marks = [self._mark(section, row, kernel, role, family) for kernel in kernels for role, family in COLUMNS]
                found = [note for note in self.notes if note[0] == row]
                signs = "".join(f" [{numbers.setdefault(note[1], len(numbers) + 1)}]" for note in found)
                lines.append(f"| {row}{signs} | " + " | ".join(marks) + " |")
        if numbers:
            lines += ["", "## Notes", ""]
            lines += [f"{number}. {text}" for text, number in numbers.items()]
        if self.figures:
            lines += ["", "## Counted in that run", ""]
            lines += [f"* {text}" for text in self.figures]
        return "\n".join(lines) + "\n"

    def _mark(self, section, row, kernel, role, family):
        for found in ((role, family), ("both", family), ("both", "both")):
            verdict = self.cells.get((section, row, kernel, *found))
            if verdict:
                return MARKS[verdict]
        return ""


def parse(line):
    """A line of kernel-ops: verdict, role, name, notes, error; or nothing."""
    match = re.match(r"(ok|deviates|FAILED|absent|skipped) +(ours|kernel|both) +([^\[:]+?)(?: \[(.*?)\])?(?:: (.*))?$", line)
    return match and match.groups()
