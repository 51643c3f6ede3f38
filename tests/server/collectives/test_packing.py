"""Small tensors of a bucket are joined before they are sent, and separated on arrival."""

from __future__ import annotations

import numpy as np
import pytest

from burn_remote_protocol.collectives import CollectiveCall, CollectiveKind, Reduction
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.collectives.packing import SMALL_BYTES, Packing
from burn_remote_server.collectives.ring_schedule import Send, schedule

Kind = CollectiveKind
LARGE = TensorSpec((SMALL_BYTES // 4,), F32)
SPECS = (TensorSpec((3, 2), F32), LARGE, TensorSpec((), F32), TensorSpec((0,), F32))


def memory(spec: TensorSpec, first: int) -> memoryview:
    return np.arange(first, first + spec.size, dtype=np.float32).view(np.uint8).data


def test_small_tensors_are_joined_behind_the_large_ones_and_separated_again() -> None:
    packing = Packing(CollectiveCall(Kind.ALL_REDUCE, SPECS, Reduction.MAX, 1))
    assert packing.call == CollectiveCall(
        Kind.ALL_REDUCE, (LARGE, TensorSpec((7,), F32)), Reduction.MAX, 1
    )
    inputs = [memory(spec, 10 * place) for place, spec in enumerate(SPECS)]
    packed = packing.pack(inputs)
    assert np.frombuffer(packed[1], np.float32).tolist() == [0, 1, 2, 3, 4, 5, 20]
    outputs = [memoryview(bytearray(spec.nbytes)) for spec in SPECS]
    results = packing.output_memory(outputs)
    for target, source in zip(results, packed, strict=True):
        target[:] = source
    packing.unpack(results, outputs)
    assert [bytes(each) for each in outputs] == [bytes(each) for each in inputs]


@pytest.mark.parametrize(
    "call",
    [
        CollectiveCall(Kind.ALL_REDUCE, (LARGE, SPECS[0])),
        CollectiveCall(Kind.ALL_GATHER, (SPECS[0], SPECS[0])),
        CollectiveCall(Kind.BARRIER),
    ],
    ids=str,
)
def test_other_calls_stay_as_they_are(call: CollectiveCall) -> None:
    packing = Packing(call)
    assert packing.call is call
    tensors = [memory(spec, 0) for spec in call.specs]
    assert packing.pack(tensors) == tensors
    assert packing.output_memory(tensors) == tensors


def test_a_member_without_inputs_or_with_only_a_token_packs_nothing() -> None:
    packing = Packing(CollectiveCall(Kind.BROADCAST, SPECS))
    assert packing.pack([]) == []
    token = [memoryview(bytearray())]
    assert Packing(CollectiveCall(Kind.REDUCE, SPECS)).output_memory(token) == token


def test_a_bucket_of_many_small_tensors_takes_few_pieces() -> None:
    call = CollectiveCall(Kind.ALL_REDUCE, (TensorSpec((10,), F32),) * 1000)
    actions = schedule(Packing(call).call, 4, 0)
    assert sum(isinstance(action, Send) for action in actions) == 1
