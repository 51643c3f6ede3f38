"""Log lines are structured, uniform across libraries, and sent where the daemon configures."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from burn_remote_server.telemetry import logs as telemetry
from burn_remote_server.telemetry.logs import get_logger, session_name


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def kept_logging() -> Iterator[None]:
    """Restore the process's logging configuration."""
    root, library = logging.getLogger(), logging.getLogger("websockets")
    handlers, levels = root.handlers[:], (root.level, library.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    library.setLevel(levels[1])
    logging.captureWarnings(False)


@pytest.fixture
def stream() -> io.StringIO:
    stream = io.StringIO()
    telemetry.configure("info", "auto", stream)
    return stream


def written(stream: io.StringIO) -> str:
    """Return what has been written, after all lines that wait."""
    for handler in logging.getLogger().handlers:
        handler.flush()
    return stream.getvalue()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written(stream).splitlines()]


def test_a_line_is_json_unless_on_a_terminal(stream: io.StringIO) -> None:
    get_logger("burn_remote_server.dialects.native.session_handler").info(
        "session opened", session="2a", device=0
    )
    (line,) = lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "session opened",
        "level": "info",
        "logger": "burn_remote_server.dialects.native.session_handler",
        "session": "2a",
        "device": 0,
    }


def test_a_line_is_readable_on_a_terminal() -> None:
    stream = Terminal()
    telemetry.configure("info", "auto", stream)
    get_logger("module").info("session opened", session="2a")
    assert "session opened" in written(stream)
    assert "\x1b[" in written(stream)
    assert not written(stream).startswith("{")


def test_the_format_can_be_chosen() -> None:
    stream = Terminal()
    telemetry.configure("info", "json", stream)
    get_logger("module").info("ready")
    assert lines(stream)[0]["event"] == "ready"


def test_lines_below_the_level_are_left_out(stream: io.StringIO) -> None:
    get_logger("module").debug("detail")
    assert written(stream) == ""


def test_facts_may_have_any_name(stream: io.StringIO) -> None:
    get_logger("module").info("event", name="x", message="y", args=(1,), process=2)
    (line,) = lines(stream)
    assert (line["name"], line["message"], line["process"]) == ("x", "y", 2)


def test_a_session_is_named_in_each_of_its_lines(stream: io.StringIO) -> None:
    logger = get_logger("module").bind(session=session_name(42))
    logger.info("first")
    logger.info("second", batch=3)
    assert [line["session"] for line in lines(stream)] == ["000000000000002a"] * 2


def test_an_exception_keeps_its_traceback(stream: io.StringIO) -> None:
    try:
        raise LookupError("kernel")
    except LookupError:
        get_logger("module").exception("failed")
    (line,) = lines(stream)
    assert line["level"] == "error"
    assert "LookupError: kernel" in line["exception"]


def test_lines_of_libraries_look_like_ours(stream: io.StringIO) -> None:
    logging.getLogger("asyncio").warning("slow %s", "callback")
    assert lines(stream)[0]["event"] == "slow callback"


def test_the_websocket_library_logs_only_problems(stream: io.StringIO) -> None:
    logging.getLogger("websockets.server").info("connection open")
    assert written(stream) == ""


@pytest.mark.parametrize("error", [ConnectionResetError("reset by peer"), EOFError("ended")])
def test_a_client_that_disconnects_is_logged_in_one_line(
    stream: io.StringIO, error: Exception
) -> None:
    try:
        raise error
    except (OSError, EOFError):
        logging.getLogger("websockets.server").error("handler failed", exc_info=True)
    (line,) = lines(stream)
    assert line["level"] == "warning"
    assert line["reason"] == str(error)
    assert "exception" not in line


def test_our_own_mistake_in_a_handler_keeps_its_traceback(stream: io.StringIO) -> None:
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        logging.getLogger("websockets.server").error("handler failed", exc_info=True)
    (line,) = lines(stream)
    assert line["level"] == "error"
    assert "ZeroDivisionError" in line["exception"]


def test_control_characters_from_clients_are_escaped_in_logs() -> None:
    stream = Terminal()
    telemetry.configure("info", "auto", stream)
    get_logger("module").info("session opened", client="\x1b[2Jgone")
    assert "\x1b[2J" not in written(stream)


def test_a_server_inside_a_program_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    get_logger("module").info("ready", session=1)
    assert capfd.readouterr() == ("", "")
