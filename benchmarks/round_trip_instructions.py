"""Instructions of small round trips, of the client and of the server, counted by Valgrind.

Each workload runs twice in its own processes, with different numbers of loops. The difference of
the counts is divided by the difference of the loops. One of the two processes runs under callgrind,
so the counts hardly depend on what else the machine does. They include neither system calls nor the
time until the system wakes a process.

    python benchmarks/round_trip_instructions.py                     # this checkout
    python benchmarks/round_trip_instructions.py --against ../other  # and another one, with ratios

The bare echo is a round trip of as many bytes over the same WebSocket stack, without a session. The
other checkout needs its own ``.venv`` (``make setup`` there). Needs the program ``valgrind``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WARM_UP = 100  # loops before the counted ones, in which caches fill

# The statements of one loop. Valgrind slows the client down so much that its timers would be due in
# each loop, so they are set to a minute.
CLIENT = """
import os, subprocess, sys
import burn_remote.sessions.lifetime as lifetime, burn_remote.sessions.receiver as receiver
lifetime.FLUSH_SECONDS = receiver.AWAY_SECONDS = 60.0
address, counted, kind, loops = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
if kind == "echo":
    try:
        from burn_remote_protocol.links.transport_registry import connect
    except ImportError:  # the other checkout may have the module under this name
        from burn_remote_protocol.links.transports import connect
    link = connect(address)
    def once():
        link.send(bytes(60))
        link.receive()
else:
    import numpy as np
    import burn_remote as br
    device = br.RemoteDevice(address)
    x = device.tensor(np.ones((16, 16), np.float32))
    def once():
        (x + x).numpy()
    def once_without_reading():
        x + x
    if kind == "add":
        once = once_without_reading
for _ in range(int(sys.argv[5])):
    once()
if kind == "add":
    device.sync()
def count(switch):
    command = ["callgrind_control", "-i", switch, counted if int(counted) else str(os.getpid())]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
count("on")
for _ in range(loops):
    once()
if kind == "add":
    device.sync()
count("off")
"""

# Name → the kind of the client's loop, and the loops of the longer and the shorter run.
WORKLOADS = {
    "bare echo": ("echo", 300, 100),
    "(x + x).numpy()": ("read", 300, 100),
    "x + x, one wait at the end": ("add", 10_000, 2_000),
}


def counted(checkout: Path, kind: str, side: str, loops: int) -> int:
    """Return the instructions of one side while the client runs ``loops`` loops."""
    packages = [str(checkout / name) for name in ("client", "server", "protocol")]
    environment = dict(
        os.environ,
        PYTHONPATH=os.pathsep.join(packages),
        PYTHONHASHSEED="0",
        OPENBLAS_NUM_THREADS="1",
    )
    python = str(checkout / ".venv/bin/python")
    valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no"]
    valgrind += ["--callgrind-out-file=/dev/null"]
    if kind == "echo":
        serve = [python, str(ROOT / "benchmarks/echo.py")]
    else:
        serve = [python, "-m", "burn_remote_server", "--port", "0", "--log-level", "warning"]
    server = subprocess.Popen(
        [*(valgrind if side == "server" else ()), *serve],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None  # started with a pipe
        address = None
        while address is None:
            line = server.stdout.readline()
            if not line:
                raise SystemExit(f"the server did not start:\n{server.communicate()[1][-2000:]}")
            found = re.search(r"ws://\S+", line) or re.fullmatch(r"(\d+)\n", line)
            if found:
                address = found[0] if "://" in found[0] else f"ws://127.0.0.1:{found[1]}"
        client = subprocess.run(
            [
                *(valgrind if side == "client" else ()),
                *(python, "-c", CLIENT, address),
                *(str(server.pid if side == "server" else 0), kind, str(loops), str(WARM_UP)),
            ],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if client.returncode:
            raise SystemExit(f"the client failed:\n{client.stderr[-2000:]}")
        server.terminate()
        errors = server.communicate(timeout=60)[1]
    finally:
        server.kill()
        server.wait()
    report = client.stderr if side == "client" else errors
    found = re.search(r"Collected\s*:\s*(\d+)", report)
    if not found:
        raise SystemExit(f"valgrind reported no count:\n{report[-2000:]}")
    return int(found[1])


def main() -> None:
    """Count the workloads and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path, help="the folder of another checkout")
    parser.add_argument("--only", help="only the workloads whose names contain this text")
    arguments = parser.parse_args()
    if shutil.which("valgrind") is None:
        parser.error("valgrind is not installed (Debian: apt install valgrind)")
    checkouts = [ROOT] + ([arguments.against.resolve()] if arguments.against else [])
    for name, (kind, more, fewer) in WORKLOADS.items():
        if arguments.only and arguments.only not in name:
            continue
        for side in ("client", "server"):
            counts = []
            for checkout in checkouts:
                runs = [counted(checkout, kind, side, loops) for loops in (more, fewer)]
                counts.append((runs[0] - runs[1]) / (more - fewer))
            line = f"{name:<28} {side}  {counts[0]:>10,.0f} instructions"
            if arguments.against:
                line += f"   {counts[1]:>10,.0f} there   ratio {counts[0] / counts[1]:.2f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
