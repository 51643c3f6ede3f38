"""Random programs of operations, and their execution one by one, as a graph and fused.

``python -m support.random_programs COUNT FIRST compiled|blocks`` runs programs in a process of its
own, so that NumPy's vector instructions can be chosen by ``NPY_DISABLE_CPU_FEATURES``.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final
from unittest.mock import patch

import numpy as np

import burn_remote_server.fusion.cpu.block_program as block_program
import burn_remote_server.fusion.cpu.elementwise_fuser as elementwise
import burn_remote_server.fusion.cpu.reduce_fuser as reduce
from burn_remote_protocol.dtypes import BF16, BOOL, F16, F32, F64, I8, I32, I64, U8, DType
from burn_remote_protocol.errors import BurnRemoteError, OperationFailed
from burn_remote_protocol.messages import Define, DefineGraph, Drop
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.interface import Backend
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.fusion.fusing_backend import Fusion
from burn_remote_server.fusion.runtime_selection import with_fusion
from burn_remote_server.programs import graphs
from support.compiled_kernels import compiled_at_once
from support.engines import EngineSession
from support.kernels import Array, signature
from support.memory_reuse import forced_reuse

__all__ = [
    "Outcome",
    "RandomProgram",
    "check",
    "difference",
    "drawn_program",
    "forced_fusion",
    "run_eagerly",
    "run_graph",
    "run_stream",
    "same_bits",
]

GRAPH: Final = 4096
FLOATS: Final = (F32, F32, F64, F16, BF16)
INTEGERS: Final = (I32, I64, I8, U8)

# fmt: off
UNARY: Final = [
    "Exp", "Log", "Log1p", "Erf", "Sqrt", "Recip", "Cos", "Cosh", "Sin", "Sinh", "Tan", "Tanh",
    "ArcCos", "ArcCosh", "ArcSin", "ArcSinh", "ArcTan", "ArcTanh", "Round", "Floor", "Ceil",
    "Trunc",
]
# fmt: on
BINARY: Final = ["Add", "Sub", "Mul", "Div", "Rem"]
COMPARISONS: Final = ["Greater", "GreaterEqual", "Lower", "LowerEqual"]
REDUCTIONS: Final = ["SumDim", "ProdDim", "MeanDim", "MaxDim", "MinDim", "MaxAbsDim"]
BITWISE: Final = ["BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseLeftShift", "BitwiseRightShift"]


@dataclass
class RandomProgram:
    """Operations on slots: first the inputs, then the results."""

    arrays: list[Array]
    specs: list[TensorSpec]
    signatures: list[Signature] = field(default_factory=list)
    steps: list[tuple[int, ...]] = field(default_factory=list)
    outputs: tuple[int, ...] = ()

    @property
    def input_count(self) -> int:
        """Number of slots that the program takes."""
        return len(self.arrays)

    def add(self, name: str, *slots: int, **parameters: Any) -> bool:
        """Append an operation, unless it does not take these tensors."""
        try:
            signed = signature(name, *[self.specs[slot] for slot in slots], **parameters)
        except (BurnRemoteError, StopIteration, KeyError):
            return False
        self.steps.append((len(self.signatures), *slots))
        self.signatures.append(signed)
        self.specs += signed.outputs
        return True


def drawn_program(seed: int) -> RandomProgram:
    """Return the random program of a seed."""
    return drawn(Random(seed))


def drawn(random: Random) -> RandomProgram:
    """Return a random program of up to 30 operations."""
    shape = random.choice(
        [(random.randint(1, 300),), (random.randint(1, 40), random.randint(1, 9))]
    )
    if random.random() < 0.3:
        shape = (random.randint(1, 4), *shape)
    dtype = random.choice(FLOATS + INTEGERS)
    program = RandomProgram([], [])
    for _ in range(random.randint(1, 4)):
        _add_input(program, random, shape, dtype)
    _add_input(program, random, shape, BOOL)
    for _ in range(random.randint(2, 30)):
        for _ in range(5):
            if _add_operation(program, random):
                break
    made = range(program.input_count, len(program.specs))
    outputs = [slot for slot in made if random.random() < 0.2] or [*made[-1:]]
    used = {slot for step in program.steps for slot in step[1:]}
    for slot in range(program.input_count):
        if slot not in used:  # a graph uses all its inputs
            program.add("Base.Equal", slot, slot)
    program.outputs = tuple(outputs)
    return program


def _add_input(
    program: RandomProgram, random: Random, shape: tuple[int, ...], dtype: DType
) -> None:
    if random.random() < 0.3:
        shape = tuple(random.choice([1, length]) for length in shape)
    numbers = np.random.default_rng(random.randrange(2**32))
    wanted = array_dtype(dtype)
    values: Array
    if dtype is BOOL:
        values = numbers.random(shape) < 0.5
    elif wanted.kind in "iu":
        values = numbers.integers(random.choice([0, 1]), 100, shape)
    else:
        values = numbers.standard_normal(shape) * random.choice([1, 50])
        if values.size and random.random() < 0.3:
            special = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40]
            values.reshape(-1)[numbers.integers(values.size)] = random.choice(special)
    with np.errstate(all="ignore"):
        array = _laid_out(np.asarray(values.astype(wanted)), random)
    program.arrays.append(array)
    program.specs.append(TensorSpec(shape, dtype))


def _laid_out(array: Array, random: Random) -> Array:
    """Return an equal array: contiguous, in Fortran's order, reversed, strided or repeated."""
    layout = random.choice(["C", "C", "C", "F", "reversed", "strided", "repeated"])
    if layout == "F":
        return np.asfortranarray(array)
    if layout == "reversed":
        return np.ascontiguousarray(array[::-1])[::-1]
    if layout == "strided":
        return np.repeat(array, 2, axis=-1)[..., ::2]
    if layout == "repeated" and array.size:
        return np.broadcast_to(array[:1].copy(), array.shape)
    return array.copy()


