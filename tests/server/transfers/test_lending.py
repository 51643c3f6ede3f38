"""A tensor is lent as memory to another process of the host, if both support and allow it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.server import ServerConnection, serve

from burn_remote_protocol.dialects.native import chunk_head, decode_frame, encode_frame
from burn_remote_protocol.dtypes import BOOL, F32, U8, DType, QuantScheme
from burn_remote_protocol.errors import ConnectionLost, TransferFailed
from burn_remote_protocol.links.checksummed_links import CheckedAsyncLink
from burn_remote_protocol.messages import Fetch, FetchRequest, Hello, Lent, Reply, Welcome
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.dialects.native.peer_handler import serve_peer
from burn_remote_server.hosting.host import Host
from burn_remote_server.settings.server_settings import Settings
from burn_remote_server.tensors.exposed_tensors import Exposed
from burn_remote_server.transfers import outgoing_transfers
from support.lending import SharingBackend
from support.link_servers import direct_options, link_over
from support.waiting import PATIENCE_SECONDS

ID = b"t" * 32
SPEC = TensorSpec((1024, 1024), F32)
ARRAY = np.random.default_rng(3).standard_normal(SPEC.shape, np.float32)
WELCOME = encode_frame(Welcome(1, 0, b"", 0.0, {}, {}, "ws://source:1"))

Handle = Callable[[ServerConnection], Any]


@pytest.fixture(autouse=True)
def nothing_lent() -> None:
    """Reset the loans of earlier tests."""
    SharingBackend.open_loans.clear()


class Pair:
    """A source server, a target server, and the address of the source."""

    def __init__(self, source: Host, target: Host) -> None:
        self.source = source
        self.target = target
        self.address = ""

    @property
    def lender(self) -> SharingBackend:
        backend = self.source.devices[0].backend
        assert isinstance(backend, SharingBackend)
        return backend

    @property
    def borrower(self) -> SharingBackend:
        backend = self.target.devices[0].backend
        assert isinstance(backend, SharingBackend)
        return backend

    def expose(self, array: Any, spec: TensorSpec, *, count: int = 1) -> None:
        exposed = Exposed(array, spec, self.lender)
        self.source.transfers.expose(
            ("native", ID), exposed, owner=self, count=count, expires_seconds=60
        )

    async def fetch(self, spec: TensorSpec = SPEC) -> Any:
        task = Fetch(ID, self.address, 1, spec)
        return await self.target.peers.fetch("native", self.borrower, task)

    async def moved(self, array: Any = ARRAY, spec: TensorSpec = SPEC) -> Any:
        self.expose(array, spec)
        return await self.fetch(spec)

    @property
    def by_memory(self) -> int:
        """Number of borrowed tensors."""
        assert self.source.counters.transfers_lent >= self.target.counters.transfers_borrowed
        return self.target.counters.transfers_borrowed

    @property
    def through_the_socket(self) -> int:
        """Bytes received over the connection."""
        return self.target.counters.peer_received_bytes


@contextlib.asynccontextmanager
async def pair(
    lender: SharingBackend | None = None,
    borrower: SharingBackend | None = None,
    *,
    source_has_it_on: bool = True,
    target_has_it_on: bool = True,
    handle: Handle | None = None,
) -> AsyncIterator[Pair]:
    """Run two servers; ``handle`` replaces the source's connection handler."""
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        source = Host(
            Settings(cuda_ipc=source_has_it_on), [lender or SharingBackend()], tasks
        )  # fmt: skip
        target = Host(
            Settings(cuda_ipc=target_has_it_on), [borrower or SharingBackend()], tasks
        )  # fmt: skip
        both = Pair(source, target)

        async def serve_connection(connection: ServerConnection) -> None:
            await serve_peer(link_over(connection), source)

        async with serve(handle or serve_connection, "127.0.0.1", 0, **direct_options()) as server:
            both.address = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield both
            await target.peers.close()


