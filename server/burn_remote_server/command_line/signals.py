"""What do signals do to a server?

SIGTERM and SIGINT drain it; a second SIGINT ends it at once. SIGHUP makes it read tokens and
certificates again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from typing import Final

from burn_remote_server.telemetry.logs import get_logger

__all__ = ["INTERRUPTED_EXIT_CODE", "install", "on_hangup"]

# What a shell reports for a program that SIGINT ended.
INTERRUPTED_EXIT_CODE: Final = 128 + signal.SIGINT

logger = get_logger(__name__)


def install(
    loop: asyncio.AbstractEventLoop,
    drain: Callable[[], None],
    *,
    exit_now: Callable[[int], object] = os._exit,
) -> None:
    """Call ``drain`` on the loop, once, at the first SIGTERM or SIGINT.

    Python delivers signals to the main thread only: elsewhere (a server that a test or a program
    runs in a thread of its own) nothing is installed, and whoever started it stops it. Closing the
    loop removes the handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    policy = _Policy(drain, exit_now)
    loop.add_signal_handler(signal.SIGTERM, policy.terminate)
    loop.add_signal_handler(signal.SIGINT, policy.interrupt)


def on_hangup(loop: asyncio.AbstractEventLoop, reload: Callable[[], None]) -> None:
    """Call ``reload`` on the loop at each SIGHUP; in the main thread only, like ``install``."""
    if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
        loop.add_signal_handler(signal.SIGHUP, reload)


class _Policy:
    """Remember which signals have come."""

    def __init__(self, drain: Callable[[], None], exit_now: Callable[[int], object]) -> None:
        self._drain = drain
        self._exit_now = exit_now
        self._draining = False
        self._interrupted = False

    def terminate(self) -> None:
        self._drain_once("SIGTERM")

    def interrupt(self) -> None:
        if self._interrupted:
            # Not sys.exit: a worker in a long kernel would keep the interpreter from ending.
            logger.warning("interrupted again, exiting at once")
            self._exit_now(INTERRUPTED_EXIT_CODE)
            return
        self._interrupted = True
        self._drain_once("SIGINT", hint="interrupt again to exit at once")

    def _drain_once(self, name: str, **facts: str) -> None:
        logger.info("stopping", signal=name, **facts)
        if not self._draining:
            self._draining = True
            self._drain()
