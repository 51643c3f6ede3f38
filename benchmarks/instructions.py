"""Instructions that small operations take on a local device, counted by Valgrind.

Unlike times, these counts hardly depend on what else the machine does. Each workload runs in its
own process under callgrind, which counts only while the loops run. The client and the engine are in
that process and are counted together. Switching the counting on and off is counted too, so the
instructions of ``--loops`` empty loops are measured first and subtracted.

    python benchmarks/instructions.py                       # this checkout
    python benchmarks/instructions.py --against ../other    # and another one, with ratios
    python benchmarks/instructions.py --client              # the client alone

With ``--client``, the link discards the frames, so no engine runs, and timers are set to a minute.
"Tracked" has the operations that automatic differentiation records, without the backward pass. The
results of a loop are dropped in the loop. "Followed" has those that an automatic graph follows.

The other checkout needs its own ``.venv`` (``make setup`` there).
Needs the program ``valgrind`` (Debian: apt install valgrind).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WARM_UP = 300  # loops before the counted ones, in which caches fill
# The client alone: batches and the ring of the program's lines are in their steady state, and an
# automatic graph is followed, after this many loops.
CLIENT_WARM_UP = 17_000

SETUP = """
import os, subprocess
import numpy as np
import burn_remote as br
device = br.LocalDevice()
x = device.tensor(np.ones((16, 16), np.float32))
"""

# Name of the workload → the statement of one loop.
WORKLOADS = {
    "x + x": "x + x",
    "x * 2": "x * 2",
    "x.T + 1 (two operations)": "x.T + 1",
    "x[2:9]": "x[2:9]",
    "x.reshape(256)": "x.reshape(256)",
    "x.sum()": "x.sum()",
    "x // 3": "x // 3",
    "(x + x).numpy()": "(x + x).numpy()",
}

CLIENT_SETUP = """
import os, subprocess
import numpy as np
import burn_remote as br
import burn_remote.sessions.lifetime as lifetime
lifetime.FLUSH_SECONDS = 60.0
def discarding(**options):
    device = br.LocalDevice(**options)
    x = device.tensor(np.ones((16, 16), np.float32))
    x.numpy()
    x.handle.client.session._connection._link.send_together = lambda frames: frames.clear()
    return x
x = discarding()
y = x + x
"""
COMPILED = """
@br.compile
def four(a, b, c, d):
    return a + b, c * d
four(x, y, x, y)
"""

# Name of the client's workload → statements before the loop, and the statement of one loop.
CLIENT_WORKLOADS = {
    "x + y": ("", "x + y"),
    "x * 1.0": ("", "x * 1.0"),
    "exp(x)": ("exp = br.exp", "exp(x)"),
    "x + y, tracked": ("x.requires_grad_()", "x + y"),
    "x * 1.0, tracked": ("x.requires_grad_()", "x * 1.0"),
    "exp(x), tracked": ("x.requires_grad_(); exp = br.exp", "exp(x)"),
    "x + y, followed": ("x = discarding(automatic_graphs=True); y = x + x", "x = x + y"),
    "compiled call, 4 inputs": (COMPILED, "four(x, y, x, y)"),
}


def program_of(setup: str, statement: str, loops: int, warm_up: int) -> str:
    """Return a program that runs the statement and has callgrind count the later loops."""
    wait = "device.sync()\n" if setup is SETUP else ""
    return (
        f"{setup}\n"
        "def count(switch):\n"
        "    subprocess.run(['callgrind_control', '-i', switch, str(os.getpid())], check=True)\n"
        # The same loop twice: an automatic graph is followed only at the same line of the program.
        "def repeat(count):\n"
        "    global x\n"
        f"    for _ in range(count): {statement}\n"
        f"repeat({warm_up})\n"
        f"{wait}"
        "count('on')\n"
        f"repeat({loops})\n"
        f"{wait}"
        "count('off')\n"
    )


def counted(checkout: Path, program: str) -> int:
    """Return the instructions of the program between its switches."""
    packages = [str(checkout / name) for name in ("client", "server", "protocol")]
    environment = dict(
        os.environ,
        PYTHONPATH=os.pathsep.join(packages),
        PYTHONHASHSEED="0",
        OPENBLAS_NUM_THREADS="1",
    )
    valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no"]
    valgrind += ["--callgrind-out-file=/dev/null"]
    done = subprocess.run(
        [*valgrind, checkout / ".venv/bin/python", "-c", program],
        env=environment,
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"Collected\s*:\s*(\d+)", done.stderr)
    if done.returncode or not found:
        raise SystemExit(f"{program}\nfailed under valgrind:\n{done.stderr[-2000:]}")
    return int(found[1])


def main() -> None:
    """Count the workloads and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--loops", type=int, default=1000, help="counted loops (default: 1000)")
    parser.add_argument("--client", action="store_true", help="the client alone")
    parser.add_argument("--against", type=Path, help="the folder of another checkout")
    parser.add_argument("--only", help="only the workloads whose names contain this text")
    arguments = parser.parse_args()
    if shutil.which("valgrind") is None:
        parser.error("valgrind is not installed (Debian: apt install valgrind)")
    checkouts = [ROOT] + ([arguments.against.resolve()] if arguments.against else [])
    if arguments.client:
        workloads = {
            name: (CLIENT_SETUP + setup, statement)
            for name, (setup, statement) in CLIENT_WORKLOADS.items()
        }
    else:
        workloads = {name: (SETUP, statement) for name, statement in WORKLOADS.items()}
    loops, warm_up = arguments.loops, CLIENT_WARM_UP if arguments.client else WARM_UP
    empty_setup = CLIENT_SETUP if arguments.client else SETUP
    nothing = program_of(empty_setup, "pass", loops, warm_up)
    empty = [counted(checkout, nothing) for checkout in checkouts]
    for name, (setup, statement) in workloads.items():
        if arguments.only and arguments.only not in name:
            continue
        program = program_of(setup, statement, loops, warm_up)
        counts = [
            (counted(checkout, program) - base) / loops
            for checkout, base in zip(checkouts, empty, strict=True)
        ]
        line = f"{name:<26} {counts[0]:>10,.0f} instructions"
        if arguments.against:
            line += f"   {counts[1]:>10,.0f} there   ratio {counts[0] / counts[1]:.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
