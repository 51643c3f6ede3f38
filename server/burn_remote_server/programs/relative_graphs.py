"""Graphs with relative values, as clients of Burn 0.22 register them.

In such a graph, tensors have relative ids. Its dimensions are indices into a list of sizes, its
scalars are indices into a list of scalars, and its slices are indices into a list of slices. Each
call sends these lists. Binding replaces the indices of an operation by the values; the result is an
ordinary operation.

All functions of this module are pure, except for a cache of bound signatures.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

from burn_remote_protocol.dialects.burn_0_22 import Bindings
from burn_remote_protocol.messages import DefineGraph
from burn_remote_protocol.operations.row import Operation, Signature
from burn_remote_protocol.operations.wire_values import Scalar, TensorUse
from burn_remote_protocol.tensors import Slice, TensorSpec, TensorStatus, checked_shape
from burn_remote_server.programs.plans import signature_bytes

__all__ = [
    "Interface",
    "RelativeGraph",
    "bound_signature",
    "definition",
    "graph_interface",
]

# Bound signatures that are kept, and the sum of their memory. Plans are found by the identity of a
# signature, so operations that are bound to equal values must share one signature object. All
# sessions share the cache, and no quota counts it: a concatenation has up to 4,096 tensors, so
# without a limit on the memory, the cache could take gigabytes.
SIGNATURES_KEPT: Final = 4096
SIGNATURE_BYTES_KEPT: Final = 16 * 2**20

# Memory of a bound signature in addition to its tensors and lists of values.
SIGNATURE_BYTES: Final = 2048

# Memory of a registered operation in addition to its signature (measured with tracemalloc: 350 to
# 900 bytes for one to three tensors).
OPERATION_BYTES: Final = 512


class _Signatures:
    """A bounded cache of bound signatures. Thread-safe."""

    def __init__(self) -> None:
        self._kept: Final[dict[Any, Signature]] = {}
        self._bytes = 0
        self._lock: Final = threading.Lock()

    def find(self, key: Any) -> Signature | None:
        """Return the signature that was kept under a key."""
        return self._kept.get(key)

    def keep(self, key: Any, made: Signature) -> Signature:
        """Keep a signature; return it, or the one that another session kept meanwhile."""
        size = SIGNATURE_BYTES + signature_bytes(made)
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                return found
            if len(self._kept) >= SIGNATURES_KEPT or self._bytes + size > SIGNATURE_BYTES_KEPT:
                self._kept.clear()
                self._bytes = 0
            self._kept[key] = made
            self._bytes += size
        return made


_SIGNATURES: Final = _Signatures()


class Interface(NamedTuple):
    """The tensors through which a graph is connected to a session, by relative id.

    ``consumed`` are the session's tensors that the graph uses for the last time. Those that it only
    drops are not among the ``inputs``. ``is_regular``: each tensor is made once, before it is used,
    and is not used after the use that is marked as its last.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    consumed: tuple[int, ...]
    is_regular: bool


