"""Log lines wait for their stream in a thread, so that no session waits for it."""

from __future__ import annotations

import io
import logging
import os
import threading
from collections.abc import Iterator

import pytest

from burn_remote_server.telemetry import log_writer
from burn_remote_server.telemetry.log_writer import LogWriter
from support.missing_threads import no_thread
from support.waiting import PATIENCE_SECONDS


class Blocked(io.StringIO):
    """A stream whose writes wait for ``opened``, like a pipe that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.opened, self.entered = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.entered.set()
        assert self.opened.wait(PATIENCE_SECONDS)
        return super().write(text)


class Full(io.StringIO):
    """A file of a full file system."""

    def write(self, text: str) -> int:
        raise OSError(28, os.strerror(28))


@pytest.fixture
def blocked() -> Iterator[Blocked]:
    stream = Blocked()
    yield stream
    stream.opened.set()


def record(text: str) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": text})


def test_lines_are_written_in_their_order() -> None:
    stream = io.StringIO()
    writer = LogWriter(stream)
    for number in range(100):
        writer.handle(record(f"line {number}"))
    writer.flush()
    assert stream.getvalue() == "".join(f"line {number}\n" for number in range(100))


def test_a_stream_that_blocks_delays_nobody(blocked: Blocked) -> None:
    writer = LogWriter(blocked)
    writer.handle(record("first"))
    assert blocked.entered.wait(PATIENCE_SECONDS)
    writer.handle(record("second"))  # returns although the write has not
    assert blocked.getvalue() == ""
    blocked.opened.set()
    writer.flush()
    assert blocked.getvalue() == "first\nsecond\n"


def test_lines_beyond_the_limit_are_dropped_and_counted(
    blocked: Blocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "MAX_WAITING_LINES", 2)
    writer = LogWriter(blocked)
    writer.setFormatter(logging.Formatter("%(message)s%(lines)s", defaults={"lines": ""}))
    writer.handle(record("0"))
    assert blocked.entered.wait(PATIENCE_SECONDS)
    for number in range(1, 8):
        writer.handle(record(str(number)))
    blocked.opened.set()
    writer.flush()
    writer.handle(record("8"))
    writer.flush()
    assert blocked.getvalue().splitlines() == ["0", "1", "log lines dropped", "2", "8"]


def test_the_end_does_not_wait_for_a_stream_that_blocks(
    blocked: Blocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "FLUSH_SECONDS", 0.01)
    writer = LogWriter(blocked)
    writer.handle(record("never written"))
    writer.flush()
    assert not blocked.opened.is_set()
    assert blocked.getvalue() == ""


def test_lines_after_dropped_ones_are_written_at_the_end_of_the_process(
    blocked: Blocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "MAX_WAITING_LINES", 2)
    monkeypatch.setattr(log_writer, "FLUSH_SECONDS", PATIENCE_SECONDS)
    writer = LogWriter(blocked)
    writer.handle(record("0"))
    assert blocked.entered.wait(PATIENCE_SECONDS)
    for number in range(1, 8):
        writer.handle(record(str(number)))
    writer.acquire()  # as ``logging.shutdown`` does
    try:
        blocked.opened.set()
        writer.flush()
        assert blocked.getvalue() == "0\n1\nlog lines dropped\n2\n"
    finally:
        writer.release()


@pytest.mark.parametrize("is_closed", [False, True])
def test_lines_that_cannot_be_written_are_lost_without_an_error(is_closed: bool) -> None:
    stream = io.StringIO() if is_closed else Full()
    if is_closed:
        stream.close()
    writer = LogWriter(stream)
    writer.handle(record("one"))
    writer.handle(record("two"))
    writer.flush()


def test_lines_wait_while_the_system_has_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    writer = LogWriter(stream)
    with monkeypatch.context() as patched:
        patched.setattr(log_writer, "BoundedThread", no_thread)
        writer.handle(record("first"))
    writer.handle(record("second"))
    writer.flush()
    assert stream.getvalue() == "first\nsecond\n"


class Scarce(io.StringIO):
    """A stream whose first write has no memory."""

    def write(self, text: str) -> int:
        if text == "first\n":
            raise MemoryError
        return super().write(text)


def test_the_thread_goes_on_after_a_lack_of_memory() -> None:
    stream = Scarce()
    writer = LogWriter(stream)
    writer.handle(record("first"))
    writer.handle(record("second"))
    writer.flush()
    assert stream.getvalue() == "second\n"


class Unformatted(logging.Formatter):
    """A formatter without memory."""

    def format(self, record: logging.LogRecord) -> str:
        raise MemoryError


def test_a_line_that_cannot_be_formatted_for_memory_is_counted_as_dropped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream = io.StringIO()
    writer = LogWriter(stream)
    writer.setFormatter(Unformatted())
    writer.handle(record("first"))
    writer.setFormatter(None)
    writer.handle(record("second"))
    writer.flush()
    assert stream.getvalue() == "second\nlog lines dropped\n"
    assert capsys.readouterr().err == ""
