from __future__ import annotations

import gc
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from burn_remote_protocol import interrupted_finalizers
from burn_remote_protocol.interrupted_finalizers import (
    call_once_when_freed,
    call_when_freed,
    install,
    repeatable,
)


class Stop(KeyboardInterrupt):
    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason, code)


class Freed:
    """Raises ``errors`` in its finalizer, one in each call."""

    def __init__(self, errors: list[BaseException], calls: list[object]) -> None:
        self.errors = errors
        self.calls = calls

    @repeatable
    def __del__(self) -> None:
        self.calls.append(self)
        if self.errors:
            raise self.errors.pop(0)


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    """Let no collection raise the interrupts of finalizers before a test expects them."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def reported(monkeypatch: pytest.MonkeyPatch) -> list[BaseException | None]:
    """The exceptions that reach the previous hook."""
    reported: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda seen: reported.append(seen.exc_value))
    install()
    return reported


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), KeyboardInterrupt("a", 1), SystemExit(143), Stop("now", 2)],
    ids=repr,
)
def test_an_interrupted_finalizer_is_repeated_and_the_program_gets_the_interrupt(
    error: BaseException, reported: list[BaseException | None]
) -> None:
    calls: list[object] = []
    made = [Freed([error], calls)]
    with pytest.raises(type(error)) as seen:
        made.clear()
    assert seen.value.args == error.args
    assert getattr(seen.value, "code", None) == getattr(error, "code", None)
    assert len(calls) == 2
    assert not reported


def test_interrupts_in_a_row_repeat_the_finalizer_until_none_comes() -> None:
    calls: list[object] = []
    made = [Freed([KeyboardInterrupt() for _ in range(5)], calls)]
    with pytest.raises(KeyboardInterrupt):
        made.clear()
    assert len(calls) == 6


def test_an_interrupt_in_each_of_many_finalizers_ends_in_one() -> None:
    calls: list[object] = []
    made = [Freed([KeyboardInterrupt("a")], calls) for _ in range(1000)]
    with pytest.raises(KeyboardInterrupt, match="a"):
        made.clear()
    assert len({id(one) for one in calls}) == 1000
    assert len(calls) >= 2000


def test_the_interrupt_of_another_thread_is_raised_in_that_thread() -> None:
    ended: list[str] = []

    def work() -> None:
        made = [Freed([KeyboardInterrupt()], [])]
        try:
            made.clear()
        except KeyboardInterrupt:
            ended.append(threading.current_thread().name)

    thread = threading.Thread(target=work, name="other")
    thread.start()
    thread.join()
    assert ended == ["other"]


def test_a_handler_of_the_program_is_called_once_for_one_signal() -> None:
    calls: list[int] = []

    class Signalled:
        @repeatable
        def __del__(self) -> None:
            if not calls:
                signal.raise_signal(signal.SIGINT)

    def handle(number: int, frame: object) -> None:
        calls.append(number)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the next one ends the process
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    try:
        made = [Signalled()]
        with pytest.raises(KeyboardInterrupt):
            made.clear()
    finally:
        signal.signal(signal.SIGINT, before)
    assert calls == [signal.SIGINT]


def test_errors_go_to_the_previous_hook(
    reported: list[BaseException | None],
) -> None:
    made = [Freed([ValueError("own")], [])]
    made.clear()
    assert [str(error) for error in reported] == ["own"]


def test_an_error_of_the_repeated_call_does_not_lose_the_interrupt(
    reported: list[BaseException | None],
) -> None:
    made = [Freed([KeyboardInterrupt(), ValueError("own")], [])]
    with pytest.raises(KeyboardInterrupt):
        made.clear()
    assert [str(error) for error in reported] == ["own"]


def test_an_error_of_the_repeated_call_reaches_the_hook_of_python(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    install()
    made = [Freed([KeyboardInterrupt(), ValueError("own")], [])]
    with pytest.raises(KeyboardInterrupt):
        made.clear()
    seen = capsys.readouterr().err
    assert "Exception ignored in: <function Freed.__del__" in seen
    assert "ValueError: own" in seen


def test_hooks_that_replace_each_other_form_no_circle(
    reported: list[BaseException | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        present = sys.unraisablehook
        monkeypatch.setattr(sys, "unraisablehook", lambda seen, present=present: present(seen))
        install()
    installed = sys.unraisablehook
    install()
    assert sys.unraisablehook is installed
    made = [Freed([ValueError("own")], []), Freed([KeyboardInterrupt()], [])]
    with pytest.raises(KeyboardInterrupt):
        made.clear()
    assert [str(error) for error in reported] == ["own"]


def test_an_interrupt_during_a_collection_of_garbage_reaches_the_program() -> None:
    calls: list[object] = []
    made: Any = Freed([KeyboardInterrupt()], calls)
    made.itself = made
    del made
    with pytest.raises(KeyboardInterrupt):
        gc.collect()
    assert len(calls) == 2


def _callback(phases: list[str]) -> Any:
    def note(phase: str, info: dict[str, int]) -> None:
        phases.append(phase)

    return note


def _callback_with_any_arguments(phases: list[str]) -> Any:
    def note(*arguments: Any, also: list[str] = phases) -> None:
        phase, _ = arguments
        also.append(phase)

    return note


@pytest.mark.parametrize("kind", [_callback, _callback_with_any_arguments])
def test_a_callback_of_the_garbage_collector_gets_every_call(
    kind: Callable[[list[str]], Any],
) -> None:
    phases: list[str] = []
    note = kind(phases)
    made: Any = Freed([KeyboardInterrupt()], [])
    made.itself = made
    made.calls = Calls()
    del made
    gc.callbacks.append(note)
    try:
        with pytest.raises(KeyboardInterrupt):
            gc.collect()
    finally:
        gc.callbacks.remove(note)
    assert phases == ["start", "stop"]


def test_a_function_is_called_once_when_its_object_is_freed() -> None:
    class Owner:
        __hash__ = None  # type: ignore[assignment]

    calls: list[str] = []
    owner = Owner()
    call_when_freed(owner, lambda: calls.append("freed"))
    gc.collect()
    assert calls == []
    del owner
    assert calls == ["freed"]


def test_an_interrupted_call_for_a_freed_object_is_repeated() -> None:
    calls: list[str] = []

    def function() -> None:
        calls.append("freed")
        if len(calls) == 1:
            raise KeyboardInterrupt

    before = {*interrupted_finalizers._references}
    made = [weakref.WeakSet[object]()]
    call_when_freed(made[0], function)
    with pytest.raises(KeyboardInterrupt):
        made.clear()
    assert calls == ["freed"] * 2
    assert {*interrupted_finalizers._references} <= before


@pytest.mark.parametrize("error", [KeyboardInterrupt(), TimeoutError("late")], ids=repr)
def test_an_interrupt_in_a_call_that_must_not_be_repeated_reaches_the_program(
    error: BaseException, reported: list[BaseException | None]
) -> None:
    calls: list[str] = []

    def handle(number: int, frame: object) -> None:
        raise error

    def function() -> None:
        calls.append("freed")
        signal.raise_signal(signal.SIGUSR1)
        calls.append("unreachable")

    before = {*interrupted_finalizers._references}
    made = [weakref.WeakSet[object]()]
    call_once_when_freed(made[0], function)
    previous = signal.signal(signal.SIGUSR1, handle)
    try:
        with pytest.raises(type(error)):
            made.clear()
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert calls == ["freed"]
    assert {*interrupted_finalizers._references} <= before
    assert not reported


class Foreign:
    """A class of another library, of whose finalizer nothing is known."""

    def __init__(self, freed: list[str]) -> None:
        self.freed = freed

    def __del__(self) -> None:
        self.freed.append("foreign")


def test_finalizers_between_the_interrupted_one_and_the_program_run() -> None:
    freed: list[str] = []
    made: list[Any] = [Freed([KeyboardInterrupt("a")], [])]
    foreign = made[0].foreign = Foreign(freed)
    made[0].others = weakref.WeakSet([foreign])
    kept: Any = weakref.WeakSet([foreign])
    reference = weakref.ref(foreign, lambda _: freed.append("reference"))
    weakref.finalize(foreign, freed.append, "finalize")
    del foreign
    with pytest.raises(KeyboardInterrupt) as seen:
        made[0].calls = Calls()
        made.clear()
    assert seen.value.args == ("a",)
    assert sorted(freed) == ["finalize", "foreign", "reference"]
    assert len(kept.data) == 0
    assert reference() is None


def test_an_interrupt_inside_a_foreign_finalizer_goes_to_the_previous_hook(
    reported: list[BaseException | None],
) -> None:
    class Interrupted:
        def __del__(self) -> None:
            len([])
            raise KeyboardInterrupt("foreign")

    made: list[object] = [Interrupted()]
    made.clear()
    assert [str(error) for error in reported] == ["foreign"]


class Calls:
    def append(self, one: object) -> None:
        """Do not keep it alive."""


# -- finalizers that always raise -------------------------------------------------------------


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt("own")], ids=repr)
def test_a_foreign_finalizer_that_always_raises_is_repeated_once(
    reported: list[BaseException | None], error: BaseException
) -> None:
    calls: list[str] = []

    class Raising:
        def __del__(self) -> None:
            calls.append("foreign")
            raise error

    made: list[object] = [Raising(), Freed([KeyboardInterrupt("a")], [])]
    with pytest.raises(KeyboardInterrupt, match="a"):
        made.clear()
    assert calls == ["foreign"]
    assert reported == [error]


def test_a_marked_finalizer_that_always_raises_is_not_repeated_without_end(
    reported: list[BaseException | None],
) -> None:
    calls: list[object] = []
    made = [Freed([KeyboardInterrupt() for _ in range(10_000)], calls)]
    with pytest.raises(KeyboardInterrupt):
        made.clear()
    assert len(calls) == 1 + interrupted_finalizers.MAX_REPEATS
    assert [type(error) for error in reported] == [KeyboardInterrupt]


# -- exceptions of signal handlers ------------------------------------------------------------


class Timeout(Exception):
    pass


def raise_timeout(number: int, frame: object) -> None:
    raise Timeout("late", number)


class Handler:
    def handle(self, number: int, frame: object) -> None:
        raise_in_handler()

    def __call__(self, number: int, frame: object) -> None:
        raise_in_handler()


def raise_in_handler() -> None:
    raise Timeout("late", int(signal.SIGINT))


class Signalled:
    """A signal comes in the first calls of its finalizer."""

    def __init__(self, calls: list[object], signals: int = 1) -> None:
        self.calls = calls
        self.signals = signals

    @repeatable
    def __del__(self) -> None:
        self.calls.append(self)
        if self.signals:
            self.signals -= 1
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("handler", [raise_timeout, Handler().handle, Handler()])
@pytest.mark.parametrize("signals", [1, 3])
def test_an_exception_of_a_signal_handler_repeats_a_finalizer_and_reaches_the_program(
    reported: list[BaseException | None], handler: Any, signals: int
) -> None:
    calls: list[object] = []
    freed: list[str] = []
    made: list[object] = [Foreign(freed), Freed([], calls), Signalled(calls, signals)]
    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(Timeout) as seen:
            made.clear()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen.value.args == ("late", signal.SIGINT)
    assert len({id(one) for one in calls}) == 2
    assert sum(type(one) is Signalled for one in calls) == 1 + signals
    assert freed == ["foreign"]
    assert not reported
