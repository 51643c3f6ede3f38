"""The differences between sessions with servers of Burn 0.21 and of Burn 0.22."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from burn_remote.sessions.burn.server_facts import MAX_MESSAGE_BYTES
from burn_remote_protocol.dialects import (
    burn_0_21,
    burn_0_21_responses,
    burn_0_22,
    burn_0_22_responses,
    burn_0_22_tasks,
)
from burn_remote_protocol.dialects.burn_0_21_recognition import OperationTemplate
from burn_remote_protocol.dialects.burn_0_21_responses import BurnReply
from burn_remote_protocol.dialects.burn_0_22_responses import (
    IncompatibleProtocol,
    NoSuchDevice,
    SessionInfo,
)
from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import ConnectionLost, HandshakeRefused, VersionMismatch
from burn_remote_protocol.links.interface import BlockingLink
from burn_remote_protocol.messages import Task
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.operations.vocabularies import Vocabulary

__all__ = ["USUAL_CLOSE_REASON", "Burn021", "Burn022", "BurnRelease", "DialRoute", "Opened"]

# The reason that Burn's servers give whenever they close a connection
# (``src/websocket/server.rs`` of burn-communication 0.21.0 and 0.22.1).
USUAL_CLOSE_REASON: Final = "Peer is closing"

# Opens the link to a route of the server.
DialRoute = Callable[[str], BlockingLink]

# Burn's server keeps order only within a stream, so a session uses a single stream.
STREAM: Final = 0


class Opened(NamedTuple):
    """The links of an opened session: for tasks, and for responses, which may be the same.

    ``bool_store`` is the dtype in which the server stores bools, if it said so.
    """

    requests: BlockingLink
    responses: BlockingLink
    bool_store: DType | None


class BurnRelease(Protocol):
    """The messages of one release of Burn, for one session.

    ``dialect`` is its name, ``collapse`` what a closed connection usually means.
    """

    dialect: ClassVar[str]
    vocabulary: ClassVar[Vocabulary]
    max_message_bytes: ClassVar[int]
    collapse: ClassVar[str]

    def open(self, dial: DialRoute, timeout_seconds: float) -> Opened:
        """Open the session's links."""
        ...

    def request(self, position: int) -> int:
        """Return the id of a request at a position among the session's tasks."""
        ...

    def template(self, signature: Signature) -> OperationTemplate:
        """Return the template of the messages that register an operation."""
        ...

    def end_of_operation(self, position: int) -> bytes:
        """Return the bytes that follow an operation in its message."""
        ...

    def encode_task(self, tasks: Sequence[Task], request: int) -> bytes:
        """Return the message of a task, or of a read or expose with the drop after it."""
        ...

    def encode_drop(self, tensor: int, request: int) -> bytes:
        """Return the message that frees a tensor."""
        ...

    def frames(self, messages: Sequence[bytes]) -> list[bytes]:
        """Return the frames that carry messages."""
        ...

    def decode_reply(self, frame: bytes) -> BurnReply:
        """Decode a response."""
        ...

    def last_message(self) -> bytes:
        """Return the message that ends the session."""
        ...


class Burn021:
    """Burn 0.21: a socket for tasks, one per frame, and another for responses."""

    dialect: ClassVar[str] = "burn-0.21"
    vocabulary: ClassVar[Vocabulary] = Vocabulary.BURN_0_21
    max_message_bytes: ClassVar[int] = MAX_MESSAGE_BYTES
    collapse: ClassVar[str] = (
        "Burn 0.21 closes a socket without a reason when an operation panics, in this session or "
        "an earlier one, and must then be restarted"
    )

    def __init__(self) -> None:
        # Random, because on a real server all clients that use the same id share the session.
        self._session: Final = secrets.randbits(64)

    def open(self, dial: DialRoute, timeout_seconds: float) -> Opened:
        """Open both sockets."""
        requests = dial("/request")
        try:
            responses = dial("/response")
        except BaseException:
            requests.close()
            raise
        try:
            for link in (requests, responses):
                link.send(burn_0_21.encode_init(self._session))
        except BaseException:
            for link in (requests, responses):
                link.close()
            raise
        return Opened(requests, responses, None)

    def request(self, position: int) -> int:
        """Combine a position and the stream."""
        return burn_0_21.request_id(position, STREAM)

    def template(self, signature: Signature) -> OperationTemplate:
        """Return the template of a frame without its position."""
        return OperationTemplate(signature)

    def end_of_operation(self, position: int) -> bytes:
        """Return the position and the stream."""
        return burn_0_21.encode_identity(self.request(position))

    def encode_task(self, tasks: Sequence[Task], request: int) -> bytes:
        """Return the frame of a task."""
        return burn_0_21.encode_tasks(tasks, request)

    def encode_drop(self, tensor: int, request: int) -> bytes:
        """Return the frame that frees a tensor."""
        return burn_0_21.drop_frame(tensor, burn_0_21.encode_identity(request))

    def frames(self, messages: Sequence[bytes]) -> list[bytes]:
        """Return the messages: each is a frame."""
        return [*messages]

    def decode_reply(self, frame: bytes) -> BurnReply:
        """Decode a frame of ``/response``."""
        return burn_0_21_responses.decode_reply(frame)

    def last_message(self) -> bytes:
        """Return the message that ends the session."""
        return burn_0_21.encode_close(self._session)


