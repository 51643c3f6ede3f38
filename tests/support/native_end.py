"""A fake native server in memory that records tasks, executes none and resumes every session."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Final

from burn_remote_protocol.dialects.native import (
    VERSIONS,
    Batch,
    decode_frame,
    decode_task,
    encode_frame,
)
from burn_remote_protocol.errors import BurnRemoteError
from burn_remote_protocol.links.checksummed_links import CheckedLink
from burn_remote_protocol.links.interface import BlockingLink
from burn_remote_protocol.messages import (
    Acknowledged,
    Chunk,
    Closing,
    Define,
    Drop,
    Hello,
    QueryDType,
    Read,
    Reply,
    Sync,
    Welcome,
)
from support.memory_links import MemoryLink, memory_pair

__all__ = ["NativeEnd"]


class _UncheckedLink(MemoryLink):
    """A link in memory that claims to need checksums, as a plain WebSocket does."""

    detects_corruption = False


class NativeEnd:
    """The server's end of one session: its ``tasks`` in order, over any number of links.

    A numbered operation is recorded as ``(signature, ids)``, a chunk as ``(payload, offset,
    size)``. Requests are answered: a sync with ``None``, a dtype with 3, a read with zeros.
    """

    def __init__(self, *, is_checked: bool = False, lease_seconds: float = 60.0) -> None:
        self.tasks: list[Any] = []
        self.resumes = 0
        self.limits: dict[str, int] = {}  # of the welcome
        # Set when the first frame after a resume is ``Closing``.
        self.was_discarded = threading.Event()
        # Set when ``Closing`` comes over any link.
        self.was_closed = threading.Event()
        self.errors: list[BaseException] = []
        self._is_checked: Final = is_checked
        self._lease_seconds: Final = lease_seconds
        self._signatures: dict[int, Any] = {}
        self._replies: list[bytes] = []
        self._received = 0
        self._lock = threading.Lock()
        self._newest: Any = None

    def dial(self, timeout_seconds: float) -> BlockingLink:
        """Return a new link to this server."""
        near, far = memory_pair()
        if self._is_checked:
            near.__class__ = _UncheckedLink
        served: Any = CheckedLink(far) if self._is_checked else far
        threading.Thread(target=self._serve, args=(served,), daemon=True).start()
        return near

    def send(self, message: object) -> None:
        """Send a session frame."""
        with self._lock:
            self._say(encode_frame(message))

    def hang_up(self) -> None:
        """Break the newest link."""
        self._newest.close()

    def _serve(self, link: Any) -> None:
        try:
            hello = decode_frame(link.receive())
            assert isinstance(hello, Hello)
            with self._lock:
                self._newest = link
                self._greet(link, hello)
            frame = link.receive()
            if hello.resume is not None and isinstance(decode_frame(frame), Closing):
                self.was_discarded.set()
            while self._take(link, frame):
                frame = link.receive()
        except BurnRemoteError:
            link.close()
        except BaseException as error:
            self.errors.append(error)
            link.close()

    def _greet(self, link: Any, hello: Hello) -> None:
        lease = self._lease_seconds
        limits, received = self.limits, self._received
        welcome = Welcome(VERSIONS[0], 1, b"secret", lease, {}, limits, "ws://end:1", received)
        link.send(encode_frame(welcome))
        if hello.resume is not None:
            self.resumes += 1
            for frame in self._replies[hello.resume.received :]:
                link.send(frame)

    def _take(self, link: Any, frame: Any) -> bool:
        """Handle a frame; ``False`` when another link serves the session."""
        message = decode_frame(frame)
        if isinstance(message, Closing):
            self.was_closed.set()
        with self._lock:
            if link is not self._newest or isinstance(message, Closing):
                return False
            if isinstance(message, Acknowledged):
                return True
            self._received += 1
            if isinstance(message, Chunk):
                self.tasks.append((message.payload, message.offset, len(message.data)))
            else:
                assert isinstance(message, Batch)
                for task in message.tasks:
                    self._perform(task)
            return True

    def _perform(self, wire: Any) -> None:
        if wire[0] >= 0:
            self.tasks.append((self._signatures[wire[0]], wire[1:]))
            return
        task = decode_task(wire)
        if isinstance(task, Define):
            self._signatures[task.number] = task.signature
            return
        self.tasks.append(task)
        if isinstance(task, Sync):
            self._say(encode_frame(Reply(task.request, None)))
        elif isinstance(task, QueryDType):
            self._say(encode_frame(Reply(task.request, 3)))
        elif isinstance(task, Read):
            self._say(encode_frame(Reply(task.request, bytes(task.spec.nbytes))))

    def _say(self, frame: bytes) -> None:
        self._replies.append(frame)
        with contextlib.suppress(BurnRemoteError):  # the frame is sent again after the resume
            self._newest.send(frame)

    @property
    def dropped(self) -> set[int]:
        """All tensors that were dropped."""
        drops = [task for task in self.tasks if isinstance(task, Drop)]
        return {tensor for drop in drops for tensor in drop.tensors}
