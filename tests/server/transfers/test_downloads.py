"""A download takes only what belongs to its tensor, in order, and completes once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.dtypes import F32, U8
from burn_remote_protocol.errors import OperationFailed, ProtocolViolation, TransferFailed
from burn_remote_protocol.messages import Chunk, Lent
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.transfers.downloads import Download, transfer_failure
from support.waiting import PATIENCE_SECONDS

SPEC = TensorSpec((100,), U8)
BYTES = bytes(range(100))


def chunk(start: int, stop: int) -> Chunk:
    return Chunk(1, start, memoryview(BYTES)[start:stop])


def elements(download: Download) -> bytes:
    backend = NumpyBackend()
    return bytes(backend.to_bytes(download.done.result(), SPEC.dtype))


class Borrower(NumpyBackend):
    """A backend that borrows memory by ``take``, called with the handle in the copying thread."""

    def __init__(self, take: Callable[[bytes], object]) -> None:
        super().__init__()
        self._take = take

    def borrow(self, upload: Any, handle: bytes) -> None:
        self._take(handle)
        self.write(upload, 0, BYTES)


class Counting(NumpyBackend):
    """A backend that counts the tensors that it allocates."""

    allocated = 0

    def empty(self, spec: TensorSpec) -> Any:
        self.allocated += 1
        return super().empty(spec)


@given(st.lists(st.integers(0, 99), max_size=6), st.integers(0, 6))
def test_a_tensor_arrives_in_any_chunks_also_over_two_connections(
    cuts: list[int], broken_after: int
) -> None:
    async def run() -> None:
        backend = Counting()
        download = Download(backend, SPEC)
        download.begin(SPEC)
        bounds = [0, *sorted(cuts), 100]
        for number, (start, stop) in enumerate(pairwise(bounds)):
            if number == broken_after:
                download.fail(TransferFailed("the connection broke"))
                assert download.done.exception()
                download.try_again()
                download.begin(SPEC)
            assert download.received == start
            assert not download.done.done()
            download.write(chunk(start, stop))
        assert elements(download) == BYTES
        assert backend.allocated == 1

    asyncio.run(run())


async def test_a_tensor_without_elements_arrives_with_its_spec() -> None:
    spec = TensorSpec((0, 3), F32)
    download = Download(NumpyBackend(), spec)
    download.begin(spec)
    assert download.done.done()
    assert not download.awaits_reply


@pytest.mark.parametrize("wrong", [(1, 50), (0, 101), (50, 60), (2**63, 2**63 + 1)])
async def test_a_chunk_out_of_place_is_a_violation_and_writes_nothing(
    wrong: tuple[int, int],
) -> None:
    download = Download(NumpyBackend(), SPEC)
    download.begin(SPEC)
    bad = Chunk(1, wrong[0], memoryview(bytes(wrong[1] - wrong[0])))
    with pytest.raises(ProtocolViolation, match="a chunk at"):
        download.write(bad)
    assert download.received == 0
    download.write(chunk(0, 100))
    assert elements(download) == BYTES


async def test_a_chunk_reports_progress_with_no_hops_and_a_waiting_peer_reports_its_hops() -> None:
    hops: list[int] = []
    download = Download(NumpyBackend(), SPEC, hops.append)
    download.note_progress(3)
    download.begin(SPEC)
    download.write(chunk(0, 10))
    assert hops == [3, 0]
    assert download.reports == 1


async def test_a_chunk_before_the_spec_is_a_violation() -> None:
    download = Download(NumpyBackend(), SPEC)
    with pytest.raises(ProtocolViolation):
        download.write(chunk(0, 10))


@pytest.mark.parametrize("value", [None, 3, b"elements"])
async def test_a_reply_that_is_no_spec_is_a_violation(value: object) -> None:
    download = Download(NumpyBackend(), SPEC)
    with pytest.raises(ProtocolViolation, match="must be a tensor's shape and dtype"):
        download.begin(value)


async def test_a_second_reply_is_a_violation_also_after_chunks() -> None:
    download = Download(NumpyBackend(), SPEC)
    download.begin(SPEC)
    download.write(chunk(0, 10))
    with pytest.raises(ProtocolViolation, match="only once"):
        download.begin(SPEC)


async def test_another_spec_than_expected_allocates_nothing() -> None:
    backend = Counting()
    download = Download(backend, SPEC)
    with pytest.raises(TransferFailed, match="the source exposed"):
        download.begin(TensorSpec((2**40,), U8))
    assert backend.allocated == 0
    assert download.exposed_bytes == 2**40  # what the peer must be told to stop sending


async def test_an_error_of_the_peer_is_the_failure_of_the_tensor() -> None:
    download = Download(NumpyBackend(), SPEC)
    with pytest.raises(TransferFailed, match="it was fetched before"):
        download.begin(TransferFailed("it was fetched before"))
    assert not download.awaits_reply
    assert download.exposed_bytes is None


async def test_the_first_outcome_counts() -> None:
    download = Download(NumpyBackend(), SPEC)
    download.begin(SPEC)
    download.write(chunk(0, 100))
    download.fail(TransferFailed("too late"))
    assert elements(download) == BYTES
    failed = Download(NumpyBackend(), SPEC)
    failed.fail(TransferFailed("first"))
    failed.finish(np.zeros(100, np.uint8))
    with pytest.raises(TransferFailed, match="first"):
        failed.done.result()


async def test_lent_memory_is_copied_and_is_the_tensor() -> None:
    handles: list[bytes] = []
    download = Download(Borrower(handles.append), SPEC)
    download.begin(SPEC)
    download.lend(Lent(1, b"handle"))
    array = await download.borrow(download.done.result())
    assert bytes(NumpyBackend().to_bytes(array, SPEC.dtype)) == BYTES
    assert handles == [b"handle"]


@pytest.mark.parametrize("state", ["before the spec", "after a chunk", "declined"])
async def test_memory_is_lent_only_right_after_the_spec(state: str) -> None:
    download = Download(NumpyBackend(), SPEC)
    if state == "declined":
        download.decline()
    if state != "before the spec":
        download.begin(SPEC)
    if state == "after a chunk":
        download.write(chunk(0, 10))
    with pytest.raises(ProtocolViolation, match="may lend"):
        download.lend(Lent(1, b"handle"))
    assert not download.done.done()


async def test_over_another_connection_memory_may_be_lent_again() -> None:
    download = Download(NumpyBackend(), SPEC)
    download.decline()
    download.try_again()
    download.begin(SPEC)
    download.lend(Lent(1, b"handle"))
    assert download.done.result() == Lent(1, b"handle")


async def test_a_copy_that_is_cancelled_is_not_confirmed_to_the_lender() -> None:
    entered, leave = threading.Event(), threading.Event()

    def wait(_: bytes) -> None:
        entered.set()
        assert leave.wait(PATIENCE_SECONDS)

    download = Download(Borrower(wait), SPEC)
    download.begin(SPEC)
    borrowing = asyncio.create_task(download.borrow(Lent(1, b"handle")))
    await asyncio.to_thread(entered.wait, PATIENCE_SECONDS)
    borrowing.cancel()
    await asyncio.wait([borrowing])
    assert borrowing.cancelled()
    assert download.exposed_bytes is None
    leave.set()


def test_any_error_becomes_the_failure_of_an_operation() -> None:
    own = OperationFailed("it failed")
    assert transfer_failure(own) is own
    foreign = transfer_failure(ProtocolViolation("a bad frame"))
    assert isinstance(foreign, TransferFailed)
    assert "a bad frame" in str(foreign)
