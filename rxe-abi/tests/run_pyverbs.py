"""Runs pyverbs' own tests (the folder tests of rdma-core) and prints what became of each, sorted, one a line.

    run_pyverbs.py FOLDER DEVICE [--without MODULE]...

FOLDER holds tests/. What the tests themselves print goes to standard error.
"""

import os
import sys
import unittest
from importlib.machinery import SourceFileLoader


class Outcomes(unittest.TestResult):
    """What became of each test, by its name."""

    def __init__(self):
        super().__init__()
        self.lines = {}

    def note(self, test, outcome):
        # A test whose clean-up fails is told twice: the worse counts, which comes last.
        self.lines[test.id()] = outcome

    def addSuccess(self, test):
        self.note(test, "ok")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, f"skipped: {reason}")

    def addError(self, test, err):
        super().addError(test, err)
        self.note(test, "ERROR")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.note(test, "FAILED")

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err:
            self.note(test, "FAILED")


def main():
    folder, device, *rest = sys.argv[1:]
    without = [word for word in rest if word != "--without"]
    # Whatever prints goes elsewhere; the list is ours.
    own = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    place = os.path.join(folder, "tests")
    sys.path.insert(0, place)
    sys.argv[1:] = ["--dev", device]
    from args_parser import parser

    tests = SourceFileLoader("tests", os.path.join(place, "__init__.py")).load_module()
    parser.parse_args()
    suites = unittest.defaultTestLoader.loadTestsFromModule(tests)

    def each(suite):
        for entry in suite:
            if isinstance(entry, unittest.TestSuite):
                yield from each(entry)
            else:
                yield entry

    wanted = [test for test in each(suites) if test.id().split(".")[-3] not in without]
    outcomes = Outcomes()
    unittest.TestSuite(wanted).run(outcomes)
    for test, trace in outcomes.errors + outcomes.failures:
        print(f"{test}\n{trace}", file=sys.stderr)
    for name, outcome in sorted(outcomes.lines.items()):
        print(f"{name} {outcome}", file=own)


main()
