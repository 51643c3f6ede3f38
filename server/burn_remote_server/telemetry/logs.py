"""Structured logging: events with key–value pairs, as JSON lines or formatted for a terminal.

Each module gets its logger from ``get_logger``. Loggers emit standard library records that carry
the key–value pairs, so an in-process server does not change the logging of its host program. Only
the daemon calls ``configure``, which gives our records and those of libraries the same format.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, Literal, TextIO

from websockets.exceptions import ConnectionClosed, InvalidHandshake

from burn_remote_server.telemetry.log_writer import LogWriter

__all__ = ["BoundLogger", "configure", "get_logger", "session_name"]

# Expected network errors. The reason is enough; a traceback would only show library code.
_ORDINARY: Final = (ConnectionError, EOFError, TimeoutError, ConnectionClosed, InvalidHandshake)


class BoundLogger:
    """A logger whose records have key–value pairs: those bound to it, and those of the call.

    The pair ``exc_info`` is the exception of the record, as in the standard library.
    """

    __slots__ = ("_facts", "_logger")

    def __init__(
        self, logger: logging.Logger, facts: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        self._logger = logger
        self._facts = facts

    def bind(self, **facts: Any) -> BoundLogger:
        """Return a logger whose records also have these pairs."""
        return BoundLogger(self._logger, {**self._facts, **facts})

    def debug(self, event: str, /, **facts: Any) -> None:
        """Log an event that matters only when looking for a defect."""
        self._log(logging.DEBUG, event, facts)

    def info(self, event: str, /, **facts: Any) -> None:
        """Log an event of normal operation."""
        self._log(logging.INFO, event, facts)

    def warning(self, event: str, /, **facts: Any) -> None:
        """Log an event that an operator may have to act on."""
        self._log(logging.WARNING, event, facts)

    def error(self, event: str, /, **facts: Any) -> None:
        """Log a failure."""
        self._log(logging.ERROR, event, facts)

    def exception(self, event: str, /, **facts: Any) -> None:
        """Log a failure with the exception that is being handled."""
        self._log(logging.ERROR, event, {"exc_info": True, **facts})

    def _log(self, level: int, event: str, facts: dict[str, Any]) -> None:
        if self._logger.isEnabledFor(level):
            error = facts.pop("exc_info", None)
            # stacklevel: the record names the caller of info(), not this method.
            self._logger.log(
                level,
                event,
                exc_info=error,
                extra={"facts": {**self._facts, **facts}},
                stacklevel=3,
            )


def get_logger(name: str) -> BoundLogger:
    """Return the logger of a module: ``logger = get_logger(__name__)``."""
    return BoundLogger(logging.getLogger(name))


def session_name(identifier: int) -> str:
    """Return the name of a session (u64) in log lines: always 16 hexadecimal digits."""
    return f"{identifier:016x}"


def configure(
    level: str, log_format: Literal["auto", "console", "json"], stream: TextIO = sys.stderr
) -> logging.Handler:
    """Send every log record of this process to ``stream``; return the installed handler.

    A thread writes the lines; ``flush`` of the handler waits for it.

    ``auto`` means ``console`` if ``stream`` is a terminal, else ``json``.
    """
    is_terminal = stream.isatty()
    if log_format == "auto":
        log_format = "console" if is_terminal else "json"
    handler = LogWriter(stream)
    handler.setFormatter(
        _JsonFormatter() if log_format == "json" else _ConsoleFormatter(colors=is_terminal)
    )
    handler.addFilter(_shorten_disconnects)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # websockets logs each connection at info level; we already log each session.
    logging.getLogger("websockets").setLevel(logging.WARNING)
    logging.captureWarnings(True)
    return handler


class _JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON, with the time in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z")
        event = _event(record, time)
        if record.exc_info and record.exc_info[0] is not None:
            event["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            event["stack"] = record.stack_info
        return json.dumps(event, default=repr)


class _ConsoleFormatter(logging.Formatter):
    """Formats a record for a terminal, with the local time."""

    def __init__(self, *, colors: bool) -> None:
        super().__init__()
        # A local import: structlog imports rich, which takes a tenth of a server's start, and most
        # servers write JSON.
        import structlog.dev

        self._render = structlog.dev.ConsoleRenderer(
            colors=colors, exception_formatter=structlog.dev.plain_traceback
        )

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        event = _escape_control_characters(_event(record, time))
        if record.exc_info:
            event["exc_info"] = record.exc_info
        if record.stack_info:
            event["stack"] = record.stack_info
        return str(self._render(None, record.levelname.lower(), event))


def _event(record: logging.LogRecord, time: str) -> dict[str, Any]:
    """Return the key–value pairs of a record's line. Its own pairs come first."""
    return {
        **getattr(record, "facts", {}),
        "event": record.getMessage(),
        "level": record.levelname.lower(),
        "logger": record.name,
        "timestamp": time,
    }


def _escape_control_characters(event: dict[str, Any]) -> dict[str, Any]:
    """Quote text with control characters, which a peer could use to control the terminal."""
    return {
        name: repr(value) if isinstance(value, str) and not value.isprintable() else value
        for name, value in event.items()
    }


def _shorten_disconnects(record: logging.LogRecord) -> bool:
    """Replace the traceback of a lost connection in a library record with a one-line warning."""
    error = record.exc_info[1] if record.exc_info else None
    if not record.name.startswith("websockets") or not isinstance(error, _ORDINARY):
        return True
    record.exc_info = None
    record.levelno, record.levelname = logging.WARNING, "WARNING"
    record.facts = {"reason": str(error.__cause__ or error)}
    return True
