"""The messages between client, server and peers. The dialects define their encoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from burn_remote_protocol.collectives import CollectiveCall, GroupSpec
from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import BurnRemoteError, OperationFailed
from burn_remote_protocol.operations.row import Operation, Signature
from burn_remote_protocol.tensors import TensorData, TensorSpec

__all__ = [
    "MAX_HOPS",
    "Acknowledged",
    "BeginCollective",
    "BeginUpload",
    "Chunk",
    "Cleanup",
    "Closing",
    "Collective",
    "Define",
    "DefineGraph",
    "Drop",
    "Execute",
    "Expose",
    "Failed",
    "Fetch",
    "FetchRequest",
    "FindFile",
    "GroupBroken",
    "Hello",
    "JoinGroup",
    "JoinLink",
    "KeepContent",
    "LeaveGroup",
    "Lent",
    "LinkJoined",
    "ListPublished",
    "LoadFile",
    "Names",
    "OpenContent",
    "OpenPublished",
    "PeerChallenge",
    "PeerConfirmation",
    "PeerProof",
    "Publish",
    "QueryDType",
    "Read",
    "Refused",
    "Reply",
    "ReplyValue",
    "Resume",
    "Seed",
    "Sync",
    "Task",
    "Unpublish",
    "Upload",
    "Waiting",
    "Welcome",
]


# -- opening a connection ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Resume:
    """Ask to resume a session.

    ``received`` is the number of the server's session frames that the client has received.
    """

    session: int
    secret: bytes = field(repr=False)
    received: int


@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame of a client, or of a server that fetches from a peer.

    ``versions`` lists the protocol versions that it supports; ``settings`` are hints that a server
    may ignore.
    """

    versions: tuple[int, ...]
    token: str | None = field(default=None, repr=False)
    resume: Resume | None = None
    client: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Welcome:
    """The server's reply to a ``Hello`` that it accepts.

    ``secret`` lets the client resume the session within ``lease_seconds``. ``limits`` holds what
    the client must not exceed, such as ``chunk_bytes``, ``message_bytes`` and ``signatures``. Other
    servers fetch this server's tensors from ``peer_address``. When resuming, ``received`` is the
    number of the client's session frames that the server has received.
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
    """The server's reply to a ``Hello`` that it does not accept."""

    error: BurnRemoteError


# -- tasks: requests of a client, executed in order -------------------------------------------


@dataclass(frozen=True, slots=True)
class Define:
    """Assign a number to a signature; operations that refer to it send only their tensor ids."""

    number: int
    signature: Signature


@dataclass(frozen=True, slots=True)
class DefineGraph:
    """Assign a number to a graph: a sequence of operations that one later task runs.

    The tensors of a graph have *slots*. The inputs have the slots from 0 to ``input_count - 1``;
    each output of a step fills the next free slot. A step is the number of a signature, followed by
    the slots of its inputs. ``outputs`` has the slots of the graph's outputs.

    ``numbers`` lists the scalars whose values each call passes: the step, the position of the
    scalar among the arguments of the step's signature, and the position of its value in the call.
    """

    number: int
    input_count: int
    steps: tuple[tuple[int, ...], ...]
    outputs: tuple[int, ...]
    numbers: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Execute:
    """Run one operation that is sent in full."""

    operation: Operation


class Drop(NamedTuple):  # which takes a third of the time of a dataclass to make
    """Free tensors. Ids that are unknown to the session are ignored."""

    tensors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Upload:
    """Store a small tensor whose elements are part of the message."""

    tensor: int
    data: TensorData


@dataclass(frozen=True, slots=True)
class BeginUpload:
    """Store a tensor whose elements follow in chunks; the payload id is the tensor id."""

    tensor: int
    spec: TensorSpec
    byte_count: int


@dataclass(frozen=True, slots=True)
class FindFile:
    """Ask for the size and the version of a file of the server, as a [2] uint64 tensor."""

    request: int
    name: str


@dataclass(frozen=True, slots=True)
class LoadFile:
    """Make a tensor of the bytes of a file of the server, from ``offset`` on."""

    tensor: int
    spec: TensorSpec
    name: str
    version: int
    offset: int


@dataclass(frozen=True, slots=True)
class KeepContent:
    """Keep tensors under the digest of their content, for later sessions of the same token.

    The tensors have the ids from ``first`` on. The digest is that of
    ``kept_tensors.content_hash``.
    """

    digest: bytes
    first: int
    specs: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True)
class OpenContent:
    """Make tensors, with the ids from ``first`` on, of the content with a digest.

    The reply is 1, or 0 if the server does not have the content; then it makes no tensor.
    """

    request: int
    digest: bytes
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Keep a tensor under a name, for all sessions of the same token."""

    request: int
    name: str
    tensor: int
    spec: TensorSpec


@dataclass(frozen=True, slots=True)
class Unpublish:
    """Remove a name. The reply is 1, or 0 if there was none."""

    request: int
    name: str


@dataclass(frozen=True, slots=True)
class ListPublished:
    """Ask for the published names of the session's token and their specs.

    If ``name`` is given, the reply has only that name, or none.
    """

    request: int
    name: str | None


@dataclass(frozen=True, slots=True)
class OpenPublished:
    """Make a tensor with the elements that are published under a name."""

    tensor: int
    spec: TensorSpec
    name: str


class Read(NamedTuple):  # as ``Drop``
    """Ask for a tensor's elements. ``spec`` is the shape and dtype that the client expects."""

    request: int
    tensor: int
    spec: TensorSpec


@dataclass(frozen=True, slots=True)
class Sync:
    """Ask for a reply once all earlier tasks have been executed."""

    request: int


