"""Random programs whose operations run as compiled functions, beside the same functions eagerly.

Each run of operations between uploads, reads and moves is a function of its tensors and parameters.
It is compiled and called with the program's values, then with other elements and other numbers.
Every result must have the bits of the eager one, except the sign and payload of a NaN; every error
the same class.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

import burn_remote as br
from burn_remote_protocol.errors import BurnRemoteError
from differential.program import Mismatch, Program, Step, row_named
from support.kernels import BFLOAT16, Array

__all__ = ["execute_compiled"]

# Calls of each function: the first records, the second repeats, the others change something.
CALLS: Final = 5

_FLOATS: Final = (0.5, 2.0, -1.0, 3.0, 0.0, -0.0, 1.0, float("nan"), float("inf"), 1e-3, 0.1)
_INTEGERS: Final = (0, 1, -1, 2, 3, 5, 100)


def execute_compiled(program: Program, device: br.Device, seed: int) -> int:
    """Run a program on a device; return the number of compared results. Raises ``Mismatch``."""
    random = np.random.default_rng(seed)
    known: dict[int, br.Tensor] = {}
    compared = 0
    for steps in _runs(program):
        if not _is_recordable(steps[0]):
            _run_plainly(steps[0], known, device)
            continue
        function, inputs = _function_of(steps, program)
        tensors = tuple(known[name] for name in inputs)
        parameters = tuple(step.parameters for step in steps)
        fast = br.compile(function)
        for call in range(CALLS):
            given, numbers = tensors, parameters
            if call > 1:
                given = tuple(_other_elements(one, random) for one in tensors)
            if call > 2:
                numbers = tuple(_other_numbers(one, random) for one in parameters)
            expected = _outcome(function, given, numbers)
            seen = _outcome(fast, given, numbers)
            compared += _compare(program, steps, call, expected, seen, numbers)
        known |= function(tensors, parameters)
        for step in steps:
            for name in step.dies:
                known.pop(name, None)
    with contextlib.suppress(BurnRemoteError):  # failures of tensors that were not read
        device.sync()
    return compared


def _is_recordable(step: Step) -> bool:
    """Whether a graph can hold a step: no uploads, no moves, no arrays that are uploaded."""
    if step.operation in ("upload", "move") or row_named(step.operation).waits:
        return False
    return not any(isinstance(one, np.ndarray) for one in step.parameters)


def _runs(program: Program) -> Iterator[list[Step]]:
    """Split a program into runs of recordable steps, and other steps one by one."""
    run: list[Step] = []
    for step in program:
        if _is_recordable(step):
            run.append(step)
            continue
        if run:
            yield run
        run = []
        yield [step]
    if run:
        yield run


def _run_plainly(step: Step, known: dict[int, br.Tensor], device: br.Device) -> None:
    if step.operation == "upload":
        known[step.out] = br.tensor(step.parameters[0], device=device)
    elif step.operation == "move":
        known[step.out] = known[step.inputs[0]]
    else:
        run = row_named(step.operation).run
        known[step.out] = run(*[known[name] for name in step.inputs], *step.parameters)
    for name in step.dies:
        known.pop(name, None)


def _function_of(steps: list[Step], program: Program) -> tuple[Callable[..., Any], list[int]]:
    """Return a run as a function, and the names of the tensors that it takes."""
    made = {step.out for step in steps}
    inputs = [*dict.fromkeys(name for step in steps for name in step.inputs if name not in made)]

    def function(tensors: Any, parameters: Any) -> dict[int, br.Tensor]:
        values = dict(zip(inputs, tensors, strict=True))
        for step, given in zip(steps, parameters, strict=True):
            row = row_named(step.operation)
            values[step.out] = row.run(*[values[name] for name in step.inputs], *given)
            for name in step.dies:
                values.pop(name)
        return {name: value for name, value in values.items() if name in made}

    return function, inputs


def _other_elements(tensor: br.Tensor, random: np.random.Generator) -> br.Tensor:
    array = tensor.numpy()
    return br.tensor(random.permuted(array.reshape(-1)).reshape(array.shape), device=tensor.device)


def _other_numbers(parameters: Any, random: np.random.Generator) -> Any:
    if isinstance(parameters, tuple):
        return tuple(_other_numbers(one, random) for one in parameters)
    if type(parameters) is float and random.random() < 0.8:
        return _FLOATS[random.integers(len(_FLOATS))]
    if type(parameters) is int and random.random() < 0.3:
        return _INTEGERS[random.integers(len(_INTEGERS))]
    return parameters


def _outcome(function: Callable[..., Any], tensors: Any, numbers: Any) -> Any:
    """Return the elements of each result, the class of its error, or that of the call."""
    try:
        results = function(tensors, numbers)
    except BurnRemoteError as error:
        return type(error)
    return {name: _elements(tensor) for name, tensor in results.items()}


def _elements(tensor: br.Tensor) -> Array | type[BurnRemoteError]:
    try:
        return tensor.numpy()
    except BurnRemoteError as error:
        return type(error)


def _compare(
    program: Program, steps: Sequence[Step], call: int, expected: Any, seen: Any, numbers: Any
) -> int:
    if type(expected) is not dict or type(seen) is not dict:
        if expected is not seen:
            raise Mismatch(program, steps[-1], f"call {call}: {seen}, not {expected}; {numbers}")
        return 1
    if expected.keys() != seen.keys():
        raise Mismatch(program, steps[-1], f"call {call}: other results")
    by_name = {step.out: step for step in steps}
    for name, wanted in expected.items():
        if not _same_bits(wanted, seen[name]):
            reason = f"call {call}: {seen[name]}, not {wanted}; parameters {numbers}"
            raise Mismatch(program, by_name[name], reason)
    return len(expected)


def _same_bits(first: Any, second: Any) -> bool:
    if isinstance(first, type) or isinstance(second, type):
        return first is second
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        return False
    if first.dtype.kind == "c":
        return _same_bits(first.real, second.real) and _same_bits(first.imag, second.imag)
    if first.dtype.kind != "f" and first.dtype != BFLOAT16:
        return bool(first.tobytes() == second.tobytes())
    numbers = ~np.isnan(first.astype(np.float64))
    other = ~np.isnan(second.astype(np.float64))
    return bool((numbers == other).all()) and first[numbers].tobytes() == second[numbers].tobytes()
