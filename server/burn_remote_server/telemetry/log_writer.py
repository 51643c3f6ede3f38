"""Writing of log lines in a thread of their own.

A write blocks for any time if the stream is a pipe whose reader has stopped, or a file on a disk
that hangs. On the event loop, such a write would stop all sessions.
"""

from __future__ import annotations

import io
import logging
import time
from typing import Final, TextIO

from burn_remote_protocol.bounded_threads import BoundedThread
from burn_remote_protocol.timed_queue import TimedQueue

__all__ = ["LogWriter"]

# Lines that wait for the stream. A line has some 300 bytes, one with a traceback some thousand.
MAX_WAITING_LINES: Final = 4096
# How long the end of the process waits for the stream.
FLUSH_SECONDS: Final = 1.0
# The interval at which ``flush`` checks whether all lines are written.
FLUSH_PAUSE_SECONDS: Final = 0.002


class LogWriter(logging.Handler):
    """A handler that formats records at once, and writes their lines in a thread.

    While too many lines wait, further ones are dropped and counted; once lines can be written
    again, one of them says how many were dropped. Lines that cannot be written, for example into a
    full file system, are lost.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream: Final = stream
        self._file: Final = _unbuffered(stream)
        self._lines: Final[TimedQueue[str]] = TimedQueue()
        # Each has one writer: the threads that hold the handler's lock, or the thread that writes.
        # That thread needs no lock, because ``logging.shutdown`` holds the handler's during
        # ``flush``.
        self._put = 0
        self._done = 0
        self._dropped = 0
        self._reported = 0  # of the dropped lines
        self._thread: BoundedThread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Format a record, and have its line written."""
        try:
            line = self.format(record)
        except MemoryError:
            self._dropped += 1
            return
        except Exception:
            self.handleError(record)
            return
        if self._lines.count >= MAX_WAITING_LINES:
            self._dropped += 1
        else:
            try:
                self._lines.put(line)
                self._put += 1
            except MemoryError:
                self._dropped += 1
        if self._thread is None:  # the lock of the handler is held
            self._start_thread()

    def _start_thread(self) -> None:
        try:
            thread = BoundedThread(target=self._write, name="log-writer")
            thread.start()
        except (RuntimeError, MemoryError):
            return  # lines wait for the next attempt
        self._thread = thread

    def flush(self) -> None:
        """Wait until all lines are written, for at most ``FLUSH_SECONDS``."""
        put, deadline = self._put, time.monotonic() + FLUSH_SECONDS
        while self._done < put and time.monotonic() < deadline:
            time.sleep(FLUSH_PAUSE_SECONDS)

    def _write(self) -> None:
        while True:
            try:
                line = self._lines.get()
            except MemoryError:
                continue
            try:  # noqa: SIM105 - ``suppress`` needs memory
                self._write_text(line + self._dropped_line() + "\n")
            except (OSError, ValueError, MemoryError):
                pass  # a full file system, or a stream that was closed
            try:  # noqa: SIM105 - as above
                self._done += 1
            except MemoryError:
                pass  # the line stays counted, so ``flush`` waits until its limit

    def _write_text(self, text: str) -> None:
        if self._file is None:
            self._stream.write(text)
            self._stream.flush()
            return
        rest = text.encode(errors="backslashreplace")
        while rest:
            count = self._file.write(rest)
            if count is None:  # the stream does not block, and is full
                return
            rest = rest[count:]

    def _dropped_line(self) -> str:
        dropped = self._dropped - self._reported
        if not dropped:
            return ""
        self._reported += dropped
        facts = {"facts": {"lines": dropped}, "msg": "log lines dropped", "name": __name__}
        return "\n" + self.format(
            logging.makeLogRecord({**facts, "levelno": logging.WARNING, "levelname": "WARNING"})
        )


def _unbuffered(stream: TextIO) -> io.FileIO | None:
    """Return the file of a stream without a buffer; ``None`` for a stream without a file.

    A thread that blocks inside a buffer holds its lock, and Python aborts if it cannot flush the
    standard streams when the process ends.
    """
    try:
        return io.FileIO(stream.fileno(), "w", closefd=False)
    except (OSError, ValueError):
        return None
