"""Encoding and decoding of operations, with a cache of signatures.

``decode_operation`` reads an unpacked MessagePack value. Most operations of a program differ from
an earlier one only in the ids of their tensors. The value without the ids is therefore the key of a
cache of signatures, and only operations with new keys are decoded in full.
"""

from __future__ import annotations

import marshal
from typing import Any, Final

from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation, Unsupported
from burn_remote_protocol.operations.fields import Field
from burn_remote_protocol.operations.inference import check_declared
from burn_remote_protocol.operations.releases import Vocabulary
from burn_remote_protocol.operations.row import Operation, Row, Signature
from burn_remote_protocol.operations.table import KINDS, ROWS
from burn_remote_protocol.operations.wire_values import (
    decode_tensor_data,
    encode_tensor_data,
    sequence,
    unexpected,
    variant,
)

__all__ = [
    "check_declared",
    "decode_operation",
    "decode_tensor_data",
    "encode_operation",
    "encode_tensor_data",
]

# The most cached signatures, about 4 KiB each. Operations with further signatures are decoded in
# full each time, which takes ten times as long.
SIGNATURES_KEPT: Final = 4096

# The longest cache key. Enough for several tensors of high rank, some 40 bytes each.
KEY_BYTES_KEPT: Final = 1024

# Version 2 of marshal writes numbers exactly: it distinguishes -0.0 from 0.0 and True from 1, and a
# NaN equals itself. A comparison of values would do none of this.
KEY_FORMAT: Final = 2

_ROWS: Final = {
    vocabulary: {
        kind: {
            row.name: row
            for row in ROWS
            if row.family == about.family and row.lifetime.includes(vocabulary)
        }
        for kind, about in KINDS.items()
        if about.lifetime.includes(vocabulary)
    }
    for vocabulary in Vocabulary
}

_SIGNATURES: Final[dict[bytes, Signature]] = {}


def decode_operation(wire: Any, vocabulary: Vocabulary = Vocabulary.NATIVE) -> Operation:
    """Read an operation: its signature, and the ids of its tensors.

    The rule of its row is not run; see ``check_declared``. Raises ``ProtocolViolation`` for
    anything that is not an operation of the vocabulary, with the operation, the field, what was
    seen and what was expected. Raises ``LimitExceeded`` for values that are too long.
    """
    kind, dtype, row, values = _split(wire, vocabulary)
    tensors: list[int] = []
    try:
        stripped = [
            item.codec.strip(value, tensors) for item, value in zip(row.fields, values, strict=True)
        ]
        key = marshal.dumps((kind, row.name, dtype, stripped), KEY_FORMAT)
    except (TypeError, ValueError):
        # Malformed, or of a type that MessagePack does not have: full decoding raises the error.
        return _decode(kind, dtype, row, values)
    signature = _SIGNATURES.get(key)
    if signature is not None:
        return Operation(signature, tuple(tensors))
    operation = _decode(kind, dtype, row, values)
    if len(key) <= KEY_BYTES_KEPT:
        if len(_SIGNATURES) >= SIGNATURES_KEPT:
            _SIGNATURES.clear()
        _SIGNATURES[key] = operation.signature
    return operation


def _split(wire: Any, vocabulary: Vocabulary) -> tuple[str, Any, Row, Any]:
    """Return the kind, the dtype beside the variant, the row and the values of its fields."""
    kind, body = variant(wire, "an operation")
    kinds = _ROWS[vocabulary]
    rows = kinds.get(kind)
    if rows is None:
        raise unexpected(f"a kind of operation ({', '.join(kinds)})", kind)
    dtype = None
    if KINDS[kind].carries_dtype:
        dtype, body = sequence(body, 2, f"the dtype and variant of {kind}")
    if kind in rows:
        # Drop holds its tensor; Init and Custom are structs. None of them has variants.
        row, values = rows[kind], [body] if kind == "Drop" else body
        return kind, None, row, sequence(values, len(row.fields), f"the fields of {kind}")
    name, values = variant(body, f"an operation of {kind}")
    if name not in rows:
        raise unexpected(f"an operation of {kind} that {vocabulary} has", name)
    row = rows[name]
    return kind, dtype, row, sequence(values, len(row.fields), f"the fields of {kind}.{name}")


def _decode(kind: str, dtype: Any, row: Row, values: Any) -> Operation:
    tensors: list[int] = []
    pairs = zip(row.fields, values, strict=True)
    arguments = [_decode_field(row, item, value, tensors) for item, value in pairs]
    carried = DType.from_wire(dtype) if KINDS[kind].carries_dtype else None
    return Operation(Signature(kind, row, carried, tuple(arguments)), tuple(tensors))


def _decode_field(row: Row, field: Field, value: Any, tensors: list[int]) -> Any:
    try:
        return field.codec.decode(value, tensors)
    except LimitExceeded as error:
        limit = f"{row}, field {field.name}: {error.limit}"
        raise LimitExceeded(limit, seen=error.seen, allowed=error.allowed) from None
    except ProtocolViolation as error:
        raise ProtocolViolation(f"{row}, field {field.name}: {error}") from None


def encode_operation(
    operation: Operation, vocabulary: Vocabulary = Vocabulary.NATIVE
) -> dict[str, Any]:
    """Write an operation as lists and dictionaries for MessagePack, as Rust would write it.

    Raises ``Unsupported`` if the vocabulary does not have the operation.
    """
    signature, row = operation.signature, operation.signature.row
    if not row.lifetime.includes(vocabulary):
        raise Unsupported(
            f"{row} is not an operation of {vocabulary}; a burn-remote-server executes it for "
            "clients that use the native dialect"
        )
    tensors = iter(operation.tensors)
    pairs = zip(row.fields, signature.arguments, strict=True)
    values: Any = [item.codec.encode(argument, tensors) for item, argument in pairs]
    if signature.kind == row.name:
        return {row.name: values[0] if row.name == "Drop" else values}
    body = {row.name: values}
    return {signature.kind: body if signature.dtype is None else [signature.dtype.wire, body]}
