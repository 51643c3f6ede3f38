"""The native dialect's messages as MessagePack values.

``native`` encodes batches, chunks and pieces, which have other formats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from burn_remote_protocol.collectives import DIGEST_BYTES, LINK_ID_BYTES, MAX_MEMBERS
from burn_remote_protocol.dialects.native_values import (
    array,
    count,
    exactly,
    memory_handle,
    published_name,
    seconds,
    spec_from_wire,
    spec_to_wire,
    text,
    transfer_id,
)
from burn_remote_protocol.errors import (
    BurnRemoteError,
    OperationFailed,
    ProtocolViolation,
    error_from_wire,
    error_to_wire,
    shown,
)
from burn_remote_protocol.messages import (
    MAX_HOPS,
    Acknowledged,
    BeginCollective,
    Closing,
    Failed,
    FetchRequest,
    GroupBroken,
    Hello,
    JoinLink,
    Lent,
    LinkJoined,
    Names,
    PeerChallenge,
    PeerConfirmation,
    PeerProof,
    Refused,
    Reply,
    Resume,
    Waiting,
    Welcome,
)
from burn_remote_protocol.peer_proofs import NONCE_BYTES, PROOF_BYTES, TAG_BYTES
from burn_remote_protocol.tensors import TensorSpec

__all__ = [
    "BATCH",
    "CHUNK",
    "MESSAGE_FROM_WIRE",
    "MESSAGE_TO_WIRE",
    "PIECE",
    "REPLY",
    "SECRET_KINDS",
    "elements_to_wire",
]

# Makes a named tuple without its constructor, which is Python code. Only for messages that each
# round trip has.
_new: Final = tuple.__new__

# The types of frames, given by the first byte.
(
    _HELLO, BATCH, CHUNK, _WELCOME, _REFUSED, REPLY, _ACKNOWLEDGED, _FAILED, _CLOSING, _FETCH,
    _LENT, _CHALLENGE, _PROOF, _CONFIRMATION, _WAITING, _JOIN_LINK, _LINK_JOINED,
    _BEGIN_COLLECTIVE, PIECE, _GROUP_BROKEN,
) = range(1, 21)  # fmt: skip

# Longer than any token that a server accepts.
MAX_TOKEN_CHARACTERS: Final = 1024

# Types of frames that contain tokens or secrets. Error messages end up in logs, so they do not
# quote these bodies.
SECRET_KINDS: Final = frozenset({_HELLO, _WELCOME, _PROOF, _CONFIRMATION, _JOIN_LINK})


def _resume_to_wire(resume: Resume | None) -> list[Any] | None:
    if resume is None:
        return None
    return [resume.session, resume.secret, resume.received]


def _secret(value: Any) -> bytes:
    if type(value) is not bytes or len(value) > 64:
        raise ProtocolViolation("a session's secret is at most 64 bytes")
    return value


def _resume_from_wire(wire: Any) -> Resume | None:
    if wire is None:
        return None
    session, secret, received = array(wire)
    return Resume(count(session), _secret(secret), count(received))


def _token(value: Any) -> str:
    """Decode a token. The error does not quote it."""
    if type(value) is not str or len(value) > MAX_TOKEN_CHARACTERS:
        raise ProtocolViolation(f"a token is a text of at most {MAX_TOKEN_CHARACTERS} characters")
    return value


def _hello_from_wire(versions: Any, token: Any, resume: Any, client: Any, settings: Any) -> Hello:
    if not 1 <= len(array(versions)) <= 64:
        raise ProtocolViolation("Hello names between 1 and 64 versions")
    if not isinstance(settings, dict):
        raise ProtocolViolation("Hello's settings are a map")
    return Hello(
        tuple(count(version, 65_535) for version in versions),
        None if token is None else _token(token),
        _resume_from_wire(resume),
        text(client),
        settings,
    )


def _welcome_from_wire(
    version: Any, session: Any, secret: Any, lease: Any, device: Any, limits: Any, *rest: Any
) -> Welcome:
    peer_address, received = rest
    if not isinstance(device, dict):
        raise ProtocolViolation("what a server says of its device is a map")
    return Welcome(
        count(version), count(session), _secret(secret), seconds(lease), dict(device),
        {text(name): count(limit) for name, limit in limits.items()},
        text(peer_address), count(received),
    )  # fmt: skip


# The kinds of values in a reply.
_VALUE, _ERROR, _DATA, _FOLLOWS, _NAMES = range(5)


def _reply_to_wire(reply: Reply) -> list[Any]:
    value = reply.value
    if isinstance(value, BurnRemoteError):
        return [reply.request, _ERROR, error_to_wire(value)]
    if isinstance(value, TensorSpec):
        return [reply.request, _FOLLOWS, spec_to_wire(value)]
    if value is None or isinstance(value, int):
        return [reply.request, _VALUE, value]
    if isinstance(value, tuple):
        names = cast("Names", value)
        return [reply.request, _NAMES, [[name, spec_to_wire(spec)] for name, spec in names]]
    return elements_to_wire(reply.request, value)


def elements_to_wire(request: int, elements: bytes | memoryview) -> list[Any]:
    """Return the body of a reply with a tensor's elements."""
    return [request, _DATA, elements]


def _elements(wire: Any) -> bytes:
    if type(wire) is not bytes:
        raise ProtocolViolation(f"elements are bytes, not {shown(wire)}")
    return wire


