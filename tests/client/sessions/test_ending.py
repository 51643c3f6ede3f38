"""The steps that end a connection."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import pytest

from burn_remote.sessions.ending import Ending
from support.waiting import PATIENCE_SECONDS


def in_a_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_the_steps_run_once_in_their_order() -> None:
    ending, seen = Ending(), list[str]()
    for _ in range(2):
        ending.complete(lambda: seen.append("link"), lambda: seen.append("reads"))
    assert seen == ["link", "reads"]
    assert ending.is_complete


def test_another_thread_repeats_steps_that_were_interrupted() -> None:
    ending, seen = Ending(), list[str]()

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ending.complete(lambda: seen.append("link"), interrupted)
    assert not ending.is_complete
    in_a_thread(lambda: ending.complete(lambda: seen.append("link"), lambda: seen.append("reads")))
    assert seen == ["link", "link", "reads"]
    assert ending.is_complete


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_step_that_fails_in_any_thread_leaves_the_others_and_is_repeated(
    error: type[BaseException],
) -> None:
    ending, seen = Ending(), list[str]()

    def fail() -> None:
        raise error

    def complete_in_vain() -> None:
        with contextlib.suppress(error):
            ending.complete(fail, lambda: seen.append("reads"))

    in_a_thread(complete_in_vain)
    assert seen == ["reads"]
    assert not ending.is_complete
    ending.complete(lambda: seen.append("link"), lambda: seen.append("reads"))
    assert seen == ["reads", "link", "reads"]
    assert ending.is_complete


def test_a_step_without_memory_is_repeated_at_once() -> None:
    ending, lacks = Ending(), [MemoryError(), MemoryError()]

    def fail_reads() -> None:
        if lacks:
            raise lacks.pop()

    in_a_thread(lambda: ending.complete(fail_reads))
    assert ending.is_complete and not lacks


def test_a_step_that_ends_the_connection_again_does_not_repeat_itself() -> None:
    ending, seen = Ending(), list[str]()

    def nested() -> None:
        seen.append("nested")
        ending.complete(nested)

    ending.complete(nested)
    assert seen == ["nested"]


def test_steps_that_another_thread_has_begun_are_left_to_it() -> None:
    ending, seen = Ending(), list[str]()

    def begun() -> None:
        seen.append("begun")
        main = threading.Event()

        def late() -> None:
            ending.complete(lambda: seen.append("late"))
            main.set()

        in_a_thread(late)
        assert main.is_set()

    in_a_thread(lambda: ending.complete(begun))
    assert seen == ["begun"]
