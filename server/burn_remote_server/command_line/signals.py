"""Signal handlers of the daemon.

SIGTERM and SIGINT drain the server; a second SIGINT exits at once. SIGHUP reloads tokens and
certificates.
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

# The exit code that shells report for a program killed by SIGINT.
INTERRUPTED_EXIT_CODE: Final = 128 + signal.SIGINT

logger = get_logger(__name__)


def install(
    loop: asyncio.AbstractEventLoop,
    drain: Callable[[], None],
    *,
    exit_now: Callable[[int], object] = os._exit,
) -> None:
    """Call ``drain`` once, on the loop, at the first SIGTERM or SIGINT.

    Python delivers signals to the main thread only. In any other thread this installs nothing, and
    the program that started the server must stop it. Closing the loop removes the handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    policy = _Policy(drain, exit_now)
    loop.add_signal_handler(signal.SIGTERM, policy.terminate)
    loop.add_signal_handler(signal.SIGINT, policy.interrupt)


def on_hangup(loop: asyncio.AbstractEventLoop, reload: Callable[[], None]) -> None:
    """Call ``reload`` on the loop at each SIGHUP. In the main thread only, like ``install``."""
    if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
        loop.add_signal_handler(signal.SIGHUP, reload)


class _Policy:
    """Decides the effect of each signal from the signals received before."""

    def __init__(self, drain: Callable[[], None], exit_now: Callable[[int], object]) -> None:
        self._drain = drain
        self._exit_now = exit_now
        self._draining = False
        self._interrupted = False

    def terminate(self) -> None:
        self._drain_once("SIGTERM")

    def interrupt(self) -> None:
        if self._interrupted:
            # Not sys.exit, because the interpreter would wait for worker threads in long kernels.
            logger.warning("interrupted again")
            self._exit_now(INTERRUPTED_EXIT_CODE)
            return
        self._interrupted = True
        self._drain_once("SIGINT", hint="interrupt again to exit at once")

    def _drain_once(self, name: str, **facts: str) -> None:
        logger.info("stopping", signal=name, **facts)
        if not self._draining:
            self._draining = True
            self._drain()
