"""The sets of kernel-ops (testbed/src/bin/kernel-ops): each operation, much data, bad networks."""

from results import parse

# heading, arguments of kernel-ops, our environment, whether its notes are figures of one run
OWN_FAULTS = "loss=10,dup=10,reorder=10,seed=7"
OPERATIONS = ("Operations", ["operations"], {}, False)
BULK = ("Small receive buffer (`RXE_RCVBUF=default`)", ["bulk"], {"RXE_RCVBUF": "default"}, True)
FAULTS = [
    ("Guest loses 1 %, each way", ["faults", "loss"], {}, True),
    ("Guest doubles 1 %, each way", ["faults", "duplicate"], {}, True),
    ("Guest reorders 1 %, each way", ["faults", "reorder"], {}, True),
    (f"`RXE_FAULT={OWN_FAULTS}`", ["faults", "none"], {"RXE_FAULT": OWN_FAULTS}, True),
]
LIMIT = 600


def play(guest, program, results, play_set, families, run):
    """Plays one set over some families; `run` starts a command and gives its output and exit code."""
    section, arguments, environment, figures = play_set
    info, kernel = guest.info, guest.version
    variables = [f"{name}={value}" for name, value in environment.items()]
    for family in families:
        addresses = [info[f"host{family}"], info[f"guest{family}"]]
        argv = guest.outside([program, info["agent"], info["guest_dev"], *addresses, *arguments], LIMIT, variables)
        output, code = run(argv, LIMIT + 30)
        print(f"kernel {kernel}, IPv{family}: {section}", flush=True)
        failed = 0
        for line in output.splitlines():
            print(f"  {line}", flush=True)
            found = parse(line)
            if not found:
                continue
            verdict, role, name, notes, _ = found
            results.add(section, name, kernel, role, family, verdict)
            where = f"kernel {kernel}, IPv{family}, {section}"
            if verdict == "FAILED":
                failed += 1
                results.fail(f"{where}: {line}")
            if verdict == "skipped":
                print(f"skipped: {where}: {name}: {notes}", flush=True)
            elif notes and figures:
                results.figure(f"{where}, {name} ({role}): {notes}")
            elif notes:
                for note in notes.split("; "):
                    results.note(name, kernel, note)
        # A set that broke off, or said nothing, must count.
        if code != 0 and not failed or not any(parse(line) for line in output.splitlines()):
            results.add(section, "to its end", kernel, "both", family, "FAILED")
            results.fail(f"kernel {kernel}, IPv{family}, {section}: kernel-ops ended with {code}:\n{output}")
