"""Check that the README's program runs with an installed wheel.

Usage: ``python readme_program.py README.md``, with the Python of an environment that has the wheel,
in a folder without the source tree.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

# The address in the README's program. The check replaces it, because its server takes a free port.
WRITTEN_ADDRESS = "ws://127.0.0.1:3000"
SECONDS = 60


def main() -> None:
    """Run the README's first Python program against a server; exit with 1 if anything fails."""
    program = re.search(r"```python\n(.*?)```", Path(sys.argv[1]).read_text("utf-8"), re.DOTALL)
    if program is None or WRITTEN_ADDRESS not in program[1]:
        sys.exit(f"{sys.argv[1]} has no Python program that connects to {WRITTEN_ADDRESS}")
    command = str(Path(sys.executable).with_name("burn-remote-server"))
    arguments = [command, "--port", "0", "--log-level", "warning"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None  # started with a pipe
            address = server.stdout.readline().split()[-1]
            subprocess.run([command, "--check", "--address", address], check=True, timeout=SECONDS)
            source = program[1].replace(WRITTEN_ADDRESS, address)
            subprocess.run(
                [sys.executable, "-W", "error", "-c", source], check=True, timeout=SECONDS
            )
        finally:
            server.terminate()
        if server.wait(SECONDS) != 0:
            sys.exit(f"the server ended with code {server.returncode}")


if __name__ == "__main__":
    main()
