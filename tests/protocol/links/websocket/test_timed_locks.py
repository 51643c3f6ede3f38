"""A lock with a timeout is taken, given up or released, whatever Ctrl-C interrupts."""

from __future__ import annotations

import threading

from burn_remote_protocol.links.websocket.frame_writer import FrameWriter, OutgoingBuffer
from burn_remote_protocol.links.websocket.timed_locks import call_holding
from support.interrupts import InterruptAfterCall, Walk
from support.link_ends import in_thread
from support.waiting import PATIENCE_SECONDS


def test_a_call_is_not_made_while_another_thread_holds_the_lock() -> None:
    lock = threading.RLock()
    calls: list[str] = []

    def call() -> bool:
        calls.append("called")
        return True

    with lock:
        assert not in_thread(call_holding, lock, 0, call).result(PATIENCE_SECONDS)
    assert not calls
    assert in_thread(call_holding, lock, 0, call).result(PATIENCE_SECONDS)
    assert calls == ["called"]


def test_ctrl_c_after_any_call_leaves_the_lock_free() -> None:
    lock = threading.RLock()
    codes = frozenset({call_holding.__code__})
    walk = Walk()
    for place in walk:
        interrupt = InterruptAfterCall(place, codes)
        with interrupt.watching():
            call_holding(lock, 0, lambda: True)
        free = in_thread(call_holding, lock, 0, lambda: True).result(PATIENCE_SECONDS)
        assert free, interrupt.place
    walk.check(call_holding)


def test_ctrl_c_after_any_call_of_a_control_frame_lets_others_send() -> None:
    def write(buffer: OutgoingBuffer, timeout_seconds: float | None) -> bool:
        buffer.accepted.append(len(buffer.unsent()))
        return True

    writer = FrameWriter(write, None)
    sending = (FrameWriter.send_control, FrameWriter._flush_control, FrameWriter._flush)
    codes = frozenset(function.__code__ for function in (*sending, call_holding))
    walk = Walk()
    for place in walk:
        interrupt = InterruptAfterCall(place, codes)
        with interrupt.watching():
            writer.send_control([b"pong"])
        in_thread(writer.send_control, [], PATIENCE_SECONDS).result(2 * PATIENCE_SECONDS)
        assert not (writer.unsent or writer.control), interrupt.place
    walk.check(*sending, call_holding)
