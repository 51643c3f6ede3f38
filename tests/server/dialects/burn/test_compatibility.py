"""The recorded dtypes of a Burn session's tensors are forgotten with the tensors."""

from __future__ import annotations

from burn_remote_protocol.dtypes import F32, I32
from burn_remote_protocol.operations.row import Operation, Signature
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorSpec, TensorStatus
from burn_remote_server.dialects.burn.compatibility import ReplyDTypes
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
    floats, integers = TensorSpec((2, 3), F32), TensorSpec((2, 1), I32)
    positions = signature("Numeric.ArgMax", floats, axis=1, accumulator_len=1, out=integers)
    used_up = last_use(signature("Int.IntoFloat", integers, out=TensorSpec((2, 1), F32)))
    remembered = ReplyDTypes()
    for step in range(100):
        tasks = [
            Operation(positions, (1, 2 + 2 * step)),
            Operation(used_up, (2 + 2 * step, 3 + 2 * step)),
        ]
        assert [*remembered.applied(tasks)] == tasks
    assert remembered._dtypes == {}
