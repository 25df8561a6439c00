"""Several of our processes share one port while each plays with a program on the kernel, and the host service is killed."""

import json
import subprocess
import threading
import time

SECTION = "Several processes on one address, the host service killed"
# Long enough for the service to be killed in the middle.
CASE = ("rc", 4096, 65536, 400)
COUNT = 4
PORT = 18600


def service(guest, rxe):
    """The service's process, or nothing."""
    answer = subprocess.run(
        guest.outside([rxe, "service", "status", "--json"]), capture_output=True, text=True, check=False
    )
    return json.loads(answer.stdout)["pid"] if answer.returncode == 0 else None


def victims(processes, family, wrong, until, counts):
    """Kills a process of ours each second in the midst of an rping; the one on the kernel is told so by the host service, and ends."""
    port = PORT + COUNT
    while time.monotonic() < until:
        port += 1
        their_command, our_command = processes(family, port)
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
        theirs = subprocess.Popen(their_command, **pipes)
        time.sleep(1)
        ours = subprocess.Popen(our_command, **pipes)
        time.sleep(1.5)
        # It is the child of `timeout`, which everything before it has become.
        killed = subprocess.run(["pkill", "-9", "-P", str(ours.pid)], check=False).returncode == 0
        ours.wait()
        counts["killed"] += killed
        try:
            theirs.wait(timeout=30)
            counts["noticed"] += killed
        except subprocess.TimeoutExpired:
            theirs.kill()
            theirs.wait()
            wrong.append(f"port {port}: the program on the kernel did not notice that its peer was killed")


def minute(guest, rxe, results, pair, processes):
    """The same for a minute: a client killed about each second, the service every ten."""
    for family in "46":
        wrong, counts = [], {"killed": 0, "noticed": 0, "services": 0, "rounds": 0}
        until = time.monotonic() + 60

        def again_and_again(port, family=family, wrong=wrong, counts=counts, until=until):
            while time.monotonic() < until:
                text = pair(CASE, family, port)
                counts["rounds"] += not text
                wrong.extend([text] if text else [])

        threads = [threading.Thread(target=again_and_again, args=(PORT + number,)) for number in range(COUNT)]
        threads.append(threading.Thread(target=victims, args=(processes, family, wrong, until, counts)))
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(10)
            pid = service(guest, rxe)
            if pid and any(thread.is_alive() for thread in threads):
                counts["services"] += subprocess.run(["kill", "-9", str(pid)], check=False).returncode == 0
        for thread in threads:
            thread.join()
        if not counts["services"] or not counts["noticed"] or counts["noticed"] < counts["killed"]:
            wrong.append(f"not everything happened that should have: {counts}")
        row = f"a minute: {COUNT} x rc mtu {CASE[1]} {CASE[2]} B x {CASE[3]} again and again"
        results.add(SECTION, row, guest.version, "ours", family, "FAILED" if wrong else "ok")
        print(
            f"kernel {guest.version}, IPv{family}: {row}: {counts['rounds']} rounds right, {counts['killed']} processes killed and "
            f"{counts['noticed']} peers noticed, {counts['services']} services killed: {'FAILED' if wrong else 'ok'}",
            flush=True,
        )
        for text in wrong:
            results.fail(f"kernel {guest.version}, IPv{family}, {SECTION}\n{text}")
            print(text, flush=True)


def play(guest, rxe, results, pair):
    """`pair(family, port)` plays one pair and tells what went wrong, or nothing."""
    for family in "46":
        wrong = []
        players = [
            threading.Thread(target=lambda port=PORT + number: wrong.append(pair(CASE, family, port)))
            for number in range(COUNT)
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
