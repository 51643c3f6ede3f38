"""Where the rule of a row accepts other shapes, its kernel computes what the rule infers."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest

from burn_remote_protocol.errors import DTypeMismatch, OperationFailed, ShapeMismatch, UsageError
from burn_remote_protocol.operations.fields import Role
from burn_remote_protocol.operations.inference import infer
from burn_remote_protocol.operations.row import Call, Signature
from burn_remote_protocol.operations.table import TABLE
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorSpec, TensorStatus
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.numpy.backend import NumpyBackend
from support.calls import CALLS, calling_on
from support.runners import RecordingDevice

Key = tuple[str, str]


def issued(key: Key) -> Signature:
    """Return the signature of a valid call of a row."""
    device = RecordingDevice()
    with calling_on(device):
        CALLS[key]()
    signatures = [operation.signature for operation in device.runner.operations]
    return next(one for one in signatures if one.row is TABLE[key])


def with_inputs(known: Signature, inputs: tuple[Any, ...]) -> Signature:
    """Return a signature with other inputs, and with the outputs that the rule infers of them.

    Raises ``UsageError`` if the rule refuses them.
    """
    outputs = iter(infer(known.row, Call(inputs, known.call.parameters, known.call.requested)))
    given = iter(inputs)
    arguments: list[Any] = []
    for field, argument in zip(known.row.fields, known.arguments, strict=True):
        if field.role is Role.INPUT:
            arguments.append(uses_of(next(given)))
        elif field.role is Role.OUTPUT and argument is not None:
            arguments.append(TensorUse(next(outputs), TensorStatus.NOT_INIT))
        else:
            arguments.append(argument)
    return Signature(known.kind, known.row, known.dtype, tuple(arguments))


def uses_of(given: Any) -> Any:
    if given is None:
        return None
    if isinstance(given, TensorSpec):
        return TensorUse(given, TensorStatus.READ_ONLY)
    return tuple(TensorUse(one, TensorStatus.READ_ONLY) for one in given)


def other_shapes(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield shapes with one axis more, one axis less, and another size of each axis."""
    yield (2, *shape)
    if shape:
        yield shape[1:]
    for axis, size in enumerate(shape):
        for other in {size + 1, size - 1, 1} - {size, -1}:
            yield (*shape[:axis], other, *shape[axis + 1 :])


def variants(call: Call) -> Iterator[tuple[Any, ...]]:
    """Yield the inputs of a call, with another shape of one of them."""
    for place, given in enumerate(call.inputs):
        if given is None:
            continue
        first = given if isinstance(given, TensorSpec) else given[0]
        for shape in other_shapes(first.shape):
            changed = TensorSpec(shape, first.dtype)
            other = changed if isinstance(given, TensorSpec) else (changed, *given[1:])
            yield (*call.inputs[:place], other, *call.inputs[place + 1 :])


def array_of(spec: TensorSpec) -> Any:
    return np.zeros(spec.shape, array_dtype(spec.dtype))


def arrays_of(spec: Any) -> Any:
    if spec is None:
        return None
    return array_of(spec) if isinstance(spec, TensorSpec) else [array_of(one) for one in spec]


# Rows without tensors as inputs, and quantized tensors, whose arrays have another form.
KEYS: Final = [
    key
    for key in CALLS
    if issued(key).input_uses
    and not any(use.spec.dtype.scheme for use in issued(key).input_uses)
    and key != ("Float", "Quantize")
]


@pytest.mark.parametrize("key", KEYS, ids=".".join)
def test_a_kernel_computes_the_shapes_that_its_rule_accepts(key: Key) -> None:
    known = issued(key)
    session = NumpyBackend().open_session()
    context = contextvars.copy_context()
    context.run(NumpyBackend().prepare_thread)
    for inputs in variants(known.call):
        try:
            signed = with_inputs(known, inputs)
        except UsageError:
            continue
        try:
            found = context.run(session.bind(signed), *map(arrays_of, inputs))
        except (ShapeMismatch, DTypeMismatch) as error:
            pytest.fail(f"the rule accepts {inputs}, but the kernel refuses them: {error}")
        except (OperationFailed, UsageError):
            continue  # of the elements: for example, a matrix of zeros has no inverse
        results = found if type(found) is tuple else (found,)
        assert [(one.shape, one.dtype) for one in results] == [
            (spec.shape, array_dtype(spec.dtype)) for spec in signed.outputs
        ], inputs
