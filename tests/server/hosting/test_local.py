"""The local device's link executes frames in the sender's thread and loses none to an interrupt."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dialects.native import (
    UPLOAD_CHUNK_BYTES,
    VERSIONS,
    chunk_head,
    decode_frame,
    encode_frame,
)
from burn_remote_protocol.dtypes import F32, U8, DType
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ClosedDevice,
    ConnectionLost,
    ProtocolViolation,
    TransferFailed,
    UsageError,
    VersionMismatch,
)
from burn_remote_protocol.messages import (
    BeginUpload,
    Closing,
    Expose,
    Fetch,
    Hello,
    Read,
    Refused,
    Reply,
    Sync,
    Upload,
    Welcome,
)
from burn_remote_protocol.operations.extensions import ANNOUNCED
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends.array.array_session import ArraySession
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.custom import NO_OPERATIONS, CustomOperations
from burn_remote_server.hosting import local as module
from burn_remote_server.hosting.local import LocalLink, open_numpy
from burn_remote_server.settings.server_settings import Settings
from support.native_clients import batch
from support.waiting import PATIENCE_SECONDS

SPEC = TensorSpec((4,), F32)
ELEMENTS = np.arange(4, dtype=np.float32).tobytes()
DATA = TensorData(ELEMENTS, SPEC.shape, SPEC.dtype)
HELLO = encode_frame(Hello(VERSIONS))
ID = b"t" * 32


class InterruptedBackend(NumpyBackend):
    """A backend whose reads raise the ``interrupts``, one each, before they work."""

    def __init__(self, *interrupts: BaseException) -> None:
        super().__init__()
        self.interrupts = [*interrupts]

    def open_session(self, custom: CustomOperations = NO_OPERATIONS) -> ArraySession:
        session = InterruptedSession(self, self._shared, lambda seed: None, custom)
        session.interrupts = self.interrupts
        return session


class InterruptedSession(ArraySession):
    interrupts: list[BaseException]

    def read(self, array: Any, dtype: DType, later: Any) -> memoryview | None:
        if self.interrupts:
            raise self.interrupts.pop(0)
        return super().read(array, dtype, later)


@pytest.fixture(autouse=True)
def no_exposes_left() -> Iterator[None]:
    """Check that no test leaves an exposed tensor to the next."""
    yield
    assert len(module._transfers) == 0
    assert module._transfers._places.total == 0


def opened(backend: NumpyBackend | None = None, **settings: Any) -> LocalLink:
    """Return a link whose session is open."""
    link = LocalLink(NumpyBackend() if backend is None else backend, Settings(**settings))
    link.send(HELLO)
    assert isinstance(hear(link), Welcome)
    return link


def hear(link: LocalLink) -> Any:
    frame = link.receive(PATIENCE_SECONDS)
    assert frame is not None, "nothing came"
    return decode_frame(frame)


# -- the session ----------------------------------------------------------------------------------


def test_the_welcome_names_the_device_and_its_limits() -> None:
    link = LocalLink(NumpyBackend(), Settings())
    link.send(encode_frame(Hello((*VERSIONS, 99))))
    welcome = hear(link)
    assert welcome.version == max(VERSIONS)
    assert welcome.device == {"index": 0, "backend": "numpy", "extensions": ANNOUNCED}
    assert welcome.limits["chunk_bytes"] == UPLOAD_CHUNK_BYTES
    assert link.detects_corruption
    link.close()


def test_a_frame_is_executed_when_send_returns() -> None:
    link = opened()
    link.send(batch(Upload(1, DATA), Read(1, 1, SPEC)))
    assert link.wait_readable(0)
    frame = link.receive(0)
    assert frame is not None
    assert decode_frame(frame) == Reply(1, ELEMENTS)
    assert link.receive(0) is None
    link.close()


def test_frames_in_parts_and_together_are_executed_in_order() -> None:
    link = opened()
    link.send_together([batch(BeginUpload(1, TensorSpec((8,), U8), 8)), batch(Sync(1))])
    link.send_parts(chunk_head(1, 0), memoryview(b"abcdefgh"))
    link.send(batch(Read(2, 1, TensorSpec((8,), U8))))
    assert [hear(link) for _ in range(2)] == [Reply(1, None), Reply(2, b"abcdefgh")]
    link.close()


def test_a_large_tensor_is_read_in_chunks() -> None:
    spec = TensorSpec((2**20,), U8)
    content = bytes(range(256)) * 2**12
    link = opened()
    link.send(batch(BeginUpload(1, spec, spec.nbytes)))
    link.send_parts(chunk_head(1, 0), memoryview(content))
    link.send(batch(Read(1, 1, spec)))
    assert hear(link) == Reply(1, spec)
    arrived = b""
    while len(arrived) < len(content):
        arrived += hear(link).data
    assert arrived == content
    link.close()


@pytest.mark.parametrize(
    ("frame", "error"),
    [(encode_frame(Hello((77,))), VersionMismatch), (b"\x99", ProtocolViolation)],
)
def test_a_client_that_begins_wrongly_is_refused(
    frame: bytes, error: type[BurnRemoteError]
) -> None:
    link = LocalLink(NumpyBackend(), Settings())
    link.send(frame)
    refused = hear(link)
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, error)
    assert link.closed


@pytest.mark.parametrize("frame", [b"", b"\x99", encode_frame(Reply(1, None))])
def test_a_violation_ends_the_session_with_its_reason(frame: bytes) -> None:
    link, other = opened(), opened()
    link.send(frame)
    closing = hear(link)
    assert isinstance(closing, Closing)
    assert isinstance(closing.error, ProtocolViolation)
    with pytest.raises(ConnectionLost, match="was closed"):
        link.receive(0)
    with pytest.raises(ConnectionLost, match="was closed"):
        link.send(batch(Sync(1)))
    other.send(batch(Sync(1)))
    assert hear(other) == Reply(1, None)
    other.close()


def test_replies_that_came_before_the_end_can_still_be_received() -> None:
    link = opened()
    link.send(batch(Sync(1)))
    link.close()
    link.close()
    assert link.closed
    assert hear(link) == Reply(1, None)
    with pytest.raises(ConnectionLost):
        link.receive()
    assert link.wait_readable()  # the end


def test_a_client_that_leaves_ends_its_session() -> None:
    link = opened()
    link.send(encode_frame(Closing(ClosedDevice("bye"))))
    assert link.closed


def test_an_error_of_the_caller_s_numpy_settings_does_not_reach_the_session_or_back() -> None:
    with np.errstate(all="raise"):
        link = opened()
        link.send(batch(Upload(1, DATA), Read(1, 1, SPEC)))
        assert hear(link) == Reply(1, ELEMENTS)
        assert np.geterr()["divide"] == "raise"
    link.close()


def test_an_object_that_is_no_custom_operation_is_refused() -> None:
    with pytest.raises(UsageError):
        open_numpy([len])


def test_all_local_devices_share_one_backend() -> None:
    first, second = open_numpy(), open_numpy()
    assert isinstance(first, LocalLink)
    assert isinstance(second, LocalLink)
    assert first._backend is second._backend
    first.close()
    second.close()


# -- moves ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_exposed_first", [True, False])
def test_a_tensor_moves_between_local_devices_in_any_order(is_exposed_first: bool) -> None:
    backend = NumpyBackend()
    source, target = opened(backend), opened(backend)
    frames = [
        (source, batch(Upload(1, DATA), Expose(1, SPEC, 1, ID, 60))),
        (target, batch(Fetch(ID, source.address, 7, SPEC))),
    ]
    for link, frame in frames if is_exposed_first else frames[::-1]:
        link.send(frame)
    target.send(batch(Read(1, 7, SPEC)))
    assert hear(target) == Reply(1, ELEMENTS)
    source.close()
    target.close()


def test_a_fetch_of_what_nobody_exposes_fails_after_a_bounded_time() -> None:
    link = opened(fetch_timeout_seconds=0.01)
    link.send(batch(Fetch(ID, link.address, 7, SPEC), Read(1, 7, SPEC)))
    reply = hear(link)
    assert isinstance(reply.value, TransferFailed)
    link.close()


def test_the_end_fails_the_fetches_that_wait_and_withdraws_what_was_exposed() -> None:
    link = opened()
    link.send(batch(Upload(1, DATA), Expose(1, SPEC, 1, ID, 60)))
    link.send(batch(Fetch(b"u" * 32, link.address, 7, SPEC)))
    assert len(module._transfers) == 1
    link.close()  # the fixture checks what is left


# -- threads and interrupts -----------------------------------------------------------------------


def test_a_receiver_is_woken_by_a_frame_of_another_thread() -> None:
    link = opened()
    heard: list[Any] = []
    receiving = threading.Thread(target=lambda: heard.append(hear(link)))
    receiving.start()
    link.send(batch(Sync(1)))
    receiving.join(PATIENCE_SECONDS)
    assert heard == [Reply(1, None)]
    link.close()


@pytest.mark.parametrize("wake", ["interrupt", "close"])
def test_a_waiting_thread_is_woken_by_an_interrupt_and_by_the_end(wake: str) -> None:
    link = opened()
    readable: list[bool] = []
    waiting = threading.Thread(
        target=lambda: readable.append(link.wait_readable(2 * PATIENCE_SECONDS))
    )
    waiting.start()
    getattr(link, wake)()
    waiting.join(PATIENCE_SECONDS)
    assert readable == [wake == "close"]
    link.close()


def test_frames_of_several_threads_are_executed_whole_and_each_once() -> None:
    link = opened()
    count = 50

    def send_all(first: int) -> None:
        for request in range(first, first + count):
            link.send(batch(Sync(2 * request), Sync(2 * request + 1)))

    threads = [threading.Thread(target=send_all, args=(number * count,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    requests = [hear(link).request for _ in range(8 * count)]
    assert sorted(requests) == [*range(8 * count)]
    assert all(
        after == before + 1 for before, after in zip(requests[::2], requests[1::2], strict=True)
    )
    link.close()


def test_an_interrupted_frame_is_finished_by_another_thread_and_each_request_answered_once() -> (
    None
):
    link = opened(InterruptedBackend(KeyboardInterrupt()))
    link.send(batch(Upload(1, DATA)))
    with pytest.raises(KeyboardInterrupt):
        link.send(batch(Sync(1), Read(2, 1, SPEC), Sync(3), Read(4, 1, SPEC)))
    replies = [hear(link) for _ in range(4)]  # although the program sends nothing more
    assert [reply.request for reply in replies] == [1, 2, 3, 4]
    assert replies[1].value == replies[3].value == ELEMENTS  # a read can be repeated
    assert link.receive(0) is None
    link.close()


class Gate:
    """A lock that lets helper threads in one after the other, from the second on when told to."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._entered = 0
        self.second_may_enter, self.second_has_left = threading.Event(), threading.Event()

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self._entered += 1
            place = self._entered
            if place == 2:
                assert self.second_may_enter.wait(PATIENCE_SECONDS)
            if place == 3:
                assert self.second_has_left.wait(PATIENCE_SECONDS)
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if self.second_may_enter.is_set():
            self.second_has_left.set()


