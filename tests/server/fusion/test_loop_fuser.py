"""Small exact operations of a graph run as one compiled ufunc, with equal bits."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import msgpack
import numpy as np
import pytest

from burn_remote_protocol.dtypes import BOOL, F32, F64, I8, I32, I64, U8, U32, U64, DType
from burn_remote_protocol.errors import OutOfMemory
from burn_remote_protocol.messages import Define, DefineGraph
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.access.quota import Quota
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.fusion.cpu import loop_fuser, ufuncs
from burn_remote_server.fusion.cpu.kernel_compiler import KernelCompiler, opened_compiler
from burn_remote_server.fusion.cpu.runtime import NumpyFusionRuntime
from burn_remote_server.fusion.runtime_selection import with_fusion
from burn_remote_server.programs import graphs
from burn_remote_server.programs.graphs import GraphPlan
from burn_remote_server.programs.instructions import INTO_ONLY, ONE_INPUT
from support.compiled_kernels import compiled_at_once
from support.engines import EngineSession
from support.kernels import Array, signature
from support.random_programs import same_bits

pytest.importorskip("llvmlite", reason="the extra fusion is not installed")

GRAPH = 4096
MATRIX, ROW, COLUMN = (TensorSpec(shape, F32) for shape in ((6, 5), (1, 5), (6, 1)))


@pytest.fixture(autouse=True)
def compiled() -> Iterator[None]:
    with compiled_at_once(), np.errstate(all="ignore"):  # a server's threads do
        yield


def opened(signatures: Sequence[Signature], *, fused: bool = True) -> EngineSession:
    backend = with_fusion(NumpyBackend()) if fused else NumpyBackend()
    session = EngineSession(backend=backend)
    session.run(*(Define(number, signed) for number, signed in enumerate(signatures)))
    return session


def results(
    signatures: Sequence[Signature],
    steps: Any,
    outputs: tuple[int, ...],
    arrays: Sequence[Array],
    *,
    fused: bool,
) -> tuple[list[Array], GraphPlan]:
    """Return the outputs of a graph that was called three times, and the graph."""
    session = opened(signatures, fused=fused)
    session.run(DefineGraph(GRAPH, len(arrays), steps, outputs))
    for tensor, array in enumerate(arrays):
        session.tensors.store(tensor, array)
    ids = tuple(100 + place for place in range(len(outputs)))
    for _ in range(3):
        session.run((GRAPH, *range(len(arrays)), *ids))
    plan = session.interpreter.numbered[GRAPH]
    return [session.tensors.array(tensor) for tensor in ids], plan


def check(
    signatures: Sequence[Signature], steps: Any, outputs: tuple[int, ...], arrays: Sequence[Array]
) -> GraphPlan:
    """Compare a graph with fusion and without; return the one with fusion."""
    given = [array.copy(order="K") for array in arrays]
    expected, _ = results(signatures, steps, outputs, arrays, fused=False)
    found, plan = results(signatures, steps, outputs, arrays, fused=True)
    assert all(map(same_bits, found, expected))
    assert [each.strides for each in found] == [each.strides for each in expected]
    assert all(map(same_bits, arrays, given))
    return plan


def names(plan: GraphPlan) -> list[str]:
    return [block.execution.optimization.name for block in plan.blocks.values()]


def numbers(shape: tuple[int, ...], dtype: DType = F32) -> Array:
    random = np.random.default_rng(sum(shape))
    return (random.standard_normal(shape) * 9).astype(array_dtype(dtype))


def test_a_run_of_small_operations_is_one_instruction() -> None:
    signatures = [
        signature("Numeric.Add", MATRIX, ROW),
        signature("Numeric.MulScalar", MATRIX, rhs=0.1),
        signature("Numeric.Sub", MATRIX, COLUMN),
        signature("Float.Sqrt", MATRIX),
        signature("Numeric.Clamp", MATRIX, min=0.0, max=1.0),
    ]
    steps = ((0, 0, 1), (1, 3), (2, 4, 2), (3, 5), (4, 6))
    plan = check(signatures, steps, (7,), [numbers((6, 5)), numbers((1, 5)), numbers((6, 1))])
    assert names(plan) == ["loop"]
    assert plan.fused_count == len(steps)
    assert len(plan._program) == 1


@pytest.mark.parametrize("layout", ["F", "reversed", "repeated"])
def test_inputs_of_any_layout_give_the_bits_and_the_order_of_single_operations(layout: str) -> None:
    signatures = [
        signature("Numeric.Add", MATRIX, MATRIX),
        signature("Numeric.MulScalar", MATRIX, rhs=0.1),
    ]
    arrays = [numbers((6, 5)), numbers((6, 5))]
    changed: Any = {
        "F": np.asfortranarray,
        "reversed": lambda array: np.ascontiguousarray(array[::-1])[::-1],
        "repeated": lambda array: np.broadcast_to(array[:1].copy(), array.shape),
    }[layout]
    for given in ([changed(arrays[0]), arrays[1]], [arrays[0], changed(arrays[1])]):
        check(signatures, ((0, 0, 1), (1, 2)), (3,), given)
    check(signatures, ((0, 0, 1), (1, 2)), (3,), [changed(array) for array in arrays])


@pytest.mark.parametrize("dtype", [F32, F64, I64])
def test_a_loop_gives_several_results_of_several_dtypes(dtype: DType) -> None:
    spec = TensorSpec((300,), dtype)
    signatures = [
        signature("Numeric.Mul", spec, spec),
        signature("Numeric.GreaterElem", spec, rhs=3),
        signature("Bool.Not", TensorSpec((300,), BOOL)),
        signature("Numeric.AddScalar", spec, rhs=7),
    ]
    steps = ((0, 0, 1), (1, 2), (2, 3), (3, 2))
    plan = check(signatures, steps, (4, 5), [numbers((300,), dtype), numbers((300,), dtype)])
    assert names(plan) == ["loop"]


def test_what_follows_a_product_is_written_into_its_memory() -> None:
    square = TensorSpec((5, 5), F32)
    signatures = [
        signature("Float.Matmul", square, square),
        signature("Numeric.Add", square, ROW),
        signature("Numeric.Clamp", square, min=0.0, max=float("inf")),
        signature("Numeric.Sub", square, square),
    ]
    arrays = [numbers((5, 5)), numbers((1, 5))]
    plan = check(signatures, ((0, 0, 0), (1, 2, 1), (2, 3)), (4,), arrays)
    (_, loop) = plan._program
    assert len(set(loop[2:4])) == 2, "two operands"
    products: list[Any] = []
    place = plan._program[0][1]
    product = plan._kernels[place]

    def multiplied(*factors: Array) -> Array:
        products.append(product(*factors))
        result: Array = products[-1]
        return result

    plan._kernels[place] = multiplied
    (found,) = plan.run(arrays, ())
    assert found is products[0]
    # A product that is used afterwards stays as it is.
    check(signatures, ((0, 0, 0), (1, 2, 1), (2, 3), (3, 4, 2)), (5,), arrays)
    check(signatures, ((0, 0, 0), (1, 2, 1), (2, 3)), (2, 4), arrays)


@pytest.mark.parametrize("layout", ["C", "F"])
def test_the_order_of_views_is_checked_by_each_call(layout: str) -> None:
    wide, other = TensorSpec((4, 7), F32), TensorSpec((7, 4), F32)
    signatures = [
        signature("Base.SwapDims", other, dim1=0, dim2=1),
        signature("Numeric.MulScalar", wide, rhs=0.1),
        signature("Numeric.Sub", wide, wide),
    ]
    given = numbers((7, 4))
    transposed = np.asfortranarray(given) if layout == "C" else given
    plan = check(signatures, ((0, 1), (1, 2), (2, 0, 3)), (4,), [numbers((4, 7)), transposed])
    assert names(plan) == ["loop"]


def test_a_view_whose_loop_is_checked_stays_as_it_is() -> None:
    wide = TensorSpec((4, 7), F32)
    signatures = [
        signature("Base.SwapDims", TensorSpec((7, 4), F32), dim1=0, dim2=1),
        signature("Numeric.MulScalar", wide, rhs=0.1),
        signature("Numeric.AddScalar", wide, rhs=3),
    ]
    steps = ((0, 0), (1, 1), (2, 2))
    plan = check(signatures, steps, (3,), [np.asfortranarray(numbers((7, 4)))])
    assert names(plan) == ["loop"]


def test_a_single_operation_of_several_functions_is_a_loop() -> None:
    signatures = [signature("Activation.ReluBackward", MATRIX, MATRIX)]
    arrays = [numbers((6, 5)), numbers((6, 5)) + 1]
    assert names(check(signatures, ((0, 0, 1),), (2,), arrays)) == ["loop"]


@pytest.mark.parametrize(("name", "dtype"), [("Sigmoid", F32), ("Sigmoid", F64), ("Gelu", F32)])
@pytest.mark.parametrize("shape", [(23, 31), (61, 4099)], ids=["small", "with scratch memory"])
def test_an_operation_around_an_exponential_is_two_loops(
    name: str, dtype: DType, shape: tuple[int, int]
) -> None:
    spec = TensorSpec(shape, dtype)
    x, gradient = (numbers(shape, dtype) * scale for scale in (1, 0.5))
    x.reshape(-1)[:6] = [0.0, -0.0, np.inf, -np.inf, np.nan, -104.0]
    if name == "Gelu":
        signed = signature("Activation.GeluBackward", spec, spec)
        plan = check([signed], ((0, 0, 1),), (2,), [x, gradient])
    else:
        plan = check([signature("Activation.Sigmoid", spec)], ((0, 0),), (1,), [x])
    assert names(plan) == ["exponential"]
    assert not plan._uncompiled


def test_gradients_of_gelu_in_doubles_are_no_loops() -> None:
    spec = TensorSpec((6, 5), F64)
    signed = signature("Activation.GeluBackward", spec, spec)
    plan = check([signed], ((0, 0, 1),), (2,), [numbers((6, 5), F64), numbers((6, 5), F64)])
    assert names(plan) == []


def test_a_result_around_an_exponential_takes_the_memory_of_a_dying_operand() -> None:
    steps = ((0, 0), (0, 1), (0, 2))
    plan = check([signature("Activation.Sigmoid", MATRIX)], steps, (3,), [numbers((6, 5))])
    assert names(plan) == ["exponential"] * 3
    assert [each[0] for each in plan._program] == [ONE_INPUT, INTO_ONLY, INTO_ONLY]


def test_a_loop_that_needs_scratch_memory_reserves_it_in_the_quota() -> None:
    spec = TensorSpec((61, 4093), F32)
    signatures = [signature("Activation.Gelu", spec)]
    session = opened(signatures)
    session.run(DefineGraph(GRAPH, 1, ((0, 0),), (1,)))
    session.tensors.store(0, numbers(spec.shape))
    with patch.object(Quota, "take", autospec=True, side_effect=Quota.take) as take:
        for place in range(3):
            session.run((GRAPH, 0, 1 + place))
    plan = session.interpreter.numbered[GRAPH]
    assert names(plan) == ["loop"]
    assert not plan._uncompiled
    workspace = plan.steps[0].plan.workspace_bytes
    assert [call.args[1:] for call in take.call_args_list].count((workspace, 0)) == 3


def test_equal_updates_of_parameters_of_any_shape_share_one_compilation() -> None:
    compiler = opened_compiler()
    assert compiler is not None
    shapes = [(7, 3), (3,), (2, 2, 2), (9,), (1, 4)]
    signatures: list[Signature] = []
    steps: list[tuple[int, ...]] = []
    arrays: list[Array] = []
    slot = 2 * len(shapes)
    for place, shape in enumerate(shapes):
        spec = TensorSpec(shape, F32)
        signatures += [
            signature("Numeric.MulScalar", spec, rhs=0.125),
            signature("Numeric.Sub", spec, spec),
            signature("Numeric.MulScalar", spec, rhs=0.9375),
        ]
        first = 3 * place
        steps += [(first, 2 * place), (first + 1, 2 * place + 1, slot), (first + 2, slot + 1)]
        slot += 3
        arrays += [numbers(shape), numbers(shape)]
    outputs = tuple(range(2 * len(shapes) + 2, slot, 3))
    before = compiler.counts.compiled
    plan = check(signatures, tuple(steps), outputs, arrays)
    assert names(plan) == ["loop"] * len(shapes)
    assert len(plan._program) == len(shapes)
    assert compiler.counts.compiled - before <= 1


def test_numbers_that_change_never_compile_a_loop_again() -> None:
    compiler = opened_compiler()
    assert compiler is not None
    session = opened(
        [signature("Numeric.MulScalar", MATRIX, rhs=0.5), signature("Numeric.Add", MATRIX, MATRIX)]
    )
    session.run(DefineGraph(GRAPH, 2, ((0, 0), (1, 2, 1)), (3,), ((0, 1, 0),)))
    x, y = numbers((6, 5)), numbers((6, 5))
    session.tensors.store(0, x)
    session.tensors.store(1, y)
    counts = set()
    for place in range(20):
        session.run((GRAPH, 0, 1, 2, (place / 8,)))
        assert same_bits(session.tensors.array(2), x * np.float32(place / 8) + y)
        counts.add(compiler.counts.compiled)
    assert names(session.interpreter.numbered[GRAPH]) == ["loop"]
    assert len(counts) == 1


@pytest.mark.parametrize("shape", [(6, 5), (80, 60)])
def test_a_mask_fill_whose_value_changes_joins_the_operations_around_it(
    shape: tuple[int, int],
) -> None:
    spec, mask = TensorSpec(shape, F32), TensorSpec(shape, BOOL)
    session = opened(
        [
            signature("Numeric.Add", spec, spec),
            signature("Numeric.LowerEqualElem", spec, out=mask, rhs=0.5),
            signature("Base.MaskFill", spec, mask, value=1.5),
        ]
    )
    steps, changing = ((0, 0, 1), (1, 2), (2, 2, 3)), ((1, 1, 0), (2, 2, 1))
    session.run(DefineGraph(GRAPH, 2, steps, (4,), changing))
    x, y = numbers(shape), -numbers(shape[::-1]).reshape(shape)
    session.tensors.store(0, x)
    session.tensors.store(1, y)
    total = x + y
    for value in (0.0, -0.0, 2.5, float("inf"), 0.0):
        session.run((GRAPH, 0, 1, 2, (value / 2, value)))
        expected = np.where(total <= np.float32(value / 2), np.float32(value), total)
        assert same_bits(session.tensors.array(2), expected)
    (block,) = session.interpreter.numbered[GRAPH].blocks.values()
    assert (block.start, block.end) == (0, 3)


@pytest.mark.parametrize(("first", "second"), [(I64, U64), (U64, I64), (I8, U8), (U32, I32)])
def test_graphs_share_no_loop_whose_dtypes_differ(first: DType, second: DType) -> None:
    plans = []
    for dtype in (first, second):
        spec, mask = TensorSpec((6, 5), dtype), TensorSpec((6, 5), BOOL)
        signatures = [
            signature("Bool.IntoInt", mask, out=spec),
            signature("Numeric.Sub", spec, spec),
            signature("Numeric.Max", spec),
        ]
        arrays = [numbers((6, 5)) > 9, numbers((6, 5)) < 9]
        steps = ((0, 0), (0, 1), (1, 2, 3), (2, 4))
        plans.append(check(signatures, steps, (4, 5), arrays))
    assert [names(plan) for plan in plans] == [["loop"], ["loop"]]


def test_a_process_keeps_a_bounded_number_of_compiled_loops() -> None:
    gc.collect()
    plans = []
    with patch.object(ufuncs, "MAX_UFUNCS", len(ufuncs._ufuncs) + 2):
        for place in range(4):
            signatures = [
                signature("Numeric.MulScalar", MATRIX, rhs=1 + place / 64),
                signature("Numeric.AddScalar", MATRIX, rhs=0.75),
            ]
            plans.append(check(signatures, ((0, 0), (1, 1)), (2,), [numbers((6, 5))]))
        assert len(ufuncs._ufuncs) == ufuncs.MAX_UFUNCS
        assert not any(plan._uncompiled for plan in plans)
        plans.clear()
        gc.collect()
        assert len(ufuncs._ufuncs) <= ufuncs.MAX_UFUNCS - 2


def test_loops_are_compiled_only_for_graphs_that_repeat() -> None:
    compiler = opened_compiler()
    assert compiler is not None
    spec = TensorSpec((11,), F32)
    session = opened(
        [signature("Numeric.MulScalar", spec, rhs=0.3), signature("Numeric.AddScalar", spec, rhs=1)]
    )
    session.run(DefineGraph(GRAPH, 1, ((0, 0), (1, 1), (0, 2), (0, 3)), (4,)))
    session.tensors.store(0, numbers((11,)))
    plan = session.interpreter.numbered[GRAPH]
    before = compiler.counts.compiled
    with patch.object(graphs, "COMPILED_AT", 3):
        for _ in range(2):
            session.run((GRAPH, 0, 1))
        assert (compiler.counts.compiled, len(plan._uncompiled)) == (before, 1)
        session.run((GRAPH, 0, 1))
    assert (compiler.counts.compiled, len(plan._uncompiled)) == (before + 1, 0)


def test_a_loop_that_a_graph_calls_several_times_is_compiled_after_fewer_calls() -> None:
    compiler = opened_compiler()
    assert compiler is not None
    spec = TensorSpec((7, 7), F32)
    session = opened(
        [
            signature("Numeric.MulScalar", spec, rhs=0.3),
            signature("Numeric.AddScalar", spec, rhs=0.6),
            signature("Float.Matmul", spec, spec),
        ]
    )
    # Three times the loop, with a product between.
    steps = ((0, 0), (1, 1), (2, 2, 2), (0, 3), (1, 4), (2, 5, 5), (0, 6), (1, 7))
    session.run(DefineGraph(GRAPH, 1, steps, (8,)))
    session.tensors.store(0, numbers((7, 7)))
    plan = session.interpreter.numbered[GRAPH]
    before = compiler.counts.compiled
    with patch.object(graphs, "COMPILED_AT", 6):
        session.run((GRAPH, 0, 1))
        assert (compiler.counts.compiled, len(plan._uncompiled)) == (before, 3)
        session.run((GRAPH, 0, 2))
    assert (compiler.counts.compiled, len(plan._uncompiled)) == (before + 1, 0)
    assert same_bits(session.tensors.array(1), session.tensors.array(2))


def test_a_loop_without_memory_fails_as_its_operations_do() -> None:
    session = opened(
        [signature("Numeric.MulScalar", MATRIX, rhs=0.5), signature("Numeric.Add", MATRIX, MATRIX)]
    )
    session.run(DefineGraph(GRAPH, 1, ((0, 0), (1, 1, 0)), (2,)))
    session.tensors.store(0, numbers((6, 5)))
    plan = session.interpreter.numbered[GRAPH]

    def exhausted(*arrays: Array) -> Array:
        raise MemoryError

    session.run((GRAPH, 0, 1))
    expected = session.tensors.array(1)
    plan._kernels[plan._program[0][1]] = exhausted
    session.run((GRAPH, 0, 2))  # each operation alone has enough
    assert same_bits(session.tensors.array(2), expected)
    step = plan.steps[1].plan
    step.run = exhausted
    session.run((GRAPH, 0, 3))
    with pytest.raises(OutOfMemory, match=r"Numeric.Add"):
        session.tensors.array(3)


def test_kernels_that_cannot_be_compiled_leave_the_operations() -> None:
    with patch.object(KernelCompiler, "_compile", side_effect=RuntimeError):
        spec = TensorSpec((13,), F32)
        signatures = [
            signature("Numeric.MulScalar", spec, rhs=0.7),
            signature("Numeric.AddScalar", spec, rhs=2),
        ]
        plan = check(signatures, ((0, 0), (1, 1)), (2,), [numbers((13,))])
    assert not plan._uncompiled


@pytest.mark.parametrize(
    ("shape", "steps"),
    [
        ((6, 5), ((0, 0),)),  # a loop would not be faster
        ((0, 5), ((0, 0), (0, 1))),
        ((loop_fuser.MAX_LOOP_ELEMENTS,), ((0, 0), (0, 1))),
    ],
    ids=["one operation", "no elements", "large"],
)
def test_single_operations_and_empty_or_large_tensors_make_no_loop(
    shape: tuple[int, ...], steps: Any
) -> None:
    signatures = [signature("Numeric.MulScalar", TensorSpec(shape, F32), rhs=0.5)]
    assert names(check(signatures, steps, (len(steps),), [numbers(shape)])) == []


def test_a_single_operation_with_a_slow_ufunc_is_a_loop() -> None:
    spec = TensorSpec((64, 128), F32)
    signatures = [signature("Activation.Relu", spec)]
    assert names(check(signatures, ((0, 0),), (1,), [numbers((64, 128))])) == ["loop"]


def test_without_a_compiler_nothing_is_a_loop() -> None:
    fusers = NumpyFusionRuntime().graph_fusers(NumpyBackend())
    assert not any(isinstance(fuser, loop_fuser.LoopFuser) for fuser in fusers)


def test_a_loop_that_is_restored_from_its_state_gives_the_same_results() -> None:
    signatures = [
        signature("Numeric.Add", MATRIX, ROW),
        signature("Numeric.MulScalar", MATRIX, rhs=0.1),
    ]
    arrays = [numbers((6, 5)), numbers((1, 5))]
    plan = check(signatures, ((0, 0, 1), (1, 2)), (3,), arrays)
    (block,) = plan.blocks.values()
    optimization: Any = block.execution.optimization
    state = msgpack.unpackb(msgpack.packb(optimization.to_state()))
    restored: Any = NumpyFusionRuntime(opened_compiler()).from_state(NumpyBackend(), state)
    assert restored.to_state() == state
    assert restored.source == optimization.source
    (one,), (other,) = optimization.execute(arrays), restored.execute(arrays)
    assert same_bits(one, other)
