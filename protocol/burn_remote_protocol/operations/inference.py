"""Inference of an operation's outputs from its inputs, and the check of declared outputs."""

from __future__ import annotations

from burn_remote_protocol.dtypes import Category
from burn_remote_protocol.errors import DTypeMismatch, LimitExceeded, ShapeMismatch
from burn_remote_protocol.operations.row import Call, Row, Signature
from burn_remote_protocol.operations.table import KINDS, kind_of
from burn_remote_protocol.quantized_storage import check_blocks
from burn_remote_protocol.tensors import TensorSpec

__all__ = ["check_declared", "check_whole_blocks", "infer"]


def infer(row: Row, call: Call) -> tuple[TensorSpec, ...]:
    """Return the outputs of a call in wire order; absent optional outputs are left out.

    Raises ``ShapeMismatch`` or ``DTypeMismatch`` naming the operation, ``LimitExceeded`` for
    outputs larger than any tensor may be.
    """
    try:
        outputs = row.rule(call)
        check_whole_blocks(outputs)
        return outputs
    except ShapeMismatch as error:
        raise ShapeMismatch(f"{row}: {error}") from None
    except DTypeMismatch as error:
        raise DTypeMismatch(f"{row}: {error}") from None
    except LimitExceeded as error:
        raise LimitExceeded(
            f"{row}: {error.limit}", seen=error.seen, allowed=error.allowed
        ) from None


def check_whole_blocks(outputs: tuple[TensorSpec, ...]) -> None:
    """Raise ``ShapeMismatch`` for a quantized output whose blocks do not fit its shape."""
    for spec in outputs:
        if spec.dtype.scheme is not None:
            check_blocks(spec.shape, spec.dtype.scheme)


def check_declared(signature: Signature) -> None:
    """Check that a signature declares the kind and outputs that follow from its inputs.

    Raises ``ShapeMismatch`` or ``DTypeMismatch`` naming the operation, what was seen and what was
    expected; ``LimitExceeded`` for outputs larger than any tensor may be.
    """
    row, declared = signature.row, signature.outputs
    _check_kind(signature)
    expected = infer(row, signature.call)
    if declared == expected:
        return
    seen, right = (", ".join(map(str, specs)) for specs in (declared, expected))
    text = f"{row} makes {right} of its inputs, but {seen} was declared"
    if [spec.shape for spec in declared] != [spec.shape for spec in expected]:
        raise ShapeMismatch(text)
    raise DTypeMismatch(text)


def _check_kind(signature: Signature) -> None:
    row = signature.row
    specs = [*[use.spec for use in signature.input_uses], *signature.outputs]
    if not specs:
        return
    kind = kind_of(row, specs[0])
    if kind != signature.kind:
        raise DTypeMismatch(f"{row} on {specs[0]} is {kind}, but {signature.kind} was declared")
    # With Dequantize, Burn writes the dtype of the result, not of the quantized input.
    quantized = any(spec.dtype.category is Category.QUANTIZED for spec in specs)
    if KINDS[kind].carries_dtype and not quantized and signature.dtype is not specs[0].dtype:
        raise DTypeMismatch(f"{row} on {specs[0]}, but dtype {signature.dtype} was declared")
