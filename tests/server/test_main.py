"""The command's start: a health check runs every few seconds, so it must import little."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"typer", "rich", "pydantic", "structlog", "numpy", "websockets", "uvloop", "msgpack"}


def test_a_check_imports_nothing_but_the_standard_library() -> None:
    program = (
        "import sys; sys.argv[1:] = ['--check', '--address', 'ws://127.0.0.1:1']\n"
        "from burn_remote_server.__main__ import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 1\n"
        "print(*sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert "cannot be reached" in ended.stderr
    assert not HEAVY & set(ended.stdout.split())


def test_the_command_is_a_module_too() -> None:
    command = [sys.executable, "-m", "burn_remote_server", "--version"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert ended.stdout.startswith("burn-remote-server ")


def test_an_installation_without_the_servers_packages_is_named_in_one_line() -> None:
    program = (
        "import sys; sys.modules['typer'] = None\n"  # as if it were not installed
        "from burn_remote_server.__main__ import main; main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30
    )
    assert ended.returncode == 1
    assert ended.stderr == (
        "burn-remote-server: the package typer is not installed; run pip install "
        '"burn-remote[server]", or pip install ".[server]" in a clone\n'
    )


def test_a_server_that_logs_to_a_file_starts_without_what_only_terminals_need() -> None:
    program = (
        "import sys\n"
        "import burn_remote_server.command_line.command, burn_remote_server.command_line.daemon\n"
        "print(*sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert not {"rich", "structlog"} & set(ended.stdout.split())