def _add_operation(program: RandomProgram, random: Random) -> bool:
    slots = [*range(len(program.specs))]
    first = random.choice(slots[-4:])
    spec = program.specs[first]
    other = random.choice([slot for slot in slots if program.specs[slot].dtype is spec.dtype])
    if random.random() < 0.08:
        return _add_other(program, random, first)
    if spec.dtype is not BOOL and random.random() < 0.08:
        return _add_reduction(program, random, first)
    if spec.dtype is BOOL:
        return _add_logic(program, random, first, other)
    is_integer = spec.dtype in INTEGERS
    kind = random.choice(["unary", "binary", "binary", "scalar", "scalar", "compare", "other"])
    if kind == "unary":
        if is_integer:
            return program.add(random.choice(["Numeric.Abs", "Int.BitwiseNot"]), first)
        return program.add(f"Float.{random.choice(UNARY)}", first)
    number = random.choice([2, 3, -1] if is_integer else [2, 0.1, -3, 0.5, 0.0, 65520.0])
    if kind == "other":
        return _add_mixed(program, random, first, other, number)
    return _ADD[kind](program, random, first, other, number)


def _add_logic(program: RandomProgram, random: Random, first: int, other: int) -> bool:
    spec = program.specs[first]
    name = random.choice(["Bool.Not", "Bool.And", "Bool.Or", "Bool.IntoFloat", "Bool.IntoInt"])
    if name == "Bool.IntoFloat":
        return program.add(name, first, out=_as(spec, random.choice(FLOATS)))
    if name == "Bool.IntoInt":
        return program.add(name, first, out=_as(spec, random.choice(INTEGERS)))
    return program.add(name, *([first] if name == "Bool.Not" else [first, other]))


def _add_scalar(
    program: RandomProgram, random: Random, first: int, other: int, number: float
) -> bool:
    if program.specs[first].dtype in INTEGERS and random.random() < 0.3:
        return program.add(f"Int.{random.choice(BITWISE)}Scalar", first, rhs=abs(number))
    return program.add(f"Numeric.{random.choice(BINARY)}Scalar", first, rhs=number)


def _add_binary(
    program: RandomProgram, random: Random, first: int, other: int, number: float
) -> bool:
    names = [f"Numeric.{name}" for name in BINARY]
    if program.specs[first].dtype in INTEGERS and random.random() < 0.3:
        names = [f"Int.{name}" for name in BITWISE]
    pair = [first, other]
    random.shuffle(pair)
    return program.add(random.choice(names), *pair)


def _add_comparison(
    program: RandomProgram, random: Random, first: int, other: int, number: float
) -> bool:
    if random.random() < 0.5:
        return program.add(f"Numeric.{random.choice(COMPARISONS)}Elem", first, rhs=number)
    name = random.choice(["Base.Equal", f"Numeric.{random.choice(COMPARISONS)}"])
    return program.add(name, first, other)


