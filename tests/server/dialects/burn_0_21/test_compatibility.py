"""Reads of some results have the dtype of a real Burn server, until the tensor is forgotten."""

from __future__ import annotations

from burn_remote_protocol.dtypes import F32, I32, I64, DType
from burn_remote_protocol.messages import Drop, Read
from burn_remote_protocol.operations.encoding import decode_operation
from burn_remote_protocol.operations.row import Operation, Signature
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorSpec, TensorStatus
from burn_remote_server.dialects.burn_0_21.compatibility import ReplyDTypes
from support.kernels import signature


def last_use(of: Signature) -> Signature:
    arguments = tuple(
        argument._replace(status=TensorStatus.READ_WRITE)
        if isinstance(argument, TensorUse) and argument.status is TensorStatus.READ_ONLY
        else argument
        for argument in of.arguments
    )
    return Signature(of.kind, of.row, of.dtype, arguments)


def test_recorded_dtypes_of_argmax_results_are_forgotten_after_their_last_use() -> None:
    values, integers = TensorSpec((2, 3), I32), TensorSpec((2, 1), I32)
    positions = signature("Numeric.ArgMax", values, axis=1, accumulator_len=1, out=integers)
    used_up = last_use(signature("Int.IntoFloat", integers, out=TensorSpec((2, 1), F32)))
    remembered = ReplyDTypes()
    for step in range(100):
        tasks = [
            Operation(positions, (1, 2 + 2 * step)),
            Operation(used_up, (2 + 2 * step, 3 + 2 * step)),
        ]
        assert [*remembered.applied(tasks[:1])] == tasks[:1]
        assert len(remembered._dtypes) == 1
        assert [*remembered.applied(tasks[1:])] == tasks[1:]
        assert remembered._dtypes == {}


POSITIONS = TensorSpec((2, 1), I32)


def arg_max(tensor: int, out: int) -> Operation:
    row = signature(
        "Numeric.ArgMax", TensorSpec((2, 3), I32), axis=1, accumulator_len=1, out=POSITIONS
    )
    return Operation(row, (tensor, out))


def dtype_read(remembered: ReplyDTypes, tensor: int) -> DType:
    """Return the dtype in which a tensor that is declared as int32 is read."""
    (read,) = remembered.applied([Read(1, tensor, POSITIONS)])
    assert isinstance(read, Read)
    assert (read.request, read.tensor, read.spec.shape) == (1, tensor, POSITIONS.shape)
    return read.spec.dtype


def test_positions_are_read_as_64_bit_integers_and_other_tensors_as_declared() -> None:
    remembered = ReplyDTypes()
    assert [*remembered.applied([arg_max(1, 2)])] == [arg_max(1, 2)]
    assert dtype_read(remembered, 2) is I64
    assert dtype_read(remembered, 1) is I32
    assert dtype_read(remembered, 3) is I32


def test_a_tensor_that_is_dropped_or_written_again_is_read_as_declared() -> None:
    into_float = signature("Int.IntoFloat", POSITIONS, out=TensorSpec((2, 1), F32))
    for forgets in (Drop((2,)), Operation(into_float, (9, 2))):
        remembered = ReplyDTypes()
        assert len([*remembered.applied([arg_max(1, 2), forgets])]) == 2
        assert dtype_read(remembered, 2) is I32


def test_a_custom_operation_without_tensors_passes() -> None:
    remembered = ReplyDTypes()
    nothing = decode_operation({"Custom": ["nothing", [], []]})
    assert nothing.tensors == ()
    assert [*remembered.applied([arg_max(1, 2), nothing])][1] is nothing
    assert dtype_read(remembered, 2) is I64
