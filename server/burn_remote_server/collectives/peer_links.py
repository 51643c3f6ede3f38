"""Links of a ring over a connection between two servers.

Each member dials the previous one, as a target dials the source of a transfer: with the same
rules for addresses, the same proofs of the peer token, and the same TLS. So elements flow from
the dialled server to the one that dialled, because the WebSocket frames of a dialled server have no
mask.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from burn_remote_protocol.collectives import GroupSpec, link_id, link_proof
from burn_remote_protocol.dialects.native import (
    PIECE_HEAD_BYTES,
    VERSIONS,
    decode_frame,
    encode_frame,
    open_piece,
    piece_head,
)
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ConnectionFailed,
    ConnectionLost,
    HandshakeRefused,
    ProtocolViolation,
    TransferFailed,
)
from burn_remote_protocol.links.addresses import parse_address
from burn_remote_protocol.links.checksummed_links import CheckedLink, bulk_link
from burn_remote_protocol.links.interface import BlockingLink, FrameSender
from burn_remote_protocol.links.transport_registry import connect
from burn_remote_protocol.messages import (
    Acknowledged,
    BeginCollective,
    Closing,
    GroupBroken,
    Hello,
    JoinLink,
    LinkJoined,
    Refused,
)
from burn_remote_protocol.peer_proofs import FetchSigner, peer_key
from burn_remote_server.access.peer_authentication import prove_to_source
from burn_remote_server.access.peer_rules import PeerRules, token_of
from burn_remote_server.access.tls import peer_context
from burn_remote_server.collectives.links import Message, Piece, Place
from burn_remote_server.settings.server_settings import Settings

__all__ = ["Dialler", "PeerIncoming", "PeerOutgoing", "accepts_join"]

T = TypeVar("T")

# How long a receiving thread waits for bytes before it checks whether the group is broken.
SILENCE_SECONDS: Final = 0.1
# The most bytes of a message that is not a piece.
MAX_MESSAGE_BYTES: Final = 8 * 1024
_NOTHING: Final = memoryview(b"")
_ALIVE: Final = encode_frame(Acknowledged(0))


class PeerOutgoing:
    """An ``Outgoing`` over a connection that the next member's server opened."""

    def __init__(self, sender: FrameSender) -> None:
        self._sender: Final = sender

    def send(self, message: BeginCollective | GroupBroken | None) -> None:
        self._sender.send(_ALIVE if message is None else encode_frame(message))

    def send_piece(self, piece: Piece) -> None:
        self._sender.send_parts(piece_head(piece.sequence, piece.offset), piece.elements)

    @property
    def accepts(self) -> bool:
        return self._sender.accepts

    def begin(self, items: Sequence[BeginCollective | Piece]) -> bool:
        return self._sender.begin(
            [
                (piece_head(item.sequence, item.offset), item.elements)
                if isinstance(item, Piece)
                else (encode_frame(item), _NOTHING)
                for item in items
            ]
        )

    def finish(self) -> None:
        self._sender.finish()

    def close(self) -> None:
        self._sender.close()


class PeerIncoming:
    """An ``Incoming`` over a connection to the server of the previous member."""

    has_beats = True

    def __init__(self, link: BlockingLink) -> None:
        self._link: Final = link
        self._source: Final = bulk_link(link).bulk_reader(SILENCE_SECONDS)
        self._piece: tuple[int, int] | None = None  # of the message that is being received

    def receive(self, place: Place, check: Callable[[], None]) -> Message:
        def choose(head: bytes, size: int) -> memoryview:
            self._piece = piece = open_piece(head)
            if piece is not None:
                return place(*piece, size)
            return memoryview(bytearray(size)) if size <= MAX_MESSAGE_BYTES else _NOTHING

        # A piece is received in two parts: its head, and its elements in memory that ``choose``
        # returns. Other messages are divided at the same place, and their parts are joined again.
        head, rest = self._source.receive(PIECE_HEAD_BYTES, choose, check)
        if self._piece is not None:
            return Piece(*self._piece, rest)
        message = decode_frame(head + rest)
        if isinstance(message, Acknowledged):
            return None
        if isinstance(message, Closing):
            raise ConnectionLost(f"it ended the link: {message.error}")
        if isinstance(message, BeginCollective | GroupBroken):
            return message
        raise ProtocolViolation(f"a member must not send {type(message).__name__}")

    def wait(self, timeout_seconds: float) -> bool:
        return self._source.wait(timeout_seconds)

    def wake(self) -> None:
        self._source.wake()

    def has_ended(self) -> bool:
        return self._source.has_ended()

    def notify(self, message: GroupBroken | None) -> None:
        with contextlib.suppress(BurnRemoteError):
            self._link.send(_ALIVE if message is None else encode_frame(message))

    def close(self) -> None:
        self._link.close()


