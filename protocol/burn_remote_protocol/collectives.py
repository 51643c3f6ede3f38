"""Collective operations of a group of sessions: their kinds, their results and their link ids.

A *group* has members with the ranks 0, 1, …; each is a session of some server. All members issue
the same *calls* in the same order. A call holds what every member must agree on. The specs in it
describe the inputs of one member, and are the same for all members.

The links between the members' servers are identified by values that derive from the group's
secret. So only servers that know the secret can form a link of the group.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import hmac
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch, UsageError
from burn_remote_protocol.tensors import TensorSpec

__all__ = [
    "DIGEST_BYTES",
    "GROUP_SECRET_BYTES",
    "ISSUE_SECONDS",
    "LINK_ID_BYTES",
    "MAX_MEMBERS",
    "TOKEN_SPEC",
    "CollectiveCall",
    "CollectiveKind",
    "EngineKind",
    "GroupSpec",
    "Reduction",
    "link_id",
    "link_proof",
]

GROUP_SECRET_BYTES: Final = 32
LINK_ID_BYTES: Final = 32
DIGEST_BYTES: Final = 16

# The most members of a group. Their addresses are one list on the wire, whose limit is 4096.
MAX_MEMBERS: Final = 1024

# How long members wait for a member that has not issued its collective, unless the client sets
# another bound. A step of a training program takes less; a program that hangs still ends.
ISSUE_SECONDS: Final = 600.0
MAX_SECONDS: Final = 86_400

_LINK: Final = b"burn-remote group 1 link\0"
_PROOF: Final = b"burn-remote group 1 proof\0"

# The output of a member that receives nothing: an empty tensor that is ready when its part is done.
TOKEN_SPEC: Final = TensorSpec((0,), F32)


class CollectiveKind(enum.IntEnum):
    """What a collective does; the values are those of the wire."""

    ALL_REDUCE = 0
    REDUCE_SCATTER = 1
    ALL_GATHER = 2
    BROADCAST = 3
    REDUCE = 4
    ALL_TO_ALL = 5
    BARRIER = 6

    @property
    def reduces(self) -> bool:
        """Whether it combines elements of several members."""
        return self in _REDUCING

    @property
    def has_root(self) -> bool:
        """Whether one member is the root: the source of a broadcast, the target of a reduce."""
        return self in (CollectiveKind.BROADCAST, CollectiveKind.REDUCE)

    def __str__(self) -> str:
        return self.name.lower()


_REDUCING: Final = frozenset(
    {CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER, CollectiveKind.REDUCE}
)


class EngineKind(enum.IntEnum):
    """How the members' servers exchange elements; the values are those of the wire.

    ``MEMORY`` is for members that are all sessions of one server process, ``NCCL`` for GPUs.
    A server announces the engines that it has as the bits ``1 << kind`` of one number.
    """

    RING = 0
    MEMORY = 1
    NCCL = 2

    def __str__(self) -> str:
        return self.name.lower()

    @classmethod
    def bits(cls, kinds: Iterable[EngineKind]) -> int:
        """Return the number that announces some engines."""
        return sum({1 << kind for kind in kinds})

    def is_among(self, bits: int) -> bool:
        """Whether a number of ``bits`` announces this engine."""
        return bool(bits >> self & 1)


class Reduction(enum.IntEnum):
    """How elements of the members are combined; the values are those of the wire."""

    SUM = 0
    MEAN = 1
    MIN = 2
    MAX = 3
    PRODUCT = 4

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group as one of its members joins it.

    ``addresses`` are the peer addresses of the members' devices, by rank. A member counts as failed
    in two cases: its server sends nothing for ``bound_seconds``, or the server is alive but the
    member does not issue its collective for ``issue_seconds`` while the next member waits for it.
    All members have the same ``engine``.
    """

    secret: bytes = field(repr=False)
    rank: int
    addresses: tuple[str, ...]
    bound_seconds: float
    issue_seconds: float = ISSUE_SECONDS
    engine: EngineKind = EngineKind.RING

    def __post_init__(self) -> None:
        """Check the fields. Raises ``UsageError``."""
        if len(self.secret) != GROUP_SECRET_BYTES:
            raise UsageError(
                f"the secret of a group has {GROUP_SECRET_BYTES} bytes, not {len(self.secret):,}"
            )
        if not 1 <= len(self.addresses) <= MAX_MEMBERS:
            raise UsageError(
                f"a group has 1 to {MAX_MEMBERS:,} members, not {len(self.addresses):,}"
            )
        if not 0 <= self.rank < len(self.addresses):
            raise UsageError(
                f"rank {self.rank} in a group of {len(self.addresses)} members, whose ranks begin "
                "at 0"
            )
        for name in ("bound_seconds", "issue_seconds"):
            found = getattr(self, name)
            if not 0 < found <= MAX_SECONDS:
                raise UsageError(
                    f"{name} of a group is {found}; it must be above 0 and at most {MAX_SECONDS:,}"
                )


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """What all members must agree on when they issue a collective.

    ``specs`` are the specs of one member's inputs. In a broadcast only the root has inputs, but
    all members know their specs. A barrier has none. ``reduction`` is ignored unless the kind
    ``reduces``, and ``root`` unless it ``has_root``.
    """

    kind: CollectiveKind
    specs: tuple[TensorSpec, ...] = ()
    reduction: Reduction = Reduction.SUM
    root: int = 0

    def input_specs(self, rank: int) -> tuple[TensorSpec, ...]:
        """Return the specs of the inputs that the member with this rank passes."""
        if self.kind is CollectiveKind.BROADCAST and rank != self.root:
            return ()
        return self.specs

    def output_specs(self, members: int, rank: int) -> tuple[TensorSpec, ...]:
        """Return the specs of a member's outputs.

        A member that receives nothing has one output of ``TOKEN_SPEC``. Raises ``UsageError`` for
        a call that a group of this size cannot make.
        """
        return _kept_output_specs(self, members, rank)

    def _output_specs(self, members: int, rank: int) -> tuple[TensorSpec, ...]:
        self.check(members)
        kind = self.kind
        if kind is CollectiveKind.REDUCE_SCATTER:
            return tuple([_first_axis(spec, spec.shape[0] // members) for spec in self.specs])
        if kind is CollectiveKind.ALL_GATHER:
            return tuple([_first_axis(spec, spec.shape[0] * members) for spec in self.specs])
        if kind is CollectiveKind.BARRIER:
            return (TOKEN_SPEC,)
        if kind is CollectiveKind.REDUCE and rank != self.root:
            return (TOKEN_SPEC,)
        return self.specs

    def check(self, members: int) -> None:
        """Raise ``UsageError`` unless a group of this size can make the call."""
        if self.kind is CollectiveKind.BARRIER:
            if self.specs:
                raise UsageError("a barrier takes no tensors")
            return
        if not self.specs:
            raise UsageError(f"{self.kind} takes at least one tensor")
        dtype = self.specs[0].dtype
        if any(spec.dtype is not dtype for spec in self.specs):
            names = ", ".join(sorted({str(spec.dtype) for spec in self.specs}))
            raise DTypeMismatch(
                f"the tensors of one collective have one dtype, not {names}; issue one for each"
            )
        if self.kind.has_root and not 0 <= self.root < members:
            raise UsageError(
                f"root {self.root} in a group of {members} members, whose ranks begin at 0"
            )
        if self.kind.reduces:
            self._check_reduction()
        elif dtype.scheme is not None:
            raise DTypeMismatch(f"{self.kind} of quantized tensors is not supported")
        if self.kind in _BY_FIRST_AXIS:
            self._check_first_axis(members)

    def _check_reduction(self) -> None:
        dtype = self.specs[0].dtype
        if not (dtype.is_floating or dtype.is_integer):
            raise DTypeMismatch(f"{self.kind} of {dtype}: only numbers can be reduced")
        if self.reduction is Reduction.MEAN and not dtype.is_floating:
            raise DTypeMismatch(
                f"the mean of {dtype} is no integer; reduce by sum, or cast to a float dtype"
            )

    def _check_first_axis(self, members: int) -> None:
        for spec in self.specs:
            if not spec.shape:
                raise ShapeMismatch(
                    f"{self.kind} joins or splits the first axis; a scalar has none"
                )
            if self.kind is not CollectiveKind.ALL_GATHER and spec.shape[0] % members:
                raise ShapeMismatch(
                    f"{self.kind} of {spec} among {members} members: the first axis is split, and "
                    f"{spec.shape[0]} is no multiple of {members}"
                )

    def digest(self, sequence: int) -> bytes:
        """Return a digest of the call and its sequence number; members compare it."""
        return hashlib.blake2b(
            f"{sequence} {_agreed(self)}".encode(), digest_size=DIGEST_BYTES
        ).digest()

    def describe(self) -> str:
        """Return the call in a few words for error messages."""
        return _described(self)


# Results for the latest calls, because programs repeat them: checking a call, or writing one of the
# texts that servers need for each collective, takes 3 to 8 µs, finding the result 0.5.
@functools.lru_cache(maxsize=128)
def _kept_output_specs(call: CollectiveCall, members: int, rank: int) -> tuple[TensorSpec, ...]:
    return call._output_specs(members, rank)


@functools.lru_cache(maxsize=128)
def _described(call: CollectiveCall) -> str:
    how = f" by {call.reduction}" if call.kind.reduces else ""
    root = f" with root {call.root}" if call.kind.has_root else ""
    shown = ", ".join(str(spec) for spec in call.specs[:3])
    more = f" and {len(call.specs) - 3} more" if len(call.specs) > 3 else ""
    return f"{call.kind}{how}{root}({shown}{more})"


@functools.lru_cache(maxsize=128)
def _agreed(call: CollectiveCall) -> str:
    reduction = int(call.reduction) if call.kind.reduces else "-"
    root = call.root if call.kind.has_root else "-"
    specs = " ".join(f"{spec.dtype!r}{list(spec.shape)}" for spec in call.specs)
    return f"{int(call.kind)} {reduction} {root} {specs}"


_BY_FIRST_AXIS: Final = (
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.ALL_TO_ALL,
)


def _first_axis(spec: TensorSpec, size: int) -> TensorSpec:
    return TensorSpec((size, *spec.shape[1:]), spec.dtype)


def link_id(secret: bytes, addresses: Sequence[str], source: int) -> bytes:
    """Return the id of the link from member ``source`` to the next one.

    The id depends on the addresses, so members that were given different addresses form no link.
    """
    texts = b"".join(struct.pack(">H", len(text.encode())) + text.encode() for text in addresses)
    numbers = struct.pack(">II", len(addresses), source)
    return hmac.digest(secret, _LINK + numbers + texts, "sha256")


def link_proof(secret: bytes, identifier: bytes) -> bytes:
    """Return the proof with which a link's source shows that it knows the group's secret."""
    return hmac.digest(secret, _PROOF + identifier, "sha256")
