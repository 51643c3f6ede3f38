"""A process that starts servers by forking: they need not import the server's modules again.

The imports take two thirds of a server's start, and the tests start some 300 servers. A forked
server is a process of its own: it gets its own arguments, environment, output and working
directory, and runs the command ``burn-remote-server`` from its first line.

The tests send requests over a socket: the arguments and so on as JSON, with three file descriptors:
the server's standard output and standard error, and a pipe to which this process writes the
server's process id and, later, its exit code.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy

# What every server imports. The last two are optional dependencies.
MODULES: Final = (
    "burn_remote_server.command_line.command",
    "burn_remote_server.command_line.daemon",
    "burn_remote_server.backends.numpy.backend",
    "burn_remote_server.fusion.cpu.runtime",
    "burn_remote_server.fusion.runtime_selection",
    "uvloop",
    "llvmlite.binding",
)
MAX_REQUEST_BYTES: Final = 1 << 20

__all__ = ["main", "request_bytes"]


def request_bytes(
    arguments: Sequence[str], environment: Mapping[str, str], directory: str
) -> bytes:
    """Return the bytes of a request."""
    return json.dumps([list(arguments), dict(environment), directory]).encode()


def main(requests: socket.socket) -> None:
    """Start servers until the tests close their end, then kill those that still run.

    In the process of a forked server, return when the server has ended.
    """
    _import_modules()
    # Ctrl-C goes to all processes of a terminal; only the tests decide when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    running: dict[int, int] = {}
    awakened, awaken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    wakeup = signal.set_wakeup_fd(awaken, warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([requests.fileno(), awakened], [], [])
        if awakened in ready:
            os.read(awakened, 4096)
            _report_ended(running)
        if requests.fileno() not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 3)
        if not message:
            for process in running:  # of tests that were killed
                os.kill(process, signal.SIGKILL)
            return
        output, errors, status = descriptors
        with warnings.catch_warnings():
            # Python warns of forks with threads. Those here belong to OpenBLAS, which stops them
            # before a fork and starts them again.
            warnings.simplefilter("ignore", DeprecationWarning)
            process = os.fork()
        if process == 0:
            signal.set_wakeup_fd(wakeup)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.dup2(output, 1)
            os.dup2(errors, 2)
            for descriptor in (output, errors, status, awakened, awaken, *running.values()):
                os.close(descriptor)
            requests.close()
            _serve(*json.loads(message))
            return
        os.close(output)
        os.close(errors)
        running[process] = status
        os.write(status, b"%d\n" % process)


def _import_modules() -> None:
    for name in MODULES:
        try:
            importlib.import_module(name)
        except ImportError:
            if name.startswith("burn_remote"):
                raise
    gc.collect()
    gc.freeze()  # servers then examine, and so copy, fewer pages of memory


def _report_ended(running: dict[int, int]) -> None:
    """Report the exit codes of all servers that have ended."""
    while running:
        process, ended = os.waitpid(-1, os.WNOHANG)
        if process == 0:
            return
        status = running.pop(process)
        try:
            os.write(status, b"%d\n" % os.waitstatus_to_exitcode(ended))
        except BrokenPipeError:  # the test no longer waits for it
            pass
        finally:
            os.close(status)


def _serve(arguments: list[str], environment: dict[str, str], directory: str) -> None:
    # OpenBLAS's threads do not survive a fork. They start again at the first large product: now,
    # because tests count the threads of servers.
    matrix = numpy.ones((256, 256), numpy.float32)
    matrix @ matrix
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.argv[1:] = arguments
    command: Any = importlib.import_module("burn_remote_server.__main__")
    command.main()


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
