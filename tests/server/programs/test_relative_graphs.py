"""Relative graphs are bound to the values of calls; bound signatures are shared and bounded."""

from __future__ import annotations

from burn_remote_protocol.dialects.burn_0_22 import Bindings
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.programs.plans import signature_bytes
from burn_remote_server.programs.relative_graphs import SIGNATURE_BYTES_KEPT, bound_signature
from support.kernels import signature


def bound(relative: Signature, *sizes: int) -> Signature:
    return bound_signature(relative, Bindings((), sizes, (), ()))


def test_operations_bound_to_equal_values_share_one_signature() -> None:
    # The dimension is the index of a size.
    relative = signature("Base.Zeros", out=TensorSpec((0,), F32))
    assert bound(relative, 5) is bound(relative, 5)
    assert bound(relative, 5).outputs == (TensorSpec((5,), F32),)


def test_the_memory_of_shared_signatures_is_bounded() -> None:
    spec = TensorSpec((0,), F32)
    relative = signature("Base.Cat", (spec,) * 2000, out=TensorSpec((1,), F32), dim=0)
    first = bound(relative, 7, 1)
    for size in range(8, 10 + SIGNATURE_BYTES_KEPT // signature_bytes(first)):
        bound(relative, size, 1)
    assert bound(relative, 7, 1) == first
    assert bound(relative, 7, 1) is not first  # it was freed meanwhile
