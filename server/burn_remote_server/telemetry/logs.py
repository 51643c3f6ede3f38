"""Structured logging: events with key–value pairs, as JSON lines or formatted for a terminal.

Each module gets its logger from ``get_logger``. Loggers emit standard library records that carry
the key–value pairs, so an in-process server does not change the logging of its host program. Only
the daemon calls ``configure``, which gives our records and those of libraries the same format.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final, Literal, TextIO

import structlog
from structlog.stdlib import BoundLogger, ProcessorFormatter
from structlog.typing import EventDict, Processor
from websockets.exceptions import ConnectionClosed, InvalidHandshake

__all__ = ["BoundLogger", "configure", "get_logger", "session_name"]

# Expected network errors. The reason is enough; a traceback would only show library code.
_ORDINARY: Final = (ConnectionError, EOFError, TimeoutError, ConnectionClosed, InvalidHandshake)


def get_logger(name: str) -> BoundLogger:
    """Return the logger of a module: ``logger = get_logger(__name__)``."""
    logger: BoundLogger = structlog.wrap_logger(
        logging.getLogger(name), processors=_PROCESSORS, wrapper_class=BoundLogger
    )
    return logger


def session_name(identifier: int) -> str:
    """Return the name of a session (u64) in log lines: always 16 hexadecimal digits."""
    return f"{identifier:016x}"


def configure(
    level: str, log_format: Literal["auto", "console", "json"], stream: TextIO = sys.stderr
) -> logging.Handler:
    """Send every log record of this process to ``stream``; return the installed handler.

    ``auto`` means ``console`` if ``stream`` is a terminal, else ``json``.
    """
    is_terminal = stream.isatty()
    if log_format == "auto":
        log_format = "console" if is_terminal else "json"
    time_format = "iso" if log_format == "json" else "%H:%M:%S"
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=[
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.processors.TimeStamper(fmt=time_format, utc=log_format == "json"),
                _lift_facts,
            ],
            processors=[
                ProcessorFormatter.remove_processors_meta,
                *(_json() if log_format == "json" else _console(colors=is_terminal)),
            ],
        )
    )
    handler.addFilter(_shorten_disconnects)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # websockets logs each connection at info level; we already log each session.
    logging.getLogger("websockets").setLevel(logging.WARNING)
    logging.captureWarnings(True)
    return handler


def _json() -> list[Processor]:
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _console(*, colors: bool) -> list[Processor]:
    return [
        _escape_control_characters,
        structlog.dev.ConsoleRenderer(
            colors=colors, exception_formatter=structlog.dev.plain_traceback
        ),
    ]


def _to_record(logger: Any, method: str, event: EventDict) -> tuple[tuple[str], dict[str, Any]]:
    """Turn an event into the arguments of a standard library logger."""
    text = str(event.pop("event", ""))
    passed = {name: event.pop(name) for name in ("exc_info", "stack_info") if name in event}
    return (text,), {"extra": {"facts": event}, **passed}


_PROCESSORS: Final[list[Processor]] = [structlog.stdlib.filter_by_level, _to_record]


def _lift_facts(logger: Any, method: str, event: EventDict) -> EventDict:
    """Merge the key–value pairs of a record into the event."""
    facts: MutableMapping[str, Any] = getattr(event["_record"], "facts", {})
    return {**facts, **event}


def _escape_control_characters(logger: Any, method: str, event: EventDict) -> EventDict:
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
