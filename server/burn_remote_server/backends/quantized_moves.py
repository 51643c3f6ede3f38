"""Operations that move the integers of a quantized tensor without dequantizing them."""

from __future__ import annotations

from burn_remote_protocol.operations.families.base import MASK_FILL
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorSpec

__all__ = ["moves_integers"]


def moves_integers(signature: Signature) -> bool:
    """Return whether an operation only moves the values of one tensor with a single scale."""
    (first, *_) = signature.call.inputs or (None,)
    if type(first) is not TensorSpec or signature.output_count != 1:
        return False
    scheme = first.dtype.scheme
    if scheme is None or scheme.level is not None or signature.row is MASK_FILL:
        return False  # the fill value is a number, which would need quantizing
    same = signature.outputs[0].dtype is first.dtype
    alone = all(use.spec.dtype.scheme is None for use in signature.input_uses[1:])
    return signature.row.family == "Base" and same and alone
