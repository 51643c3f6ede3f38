"""A native client on an event loop, over links in memory, whose links break as a test demands."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from burn_remote_protocol.dialects.native import (
    VERSIONS,
    decode_frame,
    encode_batch,
    encode_frame,
    encode_task,
)
from burn_remote_protocol.errors import ConnectionLost
from burn_remote_protocol.links.checksummed_links import CheckedAsyncLink
from burn_remote_protocol.messages import (
    Acknowledged,
    Chunk,
    Closing,
    Failed,
    Hello,
    Reply,
    Resume,
    Welcome,
)
from burn_remote_protocol.session_states import Role, SessionEnd
from burn_remote_server.dialects.native.session_attachments import Attachments
from burn_remote_server.dialects.native.session_handler import serve_session
from burn_remote_server.hosting.host import Device
from support.memory_links import CAPACITY_BYTES, AsyncMemoryLink, async_memory_pair
from support.waiting import PATIENCE_SECONDS

__all__ = ["AsyncNativeClient", "batch", "turns", "until"]


async def turns(count: int) -> None:
    """Let the event loop run ``count`` iterations."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(holds: Callable[[], bool]) -> None:
    """Let the event loop run until a condition holds. Raises ``TimeoutError``."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110 - the state under test has no event
            await asyncio.sleep(0)


def batch(*tasks: Any, received: int = 0) -> bytes:
    """Return the frame of a batch."""
    return encode_batch(received, [encode_task(task) for task in tasks])


class AsyncNativeClient:
    """A client's end of one session. It executes nothing by itself: a test sends and receives.

    ``near`` is the newest link and ``far`` its server's end; ``servings`` are the server's handlers
    of all links.
    """

    def __init__(
        self,
        device: Device,
        attachments: Attachments | None = None,
        *,
        is_checked: bool = False,
        capacity_bytes: int = CAPACITY_BYTES,
    ) -> None:
        self._device: Final = device
        self._attachments: Final = Attachments() if attachments is None else attachments
        self._is_checked: Final = is_checked
        self._capacity_bytes: Final = capacity_bytes
        self._end: Final[SessionEnd[bytes]] = SessionEnd(Role.CLIENT)
        self.servings: list[asyncio.Task[None]] = []
        self.welcome: Welcome | None = None
        self.plain: AsyncMemoryLink
        self.near: Any
        self.far: AsyncMemoryLink

    def dial(self, token: str | None = None) -> None:
        """Open a new link; the server serves it in a task."""
        self.plain, self.far = async_memory_pair(capacity_bytes=self._capacity_bytes)
        self.near = CheckedAsyncLink(self.plain) if self._is_checked else self.plain
        serving = serve_session(self.far, self._device, self._attachments, token)
        self.servings.append(asyncio.ensure_future(_until_done(serving, self.far)))

    async def open(self, token: str | None = None) -> Welcome:
        """Open a session; return the server's welcome. Raises the reason of a refusal."""
        self.dial(token)
        await self.say(Hello(VERSIONS, client="a test"))
        self.welcome = _welcome(await self.hear())
        return self.welcome

    def resumption(self) -> Hello:
        """Return the ``Hello`` that resumes the session, with the count of received frames."""
        assert self.welcome is not None
        self._end.begin_link()
        resume = Resume(self.welcome.session, self.welcome.secret, self._end.received)
        return Hello(VERSIONS, resume=resume)

    async def resume(self, token: str | None = None) -> Welcome:
        """Resume the session over a new link and send again what the server lacks."""
        hello = self.resumption()
        self.dial(token)
        await self.say(hello)
        welcome = _welcome(await self.hear())
        self._end.window.acknowledge(welcome.received)
        for frame in [*self._end.window.frames()]:
            await self.near.send(frame)
        return welcome

    async def submit(self, *tasks: Any) -> None:
        """Send a batch that is sent again if the link breaks."""
        await self.send_counted(batch(*tasks, received=self._end.take_received()))

    async def send_counted(self, frame: bytes) -> None:
        """Send a session frame that is sent again if the link breaks."""
        self._end.window.append(frame, len(frame))
        with contextlib.suppress(ConnectionLost):
            await self.near.send(frame)

    async def say(self, message: object) -> None:
        """Send a message that is not counted."""
        await self.near.send(encode_frame(message))

    async def hear(self) -> Any:
        """Return the next message, other than an acknowledgement. Raises ``ConnectionLost``."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                message = decode_frame(await self.near.receive())
                if isinstance(message, Reply | Failed | Chunk):
                    self._end.receive(self._end.link)
                if not isinstance(message, Acknowledged):
                    return message

    async def reply(self) -> Reply:
        """Return the next message, which must be a reply."""
        message = await self.hear()
        assert isinstance(message, Reply), message
        return message

    async def reason(self) -> Exception:
        """Return the error of the server's ``Closing``, after any other messages."""
        while not isinstance(message := await self.hear(), Closing):
            pass
        return message.error

    async def hang_up(self) -> None:
        """Break the newest link without sending ``Closing``."""
        await self.plain.close()

    async def ended(self) -> None:
        """Wait until the server has ended all links."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*self.servings, return_exceptions=True)


async def _until_done(serving: Any, far: AsyncMemoryLink) -> None:
    # A listener closes the link when its handler returns.
    try:
        await serving
    finally:
        await far.close()


def _welcome(message: Any) -> Welcome:
    if not isinstance(message, Welcome):
        raise message.error
    return message
