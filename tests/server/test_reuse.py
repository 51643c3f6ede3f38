"""Results that reuse the memory of an input, and those that must not."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest

import burn_remote as br
from burn_remote_protocol.dialects.native import Batch, dropped_next, encode_task
from burn_remote_protocol.frozen_map import FrozenMap
from burn_remote_protocol.messages import Define, Drop
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.operations.table import sign
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorStatus
from burn_remote_server.access.quota import Quota
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.execution.engine import Engine
from burn_remote_server.execution.interpreter import Interpreter
from burn_remote_server.programs.plans import (
    REUSED_BYTES,
    Plan,
)
from burn_remote_server.tensors.exposed_tensors import Transfers
from burn_remote_server.tensors.ownership import held_once
from support.kernels import signature, spec_of

SIZE = REUSED_BYTES // 4
Array = np.ndarray[Any, Any]


def fresh(size: int = SIZE, value: float = 3.0) -> Array:
    return np.full(size, value, np.float32)


def address(array: Array) -> int:
    return int(array.ctypes.data)


class Session:
    """An interpreter with tensors 1 and 2, which nothing else references."""

    def __init__(self, size: int = SIZE) -> None:
        failures: list[Any] = []
        self.interpreter = Interpreter(
            NumpyBackend(), Quota(2**30, 2**10), lambda tensors, error: failures.append(error)
        )
        for tensor in (1, 2):
            self.interpreter.tensors.store(tensor, fresh(size, float(tensor)))
        self.first, self.second = (address(self.array(tensor)) for tensor in (1, 2))

    def array(self, tensor: int) -> Array:
        found = self.interpreter.tensors.arrays[tensor]
        assert isinstance(found, np.ndarray)
        return found

    def run(self, signed: Signature, *tensors: int, dying: tuple[int, ...] = ()) -> int:
        """Run an operation; return the memory address of its result."""
        self.interpreter.plans.define(0, signed)
        self.interpreter.invoke(self.interpreter.numbered[0], tensors, dying)
        return address(self.array(tensors[-1]))


def unary(name: str = "Float.Exp", size: int = SIZE, **parameters: Any) -> Signature:
    return signature(name, spec_of(fresh(size)), **parameters)


def addition() -> Signature:
    return signature("Numeric.Add", spec_of(fresh()), spec_of(fresh()))


def last_use(signed: Signature, *positions: int) -> Signature:
    """Return a signature that marks inputs as used for the last time, as Burn's client does."""
    uses = iter(range(len(signed.input_uses)))
    arguments = [
        TensorUse(argument.spec, TensorStatus.READ_WRITE)
        if isinstance(argument, TensorUse)
        and argument.status is TensorStatus.READ_ONLY
        and next(uses) in positions
        else argument
        for argument in signed.arguments
    ]
    return sign(signed.row, *arguments)


def test_a_result_takes_the_memory_of_an_input_that_is_used_for_the_last_time() -> None:
    session = Session()

    place = session.run(last_use(unary(), 0), 1, 3)

    assert place == session.first
    np.testing.assert_array_equal(session.array(3), np.exp(fresh(value=1.0)))
    assert len(session.interpreter.tensors) == 2


@pytest.mark.parametrize(("dying", "taken"), [((1,), "first"), ((2, 9), "second"), ((), "")])
def test_a_result_takes_the_memory_of_the_input_that_is_dropped_next(
    dying: tuple[int, ...], taken: str
) -> None:
    session = Session()

    place = session.run(addition(), 1, 2, 3, dying=dying)

    places = {"first": session.first, "second": session.second}
    assert [name for name, at in places.items() if at == place] == [taken] * bool(taken)
    assert (session.array(3) == 3).all()
    for tensor in {1, 2} - {*dying}:
        assert (session.array(tensor) == tensor).all()


@pytest.mark.parametrize(
    "hold",
    [
        lambda array: array,
        lambda array: array[10:20],
        lambda array: array.reshape(2, -1)[0].T,
        lambda array: NumpyBackend().to_bytes(array, spec_of(array).dtype),
    ],
    ids=["the array", "a view", "a view of a view", "bytes being sent"],
)
def test_memory_with_another_reference_is_not_reused(hold: Callable[[Array], Any]) -> None:
    session = Session()
    held = hold(session.array(1))

    place = session.run(last_use(unary(), 0), 1, 3)

    assert place != session.first
    assert (np.asarray(held).view(np.float32) == 1).all()


def test_a_tensor_used_twice_in_an_operation_is_not_reused() -> None:
    session = Session()

    assert session.run(last_use(addition(), 0, 1), 1, 1, 3) != session.first
    assert (session.array(3) == 2).all()


def test_an_array_under_two_ids_is_not_reused() -> None:
    session = Session()
    session.interpreter.tensors.store(4, session.array(1))

    assert session.run(unary(), 1, 3, dying=(1,)) != session.first
    assert (session.array(4) == 1).all()


def test_views_and_arrays_over_bytes_are_not_reused() -> None:
    backend = NumpyBackend()
    array = fresh()

    assert backend.owns_memory(array)
    assert not backend.owns_memory(array[:10])
    assert not backend.owns_memory(np.frombuffer(array.tobytes(), np.float32))
    array.flags.writeable = False
    assert not backend.owns_memory(array)


