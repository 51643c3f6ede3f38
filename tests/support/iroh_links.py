"""Iroh endpoints on the loopback interface; tests control both ends of links."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

from burn_remote_protocol.links.interface import MAX_MESSAGE_BYTES, NORMAL_CLOSURE, AsyncLink
from burn_remote_protocol.links.iroh.listening import IrohListener, listen
from burn_remote_protocol.links.iroh.stream_link import StreamLink
from burn_remote_protocol.links.transport_interface import Request
from support.link_servers import LOOPS
from support.waiting import PATIENCE_SECONDS

__all__ = ["IrohEnd", "IrohServer", "address_of", "iroh_server", "listening"]

T = TypeVar("T")


def address_of(listener: IrohListener) -> str:
    """Return the address of a listener on the loopback interface."""
    return f"iroh://{listener.node_id}?addr=127.0.0.1:{listener.port}"


@contextlib.asynccontextmanager
async def listening(
    max_message_bytes: int = MAX_MESSAGE_BYTES, **options: Any
) -> AsyncIterator[tuple[IrohListener, asyncio.Queue[StreamLink]]]:
    """Accept links; yield the listener and a queue of its ends of links."""
    accepted: asyncio.Queue[StreamLink] = asyncio.Queue()

    async def handle(link: AsyncLink, request: Request) -> None:
        assert isinstance(link, StreamLink)
        await accepted.put(link)
        await asyncio.wait([link._reader])
        while link.has_frames:  # noqa: ASYNC110 - the test has not received all
            await asyncio.sleep(0.01)

    async with listen(
        "127.0.0.1", 0, handle, max_message_bytes=max_message_bytes, **options
    ) as listener:
        yield listener, accepted


class IrohEnd:
    """The server's end of a link, for use by a test's own thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, link: StreamLink) -> None:
        self._loop = loop
        self.link = link

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the server's loop and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_SECONDS)

    def send(self, frame: bytes) -> None:
        self.run(self.link.send(frame))

    def send_parts(self, head: bytes, payload: memoryview) -> None:
        self.run(self.link.send_parts(head, payload))

    def receive(self) -> bytes:
        received: bytes = self.run(self.link.receive())
        return received

    def close(self, code: int = NORMAL_CLOSURE, reason: str = "") -> None:
        self.run(self.link.close(code, reason))

    def vanish(self) -> None:
        """End the connection without a close of the link."""

        async def end() -> None:
            self.link._connection.close(0, b"")

        self.run(end())


class IrohServer:
    """A listener in a thread; ``accept`` returns its ends of links in the order of arrival."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.address = ""
        self.accepted: queue.SimpleQueue[IrohEnd] = queue.SimpleQueue()

    def accept(self) -> IrohEnd:
        return self.accepted.get(timeout=PATIENCE_SECONDS)


@contextlib.contextmanager
def iroh_server(
    loop_name: str = "uvloop", *, max_message_bytes: int = MAX_MESSAGE_BYTES
) -> Iterator[IrohServer]:
    """Run a listener in a thread until the context ends."""
    server = IrohServer(LOOPS[loop_name]())
    stop = asyncio.Event()
    ready = threading.Event()

    async def run() -> None:
        async with listening(max_message_bytes) as (listener, accepted):
            server.address = address_of(listener)
            ready.set()
            stopping = asyncio.ensure_future(stop.wait())
            while not stopping.done():
                taking = asyncio.ensure_future(accepted.get())
                await asyncio.wait({taking, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if taking.done():
                    server.accepted.put(IrohEnd(server.loop, taking.result()))
                taking.cancel()

    def main() -> None:
        with asyncio.Runner(loop_factory=lambda: server.loop) as runner:
            runner.run(run())

    thread = threading.Thread(target=main, name="iroh-server")
    thread.start()
    try:
        assert ready.wait(PATIENCE_SECONDS)
        yield server
    finally:
        server.loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive(), "the server did not stop"