async def until(holds: Callable[[], bool]) -> None:
    """Let the servers run until a condition holds."""
    while not holds():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0)


async def test_the_elements_bypass_the_socket_and_the_loan_ends_after_the_copy() -> None:
    async with pair() as both:
        np.testing.assert_array_equal(await both.moved(), ARRAY)
        await until(lambda: not SharingBackend.open_loans)
        assert both.by_memory == 1
        assert both.through_the_socket < 1000
        assert both.source.counters.peer_sent_bytes < 1000


@pytest.mark.parametrize(
    ("dtype", "array"),
    [
        (BOOL, ARRAY.reshape(-1) > 0),
        (U8, ARRAY.view(np.uint8).reshape(-1)[::2]),
        (F32, ARRAY.T),
    ],
    ids=["bools", "every other byte", "reversed"],
)
async def test_elements_stored_unlike_the_wire_format_arrive_too(dtype: DType, array: Any) -> None:
    async with pair() as both:
        moved = await both.moved(array, TensorSpec(array.shape, dtype))
        np.testing.assert_array_equal(moved, array)
        assert moved.dtype == array.dtype
        assert both.by_memory == 1


async def test_a_quantized_tensor_keeps_its_integers_and_scales() -> None:
    scheme = DType.quantized(QuantScheme("Q8S", "F32", "Native", None, "Symmetric"))
    spec = TensorSpec((2048, 1024), scheme)
    held = np.random.default_rng(1).integers(0, 256, spec.nbytes, dtype=np.uint8)
    async with pair() as both:
        array = both.lender.to_device(TensorData(held.tobytes(), spec.shape, scheme))
        np.testing.assert_array_equal(await both.moved(array, spec), held)
        assert both.by_memory == 1


async def test_many_fetches_of_one_tensor_each_have_a_loan() -> None:
    async with pair() as both:
        both.expose(ARRAY, SPEC, count=5)
        for moved in await asyncio.gather(*[both.fetch() for _ in range(5)]):
            np.testing.assert_array_equal(moved, ARRAY)
        assert both.by_memory == 5
        assert len(set(both.borrower.borrowed)) == 5
        await until(lambda: not SharingBackend.open_loans)


@pytest.mark.parametrize(
    "options",
    [
        {"source_has_it_on": False},
        {"target_has_it_on": False},
        {"lender": SharingBackend("another host")},
    ],
    ids=["the source does not allow it", "the target does not", "another host"],
)
async def test_the_socket_is_used_if_either_side_does_not_allow_loans(
    options: dict[str, Any],
) -> None:
    async with pair(**options) as both:
        np.testing.assert_array_equal(await both.moved(), ARRAY)
        assert both.source.counters.transfers_lent == 0
        assert both.through_the_socket > ARRAY.nbytes


async def test_the_socket_is_used_if_there_is_no_memory_for_a_loan() -> None:
    async with pair() as both:
        both.lender.has_room = False
        np.testing.assert_array_equal(await both.moved(), ARRAY)
        assert both.source.counters.transfers_lent == 0


async def test_small_tensors_go_through_the_socket() -> None:
    async with pair() as both:
        few = ARRAY[:100]
        np.testing.assert_array_equal(await both.moved(few, TensorSpec(few.shape, F32)), few)
        assert both.source.counters.transfers_lent == 0


async def test_after_a_loan_that_cannot_be_opened_the_socket_is_used() -> None:
    def refuse(handle: bytes) -> None:
        raise TransferFailed("this container sees no memory of others")

    async with pair() as both:
        both.borrower.before_borrowing = refuse
        for _ in range(3):
            np.testing.assert_array_equal(await both.moved(), ARRAY)
        assert both.source.counters.transfers_lent == 1
        assert both.by_memory == 0
        await until(lambda: not SharingBackend.open_loans)


