"""Several of our processes share one port while each plays with a program on the kernel, and the host service is killed."""

import json
import subprocess
import threading
import time
import traceback

SECTION = "Several processes on one address, the host service killed"
# Each message one packet. With 64 KiB a pair stands still in one round of a few: a capture shows the kernel's queue pair
# acknowledged to its last PSN in the middle of sending a message again (its timeout of 67 ms runs out in an emulated
# machine), and silent from then on. From reading, its completer ends the message there, and ibv_rc_pingpong's send queue of
# one entry then looks empty; that was not watched inside the kernel. Enough messages for the service to be killed meanwhile.
CASE = ("rc", 4096, 4096, 2000)
COUNT = 4
PORT = 18600


def service(guest, rxe):
    """The service's process, or nothing."""
    answer = subprocess.run(
        guest.outside([rxe, "service", "status", "--json"]), capture_output=True, text=True, check=False
    )
    return json.loads(answer.stdout)["pid"] if answer.returncode == 0 else None


def one(pair, family, port, wrong):
    """Plays one pair; what it raises is a failure too."""
    try:
        wrong.append(pair(CASE, family, port))
    # Whatever it is.
    except Exception:
        wrong.append(traceback.format_exc())


def play(guest, rxe, results, pair):
    """`pair(family, port)` plays one pair and tells what went wrong, or nothing."""
    for family in "46":
        wrong = []
        players = [
            threading.Thread(target=one, args=(pair, family, PORT + number, wrong)) for number in range(COUNT)
        ]
        for player in players:
            player.start()
        killed = 0
        while any(player.is_alive() for player in players):
            time.sleep(0.7)
            pid = service(guest, rxe)
            if pid and any(player.is_alive() for player in players):
                killed += subprocess.run(["kill", "-9", str(pid)], check=False).returncode == 0
        for player in players:
            player.join()
        wrong = [text for text in wrong if text]
        if killed == 0:
            wrong.append("the service was never killed")
        row = f"{COUNT} x rc mtu {CASE[1]} {CASE[2]} B x {CASE[3]}"
        results.add(SECTION, row, guest.version, "ours", family, "FAILED" if wrong else "ok")
        print(f"kernel {guest.version}, IPv{family}: {row}, {killed} services killed: {'FAILED' if wrong else 'ok'}")
        for text in wrong:
            results.fail(f"kernel {guest.version}, IPv{family}, {SECTION}\n{text}")
            print(text, flush=True)
