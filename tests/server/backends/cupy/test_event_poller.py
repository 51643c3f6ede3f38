"""The event watch calls every callback, even after one has raised."""

from __future__ import annotations

import queue
import threading

import pytest

from burn_remote_server.backends.cupy.event_poller import NOT_READY, EventPoller
from support.waiting import PATIENCE_SECONDS


class FakeDevice:
    id = 7

    def use(self) -> None:
        pass


class FakeEvent:
    def __init__(self, status: int = NOT_READY) -> None:
        self.status = status
        self.was_asked = threading.Event()


def status_of(event: FakeEvent) -> int:
    event.was_asked.set()
    return event.status


@pytest.fixture
def watch() -> EventPoller:
    return EventPoller(FakeDevice(), status_of)


def test_a_completed_event_calls_back_with_its_status(watch: EventPoller) -> None:
    told: queue.Queue[int] = queue.Queue()
    for status in (0, 719):
        watch.call(FakeEvent(status), told.put)
        assert told.get(timeout=PATIENCE_SECONDS) == status


def test_a_pending_event_calls_back_after_it_completes(watch: EventPoller) -> None:
    told: queue.Queue[int] = queue.Queue()
    event = FakeEvent()
    watch.call(event, told.put)
    assert event.was_asked.wait(PATIENCE_SECONDS)
    assert told.empty()
    event.status = 0
    assert told.get(timeout=PATIENCE_SECONDS) == 0


def test_a_callback_that_raises_is_logged_and_the_others_are_called(
    watch: EventPoller, caplog: pytest.LogCaptureFixture
) -> None:
    told: queue.Queue[str] = queue.Queue()
    event = FakeEvent()

    def broken(status: int) -> None:
        told.put("broken")
        raise RuntimeError("the loop is closed")

    watch.call(event, broken)
    watch.call(event, lambda _: told.put("beside it"))
    event.status = 0
    assert told.get(timeout=PATIENCE_SECONDS) == "broken"
    assert told.get(timeout=PATIENCE_SECONDS) == "beside it"
    watch.call(FakeEvent(0), lambda _: told.put("later"))
    assert told.get(timeout=PATIENCE_SECONDS) == "later"
    (record,) = caplog.records
    assert record.exc_info is not None
    assert "event_callback_failed" in record.getMessage()