async def test_a_copy_during_which_the_connection_broke_is_not_trusted() -> None:
    """The source cannot know whether the peer still reads the lent memory, and may reuse it."""
    connections: list[ServerConnection] = []
    served: list[Host] = []

    async def remember(connection: ServerConnection) -> None:
        connections.append(connection)
        await serve_peer(link_over(connection), served[0])

    async with pair(handle=remember) as both:
        served.append(both.source)
        is_copying, may_go_on = threading.Event(), threading.Event()

        def wait(handle: bytes) -> None:
            is_copying.set()
            assert may_go_on.wait(PATIENCE_SECONDS)

        both.borrower.before_borrowing = wait
        moving = asyncio.create_task(both.moved())
        await asyncio.to_thread(is_copying.wait, PATIENCE_SECONDS)
        connections[0].transport.abort()
        await until(lambda: len(both.source.transfers) == 1)  # exposed again
        assert len(SharingBackend.open_loans) == 1  # because the peer may still be copying
        may_go_on.set()

        np.testing.assert_array_equal(await moving, ARRAY)
        assert len(connections) == 2
        assert len(set(both.borrower.borrowed)) == 2
        await until(lambda: not SharingBackend.open_loans)


async def test_a_copy_is_not_trusted_before_the_source_has_replied_to_a_ping() -> None:
    """The copy may end before the target notices that the connection broke."""
    connections: list[ServerConnection] = []
    served: list[Host] = []

    async def remember(connection: ServerConnection) -> None:
        connections.append(connection)
        await serve_peer(link_over(connection), served[0])

    class Telling(SharingBackend):
        """A borrower that signals its start, waits, and signals the end of its copy."""

        is_copying, may_go_on, has_copied = (threading.Event() for _ in range(3))

        def borrow(self, upload: Any, handle: bytes) -> None:
            self.is_copying.set()
            assert self.may_go_on.wait(PATIENCE_SECONDS)
            super().borrow(upload, handle)
            self.has_copied.set()

    async with pair(borrower=Telling(), handle=remember) as both:
        served.append(both.source)
        moving = asyncio.create_task(both.moved())
        await asyncio.to_thread(Telling.is_copying.wait, PATIENCE_SECONDS)
        connections[0].transport.pause_reading()
        Telling.may_go_on.set()
        await asyncio.to_thread(Telling.has_copied.wait, PATIENCE_SECONDS)
        connections[0].transport.abort()

        np.testing.assert_array_equal(await moving, ARRAY)
        assert len(connections) == 2
        await until(lambda: not SharingBackend.open_loans)


async def test_an_unconfirmed_loan_expires_without_another_fetch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with pair() as both:
        is_copying, may_go_on = threading.Event(), threading.Event()

        def wait(handle: bytes) -> None:
            is_copying.set()
            assert may_go_on.wait(PATIENCE_SECONDS)

        both.borrower.before_borrowing = wait
        moving = asyncio.create_task(both.moved())
        await asyncio.to_thread(is_copying.wait, PATIENCE_SECONDS)
        assert len(SharingBackend.open_loans) == 1
        monkeypatch.setattr(outgoing_transfers, "LOAN_SECONDS", 0.0)
        await until(lambda: not SharingBackend.open_loans)
        moving.cancel()
        may_go_on.set()


async def test_a_fetch_that_is_given_up_while_it_copies_does_not_end_the_loan() -> None:
    async with pair() as both:
        is_copying, may_go_on = threading.Event(), threading.Event()

        def wait(handle: bytes) -> None:
            is_copying.set()
            assert may_go_on.wait(PATIENCE_SECONDS)

        both.borrower.before_borrowing = wait
        moving = asyncio.create_task(both.moved())
        await asyncio.to_thread(is_copying.wait, PATIENCE_SECONDS)
        moving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await moving
        few = TensorSpec((3,), F32)
        await both.moved(ARRAY[0, :3], few)  # all earlier messages have been processed now
        assert len(SharingBackend.open_loans) == 1
        may_go_on.set()