def test_small_results_and_results_of_another_shape_or_dtype_get_memory_of_their_own() -> None:
    backend = NumpyBackend().open_session()

    assert Plan(unary(), backend).reusable == (0,)
    assert Plan(unary(size=SIZE - 1), backend).reusable == ()
    assert Plan(unary("Float.IsNan"), backend).reusable == ()
    wide = signature("Numeric.Add", spec_of(fresh()), spec_of(fresh(1)))
    assert Plan(wide, backend).reusable == (0,)


OPERATIONS: list[tuple[str, dict[str, Any]]] = [
    ("Numeric.AddScalar", {"rhs": 2.5}),
    ("Numeric.DivScalar", {"rhs": 3.0}),
    ("Numeric.Clamp", {"min": 1.5, "max": 2.0}),
    ("Float.Erf", {}),
    ("Float.Tanh", {}),
]


@pytest.mark.parametrize(("name", "parameters"), OPERATIONS)
@pytest.mark.parametrize("transposed", [False, True])
def test_results_in_reused_memory_are_the_same(
    name: str, parameters: dict[str, Any], transposed: bool
) -> None:
    rng = np.random.default_rng(0)
    shape = (SIZE // 64, 64)
    array = rng.standard_normal(shape[::-1] if transposed else shape, np.float32)
    if transposed:
        # Its own memory in another order, as the result of a function of a transposed tensor.
        array = np.negative(array.T)
    session = NumpyBackend().open_session()
    signed = signature(name, spec_of(array), **parameters)
    expected = session.bind(signed)(array)
    run_into = session.bind_into(signed)
    assert run_into is not None

    assert run_into(array, out=array) is array
    np.testing.assert_array_equal(array, expected)


def test_numbers_fill_a_mask_in_the_tensor_or_in_another_array() -> None:
    array, mask = fresh(), np.arange(SIZE) % 3 == 0
    session = NumpyBackend().open_session()
    signed = signature("Base.MaskFill", spec_of(array), spec_of(mask), value=7.0)
    run_into = session.bind_into(signed)
    assert run_into is not None
    other = np.empty_like(array)

    run_into(array, mask, out=other)
    assert (array == 3).all()
    run_into(array, mask, out=array)

    np.testing.assert_array_equal(array, np.where(mask, np.float32(7), np.float32(3)))
    np.testing.assert_array_equal(other, array)


def test_kernels_that_compute_in_another_dtype_do_not_reuse_memory() -> None:
    session = NumpyBackend().open_session()
    low = spec_of(np.zeros(SIZE, np.float16))

    assert session.bind_into(signature("Float.Erf", low)) is None
    assert session.bind_into(signature("Numeric.DivScalar", low, rhs=0.1)) is None
    assert session.bind_into(signature("Float.Exp", low)) is not None
    assert session.bind_into(unary("Float.PowfScalar", rhs=2.5)) is None


def test_held_once_counts_every_holder() -> None:
    table = {0: object()}
    assert held_once([table[0]], 0)
    more = table[0]
    assert not held_once([table[0]], 0)
    del more
    assert held_once([table[0]], 0)


class Silence:
    """An outbox that ignores everything."""

    def reply(self, request: int, value: Any) -> None: ...

    def failed(self, tensors: tuple[int, ...], error: Any) -> None: ...

    def fetch(self, task: Any, slot: Any) -> None: ...


def test_a_batch_that_drops_a_tensor_after_its_last_use_has_it_reused() -> None:
    session = Session()
    engine = Engine(
        session.interpreter,
        Transfers(),
        Silence(),
        transfer_domain="",
    )

    def run(*tasks: Any) -> None:
        engine.run(Batch(0, tuple(tasks)))

    def encoded(task: Any) -> Any:
        return msgpack.unpackb(encode_task(task), use_list=False, object_pairs_hook=FrozenMap)

    define = encoded(Define(0, unary()))
    run(define, (0, 1, 3), define, encoded(Drop((1,))), (0, 2, 4), (0, 2, 5), encoded(Drop((2, 4))))

    assert address(session.array(3)) == session.first
    assert address(session.array(5)) == session.second
    np.testing.assert_array_equal(session.array(5), np.exp(fresh(value=2.0)))


@pytest.mark.parametrize(
    "tasks",
    [
        [],
        [()],
        [7],
        [(-3,)],
        [(-3, 1)],
        [(-3, (1,), 2)],
        [(0, 1, 4), (-3, (1,))],
        [(-1, 0, ()), (-1, 1, ()), (-3, (1,))],
    ],
)
def test_a_drop_after_another_task_is_not_the_next_one(tasks: list[Any]) -> None:
    assert dropped_next([(0, 1, 3), *tasks], 0) == ()


def test_a_chain_of_operations_holds_only_its_input_and_its_result() -> None:
    array = np.random.default_rng(0).standard_normal(4 * 2**20, np.float32)
    with br.LocalDevice() as device:
        x = br.tensor(array, device=device)
        device.sync()
        tracemalloc.start()
        try:
            y = ((x + 1) * 2 - 3).tanh().exp().sqrt() / 5
            device.sync()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        expected = np.sqrt(np.exp(np.tanh((array + 1) * 2 - 3))) / 5
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5)
        np.testing.assert_array_equal(x.numpy(), array)
    assert peak < 1.5 * array.nbytes