class RelativeGraph:
    """A registered graph."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations: Final = tuple(
            operation for operation in operations if operation.signature.row.family != "Init"
        )
        self.nbytes: Final = sum(
            OPERATION_BYTES + signature_bytes(operation.signature) for operation in self.operations
        )
        # Scalars inside of other arguments become part of the bound signature.
        self.has_inner_scalars: Final = any(
            type(argument) is tuple and _holds_scalar(argument)
            for operation in self.operations
            for argument in operation.signature.arguments
        )


def _holds_scalar(value: Any) -> bool:
    if type(value) is tuple:
        return any(_holds_scalar(item) for item in value)
    return type(value) is Scalar


def bound_signature(
    signature: Signature, bindings: Bindings, *, reads_only: bool = False
) -> Signature:
    """Return a relative signature with the values of a call.

    ``reads_only``: mark no input as used for the last time. Raises ``LimitExceeded`` for a tensor
    with too many elements.
    """
    arguments = tuple([_bound(argument, bindings, reads_only) for argument in signature.arguments])
    key = (signature.kind, signature.row.name, signature.dtype, arguments)
    found = _SIGNATURES.find(key)
    if found is None:
        made = Signature(signature.kind, signature.row, signature.dtype, arguments)
        found = _SIGNATURES.keep(key, made)
    return found


def _bound(value: Any, bindings: Bindings, reads_only: bool) -> Any:
    kind = type(value)
    if kind is TensorUse:
        (shape, dtype), status = value
        sizes = bindings.sizes
        dims = [sizes[dim] if dim < len(sizes) else dim for dim in shape]
        if reads_only and status is TensorStatus.READ_WRITE:
            status = TensorStatus.READ_ONLY
        return TensorUse(TensorSpec(checked_shape(dims), dtype), status)
    if kind is tuple:
        return tuple([_bound(item, bindings, reads_only) for item in value])
    if kind is Scalar:
        place = scalar_place(value, bindings)
        return value if place is None else bindings.scalars[place]
    if kind is Slice:
        start = value.start
        return bindings.slices[start] if 0 <= start < len(bindings.slices) else value
    return value


def scalar_place(value: Any, bindings: Bindings) -> int | None:
    """Return the place of a relative scalar in the list of a call; ``None`` for another value."""
    if type(value) is Scalar and value.variant == "UInt" and value.value < len(bindings.scalars):
        return int(value.value)
    return None


def graph_interface(graph: RelativeGraph, named: Collection[int]) -> Interface:
    """Return the interface of a graph whose calls name these relative ids."""
    outside: dict[int, None] = {}
    inputs: dict[int, None] = {}
    made: dict[int, None] = {}
    consumed: dict[int, None] = {}
    is_regular = True
    for signature, tensors in graph.operations:
        uses = signature.input_uses
        ended = []
        for tensor, use in zip(tensors, uses, strict=False):
            if tensor in consumed:
                is_regular = False
            if tensor not in made:
                outside[tensor] = None
                if signature.row.family != "Drop":
                    inputs[tensor] = None
            if use.status is TensorStatus.READ_WRITE:
                ended.append(tensor)
        consumed |= dict.fromkeys(ended)
        for tensor in tensors[len(uses) :]:
            if tensor in made or tensor in outside:
                is_regular = False
            made[tensor] = None
    return Interface(
        tuple(inputs),
        tuple(tensor for tensor in made if tensor in named and tensor not in consumed),
        tuple(tensor for tensor in outside if tensor in consumed),
        is_regular and all(tensor in named for tensor in outside),
    )


def definition(
    graph: RelativeGraph, interface: Interface, bindings: Bindings
) -> tuple[DefineGraph, list[Signature], tuple[int, ...]]:
    """Return a graph of the native dialect, the signatures of its steps, and places of scalars.

    A step refers to a signature by its index. The last result has the index of each number of the
    graph in a call's list of scalars.
    """
    slots = {tensor: slot for slot, tensor in enumerate(interface.inputs)}
    signatures: list[Signature] = []
    steps: list[tuple[int, ...]] = []
    numbers: list[tuple[int, int, int]] = []
    scalars: dict[int, int] = {}
    top = len(slots)
    for signature, tensors in _computing(graph):
        count = len(signature.input_uses)
        for field, argument in enumerate(signature.arguments):
            place = scalar_place(argument, bindings)
            if place is not None:
                position = scalars.setdefault(place, len(scalars))
                numbers.append((len(steps), field, position))
        steps.append((len(signatures), *[slots[tensor] for tensor in tensors[:count]]))
        signatures.append(bound_signature(signature, bindings, reads_only=True))
        for tensor in tensors[count:]:
            slots[tensor] = top
            top += 1
    outputs = tuple(slots[tensor] for tensor in interface.outputs)
    task = DefineGraph(0, len(interface.inputs), tuple(steps), outputs, tuple(numbers))
    return task, signatures, tuple(scalars)


def _computing(graph: RelativeGraph) -> Iterator[Operation]:
    return (one for one in graph.operations if one.signature.row.family != "Drop")
