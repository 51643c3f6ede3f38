"""Execution of single operations on arrays, as in a backend's session."""

from __future__ import annotations

import contextvars
import os
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest

from burn_remote_protocol.dtypes import ALL_DTYPES, DType
from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.operations.field_codecs import StructCodec
from burn_remote_protocol.operations.fields import Field, Role
from burn_remote_protocol.operations.inference import infer
from burn_remote_protocol.operations.parameter_codecs import ScalarCodec
from burn_remote_protocol.operations.row import Call, Signature
from burn_remote_protocol.operations.table import TABLE, sign
from burn_remote_protocol.operations.wire_values import Scalar, TensorUse
from burn_remote_protocol.tensors import TensorData, TensorSpec, TensorStatus
from burn_remote_server.backends import Backend, BackendSession, open_backends
from burn_remote_server.backends.array.core.array_dtypes import array_dtype

__all__ = [
    "BACKEND_NAME",
    "BFLOAT16",
    "Array",
    "backend",
    "compute",
    "new_session",
    "on_host",
    "received",
    "sent",
    "signature",
    "spec_of",
]

Array = np.ndarray[Any, Any]
BFLOAT16: Final = np.dtype(ml_dtypes.bfloat16)

# The default dtype of each array dtype: no Flex32, no Bool(U8).
_DTYPES: Final[dict[Any, DType]] = {array_dtype(dtype): dtype for dtype in reversed(ALL_DTYPES)} | {
    np.dtype(np.float32): DType.from_wire("F32")
}


# `make test-gpu` runs the same tests on a GPU.
BACKEND_NAME: Final = os.environ.get("BURN_REMOTE_TEST_BACKEND", "numpy")

# For tests that compare the memory of results with that of arguments.
on_host: Final = pytest.mark.skipif(
    BACKEND_NAME != "numpy", reason="asks whether NumPy's arrays share memory"
)


def spec_of(array: Array) -> TensorSpec:
    """Return the tensor spec of an array."""
    return TensorSpec(array.shape, _DTYPES[array.dtype])


@cache
def backend() -> Backend:
    """Return the tested backend; skips the test where there is no GPU for it."""
    try:
        (found,) = open_backends(BACKEND_NAME, 1)
    except UsageError as error:
        pytest.skip(str(error))
    return found


def sent(tensor: Any, session: BackendSession | None = None) -> Any:
    """Convert a NumPy array, or a list of them, to arrays of the tested backend.

    The session, or one for all tests, becomes the thread's current one, as in a server. Only its
    stream waits until the elements have arrived on a GPU.
    """
    if BACKEND_NAME == "numpy" or tensor is None:
        return tensor
    if isinstance(tensor, list | tuple):
        return [sent(item, session) for item in tensor]
    spec = spec_of(tensor)
    shared = backend().to_device(TensorData(tensor.tobytes(), spec.shape, spec.dtype))
    chosen = session or _session()
    chosen.activate()
    return chosen.adopt(shared)


def received(result: Any) -> Any:
    """Convert an array of the tested backend, or a tuple of them, to NumPy arrays."""
    if BACKEND_NAME == "numpy" or result is None:
        return result
    if type(result) is tuple:
        return tuple([received(item) for item in result])
    dtype = np.dtype(result.dtype)
    elements = backend().to_bytes(result, _DTYPES[dtype])
    return np.frombuffer(elements, dtype).reshape(result.shape)


def new_session() -> BackendSession:
    """Return a session of the tested backend."""
    return backend().open_session()


@cache
def _session() -> BackendSession:
    return new_session()


def signature(
    name: str, *inputs: Any, out: TensorSpec | tuple[TensorSpec, ...] = (), **parameters: Any
) -> Signature:
    """Return the signature of ``"Family.Variant"`` for the specs of its inputs.

    ``out`` is needed where the caller chooses the output. Numbers become scalars, and the fields of
    an options struct are parameters by their own names.
    """
    family, variant = name.split(".")
    row = TABLE[family, variant]
    requested = (out,) if isinstance(out, TensorSpec) else out
    outputs = iter(infer(row, Call(inputs, parameters, requested)))
    remaining = iter(inputs)
    return sign(row, *[_argument(field, remaining, outputs, parameters) for field in row.fields])


def _argument(
    field: Field, inputs: Iterator[Any], outputs: Iterator[TensorSpec], parameters: dict[str, Any]
) -> Any:
    if field.role is Role.OUTPUT:
        return TensorUse(next(outputs), TensorStatus.NOT_INIT)
    if field.role is Role.INPUT:
        specs = next(inputs)
        if specs is None:
            return None
        if type(specs) is tuple:
            return tuple([TensorUse(spec, TensorStatus.READ_ONLY) for spec in specs])
        return TensorUse(specs, TensorStatus.READ_ONLY)
    if isinstance(field.codec, StructCodec):
        return tuple([parameters[member] for member, _ in field.codec.members])
    value = parameters[field.name]
    return Scalar.of(value) if isinstance(field.codec, ScalarCodec) else value


def compute(
    name: str,
    *tensors: Any,
    out: TensorSpec | tuple[TensorSpec, ...] = (),
    session: BackendSession | None = None,
    **parameters: Any,
) -> Any:
    """Run an operation; check that its inputs are unchanged and its outputs match their specs."""
    specs = [
        tuple([spec_of(item) for item in tensor]) if type(tensor) is list else spec_of(tensor)
        for tensor in tensors
    ]
    signed = signature(name, *specs, out=out, **parameters)
    arrays = [item for tensor in tensors for item in (tensor if type(tensor) is list else [tensor])]
    before = [array.tobytes() for array in arrays]
    # As in a session's thread, infinities and NaN cause no warnings, which would be errors here.
    context = contextvars.copy_context()
    context.run(backend().prepare_thread)
    chosen = session or _session()
    bound = chosen.bind(signed)
    chosen.activate()
    result = received(context.run(bound, *sent(tensors, chosen)))
    assert before == [array.tobytes() for array in arrays]
    results = result if type(result) is tuple else (result,)
    for array, spec in zip(results, signed.outputs, strict=True):
        assert type(array) is np.ndarray
        assert (array.shape, array.dtype) == (spec.shape, array_dtype(spec.dtype))
    return result
