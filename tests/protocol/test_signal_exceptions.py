"""Exceptions of signal handlers are told from others, by the frames of their tracebacks."""

from __future__ import annotations

import enum
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from burn_remote_protocol.signal_exceptions import (
    RaisedAgain,
    is_of_signal_handler,
    pass_on_of_signal_handler,
)


class Late(TimeoutError):
    pass


def plain(number: int, frame: Any) -> None:
    raise Late


def with_rest(*_: Any) -> None:
    raise Late


def with_more(extra: str, number: int, frame: Any) -> None:
    raise Late


def forgetful(number: int, frame: Any) -> None:
    del frame
    raise Late


def in_a_call(number: int, frame: Any) -> None:
    plain(number, None)


class Handler:
    def __call__(self, number: int, frame: Any) -> None:
        raise Late

    def method(self, number: int, frame: Any) -> None:
        raise Late


HANDLERS: dict[str, Callable[..., None]] = {
    "function": plain,
    "variable arguments": with_rest,
    "partial": partial(with_more, "extra"),
    "deletes its arguments": forgetful,
    "calls a function that raises": in_a_call,
    "lambda": lambda *_: plain(0, None),
    "object": Handler(),
    "method": Handler().method,
}


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.signal(signal.SIGALRM, before)


def interrupted() -> None:
    signal.raise_signal(signal.SIGALRM)


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
def test_an_exception_of_a_signal_handler_is_recognized(handler: Callable[..., None]) -> None:
    signal.signal(signal.SIGALRM, handler)
    with pytest.raises(Late) as seen:
        interrupted()
    assert is_of_signal_handler(seen.value)
    with pytest.raises(Late):
        pass_on_of_signal_handler(seen.value)


def test_a_handler_that_was_replaced_meanwhile_is_recognized() -> None:
    signal.signal(signal.SIGALRM, plain)
    with pytest.raises(Late) as seen:
        interrupted()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert is_of_signal_handler(seen.value)


def test_an_exception_of_a_trace_function_is_recognized() -> None:
    def trace(frame: Any, event: str, argument: Any) -> None:
        if frame.f_code is interrupted.__code__:
            raise Late

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with pytest.raises(Late) as seen:
            interrupted()
    finally:
        sys.settrace(before)
    assert is_of_signal_handler(seen.value)


def fail(number: int, text: str) -> None:
    raise Late(number, text)


def test_other_exceptions_are_not_recognized() -> None:
    for raising in (partial(fail, 14, "late"), partial(int, "one")):
        with pytest.raises((Late, ValueError)) as seen:
            raising()
        assert not is_of_signal_handler(seen.value)
        pass_on_of_signal_handler(seen.value)
    assert not is_of_signal_handler(Late())


def test_an_exception_that_is_raised_again_without_its_traceback_is_recognized() -> None:
    class Again(RaisedAgain, Late):
        pass

    assert is_of_signal_handler(Again())


def test_the_error_of_an_enumeration_is_not_of_a_signal_handler() -> None:
    class Kind(enum.IntEnum):
        ONLY = 0

    assert signal.SIG_DFL in map(signal.getsignal, signal.valid_signals())
    with pytest.raises(ValueError, match="is not a valid") as raised:
        Kind(5)
    assert not is_of_signal_handler(raised.value)


def test_looking_for_handlers_makes_no_members_of_enumerations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise ValueError("own")

    def refuse(*_: Any) -> None:
        raise AssertionError("a slow function of the module signal was called")

    monkeypatch.setattr(signal, "getsignal", refuse)
    monkeypatch.setattr(signal, "valid_signals", refuse)
    with pytest.raises(ValueError, match="own") as raised:
        fail()
    assert not is_of_signal_handler(raised.value)
