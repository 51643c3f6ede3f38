"""Random programs: their generation, their execution beside the reference, and their listing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

import burn_remote as br
from burn_remote_protocol.errors import BurnRemoteError
from differential.drawing import ANY, COMPLEX, EVERY, FLOATS, Draw, Known, NothingFits
from differential.extension_operations import EXTENSION_ROWS
from differential.operations import ROWS, Row
from support.kernels import BFLOAT16, Array
from support.subnormals import has_flushable

__all__ = ["Mismatch", "Program", "Step", "execute", "generated", "row_named", "shrunk"]

MAX_RANK: Final = 6
LOW: Final = (np.dtype(np.float16), BFLOAT16)

# Operations tried before a step is omitted because no tensor fits.
ATTEMPTS: Final = 20

# How often a smaller program is run before it counts as correct.
REPEATS: Final = 3


@dataclass(frozen=True)
class Step:
    """One line of a program: ``out = operation(*inputs, *parameters)``.

    ``dies`` are tensors that the program drops right after the step. If ``reads`` is true, the
    result is read, and the reference continues with the elements read.
    """

    operation: str
    inputs: tuple[int, ...]
    parameters: tuple[Any, ...]
    out: int
    dies: tuple[int, ...] = ()
    reads: bool = False

    def __str__(self) -> str:
        arguments = [*(f"v{name}" for name in self.inputs), *map(_literal, self.parameters)]
        line = f"v{self.out} = {self.operation}({', '.join(arguments)})"
        if self.dies:
            line += f"; del {', '.join(f'v{name}' for name in self.dies)}"
        return line + (f"; v{self.out}.numpy()" if self.reads else "")


Program = tuple[Step, ...]


@dataclass(eq=False)
class Mismatch(Exception):
    """A tensor that differs from the reference, and the program that produced it."""

    program: Program
    step: Step
    reason: str

    def __str__(self) -> str:
        lines = "\n".join(f"  {step}" for step in self.program)
        return f"{self.reason}\n  in {self.step}\nprogram of {len(self.program)} steps:\n{lines}"


def _literal(value: Any) -> str:
    if isinstance(value, np.ndarray):
        listed = np.array2string(value, separator=", ", threshold=200, max_line_width=10**9)
        return f"array({' '.join(listed.split())}, {value.dtype})"
    return str(value) if isinstance(value, np.dtype) else repr(value)


# -- generation -------------------------------------------------------------------------------


def generated(
    seed: int,
    devices: int,
    dtypes: Sequence[Any] = ANY,
    *,
    subnormals: bool = True,
    extended: bool = False,
) -> Program:
    """Return the program of a seed: 5 to 40 operations, and the uploads they begin with.

    ``extended`` adds extension rows and complex numbers, which Burn's dialects do not have.

    Without ``subnormals``, no tensor has subnormal numbers of float32 or bfloat16, because some
    devices flush them to zero and their results then differ.
    """
    draw = Draw(np.random.default_rng(seed), subnormals=subnormals, extended=extended)
    if extended and dtypes is ANY:
        dtypes = EVERY + COMPLEX
    steps: list[Step] = []
    # Programs of few dtypes have more operations in which tensors meet.
    chosen = [draw.one_of(dtypes) for _ in range(draw.integer(1, 3))] + [np.dtype(np.bool_)]
    shapes = [draw.shape() for _ in range(2)] + [draw.shape(4 if draw.chance(0.3) else 0)]
    for _ in range(draw.integer(2, 5)):
        _upload(draw, steps, chosen, shapes, draw.integer(0, devices - 1))
    for _ in range(draw.integer(5, 40)):
        if draw.chance(0.08) or not draw.known:
            _upload(draw, steps, chosen, shapes, draw.integer(0, devices - 1))
        elif draw.chance(0.08) and devices > 1:
            _move(draw, steps, devices)
        else:
            _operate(draw, steps)
    return tuple(steps)


def _upload(
    draw: Draw, steps: list[Step], dtypes: list[Any], shapes: list[Any], device: int
) -> None:
    shape = draw.one_of(shapes)
    if draw.chance(0.3):
        shape = tuple(1 if draw.chance(0.5) else n for n in shape[draw.integer(0, len(shape)) :])
    array = draw.elements(shape, draw.one_of(dtypes))
    layout = draw.one_of(["C", "C", "reversed", "transposed"])
    step = Step("upload", (), (array, layout, device), len(steps))
    steps.append(step)
    draw.known[step.out] = Known(array, device, exact=True)


def _move(draw: Draw, steps: list[Step], devices: int) -> None:
    name = draw.tensor(exact=False)
    known = draw.known[name]
    device = draw.integer(0, devices - 1)
    step = Step("move", (name,), (device,), len(steps), _dying(draw, (name,)))
    _append(draw, steps, step, replace(known, device=device))


def _operate(draw: Draw, steps: list[Step]) -> None:
    names = [*ROWS, *(EXTENSION_ROWS if draw.extended else ())]
    for _ in range(ATTEMPTS):
        row = row_named(draw.one_of(names))
        try:
            inputs, parameters = row.draw(draw)
        except NothingFits:
            continue
        with np.errstate(all="ignore"):
            result = np.asarray(
                row.reference(*[draw.known[name].array for name in inputs], *parameters)
            )
        if result.ndim > MAX_RANK or (has_flushable(result) and not draw.subnormals):
            continue
        exact = not row.rounds and all(draw.known[name].exact for name in inputs)
        reads = draw.chance(0.4 if not exact else 0.1)
        step = Step(row.name, inputs, parameters, len(steps), _dying(draw, inputs), reads)
        known = Known(result, draw.known[inputs[0]].device, exact or reads)
        _append(draw, steps, step, known)
        return


def row_named(name: str) -> Row:
    """Return the row of an operation of a program."""
    return ROWS.get(name) or EXTENSION_ROWS[name]


def _dying(draw: Draw, inputs: tuple[int, ...]) -> tuple[int, ...]:
    """Choose which inputs are dropped: half of the time none, so that aliases stay alive."""
    return tuple(name for name in dict.fromkeys(inputs) if draw.chance(0.35))


def _append(draw: Draw, steps: list[Step], step: Step, known: Known) -> None:
    steps.append(step)
    for name in step.dies:
        del draw.known[name]
    draw.known[step.out] = known


# -- execution --------------------------------------------------------------------------------


def execute(program: Program, devices: Sequence[br.Device]) -> None:
    """Run a program on devices and beside the reference. Raises ``Mismatch``.

    At the end, every tensor that the program did not drop is compared, including those that share
    memory with others.
    """
    tensors: dict[int, br.Tensor] = {}
    # For each tensor: the reference's elements, the tolerance, and the step that produced it.
    known: dict[int, tuple[Array, float, Step]] = {}
    step = program[0]
    try:
        with np.errstate(all="ignore"):
            for step in program:
                _run(program, step, devices, tensors, known)
        for name, tensor in tensors.items():
            array, slack, step = known[name]
            _compare(program, step, tensor.numpy(), array, slack)
    except BurnRemoteError as error:
        raise Mismatch(program, step, f"{type(error).__name__}: {error}") from error


def _run(
    program: Program,
    step: Step,
    devices: Sequence[br.Device],
    tensors: dict[int, br.Tensor],
    known: dict[int, tuple[Array, float, Step]],
) -> None:
    if step.operation == "upload":
        array, layout, device = step.parameters
        source = _laid_out(array, layout)
        tensors[step.out] = br.tensor(source, device=devices[device])
        _overwrite(source)  # the tensor has the elements that the array had
        known[step.out] = array, 0.0, step
        return
    if step.operation == "move":
        (name,) = step.inputs
        tensors[step.out] = tensors[name].to(devices[step.parameters[0]])
        known[step.out] = (*known[name][:2], step)
    else:
        row = row_named(step.operation)
        given = [known[name] for name in step.inputs]
        expected = np.asarray(row.reference(*[entry[0] for entry in given], *step.parameters))
        slack = max((entry[1] for entry in given), default=0.0)
        if row.rounds:
            slack += _slack(
                expected, [*(entry[0] for entry in given), *step.parameters], row.rounds
            )
        tensors[step.out] = row.run(*[tensors[name] for name in step.inputs], *step.parameters)
        known[step.out] = expected, slack, step
    for name in step.dies:
        del tensors[name], known[name]
    if step.reads:
        array, slack, _ = known[step.out]
        seen = tensors[step.out].numpy()
        _compare(program, step, seen, array, slack)
        known[step.out] = seen.copy(), 0.0, step
        _overwrite(seen)  # the tensor keeps its elements


def _laid_out(array: Array, layout: str) -> Array:
    """Return a copy of an array in memory of its own, in another order."""
    if layout == "reversed" and array.ndim:
        return np.array(array[::-1])[::-1]
    return np.array(array.T, order="C").T if layout == "transposed" else np.array(array)


def _overwrite(array: Array) -> None:
    array[...] = np.logical_not(array)


def _slack(expected: Array, given: list[Any], rounds: int) -> float:
    """Return the tolerance of a result, relative to its magnitude plus this value."""
    if expected.dtype not in FLOATS + COMPLEX:
        return 0.0
    parts = 2 if expected.dtype in COMPLEX else 1
    epsilon = {2: 1e-3, 4: 1.2e-7, 8: 2.3e-16}[expected.dtype.itemsize // parts]
    if expected.dtype == BFLOAT16:
        epsilon = 8e-3
    sizes = [array.size for array in given if isinstance(array, np.ndarray)]
    terms = 2 * rounds if expected.dtype in LOW else 8 * rounds + max(sizes, default=1)
    return float(epsilon * terms)


def _compare(program: Program, step: Step, seen: Array, expected: Array, slack: float) -> None:
    if (seen.shape, seen.dtype) != (expected.shape, expected.dtype):
        reason = f"{seen.dtype}{list(seen.shape)}, not {expected.dtype}{list(expected.shape)}"
        raise Mismatch(program, step, reason)
    if seen.dtype in COMPLEX and not slack:
        _compare(program, step, seen.real, expected.real, slack)
        _compare(program, step, seen.imag, expected.imag, slack)
        return
    if seen.dtype in FLOATS + COMPLEX:
        double = np.complex128 if seen.dtype in COMPLEX else np.float64
        wide, wanted = seen.astype(double), expected.astype(double)
        same = (wide == wanted) | (np.isnan(wide) & np.isnan(wanted))
        if slack:
            finite = np.abs(wanted[np.isfinite(wanted)])
            scale = max(1.0, float(finite.max())) if finite.size else 1.0
            with np.errstate(all="ignore"):
                same |= np.abs(wide - wanted) <= slack * scale
    else:
        same = seen == expected
    if not same.all():
        wrong = ~np.asarray(same)
        place = tuple(int(n) for n in np.argwhere(wrong)[0])
        count = f"{int(wrong.sum()):,} of {seen.size:,} elements differ"
        one = f"at {list(place)}: {seen[place]}, expected {expected[place]}"
        raise Mismatch(program, step, f"{count}; {one}")


# -- shrinking --------------------------------------------------------------------------------


def shrunk(mismatch: Mismatch, devices: Sequence[br.Device]) -> Mismatch:
    """Return the mismatch of a minimal program, from which no step can be removed."""
    smaller = _pass(mismatch, devices)
    while len(smaller.program) < len(mismatch.program):
        mismatch, smaller = smaller, _pass(smaller, devices)
    return smaller


def _pass(mismatch: Mismatch, devices: Sequence[br.Device]) -> Mismatch:
    """Try each step once, the last first."""
    found = mismatch
    position = len(found.program) - 1
    while position >= 0:
        smaller = _without(found.program, position)
        # Memory is reused only if a drop arrives together with the tensor's last use. This depends
        # on timing, because the client also sends a batch after a short wait.
        for _ in range(REPEATS if smaller else 0):
            try:
                execute(smaller, devices)
            except Mismatch as again:
                found = again
                break
        position = min(position, len(found.program)) - 1
    return found


def _without(program: Program, position: int) -> Program:
    """Return a program without a step and the steps that depend on it."""
    gone = {program[position].out}
    kept: list[Step] = []
    for step in (*program[:position], *program[position + 1 :]):
        if gone & {*step.inputs}:
            gone.add(step.out)
        else:
            kept.append(step)
    return tuple(kept)