# -- malicious sources ------------------------------------------------------------------------


class Liar:
    """A peer that replies to each fetch by a script."""

    def __init__(self, script: Callable[[FetchRequest, int], list[bytes]]) -> None:
        self.greetings: list[Hello] = []
        self.asked: list[FetchRequest] = []
        self._script = script

    async def __call__(self, connection: ServerConnection) -> None:
        plain = link_over(connection)
        link = CheckedAsyncLink(plain)
        self.greetings.append(decode_frame(link.open(await plain.receive())))
        await link.send(WELCOME)
        with contextlib.suppress(ConnectionLost):
            while True:
                self.asked.append(decode_frame(await link.receive()))
                for answer in self._script(self.asked[-1], len(self.asked)):
                    await link.send(answer)


def lent(request: FetchRequest, handle: bytes) -> list[bytes]:
    number = request.request
    return [encode_frame(Reply(number, SPEC)), encode_frame(Lent(number, handle))]


def whole(request: FetchRequest) -> list[bytes]:
    data = memoryview(ARRAY.tobytes())
    return [encode_frame(Reply(request.request, SPEC)), chunk_head(request.request, 0) + data]


@pytest.mark.parametrize(
    "handle",
    [b"nowhere", b"\xff" * 64, b"../../etc/passwd", b"\0" * 256],
    ids=["a name", "no text", "a path", "zeros"],
)
async def test_after_an_invalid_handle_the_elements_are_requested(handle: bytes) -> None:
    liar = Liar(lambda request, time: [lent(request, handle), whole(request), []][time - 1])
    async with pair(handle=liar) as both:
        np.testing.assert_array_equal(await both.fetch(), ARRAY)
        await until(lambda: len(liar.asked) == 3)
        assert liar.asked == [
            FetchRequest(1, ID), FetchRequest(1, ID), FetchRequest(1, ID, ARRAY.nbytes)
        ]  # fmt: skip
        assert liar.greetings[0].settings["memory_handles"] == "this host"


async def test_memory_that_is_too_small_is_not_read() -> None:
    async with pair() as other:
        loan = other.lender.lend(np.zeros(10, np.uint8), U8)
        assert loan is not None
        liar = Liar(
            lambda request, time: [lent(request, loan.handle), whole(request), []][time - 1]
        )
        async with pair(handle=liar) as both:
            np.testing.assert_array_equal(await both.fetch(), ARRAY)
            assert both.by_memory == 0


async def test_a_source_that_repeats_an_unusable_loan_fails_the_fetch() -> None:
    async with pair(handle=Liar(lambda request, time: lent(request, b"nowhere"))) as both:
        with pytest.raises(TransferFailed, match="may lend a tensor only once"):
            await both.fetch()


async def test_a_loan_in_place_of_a_spec_is_refused() -> None:
    async with pair(handle=Liar(lambda request, time: lent(request, b"nowhere")[1:])) as both:
        with pytest.raises(TransferFailed, match="after its shape and dtype"):
            await both.fetch()


async def test_a_loan_after_some_chunks_is_refused() -> None:
    def mixed(request: FetchRequest, time: int) -> list[bytes]:
        spec, memory = lent(request, b"nowhere")
        return [spec, chunk_head(request.request, 0) + bytes(100), memory]

    async with pair(handle=Liar(mixed)) as both:
        with pytest.raises(TransferFailed, match="may lend a tensor only once"):
            await both.fetch()


async def test_an_unrequested_loan_is_refused() -> None:
    liar = Liar(lambda request, time: lent(request, b"nowhere"))
    async with pair(handle=liar, target_has_it_on=False) as both:
        with pytest.raises(TransferFailed, match="a peer sent Lent"):
            await both.fetch()
        assert "memory_handles" not in liar.greetings[0].settings
