"""The first signal drains a server; a second interrupt ends it at once."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator

import pytest

from burn_remote_server.command_line import signals
from burn_remote_server.command_line.signals import INTERRUPTED_EXIT_CODE
from support.waiting import PATIENCE_SECONDS


class Recorded:
    """Records the actions of signal handlers."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[str | int] = asyncio.Queue()

    async def next(self) -> str | int:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.events.get()


@pytest.fixture
async def recorded() -> AsyncIterator[Recorded]:
    loop = asyncio.get_running_loop()
    done = Recorded()
    signals.install(loop, lambda: done.events.put_nowait("drain"), exit_now=done.events.put_nowait)
    signals.on_hangup(loop, lambda: done.events.put_nowait("reload"))
    yield done
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.remove_signal_handler(number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains(recorded: Recorded, number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    assert await recorded.next() == "drain"


async def test_a_second_interrupt_exits_at_once(recorded: Recorded) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    assert await recorded.next() == "drain"
    os.kill(os.getpid(), signal.SIGINT)
    assert await recorded.next() == INTERRUPTED_EXIT_CODE == 130


async def test_a_second_sigterm_changes_nothing(recorded: Recorded) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    assert await recorded.next() == "drain"
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGHUP)
    assert await recorded.next() == "reload"


async def test_an_interrupt_while_draining_does_not_exit_yet(recorded: Recorded) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    assert await recorded.next() == "drain"
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGHUP)
    assert await recorded.next() == "reload"


async def test_each_hangup_reloads(recorded: Recorded) -> None:
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGHUP)
        assert await recorded.next() == "reload"


def test_a_server_in_another_thread_leaves_signals_alone() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)
    during = []

    async def install() -> None:
        signals.install(asyncio.get_running_loop(), lambda: None)
        signals.on_hangup(asyncio.get_running_loop(), lambda: None)
        during.append((signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)))

    thread = threading.Thread(target=lambda: asyncio.run(install()))
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert during == [before]
