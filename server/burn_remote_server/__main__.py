"""What happens when ``burn-remote-server`` starts? The check, or else the daemon."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command with the process's arguments."""
    arguments = sys.argv[1:]
    # Imported where used: a container's health check runs every few seconds, and what the daemon
    # needs takes ten times as long to import as the check takes to run.
    if "--check" in arguments:
        from burn_remote_server.command_line.health_check import main as check

        sys.exit(check(arguments))
    from burn_remote_server.command_line.command import main as serve

    sys.exit(serve(arguments))


if __name__ == "__main__":
    main()