_ADD: Final = {"scalar": _add_scalar, "binary": _add_binary, "compare": _add_comparison}


def _add_mixed(
    program: RandomProgram, random: Random, first: int, other: int, number: float
) -> bool:
    """Add a power, a clamp, a cast or an operation with a mask."""
    spec = program.specs[first]
    is_integer = spec.dtype in INTEGERS
    masks = [slot for slot, each in enumerate(program.specs) if each.dtype is BOOL]
    choice = random.randrange(7)
    if choice == 0:
        low, high = random.choice([(0, float("inf")), (-1, 1), (float("-inf"), 2), (0, 100)])
        return program.add("Numeric.Clamp", first, min=low, max=high)
    if choice == 1:
        return program.add("Base.MaskFill", first, random.choice(masks), value=number)
    if choice == 2:
        return program.add("Base.MaskWhere", first, random.choice(masks), other)
    if choice == 3:
        targets = INTEGERS if is_integer else FLOATS
        return program.add("Base.Cast", first, out=_as(spec, random.choice(targets)))
    if choice == 4:
        name = "Int.IntoFloat" if is_integer else "Float.IntoInt"
        return program.add(
            name,
            first,
            out=_as(
                spec,
                random.choice([F32, F64, F16, BF16]) if is_integer else random.choice(INTEGERS),
            ),
        )
    if choice == 5:
        exponent = random.choice([0, 1, 2, 3, -1, 5])
        return program.add("Numeric.PowiScalar", first, rhs=exponent)
    if is_integer:
        return program.add("Numeric.Powi", first, other)
    if random.random() < 0.5:
        return program.add("Float.Powf", first, other)
    return program.add(
        "Float.PowfScalar", first, rhs=random.choice([0.5, 1.0, 2.0, 3.0, -1.0, 2.5])
    )


def _add_other(program: RandomProgram, random: Random, first: int) -> bool:
    """Add an operation that is not element-wise."""
    spec = program.specs[first]
    axis = random.randrange(len(spec.shape))
    choice = random.randrange(6)
    if choice == 0 and len(spec.shape) > 1:
        return program.add("Base.SwapDims", first, dim1=0, dim2=axis)
    if choice == 5 and len(spec.shape) > 1:
        return _add_product(program, random, first)
    if choice == 1:
        return program.add("Base.Flip", first, axes=(axis,))
    if choice == 2:
        return program.add("Base.Reshape", first, out=TensorSpec((spec.size,), spec.dtype))
    if choice == 3:
        longer = tuple(7 if length == 1 else length for length in spec.shape)
        return program.add("Base.Expand", first, out=TensorSpec(longer, spec.dtype))
    return program.add("Numeric.SumDim", first, axis=axis, accumulator_len=1)


def _add_product(program: RandomProgram, random: Random, first: int) -> bool:
    """Add the product of matrices with their transposes, most often with a bias and ReLU."""
    rank = len(program.specs[first].shape)
    swapped = program.add("Base.SwapDims", first, dim1=rank - 2, dim2=rank - 1)
    family = "Int" if program.specs[first].dtype in INTEGERS else "Float"
    if not (swapped and program.add(f"{family}.Matmul", first, len(program.specs) - 1)):
        return False
    product = len(program.specs) - 1
    if random.random() < 0.8:
        program.add("Numeric.Add", product, random.choice([product, first]))
        program.add("Numeric.Clamp", len(program.specs) - 1, min=0, max=float("inf"))
    return True


def _add_reduction(program: RandomProgram, random: Random, first: int) -> bool:
    """Add a reduction of the rows, most often with an operation on the tensor and its result."""
    axis = len(program.specs[first].shape) - 1
    name = f"Numeric.{random.choice(REDUCTIONS)}"
    if not program.add(name, first, axis=axis, accumulator_len=1):
        return False
    if random.random() < 0.7:
        program.add(f"Numeric.{random.choice(BINARY)}", first, len(program.specs) - 1)
    return True


def _as(spec: TensorSpec, dtype: DType) -> TensorSpec:
    return TensorSpec(spec.shape, dtype)


# A tensor, or the class, reason and operation of its failure.
Outcome = Array | tuple[str, str, str]


