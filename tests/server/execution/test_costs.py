"""A batch runs on the event loop only if its estimated cost is known and small."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgpack import packb

from burn_remote_protocol.dialects.native import Batch, decode_frame, encode_batch, encode_task
from burn_remote_protocol.dtypes import BOOL, F32
from burn_remote_protocol.messages import (
    BeginUpload,
    Chunk,
    Define,
    Drop,
    Execute,
    Fetch,
    Read,
    Sync,
    Task,
)
from burn_remote_protocol.operations.estimates import estimated
from burn_remote_protocol.operations.row import Operation, Signature
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.execution.costs import READ_COST
from burn_remote_server.execution.engine import Engine
from burn_remote_server.hosting.host import new_interpreter
from burn_remote_server.settings.server_settings import Settings
from burn_remote_server.tensors.exposed_tensors import Transfers
from burn_remote_server.tensors.slots import InFlight
from support.kernels import signature


def ones(size: int) -> Signature:
    return signature("Base.Ones", out=TensorSpec((size,), F32))


class NoOutbox:
    """An outbox for tasks without responses."""

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
    """Return a received batch; lists are invocations by number."""
    wire = [packb(task) if isinstance(task, list) else encode_task(task) for task in tasks]
    message = decode_frame(encode_batch(0, wire))
    assert isinstance(message, Batch)
    return message


@pytest.fixture
def driven() -> Driven:
    return Driven()


def test_the_cost_of_a_number_that_the_batch_redefines_is_unknown(
    driven: Driven,
) -> None:
    driven.engine.run(batch(Define(7, ones(1))))
    assert driven.estimate([7, 1]) is not None
    assert driven.estimate([7, 1], Define(7, ones(10**9))) is not None
    assert driven.estimate(Define(7, ones(10**9)), [7, 1]) is None


def test_definitions_that_are_slow_to_bind_have_no_estimate(driven: Driven) -> None:
    assert driven.estimate(Define(7, ones(1))) is not None
    driven.interpreter.session.binds_slowly = True
    assert driven.estimate(Define(7, ones(1))) is None


@pytest.mark.parametrize("name", ["Eig", "Eigvals", "Eigh", "Eigvalsh", "Svd", "Svdvals"])
def test_lapacks_iterations_never_run_on_the_event_loop(name: str) -> None:
    flags: dict[str, Any] = {"full_matrices": True} if name == "Svd" else {}
    smallest = signature(f"LinearAlgebra.{name}", TensorSpec((1, 1), F32), **flags)
    cost, _ = estimated(smallest.row.estimates, smallest.call)
    assert cost > Settings().inline_cost_limit


def test_an_unnumbered_operation_has_no_estimate(driven: Driven) -> None:
    assert driven.estimate(Execute(Operation(ones(10**9), (1,)))) is None


def test_each_tensor_that_is_dropped_counts(driven: Driven) -> None:
    few, many = driven.estimate(Drop((1,))), driven.estimate(Drop(tuple(range(1001))))
    assert few is not None
    assert many is not None
    assert many >= few + 1000 * 100


def test_a_read_costs_what_laying_out_its_elements_costs(driven: Driven) -> None:
    small = driven.estimate(Read(1, 1, TensorSpec((10,), F32)))
    large = driven.estimate(Read(1, 1, TensorSpec((1000, 1000), F32)))
    assert small is not None
    assert large is not None
    assert large >= small + 10**6 - 10


def test_a_definition_costs_what_decoding_its_bytes_costs(driven: Driven) -> None:
    frame = batch(Define(7, ones(1)))
    small, large = driven.engine.estimate(frame, 100), driven.engine.estimate(frame, 100_000)
    assert small is not None
    assert large is not None
    assert large >= small + 20 * 99_900


def test_a_read_that_copies_nothing_costs_as_much_as_a_short_one(driven: Driven) -> None:
    wide = TensorSpec((1000, 1000), F32)
    array = np.zeros((1000, 1000), np.float32)
    tensors = driven.interpreter.tensors
    for tensor, elements in enumerate([array, array.T, array.astype(np.float64)], 1):
        tensors.store(tensor, elements)
    short = driven.estimate(Read(1, 1, TensorSpec((1, 1), F32)))
    assert short is not None

    assert driven.estimate(Read(1, 1, wide)) == short - READ_COST
    for tensor in (2, 3, 4):
        assert driven.estimate(Read(1, tensor, wide)) == short - READ_COST + wide.size
    # A task before it may replace the tensor.
    assert (driven.estimate(Sync(1), Read(2, 1, wide)) or 0) >= wide.size


def test_a_long_frame_without_tasks_has_an_estimate(driven: Driven) -> None:
    assert driven.engine.estimate(Batch(0, ()), 2**20) == 2**20


def test_a_read_with_an_invalid_shape_has_no_estimate(driven: Driven) -> None:
    assert driven.engine.estimate(Batch(0, ((-6, 1, 1, 5),))) is None
    assert driven.engine.estimate(Batch(0, ((-6, 1, 1, (("a",), "F32")),))) is None
    # The product of an integer and a string would be a string of that many characters.
    assert driven.engine.estimate(Batch(0, ((-6, 1, 1, ((2**62, "a"), "F32")),))) is None


def test_a_read_with_a_negative_size_does_not_make_a_batch_cheap(driven: Driven) -> None:
    driven.engine.run(batch(Define(7, ones(2**20))))
    malformed = (-6, 1, 1, ((-(2**62),), "F32"))
    assert driven.engine.estimate(Batch(0, ((7, 1), malformed))) is None
    assert driven.engine.estimate(Batch(0, ((7, 1), *[malformed] * 3))) is None


def test_a_read_with_thousands_of_dimensions_is_not_estimated(driven: Driven) -> None:
    assert driven.engine.estimate(Batch(0, ((-6, 1, 1, ((1,) * 33, "F32")),))) is None


def test_only_numbers_are_hashed_to_count_operations(driven: Driven) -> None:
    class Colliding(tuple[int, ...]):
        """Tuples whose hashes a client chose, so that counting them takes long."""

        __slots__ = ()

        def __hash__(self) -> int:
            raise AssertionError("it was hashed")

    driven.engine.run(batch(Define(7, ones(1))))
    tasks = tuple((Colliding((1, number)), 1) for number in range(100))
    assert driven.engine.estimate(Batch(0, tasks)) is None
    assert driven.engine.estimate(Batch(0, (*[(7, 1)] * 100, *tasks))) is None


def test_closing_costs_by_the_tensors_that_are_freed(driven: Driven) -> None:
    before = driven.engine.estimate_close()
    driven.engine.run(batch(Define(7, ones(1)), *[[7, tensor] for tensor in range(100)]))
    assert driven.engine.estimate_close() >= before + 100 * 100


def test_the_last_chunk_of_bools_costs_their_check(driven: Driven) -> None:
    spec = TensorSpec((1000,), BOOL)
    driven.engine.handle(BeginUpload(1, spec, spec.nbytes))
    first, last = Chunk(1, 0, memoryview(bytes(400))), Chunk(1, 400, memoryview(bytes(600)))
    assert driven.engine.estimate_chunk(first) == 0
    driven.engine.write_chunk(first)
    assert driven.engine.estimate_chunk(last) >= 1000