def _names(wire: Any) -> Names:
    pairs = [array(pair) for pair in array(wire)]
    return tuple((published_name(name), spec_from_wire(spec)) for name, spec in pairs)


def _reply_value(wire: Any) -> int | None:
    return None if wire is None else count(wire)


_REPLY_VALUE: Final[dict[int, Callable[[Any], Any]]] = {
    _VALUE: _reply_value,
    _ERROR: error_from_wire,
    _DATA: _elements,
    _FOLLOWS: spec_from_wire,
    _NAMES: _names,
}


def _reply_from_wire(request: Any, mark: Any, value: Any) -> Reply:
    if mark == _DATA and type(value) is bytes and type(request) is int and request >= 0:
        return _new(Reply, (request, value))  # as below, without further calls
    return Reply(count(request), _REPLY_VALUE[mark](value))


def _failed_from_wire(tensors: Any, error: Any) -> Failed:
    failure = error_from_wire(error)
    if not isinstance(failure, OperationFailed):
        raise ProtocolViolation(f"an operation cannot fail with {failure.code!r}")
    return Failed(tuple(count(tensor) for tensor in array(tensors)), failure)


def _fetch_tag(*tag: Any) -> bytes:
    """Decode the optional last element of a fetch, its tag."""
    return exactly(TAG_BYTES, "a fetch's tag", *tag) if tag else b""


# For each class of message: the type of its frame, and the encoder of its body.
MESSAGE_TO_WIRE: Final[dict[type[Any], tuple[int, Callable[[Any], Any]]]] = {
    Hello: (
        _HELLO,
        lambda m: [
            list(m.versions), m.token, _resume_to_wire(m.resume), m.client, dict(m.settings)
        ],
    ),
    Welcome: (
        _WELCOME,
        lambda m: [
            m.version, m.session, m.secret, m.lease_seconds, dict(m.device), dict(m.limits),
            m.peer_address, m.received,
        ],
    ),
    Refused: (_REFUSED, lambda m: error_to_wire(m.error)),
    Reply: (REPLY, _reply_to_wire),
    Acknowledged: (_ACKNOWLEDGED, lambda m: [m.received]),
    Failed: (_FAILED, lambda m: [list(m.tensors), error_to_wire(m.error)]),
    Closing: (_CLOSING, lambda m: error_to_wire(m.error)),
    FetchRequest: (
        _FETCH, lambda m: [m.request, m.transfer, m.offset, *([m.tag] if m.tag else ())]
    ),
    Lent: (_LENT, lambda m: [m.request, m.handle]),
    PeerChallenge: (_CHALLENGE, lambda m: [m.version, m.nonce]),
    PeerProof: (_PROOF, lambda m: [m.nonce, m.address, m.proof]),
    PeerConfirmation: (_CONFIRMATION, lambda m: [m.proof]),
    Waiting: (_WAITING, lambda m: [m.request, *([m.hops] if m.hops else ())]),
    JoinLink: (_JOIN_LINK, lambda m: [m.link, *([m.tag] if m.tag else ())]),
    LinkJoined: (_LINK_JOINED, lambda m: [m.proof]),
    BeginCollective: (_BEGIN_COLLECTIVE, lambda m: [m.sequence, m.digest, m.description]),
    GroupBroken: (_GROUP_BROKEN, lambda m: [m.first, m.member, m.reason]),
}  # fmt: skip

# For each type of frame: the decoder of the message in its body.
MESSAGE_FROM_WIRE: Final[dict[int, Callable[..., Any]]] = {
    _HELLO: _hello_from_wire,
    _WELCOME: _welcome_from_wire,
    _REFUSED: lambda *error: Refused(error_from_wire(error)),
    REPLY: _reply_from_wire,
    _ACKNOWLEDGED: lambda received: Acknowledged(count(received)),
    _FAILED: _failed_from_wire,
    _CLOSING: lambda *error: Closing(error_from_wire(error)),
    _FETCH: lambda request, transfer, offset, *tag: FetchRequest(
        count(request), transfer_id(transfer), count(offset), _fetch_tag(*tag)
    ),
    _LENT: lambda request, handle: Lent(count(request), memory_handle(handle)),
    _CHALLENGE: lambda version, nonce: PeerChallenge(
        count(version, 65_535), exactly(NONCE_BYTES, "a nonce", nonce)
    ),
    _PROOF: lambda nonce, address, proof: PeerProof(
        exactly(NONCE_BYTES, "a nonce", nonce),
        text(address),
        exactly(PROOF_BYTES, "a proof", proof),
    ),
    _CONFIRMATION: lambda proof: PeerConfirmation(exactly(PROOF_BYTES, "a proof", proof)),
    _WAITING: lambda request, hops=0: Waiting(count(request), count(hops, MAX_HOPS)),
    _JOIN_LINK: lambda link, *tag: JoinLink(
        exactly(LINK_ID_BYTES, "the id of a link", link), _fetch_tag(*tag)
    ),
    _LINK_JOINED: lambda proof: LinkJoined(exactly(PROOF_BYTES, "a proof", proof)),
    _BEGIN_COLLECTIVE: lambda sequence, digest, description: BeginCollective(
        count(sequence), exactly(DIGEST_BYTES, "a digest", digest), text(description)
    ),
    _GROUP_BROKEN: lambda first, member, reason: GroupBroken(
        count(first), count(member, MAX_MEMBERS - 1), text(reason)
    ),
}
