"""One connection carries the fetches from a peer; each ends, whatever the peer does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from burn_remote_protocol.dialects.native import chunk_head, decode_frame, encode_frame
from burn_remote_protocol.dtypes import U8
from burn_remote_protocol.errors import ConnectionLost, ProtocolViolation, TransferFailed
from burn_remote_protocol.messages import Closing, FetchRequest, Lent, Reply, Sync, Welcome
from burn_remote_protocol.peer_proofs import Transcript, fetch_signer
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.telemetry.counters import Counters
from burn_remote_server.transfers import peer_connection as module
from burn_remote_server.transfers.downloads import Download
from burn_remote_server.transfers.peer_connection import PeerConnection
from support.memory_links import CAPACITY_BYTES, async_memory_pair
from support.native_clients import batch, turns, until
from support.waiting import PATIENCE_SECONDS

SPEC = TensorSpec((100,), U8)
BYTES = bytes(range(100))


def transfer(number: int) -> bytes:
    return bytes([number]) * 32


class Refusing(NumpyBackend):
    """A backend that raises ``error`` for the first tensor."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._errors = [error]

    def empty(self, spec: TensorSpec) -> Any:
        if self._errors:
            raise self._errors.pop()
        return super().empty(spec)


class Exchange:
    """A connection of a target, and the source's end of its link."""

    def __init__(
        self, capacity_bytes: int = CAPACITY_BYTES, stall_seconds: float = 60.0, **options: Any
    ) -> None:
        near, self.far = async_memory_pair(capacity_bytes=capacity_bytes)
        self.counters = Counters()
        options = {"may_borrow": False, **options}
        self.peer = PeerConnection(near, self.counters, stall_seconds, **options)
        self.backend = NumpyBackend()
        self.receiving = asyncio.ensure_future(self.peer.receive())

    def fetch(self, number: int = 1, backend: NumpyBackend | None = None) -> asyncio.Task[Any]:
        """Begin to fetch a tensor; ``number`` is that of its transfer id."""
        download = Download(self.backend if backend is None else backend, SPEC)
        return asyncio.ensure_future(self.peer.fetch(transfer(number), download))

    async def asked(self) -> FetchRequest:
        """Return the next request that the source receives."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            request = decode_frame(await self.far.receive())
        assert isinstance(request, FetchRequest)
        return request

    async def spec(self, request: FetchRequest, spec: TensorSpec = SPEC) -> None:
        await self.far.send(encode_frame(Reply(request.request, spec)))

    async def send(self, request: FetchRequest, start: int = 0, stop: int = 100) -> None:
        await self.far.send(chunk_head(request.request, start) + BYTES[start:stop])

    async def confirmed(self, request: FetchRequest) -> None:
        """Check that the source is told that the tensor has arrived."""
        assert await self.asked() == FetchRequest(request.request, request.transfer, 100)

    def value(self, array: Any) -> bytes:
        return bytes(self.backend.to_bytes(array, SPEC.dtype))


@contextlib.asynccontextmanager
async def exchange(**options: Any) -> AsyncIterator[Exchange]:
    async with asyncio.timeout(2 * PATIENCE_SECONDS):
        running = Exchange(**options)
        try:
            yield running
        finally:
            await running.far.close()
            await running.receiving  # its own errors end it without an exception


async def test_a_tensor_is_requested_written_and_confirmed() -> None:
    async with exchange() as run:
        fetching = run.fetch(7)
        request = await run.asked()
        assert request == FetchRequest(1, transfer(7), 0)
        assert not run.peer.is_idle
        await run.spec(request)
        await run.send(request, 0, 60)
        await run.send(request, 60, 100)
        await run.confirmed(request)
        assert run.value(await fetching) == BYTES
        assert run.peer.is_idle
        assert run.counters.peer_received_bytes > 100


async def test_requests_and_confirmations_are_signed_where_a_key_was_agreed() -> None:
    transcript = Transcript((1,), 1, b"s" * 32, b"t" * 32, "ws://source:1")
    signer = fetch_signer(b"k" * 32, transcript)
    async with exchange(signer=signer) as run:
        fetching = run.fetch(7)
        for offset in (0, 100):
            request = await run.asked()
            assert request.offset == offset
            assert request.tag == signer.tag(1, transfer(7), offset)
            if not offset:
                await run.spec(request)
                await run.send(request)
        await fetching


@hypothesis_settings(max_examples=30)
@given(st.permutations([(number, start) for number in range(3) for start in (0, 50)]))
def test_chunks_of_several_tensors_may_be_interleaved(order: list[tuple[int, int]]) -> None:
    async def run() -> None:
        async with exchange() as run:
            fetching = [run.fetch(number) for number in range(3)]
            requests = [await run.asked() for _ in fetching]
            for request in requests:
                await run.spec(request)
            sent = [0, 0, 0]
            for number, _ in order:
                await run.send(requests[number], sent[number], sent[number] + 50)
                sent[number] += 50
            assert [run.value(array) for array in await asyncio.gather(*fetching)] == [BYTES] * 3

    asyncio.run(run())


# -- a peer that errs -----------------------------------------------------------------------------


async def test_a_refused_tensor_fails_alone() -> None:
    async with exchange() as run:
        refused, good = run.fetch(1), run.fetch(2)
        requests = [await run.asked() for _ in range(2)]
        await run.far.send(encode_frame(Reply(requests[0].request, TransferFailed("expired"))))
        with pytest.raises(TransferFailed, match="expired") as caught:
            await refused
        assert caught.value.__cause__ is None  # not itself: its causes would have no end
        await run.spec(requests[1])
        await run.send(requests[1])
        assert run.value(await good) == BYTES


async def test_a_tensor_without_memory_fails_alone_and_its_source_stops_sending() -> None:
    async with exchange() as run:
        poor, good = run.fetch(1, Refusing(MemoryError())), run.fetch(2)
        requests = [await run.asked() for _ in range(2)]
        for request in requests:
            await run.spec(request)
        with pytest.raises(TransferFailed, match="the target does not have enough memory"):
            await poor
        await run.confirmed(requests[0])
        for request in requests:  # chunks of the first tensor may be under way already
            await run.send(request)
        assert run.value(await good) == BYTES


async def test_a_defect_while_a_tensor_arrives_ends_this_connection_and_nothing_else() -> None:
    async with exchange() as run:
        fetching = run.fetch(1, Refusing(RuntimeError("a defect of the server")))
        await run.spec(await run.asked())
        with pytest.raises(TransferFailed, match="the server failed: RuntimeError: a defect"):
            await fetching
        await run.receiving
        assert not run.peer.is_broken  # another try would fail again
        assert run.peer.error is not None


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x99",
        batch(Sync(1)),
        encode_frame(Welcome(1, 0, b"", 0.0, {}, {}, "ws://x:1")),
        encode_frame(Lent(1, b"handle")),  # nobody asked for memory
    ],
    ids=["empty", "unknown", "batch", "Welcome", "Lent"],
)
async def test_a_violation_ends_the_connection_and_every_fetch_over_it(frame: bytes) -> None:
    async with exchange() as run:
        fetching = [run.fetch(number) for number in range(3)]
        for _ in fetching:
            await run.asked()
        await run.far.send(frame)
        for each in fetching:
            with pytest.raises(TransferFailed, match="broke"):
                await each
        assert not run.peer.is_broken
        with pytest.raises(TransferFailed, match="broke"):
            await run.fetch(4)
        with pytest.raises(ConnectionLost):
            await run.far.receive()


async def test_a_connection_that_breaks_fails_its_fetches_so_that_they_are_tried_again() -> None:
    async with exchange() as run:
        fetching = [run.fetch(number) for number in range(3)]
        for _ in fetching:
            request = await run.asked()
        await run.spec(request)
        await run.send(request, 0, 50)
        await run.far.close()
        for each in fetching:
            with pytest.raises(TransferFailed, match="broke"):
                await each
        assert run.peer.is_broken
        assert run.peer.is_idle


async def test_fetches_over_a_connection_that_the_source_ends_are_tried_again() -> None:
    exchange = Exchange()
    fetching = exchange.fetch()
    await exchange.asked()
    await exchange.far.send(encode_frame(Closing(ProtocolViolation("not a message"))))
    with pytest.raises(TransferFailed, match="not a message"):
        await fetching
    assert exchange.peer.is_broken


async def test_a_fetch_beyond_the_most_at_a_time_is_sent_when_another_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The source would not read its request, and could not say that it works on it.
    monkeypatch.setattr(module, "MAX_FETCHES", 2)
    async with exchange() as run:
        fetching = [run.fetch(number) for number in (1, 2, 3)]
        first, second = await run.asked(), await run.asked()
        third = asyncio.ensure_future(run.asked())
        await turns(20)
        assert not third.done()
        for request in (first, second):
            await run.spec(request)
        await run.send(first)
        assert (await third).offset == 100  # the confirmation of the first
        last = await run.asked()
        assert last.transfer == transfer(3)
        await run.spec(last)
        await run.send(last)
        await run.send(second)
        assert [run.value(await each) for each in fetching] == [BYTES] * 3
        assert run.peer.is_idle


async def test_fetches_that_wait_for_others_fail_when_the_connection_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_FETCHES", 1)
    async with exchange() as run:
        fetching = [run.fetch(number) for number in range(4)]
        await run.asked()
        await run.far.close()
        for each in fetching:
            with pytest.raises(TransferFailed, match="broke"):
                await each


async def test_a_peer_that_accepts_no_requests_is_given_up() -> None:
    async with exchange(capacity_bytes=1, stall_seconds=0.01) as run:
        await run.peer.link.send(b"what fills the link")
        with pytest.raises(TransferFailed, match="does not accept requests"):
            await run.fetch()
        assert run.peer.is_idle


async def test_a_peer_that_stops_in_the_middle_is_given_up_and_told() -> None:
    async with exchange(stall_seconds=0.02) as run:
        fetching = run.fetch()
        request = await run.asked()
        await run.spec(request)
        await run.send(request, 0, 50)
        with pytest.raises(TransferFailed, match="arrived"):
            await fetching
        await run.confirmed(request)
        await run.send(request, 50, 100)  # too late
        good = run.fetch(2)
        request = await run.asked()
        await run.spec(request)
        await run.send(request)
        assert run.value(await good) == BYTES


# -- fetches that are given up --------------------------------------------------------------------


async def cancelled(fetching: asyncio.Task[Any]) -> None:
    await turns(3)
    fetching.cancel()
    await asyncio.wait([fetching])
    assert fetching.cancelled()


async def test_a_fetch_that_is_given_up_after_its_reply_is_ended_at_the_source() -> None:
    async with exchange() as run:
        fetching = run.fetch()
        request = await run.asked()
        await run.spec(request)
        await until(lambda: run.peer._downloads[1].exposed_bytes is not None)
        await cancelled(fetching)
        await run.confirmed(request)


async def test_a_fetch_that_is_given_up_before_its_reply_is_ended_when_the_reply_comes() -> None:
    async with exchange() as run:
        fetching = run.fetch()
        request = await run.asked()
        await cancelled(fetching)
        await run.spec(request)
        await run.confirmed(request)
        for _ in range(2):  # replies and chunks of a forgotten request change nothing
            await run.spec(request)
            await run.send(request)
        good = run.fetch(2)
        request = await run.asked()  # no second confirmation came before it
        assert request.transfer == transfer(2)
        await run.spec(request)
        await run.send(request)
        assert run.value(await good) == BYTES


async def test_a_fetch_that_is_given_up_and_then_refused_needs_no_end() -> None:
    async with exchange() as run:
        fetching = run.fetch()
        request = await run.asked()
        await cancelled(fetching)
        await run.far.send(encode_frame(Reply(request.request, TransferFailed("expired"))))
        good = run.fetch(2)
        assert (await run.asked()).transfer == transfer(2)
        await cancelled(good)


async def test_only_so_many_given_up_fetches_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_ABANDONED", 2)
    async with exchange() as run:
        requests = []
        for number in range(3):
            fetching = run.fetch(number)
            requests.append(await run.asked())
            await cancelled(fetching)
        for request in requests:
            await run.spec(request)
        for request in requests[1:]:  # the oldest was forgotten
            await run.confirmed(request)


async def test_a_fetch_that_is_cancelled_anywhere_leaves_the_connection_usable() -> None:
    """Cancel a fetch after each number of turns, until it is over before."""
    async with exchange() as run:
        count, is_over = 0, False
        while not is_over:
            source = asyncio.ensure_future(serve_one(run))
            fetching = run.fetch(count % 256)
            await turns(count)
            is_over = fetching.done()
            fetching.cancel()
            await asyncio.wait([fetching])
            assert run.peer.is_idle
            source.cancel()
            await asyncio.wait([source])
            count += 1
        assert count > 3
        assert run.peer.error is None


async def serve_one(run: Exchange) -> None:
    while True:
        request = await run.asked()
        if request.offset == 0:
            await run.spec(request)
            await run.send(request)


async def test_a_chunk_out_of_place_ends_the_connection() -> None:
    async with exchange() as run:
        fetching = run.fetch()
        request = await run.asked()
        await run.spec(request)
        await run.far.send(chunk_head(request.request, 7) + b"a gap")
        with pytest.raises(TransferFailed, match="a chunk at 7"):
            await fetching
        assert not run.peer.is_broken