class Dialler:
    """Opens links from previous members, in the threads of members."""

    def __init__(
        self, settings: Settings, rules: PeerRules, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Load the TLS context. Raises ``InvalidCertificate``."""
        self._settings: Final = settings
        self._rules: Final = rules
        self._loop: Final = loop
        self._tls: Final = peer_context(settings)
        token = settings.peer_token
        self._key: Final = None if token is None else peer_key(token.get_secret_value())

    def join_seconds(self, spec: GroupSpec) -> float:
        """Return how long members wait for their neighbours.

        That is the larger of the group's ``bound_seconds`` and the setting for handshakes.
        """
        return max(spec.bound_seconds, self._settings.handshake_timeout_seconds)

    def dial(self, spec: GroupSpec, party: str, check: Callable[[], None]) -> PeerIncoming:
        """Open the link to a member from the previous one.

        ``party`` names those who share lookups of names, as ``NameLookups`` describes.

        Waits up to ``join_seconds`` for the previous member to join. Raises ``BurnRemoteError``.
        """
        previous = (spec.rank - 1) % len(spec.addresses)
        address = spec.addresses[previous]
        seconds = self.join_seconds(spec)
        deadline = time.monotonic() + seconds
        link = self._open(address, party, deadline)
        try:
            adapter = _Handshaking(link, deadline, seconds, check)
            hello = Hello(VERSIONS, client="burn-remote-server")
            target = parse_address(address)
            signer = _run(prove_to_source(adapter, target, hello, self._key))  # type: ignore[arg-type]
            self._join(adapter, spec, previous, signer)
            return PeerIncoming(link)
        except BaseException:
            link.close()
            raise

    def _open(self, address: str, party: str, deadline: float) -> BlockingLink:
        target = parse_address(address)
        if token_of(target) is not None:
            raise TransferFailed(
                f"{target} has a token in its path; remove it, because native servers prove the "
                "peer token instead"
            )
        resolving = asyncio.run_coroutine_threadsafe(
            self._rules.resolve(address, party), self._loop
        )
        try:
            _, found = resolving.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            resolving.cancel()
            raise ConnectionFailed(f"the host name in {address} was not resolved in time") from None
        failure = ConnectionFailed(f"no connection to {address} was established in time")
        for numeric in found:
            seconds = min(
                self._settings.handshake_timeout_seconds / len(found), deadline - time.monotonic()
            )
            if seconds <= 0:
                break
            try:
                link = connect(
                    address,
                    "/transfer",
                    connect_to=numeric,
                    tls=self._tls if target.secure else None,
                    timeout_seconds=seconds,
                )
            except ConnectionFailed as error:
                failure = error
                continue
            is_checked = not target.secure and self._settings.transfer_checksum
            return CheckedLink(link) if is_checked else link
        raise failure

    def _join(
        self, adapter: _Handshaking, spec: GroupSpec, previous: int, signer: FetchSigner | None
    ) -> None:
        identifier = link_id(spec.secret, spec.addresses, previous)
        tag = b"" if signer is None else signer.tag(0, identifier, 0)
        _run(adapter.send(encode_frame(JoinLink(identifier, tag))))
        reply = decode_frame(_run(adapter.receive()))
        if isinstance(reply, Closing | Refused):
            raise reply.error
        if not isinstance(reply, LinkJoined):
            raise ProtocolViolation(f"expected LinkJoined, received {type(reply).__name__}")
        if reply.proof != link_proof(spec.secret, identifier):
            raise HandshakeRefused("its proof of the group's secret is wrong")


def accepts_join(message: JoinLink, signer: FetchSigner | None) -> bool:
    """Whether a message to join a link has the signature that the connection requires."""
    return signer is None or signer.accepts(message.tag, 0, message.link, 0)


class _Handshaking:
    """Adapter that gives a blocking link the interface of an asynchronous one.

    Its coroutines never suspend.
    """

    def __init__(
        self, link: BlockingLink, deadline: float, seconds: float, check: Callable[[], None]
    ) -> None:
        self._link: Final = link
        self._deadline: Final = deadline
        self._seconds: Final = seconds
        self._check: Final = check

    async def send(self, frame: bytes) -> None:
        self._link.send(frame)

    async def receive(self) -> bytes | memoryview:
        while True:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise ConnectionFailed(
                    f"it did not join the group within {self._seconds:g} seconds, or it joined a "
                    "group with other members or another secret"
                )
            frame = self._link.receive(min(left, 0.25))
            if frame is not None:
                return frame
            self._check()


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("a coroutine over a blocking link suspended")
