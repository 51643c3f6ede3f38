"""The event poller calls every callback, even after one has raised."""

from __future__ import annotations

import queue
import threading

import pytest

from burn_remote_server.backends.cupy.event_poller import (
    INTERVAL_SECONDS,
    NOT_READY,
    PATIENT_SECONDS,
    Awaited,
    EventPoller,
    EventQueue,
)
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
        watch.call(FakeEvent(status), told.put, 1)
        assert told.get(timeout=PATIENCE_SECONDS) == status


def test_a_pending_event_calls_back_after_it_completes(watch: EventPoller) -> None:
    told: queue.Queue[int] = queue.Queue()
    event = FakeEvent()
    watch.call(event, told.put, 1)
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

    watch.call(event, broken, 1)
    watch.call(event, lambda _: told.put("beside it"), 2)
    event.status = 0
    assert told.get(timeout=PATIENCE_SECONDS) == "broken"
    assert told.get(timeout=PATIENCE_SECONDS) == "beside it"
    watch.call(FakeEvent(0), lambda _: told.put("later"), 1)
    assert told.get(timeout=PATIENCE_SECONDS) == "later"
    (record,) = caplog.records
    assert record.exc_info is not None
    assert "event callback failed" in record.getMessage()


def test_only_the_oldest_event_of_a_stream_is_queried(watch: EventPoller) -> None:
    told: queue.Queue[str] = queue.Queue()
    first, second, other = FakeEvent(), FakeEvent(0), FakeEvent(0)
    watch.call(first, lambda _: told.put("first"), 1)
    assert first.was_asked.wait(PATIENCE_SECONDS)
    watch.call(second, lambda _: told.put("second"), 1)
    watch.call(other, lambda _: told.put("another stream"), 2)
    assert told.get(timeout=PATIENCE_SECONDS) == "another stream"
    first.was_asked.clear()
    assert first.was_asked.wait(PATIENCE_SECONDS)
    assert not second.was_asked.is_set()
    first.status = 0
    assert told.get(timeout=PATIENCE_SECONDS) == "first"
    assert told.get(timeout=PATIENCE_SECONDS) == "second"


def test_a_lost_device_ends_the_wait_for_all_events_of_a_stream(watch: EventPoller) -> None:
    told: queue.Queue[int] = queue.Queue()
    events = [FakeEvent() for _ in range(3)]
    for event in events:
        watch.call(event, told.put, 1)
    assert events[0].was_asked.wait(PATIENCE_SECONDS)
    for event in events:
        event.status = 700
    assert [told.get(timeout=PATIENCE_SECONDS) for _ in events] == [700, 700, 700]


def test_an_event_that_nobody_waits_for_calls_back_too(watch: EventPoller) -> None:
    told: queue.Queue[int] = queue.Queue()
    event = FakeEvent()
    watch.call(event, told.put, 1, is_patient=True)
    assert event.was_asked.wait(PATIENCE_SECONDS)
    event.status = 0
    assert told.get(timeout=PATIENCE_SECONDS) == 0


def test_a_patient_event_wakes_a_thread_that_is_idle(watch: EventPoller) -> None:
    told: queue.Queue[int] = queue.Queue()
    for _ in range(50):
        watch.call(FakeEvent(0), told.put, 1, is_patient=True)
        assert told.get(timeout=PATIENCE_SECONDS) == 0


def test_hurrying_an_event_that_has_passed_disturbs_no_other(watch: EventPoller) -> None:
    told: queue.Queue[str] = queue.Queue()
    first, second = FakeEvent(0), FakeEvent()
    watch.call(first, lambda _: told.put("first"), 1, is_patient=True)
    assert told.get(timeout=PATIENCE_SECONDS) == "first"
    watch.hurry(first)
    watch.call(second, lambda _: told.put("second"), 1, is_patient=True)
    watch.hurry(second)
    second.status = 0
    assert told.get(timeout=PATIENCE_SECONDS) == "second"


class TestIntervals:
    """When a stream is polled again, by who waits for which of its events."""

    @staticmethod
    def events(*urgent: bool, seconds_each: float = 0.0) -> EventQueue:
        times = iter([0.0, 4 * seconds_each])
        events = EventQueue(lambda: next(times))
        events.extend([Awaited(FakeEvent(), print, is_urgent=one) for one in urgent])
        events.note_passed(4)
        return events

    def test_seldom_if_nobody_waits(self) -> None:
        assert self.events(False, False).interval() == PATIENT_SECONDS

    def test_often_for_the_oldest_event(self) -> None:
        assert self.events(True, False, seconds_each=1.0).interval() == INTERVAL_SECONDS

    def test_by_the_time_that_the_events_before_it_will_take(self) -> None:
        events = self.events(False, False, False, True, seconds_each=200e-6)
        assert events.interval() == pytest.approx(300e-6)

    def test_at_most_as_seldom_as_for_an_event_that_nobody_waits_for(self) -> None:
        assert self.events(False, True, seconds_each=1.0).interval() == PATIENT_SECONDS
