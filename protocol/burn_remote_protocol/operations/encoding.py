"""Encoding and decoding of operations, with a cache of signatures.

``decode_operation`` reads an unpacked MessagePack value. Most operations of a program differ from
an earlier one only in the ids of their tensors. The value without the ids is therefore the key of a
cache of signatures, and only operations with new keys are decoded in full.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation, Unsupported
from burn_remote_protocol.frozen_map import value_key
from burn_remote_protocol.operations.field_codecs import FieldCodec
from burn_remote_protocol.operations.fields import Field
from burn_remote_protocol.operations.inference import check_declared
from burn_remote_protocol.operations.row import Operation, Row, Signature
from burn_remote_protocol.operations.table import KINDS, ROWS
from burn_remote_protocol.operations.vocabularies import EVERYWHERE, Vocabulary, check_dtype
from burn_remote_protocol.operations.wire_values import (
    ARRAYS,
    decode_tensor_data,
    dtype_to_wire,
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

# The most cached signatures, about 4 KiB each; a full cache is cleared. Decoding an operation in
# full takes ten times as long as finding its signature.
SIGNATURES_KEPT: Final = 4096

# The longest cache key. Enough for several tensors of high rank, some 40 bytes each.
KEY_BYTES_KEPT: Final = 1024


class _Form(NamedTuple):
    """The wire form of a row in one vocabulary.

    ``key`` begins the keys of its signatures. ``fields`` has each field of the row with its codec,
    or with ``None`` if the vocabulary does not have the field. A message has from ``least`` to
    ``most`` fields.
    """

    row: Row
    key: tuple[int, str, str]
    fields: tuple[tuple[Field, FieldCodec | None], ...]
    codecs: tuple[FieldCodec, ...]
    least: int
    most: int


def _form(kind: str, row: Row, vocabulary: Vocabulary) -> _Form:
    fields = [
        (field, field.codec.form(vocabulary) if field.lifetime.includes(vocabulary) else None)
        for field in row.fields
    ]
    codecs = tuple(codec for _, codec in fields if codec is not None)
    least = len(codecs)
    if vocabulary is Vocabulary.NATIVE:
        # Native messages leave out absent fields at their end that Burn 0.21 does not have, so
        # that older versions of this project can read them.
        least = sum(field.lifetime is EVERYWHERE for field in row.fields)
    key = (int(vocabulary), kind, row.name)
    return _Form(row, key, tuple(fields), codecs, least, len(codecs))


_FORMS: Final = {
    vocabulary: {
        kind: {
            row.name: _form(kind, row, vocabulary)
            for row in ROWS
            if about.has(row) and row.lifetime.includes(vocabulary)
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
    kind, dtype, form, values = _split(wire, vocabulary)
    tensors: list[int] = []
    try:
        # A native message may leave out its last fields, so the lengths may differ.
        stripped = [
            codec.strip(value, tensors)
            for codec, value in zip(form.codecs, values)  # noqa: B905
        ]
        key = value_key((form.key, dtype, stripped))
    except (TypeError, ValueError):
        # Malformed, or of a type that MessagePack does not have: full decoding raises the error.
        return _decode(kind, dtype, form, values)
    signature = _SIGNATURES.get(key)
    if signature is not None:
        return Operation(signature, tuple(tensors))
    operation = _decode(kind, dtype, form, values)
    if len(key) <= KEY_BYTES_KEPT:
        if len(_SIGNATURES) >= SIGNATURES_KEPT:
            _SIGNATURES.clear()
        _SIGNATURES[key] = operation.signature
    return operation


def _split(wire: Any, vocabulary: Vocabulary) -> tuple[str, Any, _Form, Any]:
    """Return the kind, the dtype beside the variant, the form and the values of its fields."""
    kind, body = variant(wire, "an operation")
    kinds = _FORMS[vocabulary]
    forms = kinds.get(kind)
    if forms is None:
        raise unexpected(f"a kind of operation ({', '.join(kinds)})", kind)
    dtype = None
    if KINDS[kind].carries_dtype:
        dtype, body = sequence(body, 2, f"the dtype and variant of {kind}")
    if kind in forms:
        # Drop holds its tensor; Init and Custom are structs. None of them has variants.
        return kind, None, forms[kind], _fields(forms[kind], [body] if kind == "Drop" else body)
    if type(body) is str and body in forms and not forms[body].codecs:
        return kind, dtype, forms[body], ()  # a variant without fields
    name, values = variant(body, f"an operation of {kind}")
    form = forms.get(name)
    if form is None or not form.codecs:
        raise unexpected(f"an operation of {kind} that {vocabulary} has", name)
    return kind, dtype, form, _fields(form, values)


def _fields(form: _Form, values: Any) -> Any:
    if type(values) in ARRAYS and form.least <= len(values) <= form.most:
        return values
    return sequence(values, form.most, f"the fields of {form.key[1]}{_name(form)}")


def _name(form: _Form) -> str:
    return "" if form.key[1] == form.key[2] else f".{form.key[2]}"


def _decode(kind: str, dtype: Any, form: _Form, values: Any) -> Operation:
    tensors: list[int] = []
    rest = iter(values)
    arguments = []
    for field, codec in form.fields:
        value = _MISSING if codec is None else next(rest, _MISSING)
        if codec is None or value is _MISSING:
            arguments.append(field.absent)
        else:
            arguments.append(_decode_field(form.row, field, codec, value, tensors))
    carried = DType.from_wire(dtype) if KINDS[kind].carries_dtype else None
    signature = Signature(kind, form.row, carried, tuple(arguments))
    _check_dtypes(signature, Vocabulary(form.key[0]))
    return Operation(signature, tuple(tensors))


def _check_dtypes(signature: Signature, vocabulary: Vocabulary) -> None:
    if vocabulary is not Vocabulary.NATIVE:
        for spec in (*[use.spec for use in signature.input_uses], *signature.outputs):
            check_dtype(spec.dtype, vocabulary)


_MISSING: Final = object()


def _decode_field(row: Row, field: Field, codec: FieldCodec, value: Any, tensors: list[int]) -> Any:
    try:
        return codec.decode(value, tensors)
    except LimitExceeded as error:
        limit = f"{row}, field {field.name}: {error.limit}"
        raise LimitExceeded(limit, seen=error.seen, allowed=error.allowed) from None
    except ProtocolViolation as error:
        raise ProtocolViolation(f"{row}, field {field.name}: {error}") from None


def encode_operation(
    operation: Operation, vocabulary: Vocabulary = Vocabulary.NATIVE
) -> dict[str, Any]:
    """Write an operation as lists and dictionaries for MessagePack, as Rust would write it.

    Raises ``Unsupported`` if the vocabulary does not have the operation, or a value in it.
    """
    signature, row = operation.signature, operation.signature.row
    _check_dtypes(signature, vocabulary)
    if not row.lifetime.includes(vocabulary):
        raise Unsupported(
            f"{row} is not an operation of {vocabulary}; a burn-remote-server executes it for "
            "clients that use the native dialect"
        )
    form = _FORMS[vocabulary][signature.kind].get(row.name)
    if form is None or form.row is not row:
        form = _form(signature.kind, row, vocabulary)
    tensors = iter(operation.tensors)
    count = _written(form, signature)
    values: Any = []
    for (field, codec), argument in zip(form.fields, signature.arguments, strict=True):
        if codec is None or len(values) == count:
            if argument != field.absent:
                raise Unsupported(f"{row} of {vocabulary} has no {field.name}")
        else:
            values.append(codec.encode(argument, tensors))
    if signature.kind == row.name:
        return {row.name: values[0] if row.name == "Drop" else values}
    body = {row.name: values} if form.codecs else row.name
    dtype = signature.dtype
    return {signature.kind: body if dtype is None else [dtype_to_wire(dtype, vocabulary), body]}


def _written(form: _Form, signature: Signature) -> int:
    """Return how many fields a message has: a native one leaves out absent fields at its end."""
    count = form.most
    while count > form.least and signature.arguments[count - 1] == form.fields[count - 1][0].absent:
        count -= 1
    return count
