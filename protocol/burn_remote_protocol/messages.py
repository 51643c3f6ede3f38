"""The messages between client, server and peers. The dialects define their bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import BurnRemoteError, OperationFailed
from burn_remote_protocol.operations.row import Operation, Signature
from burn_remote_protocol.tensors import TensorData, TensorSpec

__all__ = [
    "Acknowledged",
    "BeginUpload",
    "Chunk",
    "Cleanup",
    "Closing",
    "Define",
    "Drop",
    "Execute",
    "Expose",
    "Failed",
    "Fetch",
    "FetchRequest",
    "Hello",
    "Lent",
    "PeerChallenge",
    "PeerConfirmation",
    "PeerProof",
    "QueryDType",
    "Read",
    "Refused",
    "Reply",
    "Resume",
    "Seed",
    "Sync",
    "Task",
    "Upload",
    "Welcome",
]


# -- opening a connection ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Resume:
    """Ask to go on with a session: ``received`` is how many of the server's session frames the
    client has."""

    session: int
    secret: bytes = field(repr=False)
    received: int


@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame of whoever connects. ``versions`` are those it speaks; ``settings`` are
    hints that a server may ignore."""

    versions: tuple[int, ...]
    token: str | None = field(default=None, repr=False)
    resume: Resume | None = None
    client: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Welcome:
    """The server's answer to a ``Hello`` that it accepts.

    ``secret`` lets the client resume the session within ``lease_seconds``. ``limits`` has what the
    client must keep to: ``chunk_bytes``, ``message_bytes``, ``signatures``. ``peer_address`` is
    where other servers fetch this one's tensors. When resuming, ``received`` is how many of the
    client's session frames the server has.
    """

    version: int
    session: int
    secret: bytes = field(repr=False)
    lease_seconds: float
    device: Mapping[str, Any]
    limits: Mapping[str, int]
    peer_address: str
    received: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """The server's answer to a ``Hello`` that it does not accept."""

    error: BurnRemoteError


# -- tasks: what a client asks for, in order --------------------------------------------------


@dataclass(frozen=True, slots=True)
class Define:
    """Give a signature a number, so that operations with it send only their tensor ids."""

    number: int
    signature: Signature


@dataclass(frozen=True, slots=True)
class Execute:
    """Run one operation that is sent in full."""

    operation: Operation


@dataclass(frozen=True, slots=True)
class Drop:
    """Free tensors. Ids that the session does not have are ignored."""

    tensors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Upload:
    """Store a small tensor whose elements ride in the message."""

    tensor: int
    data: TensorData


@dataclass(frozen=True, slots=True)
class BeginUpload:
    """Store a tensor whose elements follow in chunks; the payload id is the tensor id."""

    tensor: int
    spec: TensorSpec
    byte_count: int


@dataclass(frozen=True, slots=True)
class Read:
    """Ask for a tensor's elements. ``spec`` is what the client believes it to be."""

    request: int
    tensor: int
    spec: TensorSpec


@dataclass(frozen=True, slots=True)
class Sync:
    """Ask to be told when everything before this has been executed."""

    request: int


@dataclass(frozen=True, slots=True)
class Seed:
    """Set the seed of the session's random numbers."""

    seed: int


@dataclass(frozen=True, slots=True)
class QueryDType:
    """Ask what the device can do with a dtype."""

    request: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Cleanup:
    """Return cached device memory to the system."""


@dataclass(frozen=True, slots=True)
class Expose:
    """Let whoever names ``transfer`` fetch a tensor, ``count`` times, until it expires.

    ``transfer`` is 32 random bytes in the native dialect, a number in Burn's.
    """

    tensor: int
    spec: TensorSpec
    count: int
    transfer: bytes | int
    expires_seconds: float


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetch an exposed tensor from the server at ``address`` and store it as ``tensor``.

    ``spec`` is ``None`` where the client's dialect does not say it.
    """

    transfer: bytes | int
    address: str
    tensor: int
    spec: TensorSpec | None


Task = (
    Define | Execute | Drop | Upload | BeginUpload | Read | Sync | Seed | QueryDType | Cleanup
    | Expose | Fetch
)  # fmt: skip


# -- what a server says -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer one request: with a value, an error, or a spec whose elements follow in chunks.

    ``value`` is a tensor's elements for a read (whoever asked knows their shape and dtype),
    ``None`` for a sync, an integer for a dtype's usage, and a ``TensorSpec`` where the elements
    follow; their payload id is the request id.
    """

    request: int
    value: bytes | TensorSpec | BurnRemoteError | int | None


@dataclass(frozen=True, slots=True)
class Failed:
    """Report that an operation nobody waits for failed; its outputs are ``tensors``."""

    tensors: tuple[int, ...]
    error: OperationFailed


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Say how many of the other side's session frames have arrived."""

    received: int


@dataclass(frozen=True, slots=True)
class Closing:
    """Say why this side is about to close the connection."""

    error: BurnRemoteError


# -- payloads and peers -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a payload: ``data`` belongs at byte ``offset`` of payload ``payload``."""

    payload: int
    offset: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class PeerChallenge:
    """The source's answer to a target that offers to prove its peer token: the version that the
    source chose, and the nonce that the proof must cover. ``peer_proofs`` has the whole exchange.
    """

    version: int
    nonce: bytes


@dataclass(frozen=True, slots=True)
class PeerProof:
    """The target's proof of its peer token, over both nonces and the address that it dialled."""

    nonce: bytes
    address: str
    proof: bytes


@dataclass(frozen=True, slots=True)
class PeerConfirmation:
    """The source's proof of its peer token; ``Welcome`` follows."""

    proof: bytes


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """One server's request to another: the tensor exposed as ``transfer``, from byte ``offset``.

    ``tag`` signs the request on a connection whose ends proved a peer token; else it is empty.
    """

    request: int
    transfer: bytes
    offset: int = 0
    tag: bytes = b""


@dataclass(frozen=True, slots=True)
class Lent:
    """Where the elements of a fetched tensor lie, in place of its chunks: ``handle`` opens memory
    of the source that begins with them, until the target says that they have arrived."""

    request: int
    handle: bytes