class Burn022:
    """Burn 0.22: one socket, whose frames hold several messages; the server sends its settings."""

    dialect: ClassVar[str] = "burn-0.22"
    vocabulary: ClassVar[Vocabulary] = Vocabulary.BURN_0_22
    max_message_bytes: ClassVar[int] = 2**30
    collapse: ClassVar[str] = (
        "Burn 0.22 closes the connection when an operation panics; the server's log has the reason"
    )

    def __init__(self, address: str, device_index: int, token: str | None) -> None:
        self._address: Final = address
        self._device_index: Final = device_index
        self._authorization: Final = (token or "").encode()
        self._session: Final = secrets.randbits(64)

    def open(self, dial: DialRoute, timeout_seconds: float) -> Opened:
        """Open the socket. Raises ``HandshakeRefused`` and ``VersionMismatch`` if refused."""
        link = dial("/session")
        try:
            init = burn_0_22.SessionInit(
                burn_0_22.VERSION, self._session, self._device_index, self._authorization
            )
            link.send(burn_0_22.encode_init(init))
            reply = link.receive(timeout_seconds)
            if reply is None:
                raise ConnectionLost(
                    f"{link.address} did not answer within {timeout_seconds:g} seconds"
                )
            info = self._accepted(burn_0_22_responses.decode_opening(reply))
        except BaseException:
            link.close()
            raise
        return Opened(link, link, info.bool_dtype)

    def _accepted(self, reply: Any) -> SessionInfo:
        if isinstance(reply, SessionInfo):
            return reply
        if isinstance(reply, NoSuchDevice):
            raise HandshakeRefused(
                f"{self._address} has {reply.device_count} devices, so none has the number "
                f"{self._device_index}"
            )
        if isinstance(reply, IncompatibleProtocol):
            raise VersionMismatch(
                f"{self._address} speaks version {reply.server_version} of Burn's protocol; this "
                f"client speaks {burn_0_22.VERSION}, that of Burn 0.22"
            )
        raise HandshakeRefused(
            f"{self._address} refuses the token; pass the server's token with token="
        )

    def request(self, position: int) -> int:
        """Return the position."""
        return position

    def template(self, signature: Signature) -> OperationTemplate:
        """Return the template of a message."""
        return OperationTemplate(signature, self.vocabulary, burn_0_22_tasks.OPERATION_HEAD)

    def end_of_operation(self, position: int) -> bytes:
        """Return nothing: operations have no position."""
        return b""

    def encode_task(self, tasks: Sequence[Task], request: int) -> bytes:
        """Return the message of a task."""
        return burn_0_22_tasks.encode_task(tasks, self._address)

    def encode_drop(self, tensor: int, request: int) -> bytes:
        """Return the message that frees a tensor."""
        return burn_0_22_tasks.encode_drop(tensor)

    def frames(self, messages: Sequence[bytes]) -> list[bytes]:
        """Return frames of several messages each."""
        return [*burn_0_22_tasks.joined(messages)]

    def decode_reply(self, frame: bytes) -> BurnReply:
        """Decode a response."""
        return burn_0_22_responses.decode_reply(frame)

    def last_message(self) -> bytes:
        """Return the message that ends the session."""
        return burn_0_22_tasks.encode_close(self._session)
