"""Signatures of calls: inference of result shapes and dtypes, and a cache for each row."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from typing import Any, Final, final

import numpy as np

from burn_remote.arguments.traced_numbers import definite
from burn_remote_protocol.dtypes import BOOL, Category
from burn_remote_protocol.errors import (
    DTypeMismatch,
    ProtocolViolation,
    ShapeMismatch,
    UsageError,
)
from burn_remote_protocol.operations.field_codecs import ListCodec, StructCodec
from burn_remote_protocol.operations.fields import Field, Role
from burn_remote_protocol.operations.inference import check_whole_blocks
from burn_remote_protocol.operations.row import Call, Row, Signature
from burn_remote_protocol.operations.table import sign
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorSpec, TensorStatus

__all__ = ["SIGNATURES_PER_ROW", "Signatures", "infer"]

# Cache entries per row, each about 1 KiB. A miss costs about 20 µs instead of 0.3 µs, because the
# signature is inferred again and the session encodes it again.
SIGNATURES_PER_ROW: Final = 1024

_PLAIN: Final = (int, bool)


@final
class Signatures:
    """Cache of one row's signatures. The caller's key must determine the signature."""

    __slots__ = ("known", "recent", "row")

    def __init__(self, row: Row) -> None:
        self.row = row
        # No lock, because a fork could leave it locked forever. Each access is atomic; two threads
        # may infer the same signature, and one result is discarded.
        self.known: dict[Hashable, Signature] = {}
        # The same signatures under keys with the ``id`` of each spec in place of the spec. An entry
        # keeps its specs alive, so that no other object gets their ids. Operations repeat with the
        # same objects as specs, and hashing two specs takes twice as long as a lookup here.
        self.recent: dict[Hashable, tuple[Signature, tuple[TensorSpec, ...]]] = {}

    def remember(
        self, key: Hashable, signature: Signature, specs: tuple[TensorSpec, ...]
    ) -> Signature:
        """Cache a signature under a key with the ids of ``specs``; return the signature."""
        if len(self.recent) >= SIGNATURES_PER_ROW:
            self.recent.clear()
        self.recent[key] = (signature, specs)
        return signature

    def add(
        self,
        key: Hashable,
        inputs: tuple[Any, ...],
        parameters: tuple[Any, ...] = (),
        requested: tuple[TensorSpec, ...] = (),
    ) -> Signature:
        """Infer the signature of a new call and cache it under ``key``, evicting the oldest.

        Arguments and errors are those of ``infer``.
        """
        # A traced number in a shape, axis or key decides the signature, so the graph guards its
        # value. Scalars stay traced.
        key, parameters, requested = definite((key, parameters, requested))
        parameters = _with_plain_integers(parameters)
        signature = infer(self.row, inputs, parameters, requested)
        while len(self.known) >= SIGNATURES_PER_ROW:
            # Another thread may change the dict between ``iter`` and ``next``.
            with contextlib.suppress(RuntimeError, StopIteration):
                self.known.pop(next(iter(self.known)), None)
        self.known[key] = signature
        return signature


def _with_plain_integers(value: Any) -> Any:
    """Return nested tuples and lists with ``int`` in place of its subclasses and NumPy's integers.

    The codecs refuse these. ``x.size``, for example, is an instance of a subclass.
    """
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_with_plain_integers, value))
    if type(value) is tuple or type(value) is list:
        return type(value)(map(_with_plain_integers, value))
    if type(value) in _PLAIN or not isinstance(value, int | np.integer):
        return value
    return int(value)


def infer(
    row: Row,
    inputs: tuple[Any, ...],
    parameters: tuple[Any, ...] = (),
    requested: tuple[TensorSpec, ...] = (),
) -> Signature:
    """Return the signature of a call, with output specs computed by the row's rule.

    ``inputs`` holds a spec, ``None`` or a tuple of specs for each input field, ``parameters`` one
    argument for each parameter field, and ``requested`` the output specs of rows whose caller
    chooses them. Raises ``ShapeMismatch`` or ``DTypeMismatch`` with the operation and its inputs,
    and ``UsageError`` for a parameter that cannot be encoded, such as a negative size.
    """
    seen: dict[str, Any] = {}
    fields = [field for field in row.fields if field.role is Role.PARAMETER]
    for field, argument in zip(fields, parameters, strict=True):
        field.codec.collect(field.name, argument, seen)
    try:
        outputs = row.rule(Call(inputs, seen, requested))
        check_whole_blocks(outputs)
    except (ProtocolViolation, ShapeMismatch) as error:
        raise ShapeMismatch(f"{_described(row, inputs)}: {error}") from None
    except DTypeMismatch as error:
        raise DTypeMismatch(f"{_described(row, inputs)}: {error}; {_advice(inputs)}") from None
    for field, argument in zip(fields, parameters, strict=True):
        _check_parameter(row, inputs, field, argument)
    return sign(row, *_arguments(row, inputs, parameters, outputs))


def _check_parameter(row: Row, inputs: tuple[Any, ...], field: Field, argument: Any) -> None:
    # A server closes the session of a client that sends an invalid operation.
    members = [(field.name, field.codec, argument)]
    if isinstance(field.codec, StructCodec):
        pairs = zip(field.codec.members, argument, strict=True)
        members = [(name, kind, item) for (name, kind), item in pairs]
    for name, kind, item in members:
        try:
            kind.decode(kind.encode(item, iter(())), [])
        except ProtocolViolation as error:
            raise UsageError(f"{_described(row, inputs)}: {name}: {error}") from None


def _arguments(
    row: Row, inputs: tuple[Any, ...], parameters: tuple[Any, ...], outputs: tuple[TensorSpec, ...]
) -> Iterator[Any]:
    next_input, next_parameter, next_output = iter(inputs), iter(parameters), iter(outputs)
    given = dict(zip([f.name for f in row.fields if f.role is Role.INPUT], inputs, strict=True))
    for field in row.fields:
        if field.role is Role.INPUT:
            yield _use(next(next_input))
        elif field.role is Role.PARAMETER:
            yield next(next_parameter)
        elif isinstance(field.codec, ListCodec):
            yield tuple([TensorUse(spec, TensorStatus.NOT_INIT) for spec in next_output])
        # An optional output is the gradient of an optional input, present if that input is.
        elif given.get(field.name.removesuffix("_grad"), outputs) is None:
            yield None
        else:
            yield TensorUse(next(next_output), TensorStatus.NOT_INIT)


def _use(spec: Any) -> Any:
    if spec is None:
        return None
    if isinstance(spec, TensorSpec):
        return TensorUse(spec, TensorStatus.READ_ONLY)
    return tuple([TensorUse(one, TensorStatus.READ_ONLY) for one in spec])


def _advice(inputs: tuple[Any, ...]) -> str:
    if any(spec.dtype.category is Category.QUANTIZED for spec in _listed(inputs)):
        return "x.dequantize() converts a quantized tensor to floats"
    if any(spec.dtype.is_complex for spec in _listed(inputs)):
        return "burn_remote.real(x), imag(x) and abs(x) of complex tensors are real"
    if any(spec.dtype is BOOL for spec in _listed(inputs)):
        return (
            "x.astype(dtype) converts a tensor, and burn_remote.where(mask, x, y) selects elements "
            "by a bool tensor"
        )
    return "x.astype(dtype) converts a tensor"


def _described(row: Row, inputs: tuple[Any, ...]) -> str:
    return f"{row}({', '.join(map(str, _listed(inputs)))})"


def _listed(inputs: tuple[Any, ...]) -> list[TensorSpec]:
    """Return the specs of all present tensors, with lists flattened."""
    listed: list[TensorSpec] = []
    for spec in inputs:
        if isinstance(spec, TensorSpec):
            listed.append(spec)
        elif spec is not None:
            listed.extend(spec)
    return listed
