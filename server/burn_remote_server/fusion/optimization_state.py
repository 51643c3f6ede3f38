"""The state of an optimization as plain data, from which an equal one is built.

A state is a dictionary of strings, numbers, lists and bytes, which MessagePack can store. It has
the optimization's name, the shape of its results, and its operations in Burn's wire form with the
ids of their tensors. It has no functions or compiled kernels; these are bound again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgpack

from burn_remote_protocol.dialects.bounded_unpacking import unpack_frozen
from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.operations.encoding import decode_operation, encode_operation
from burn_remote_protocol.operations.row import Operation
from burn_remote_protocol.tensors import Shape
from burn_remote_server.backends.interface import Backend, BackendSession
from burn_remote_server.fusion.fuser import Optimization, OptimizationState, StreamOperation

__all__ = ["operations_of", "restored", "state_of"]


def state_of(name: str, shape: Shape, operations: Sequence[StreamOperation]) -> OptimizationState:
    """Return the state of an optimization of these operations."""
    return {
        "name": name,
        "shape": [*shape],
        "operations": [
            {
                "operation": msgpack.packb(
                    encode_operation(Operation(each.signature, (*each.inputs, *each.outputs)))
                ),
                "numbers": [*each.numbers],
                "dying": sorted(each.dying),
            }
            for each in operations
        ],
    }


def restored(
    state: OptimizationState,
    kinds: Mapping[str, Callable[..., Optimization]],
    device: Backend,
    compiler: Any,
) -> Optimization:
    """Build the optimization of a state; ``kinds`` are those of a runtime, by name.

    Raises ``UsageError`` for a name that is not among them, and what ``operations_of`` raises.
    """
    kind = kinds.get(state["name"])
    if kind is None:
        raise UsageError(
            f"unknown optimization {state['name']!r}; this runtime has {', '.join(kinds)}"
        )
    operations = operations_of(state, device.open_session())
    return kind(tuple(state["shape"]), operations, compiler)


def operations_of(state: OptimizationState, session: BackendSession) -> list[StreamOperation]:
    """Return the operations of a state, bound to their kernels by a session.

    Raises ``ProtocolViolation`` for an operation that cannot be decoded.
    """
    return [_operation(item, session) for item in state["operations"]]


def _operation(item: dict[str, Any], session: BackendSession) -> StreamOperation:
    wire = unpack_frozen(item["operation"])
    signature, tensors = decode_operation(wire)
    count = len(signature.input_uses)
    calls = session.bind_elementwise(signature)
    return StreamOperation(
        signature,
        session.bind(signature),
        calls,
        tensors[:count],
        tuple(item["numbers"]),
        tensors[count:],
        frozenset(item["dying"]),
        None if calls else session.bind_row_reduction(signature),
    )