def _outcomes(session: EngineSession, tensors: list[int]) -> list[Outcome]:
    found: list[Outcome] = []
    for tensor in tensors:
        try:
            array = session.tensors.array(tensor)
            found.append(array.get() if hasattr(array, "get") else array)  # from a GPU
        except OperationFailed as error:
            found.append((type(error).__name__, error.reason, error.operation))
    return found


def _session(program: RandomProgram, backend: Any, *, dying: bool = False) -> EngineSession:
    session = EngineSession(backend=backend)
    session.interpreter.session.activate()
    session.run(*(Define(number, each) for number, each in enumerate(program.signatures)))
    _store_inputs(session, program, dying=dying)
    return session


def _store_inputs(session: EngineSession, program: RandomProgram, *, dying: bool) -> None:
    """Store the inputs from tensor 1 on; those that the program drops own their memory."""
    backend: Any = session.interpreter.backend
    backend = backend.inner if isinstance(backend, Fusion) else backend
    for slot, array in enumerate(program.arrays):
        given = array.copy(order="K") if dying else array
        if not isinstance(backend, NumpyBackend):
            given = backend.array_module.asarray(given)
        session.tensors.store(slot + 1, given)


def run_eagerly(
    program: RandomProgram, backend: Backend | None = None, *, dying: bool = False
) -> list[Outcome]:
    """Return the outputs of the operations one by one, on the NumPy backend or another one.

    ``dying``: with the input arrays of a program whose inputs are dropped, which are copies.
    Reversed arrays become arrays in C order, of which NumPy may round a power differently.
    """
    session = _session(program, backend or NumpyBackend(), dying=dying)
    made = program.input_count + 1
    for (number, *slots), signed in zip(program.steps, program.signatures, strict=True):
        outputs = [*range(made, made + signed.output_count)]
        made += len(outputs)
        session.run((number, *[slot + 1 for slot in slots], *outputs))
    return _outcomes(session, [slot + 1 for slot in program.outputs])


def run_graph(
    program: RandomProgram,
    *,
    fused: bool,
    compiles: bool = False,
    dying: bool = False,
    backend: Backend | None = None,
    calls: int = 1,
) -> tuple[list[Outcome], graphs.GraphPlan]:
    """Return the outputs of the program as one graph, called one or several times, and the graph.

    ``dying``: the program's inputs are dropped after the call. ``backend`` is used as it is.
    """
    fusing: Any = backend or NumpyBackend()
    if fused and backend is None:
        fusing = with_fusion(fusing, compiles=compiles)
    session = _session(program, fusing, dying=dying)
    session.run(DefineGraph(GRAPH, program.input_count, tuple(program.steps), program.outputs))
    outputs = [slot + 1 for slot in program.outputs]
    inputs = tuple(range(1, program.input_count + 1))
    for _ in range(calls):
        session.run((GRAPH, *inputs, *outputs), *([Drop(inputs)] if dying else []))
    return _outcomes(session, outputs), session.interpreter.numbered[GRAPH]


def run_stream(
    program: RandomProgram,
    *,
    fused: bool,
    compiles: bool = False,
    repeats: int = 3,
    dying: bool = False,
    backend: Backend | None = None,
) -> tuple[list[Outcome], EngineSession]:
    """Return the outputs of the program as one batch, sent several times, and the session.

    All other results are dropped after their last use; so are the program's inputs if ``dying``.
    """
    fusing: Any = backend or NumpyBackend()
    if fused and backend is None:
        fusing = with_fusion(fusing, compiles=compiles)
    session = _session(program, fusing, dying=dying)
    count = program.input_count
    last_use = {slot: place for place, step in enumerate(program.steps) for slot in step[1:]}
    for repeat in range(repeats):
        first = (repeat + 1) * 1000
        ids = [*range(1, count + 1), *range(first, first + len(program.specs))]
        tasks: list[Any] = []
        made = count
        if repeat and dying:
            _store_inputs(session, program, dying=True)
        for place, (step, signed) in enumerate(zip(program.steps, program.signatures, strict=True)):
            outputs = range(made, made + signed.output_count)
            made += signed.output_count
            tasks.append((step[0], *[ids[slot] for slot in (*step[1:], *outputs)]))
            dropped = {
                slot
                for slot in (*step[1:], *outputs)
                if (dying or slot >= count)
                and slot not in program.outputs
                and last_use.get(slot, place) == place
            }
            if dropped:
                tasks.append(Drop(tuple(ids[slot] for slot in sorted(dropped))))
        session.run(*tasks)
        kept = [ids[slot] for slot in program.outputs]
        if repeat < repeats - 1:
            session.run(Drop(tuple(kept)))
    return _outcomes(session, kept), session


