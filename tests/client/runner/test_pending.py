"""A pending value reaches every waiter, whatever the callbacks do."""

from __future__ import annotations

import logging

import pytest

from burn_remote.runner.pending import Pending


def failing(_: Pending[int]) -> None:
    raise ZeroDivisionError("a callback of the program")


def test_an_exception_in_a_callback_is_logged_and_the_others_are_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pending: Pending[int] = Pending()
    got: list[int] = []
    pending.on_done(failing)
    pending.on_done(lambda done: got.append(done.result()))
    with caplog.at_level(logging.ERROR, logger="burn_remote"):
        pending.complete(3)
    assert got == [3]
    assert "a callback of the program" in caplog.text


def test_an_exception_in_a_late_callback_is_logged_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pending: Pending[int] = Pending()
    pending.complete(3)
    pending.on_done(failing)
    assert "a callback of the program" in caplog.text


def test_an_interrupt_in_a_callback_is_raised_after_the_other_callbacks() -> None:
    pending: Pending[int] = Pending()
    got: list[int] = []

    def interrupted(_: Pending[int]) -> None:
        raise KeyboardInterrupt

    pending.on_done(interrupted)
    pending.on_done(lambda done: got.append(done.result()))
    with pytest.raises(KeyboardInterrupt):
        pending.complete(3)
    assert got == [3]


def test_each_callback_is_called_once() -> None:
    pending: Pending[int] = Pending()
    calls: list[int] = []
    pending.on_done(lambda done: calls.append(done.result()))
    pending.complete(1)
    pending.complete(2)
    pending.on_done(lambda done: calls.append(10 * done.result()))
    assert calls == [1, 10]
