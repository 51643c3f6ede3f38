"""The entry point of ``burn-remote-server``: runs the health check or the daemon."""

from __future__ import annotations

import gc
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command with the process's arguments."""
    arguments = sys.argv[1:]
    # Local imports: a container's health check runs every few seconds, and importing the daemon
    # takes ten times as long as the check.
    if "--check" in arguments:
        from burn_remote_server.command_line.health_check import main as check

        sys.exit(check(arguments))
    # Nearly all objects that the start creates stay, so collecting garbage would only take a tenth
    # of its time. BoundedCollector turns it on again when the server is ready.
    gc.disable()
    try:
        from burn_remote_server.command_line.command import main as serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("burn_remote"):
            raise
        # The command is installed without the extra "server" too.
        sys.exit(
            f"burn-remote-server: the package {error.name} is not installed; run "
            'pip install "burn-remote[server]", or pip install ".[server]" in a clone'
        )
    sys.exit(serve(arguments))


if __name__ == "__main__":
    main()