@contextlib.contextmanager
def forced_fusion(block_elements: int = 64) -> Iterator[None]:
    """Let arrays of every size be fused, in small blocks."""
    with (
        forced_reuse(),
        patch.object(elementwise.ElementwiseFuser, "least_bytes", 0),
        patch.object(elementwise, "BLOCKS_PAY", ((0, 0),)),
        patch.object(elementwise, "MIXED_PAY", ((0, 0),)),
        patch.object(elementwise, "KERNELS_PAY", ((0, 0),)),
        patch.object(reduce, "EXACT_OPERATIONS", ((0, 0),)),
        patch.object(elementwise, "RESULTS_PER_INPUT", 0),
        patch.object(elementwise, "MIN_REUSING_ELEMENTS", 0),
        patch.object(elementwise, "MIN_KERNEL_REUSING_ELEMENTS", 0),
        patch.object(block_program, "BLOCK_ELEMENTS", block_elements),
    ):
        yield


def difference(seen: list[Outcome], expected: list[Outcome]) -> str | None:
    """Describe the first output that differs in more than the sign and payload of a NaN."""
    for place, (one, other) in enumerate(zip(seen, expected, strict=True)):
        if isinstance(one, tuple) or isinstance(other, tuple):
            if not (isinstance(one, tuple) and isinstance(other, tuple) and one == other):
                return f"output {place} is {one}, not {other}"
        elif not same_bits(one, other):
            return f"output {place} differs: {one.dtype}{one.shape}, {other.dtype}{other.shape}"
    return None


def same_bits(one: Array, other: Array) -> bool:
    """Whether arrays are equal but for the sign and payload of NaN."""
    is_alike = one.dtype == other.dtype and one.shape == other.shape
    return is_alike and np.array_equal(_bits(one), _bits(other))


def _bits(array: Array) -> Array:
    array = np.ascontiguousarray(array)
    if array.dtype.kind not in "biu":
        array = np.where(np.isnan(array), np.ones((), array.dtype), array)
    return array.view(np.uint8)


def check(seed: int, *, compiles: bool = False) -> int:
    """Run a program in all ways; return how many operations were fused."""
    with np.errstate(all="ignore"):  # as in the threads of a server
        return _checked(seed, compiles)


def _checked(seed: int, compiles: bool) -> int:
    random = Random(seed)
    program = drawn(random)
    block_elements = random.choice([16, 64, 1000, 65536])
    dying = random.random() < 0.7
    expected = run_eagerly(program, dying=dying)
    replayed, _ = run_graph(program, fused=False, dying=dying)
    with forced_fusion(block_elements), compiled_at_once(block_elements):
        fused, plan = run_graph(program, fused=True, compiles=compiles, dying=dying)
        streamed, session = run_stream(program, fused=True, compiles=compiles, dying=dying)
    with compiled_at_once():  # as loops, which take small arrays
        looped, small = run_graph(program, fused=compiles, compiles=compiles, dying=dying)
    plain, reference = run_stream(program, fused=False, dying=dying)
    steps = [str(signed.row) + signed.describe() for signed in program.signatures]
    assert session.quota.bytes == reference.quota.bytes
    assert session.quota.tensors == reference.quota.tensors
    assert session.tensors.arrays.keys() == reference.tensors.arrays.keys()
    ways = {
        "graph": replayed,
        "fused graph": fused,
        "loops": looped,
        "batch": plain,
        "fused batch": streamed,
    }
    for name, found in ways.items():
        problem = difference(found, expected)
        assert problem is None, f"seed {seed}, {name}: {problem}; {steps} {program.steps}"
    fused_count = plan.fused_count + small.fused_count
    return fused_count + session.interpreter.counts.operations_fused


def main(count: int, first: int = 0, compiles: bool = False) -> None:
    """Check programs; print how many operations were fused."""
    fused = sum(check(seed, compiles=compiles) for seed in range(first, first + count))
    print(f"{count} programs, {fused} operations fused")  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "compiled")
