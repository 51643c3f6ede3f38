"""What a batch costs is told beforehand only where it is known: else it is not the event loop's."""

from __future__ import annotations

from typing import Any

import pytest
from msgpack import packb

from burn_remote_protocol.dialects.native import Batch, decode_frame, encode_batch, encode_task
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.messages import Define, Drop, Execute, Fetch, Task
from burn_remote_protocol.operations.row import Operation, Signature
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.execution.engine import Engine
from burn_remote_server.execution.slots import InFlight
from burn_remote_server.host import new_interpreter
from burn_remote_server.settings.server_settings import Settings
from burn_remote_server.transfers.exposed import Transfers
from support.kernels import signature


def ones(size: int) -> Signature:
    return signature("Base.Ones", out=TensorSpec((size,), F32))


class NoOutbox:
    """For tasks of which nobody is told anything."""

    def reply(self, request: int, value: Any) -> None:
        raise AssertionError("nothing was asked")

    def failed(self, tensors: tuple[int, ...], error: Exception) -> None:
        raise error

    def fetch(self, task: Fetch, slot: InFlight) -> None:
        raise AssertionError("nothing is fetched")


class Driven:
    """An engine and its session."""

    def __init__(self) -> None:
        outbox = NoOutbox()
        self.interpreter = new_interpreter(NumpyBackend(), Settings(), outbox)
        self.engine = Engine(self.interpreter, Transfers(), outbox, transfer_domain="native")

    def estimate(self, *tasks: Task | list[int]) -> int | None:
        return self.engine.estimate(batch(*tasks))


def batch(*tasks: Task | list[int]) -> Batch:
    """Return a batch as it comes; lists are invocations by number."""
    wire = [packb(task) if isinstance(task, list) else encode_task(task) for task in tasks]
    message = decode_frame(encode_batch(0, wire))
    assert isinstance(message, Batch)
    return message


@pytest.fixture
def driven() -> Driven:
    return Driven()


def test_a_number_that_the_batch_itself_defines_anew_has_not_the_cost_of_what_had_it(
    driven: Driven,
) -> None:
    driven.engine.run(batch(Define(7, ones(1))))
    assert driven.estimate([7, 1]) is not None
    assert driven.estimate([7, 1], Define(7, ones(10**9))) is not None
    assert driven.estimate(Define(7, ones(10**9)), [7, 1]) is None


def test_what_is_defined_where_binding_takes_long_is_not_estimated(driven: Driven) -> None:
    assert driven.estimate(Define(7, ones(1))) is not None
    driven.interpreter.session.binds_slowly = True
    assert driven.estimate(Define(7, ones(1))) is None


def test_an_operation_that_comes_in_full_is_not_estimated(driven: Driven) -> None:
    assert driven.estimate(Execute(Operation(ones(10**9), (1,)))) is None


def test_each_tensor_that_is_dropped_counts(driven: Driven) -> None:
    few, many = driven.estimate(Drop((1,))), driven.estimate(Drop(tuple(range(1001))))
    assert few is not None
    assert many is not None
    assert many >= few + 1000 * 100