def test_the_helper_of_an_earlier_interrupt_delivers_no_incomplete_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = opened(InterruptedBackend(KeyboardInterrupt()))
    gate = Gate(link._running)
    monkeypatch.setattr(link, "_running", gate)
    reply, interrupts = link._outbox.reply, [KeyboardInterrupt()]

    def interrupted_reply(request: int, value: Any) -> None:
        reply(request, value)
        if request == 2 and interrupts:
            raise interrupts.pop()

    monkeypatch.setattr(link._outbox, "reply", interrupted_reply)
    link.send(batch(Upload(1, DATA)))
    with pytest.raises(KeyboardInterrupt):
        link.send(batch(Read(1, 1, SPEC)))
    assert hear(link) == Reply(1, ELEMENTS)
    # The helper has executed this frame, and only has to deliver what the call may have left.
    with pytest.raises(KeyboardInterrupt):
        link.send(batch(Read(2, 1, SPEC)))
    gate.second_may_enter.set()
    assert hear(link) == Reply(2, ELEMENTS)
    link.send(batch(Sync(3)))
    assert hear(link) == Reply(3, None)
    link.close()


def test_a_defect_is_raised_to_the_caller_and_the_session_continues() -> None:
    link = opened(InterruptedBackend(RuntimeError("a defect")))
    link.send(batch(Upload(1, DATA)))
    with pytest.raises(RuntimeError, match="a defect"):
        link.send(batch(Read(1, 1, SPEC)))
    link.send(batch(Read(2, 1, SPEC)))
    assert [hear(link) for _ in range(2)] == [Reply(1, ELEMENTS), Reply(2, ELEMENTS)]
    link.close()