@dataclass(frozen=True, slots=True)
class Seed:
    """Set the seed of the session's random number generator."""

    seed: int


@dataclass(frozen=True, slots=True)
class QueryDType:
    """Ask what the device supports for a dtype."""

    request: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Cleanup:
    """Return cached device memory to the system."""


@dataclass(frozen=True, slots=True)
class Expose:
    """Permit anyone who knows ``transfer`` to fetch a tensor, ``count`` times, until it expires.

    ``transfer`` has 32 bytes, of which at least 16 are random, in the native dialect. In Burn's
    dialects, it is a number. ``ids`` describes both.
    """

    tensor: int
    spec: TensorSpec
    count: int
    transfer: bytes | int
    expires_seconds: float


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetch an exposed tensor from the server at ``address`` and store it as ``tensor``.

    ``spec`` is ``None`` if the client's dialect does not send it.
    """

    transfer: bytes | int
    address: str
    tensor: int
    spec: TensorSpec | None


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """Make the session a member of a group, under a number that the session's client chose."""

    group: int
    spec: GroupSpec


@dataclass(frozen=True, slots=True)
class Collective:
    """Carry out this member's part of a collective; ``outputs`` are filled when it is done.

    ``sequence`` counts the collectives that the member issued in the group, from 0.
    """

    group: int
    sequence: int
    call: CollectiveCall
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """Leave a group once the collectives issued before are done."""

    group: int


Task = (
    Define | DefineGraph | Execute | Drop | Upload | BeginUpload | Read | Sync | Seed | QueryDType
    | Cleanup | Expose | Fetch | JoinGroup | Collective | LeaveGroup | FindFile | LoadFile
    | KeepContent | OpenContent | Publish | Unpublish | ListPublished | OpenPublished
)  # fmt: skip


# -- messages of a server, and of both sides --------------------------------------------------

# Published tensors: names and specs.
Names = tuple[tuple[str, TensorSpec], ...]

# What a session replies to a request; the elements of a large tensor are sent in chunks.
ReplyValue = TensorData | BurnRemoteError | Names | int | None


class Reply(NamedTuple):  # as ``Drop``
    """Answer one request: with a value, an error, or a spec whose elements follow in chunks.

    ``value`` has a tensor's elements for a read, whose requester knows their shape and dtype. If
    the elements follow in chunks, it is their ``TensorSpec``, and the chunks' payload id is the
    request id. It is ``None`` for a sync and for a ``Publish``, an integer for a dtype's usage,
    0 or 1 for ``OpenContent`` and ``Unpublish``, and names with their specs for a
    ``ListPublished``.
    """

    request: int
    value: bytes | TensorSpec | BurnRemoteError | Names | int | None


@dataclass(frozen=True, slots=True)
class Failed:
    """Report the failure of an operation that no request waits for; its outputs are ``tensors``."""

    tensors: tuple[int, ...]
    error: OperationFailed


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Report how many of the other side's session frames have arrived."""

    received: int


@dataclass(frozen=True, slots=True)
class Closing:
    """Announce that this side is about to close the connection, and why."""

    error: BurnRemoteError


# -- payloads and peers -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a payload: ``data`` starts at byte ``offset`` of payload ``payload``.

    ``is_placed``: the link stored it where the receiver of the payload wanted it.
    """

    payload: int
    offset: int
    data: memoryview
    is_placed: bool = False


@dataclass(frozen=True, slots=True)
class PeerChallenge:
    """The source's reply to a target that offers to prove its peer token.

    It holds the version that the source chose and the nonce that the proof must cover.
    ``peer_proofs`` describes the exchange.
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

    ``tag`` authenticates the request if both ends proved a peer token; otherwise it is empty.
    """

    request: int
    transfer: bytes
    offset: int = 0
    tag: bytes = b""


@dataclass(frozen=True, slots=True)
class Lent:
    """The location of a fetched tensor's elements, sent instead of chunks.

    ``handle`` opens memory of the source that starts with the elements and stays valid until the
    target confirms their arrival.
    """

    request: int
    handle: bytes


# -- links of a group -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinLink:
    """Make this connection between servers a link of a group, to the member that dialled.

    ``tag`` authenticates the message if both ends proved a peer token; otherwise it is empty.
    """

    link: bytes = field(repr=False)
    tag: bytes = b""


@dataclass(frozen=True, slots=True)
class LinkJoined:
    """The proof that the member at the other end of a link knows the group's secret."""

    proof: bytes


@dataclass(frozen=True, slots=True)
class BeginCollective:
    """Announce the next collective, whose pieces follow.

    ``digest`` covers what all members must agree on; ``description`` says it in words.
    """

    sequence: int
    digest: bytes
    description: str


@dataclass(frozen=True, slots=True)
class GroupBroken:
    """Report that a member of the group failed or left; each member passes it on.

    No collective from ``first`` on can be carried out. ``member`` is the rank of the failed member.
    """

    first: int
    member: int
    reason: str


# The largest ``hops`` of a ``Waiting``. A larger limit allows longer chains of servers that wait
# for each other. With a smaller one, servers that wait in a cycle exchange fewer ``Waiting``
# messages before their fetches fail.
MAX_HOPS: Final = 8


@dataclass(frozen=True, slots=True)
class Waiting:
    """Report to the target of a fetch that the work before the tensor still makes progress.

    ``hops`` is 0 if the source itself works. If it waits for another server, ``hops`` is larger
    than that of the progress report that it passes on, at most ``MAX_HOPS``.
    """

    request: int
    hops: int = 0
