"""Instructions that small operations take on a local device, counted by Valgrind.

Unlike times, these counts hardly depend on what else the machine does. Each workload runs in its
own process under callgrind, which counts only while the loops run. The client and the engine are in
that process and are counted together. Switching the counting on and off is counted too, so the
instructions of ``--loops`` empty loops are measured first and subtracted.

    python benchmarks/instructions.py                       # this checkout
    python benchmarks/instructions.py --against ../other    # and another one, with ratios

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


def counted(checkout: Path, statement: str, loops: int) -> int:
    """Return the instructions of running the statement ``loops`` times."""
    program = (
        f"{SETUP}\n"
        "def count(switch):\n"
        "    subprocess.run(['callgrind_control', '-i', switch, str(os.getpid())], check=True)\n"
        f"for _ in range({WARM_UP}): {statement}\n"
        "device.sync()\n"
        "count('on')\n"
        f"for _ in range({loops}): {statement}\n"
        "device.sync()\n"
        "count('off')\n"
    )
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
        raise SystemExit(f"{statement!r} failed under valgrind:\n{done.stderr[-2000:]}")
    return int(found[1])


def main() -> None:
    """Count the workloads and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--loops", type=int, default=1000, help="counted loops (default: 1000)")
    parser.add_argument("--against", type=Path, help="the folder of another checkout")
    parser.add_argument("--only", help="only the workloads whose names contain this text")
    arguments = parser.parse_args()
    if shutil.which("valgrind") is None:
        parser.error("valgrind is not installed (Debian: apt install valgrind)")
    checkouts = [ROOT] + ([arguments.against.resolve()] if arguments.against else [])
    empty = [counted(checkout, "pass", arguments.loops) for checkout in checkouts]
    for name, statement in WORKLOADS.items():
        if arguments.only and arguments.only not in name:
            continue
        counts = [
            (counted(checkout, statement, arguments.loops) - base) / arguments.loops
            for checkout, base in zip(checkouts, empty, strict=True)
        ]
        line = f"{name:<26} {counts[0]:>10,.0f} instructions"
        if arguments.against:
            line += f"   {counts[1]:>10,.0f} there   ratio {counts[0] / counts[1]:.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
