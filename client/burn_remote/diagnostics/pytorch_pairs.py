"""Detection of calls whose results a program takes apart as PyTorch's pairs.

PyTorch's ``x.max(1)`` returns a pair of values and indices, ours returns the values, as NumPy does.
So ``values, indices = x.max(1)`` and ``x.max(1)[1]`` would give rows of the values, without an
error. The call itself is one of NumPy too; only the instruction that uses its result shows what the
program expects.
"""

from __future__ import annotations

import dis
import functools
import itertools
import sys
import warnings
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Final

from burn_remote.diagnostics.foreign_names import AMBIGUOUS, PAIRS
from burn_remote_protocol.errors import ShapeMismatch
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler

if TYPE_CHECKING:
    from burn_remote_protocol.tensors import TensorSpec

__all__ = ["check_subscript", "check_unpacking"]

_PACKAGE: Final = __name__.partition(".")[0]

_UNPACK: Final = dis.opmap["UNPACK_SEQUENCE"]
_ATTRIBUTES: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_CALLS: Final = frozenset({"CALL", "CALL_KW"})
# The keyword of NumPy's functions: PyTorch's is ``dim``, which such calls refuse.
_CLARIFYING: Final = "axis"
# ``x.sort()[0]`` is the usual form of NumPy programs for the smallest element.
_SUBSCRIPTED: Final = PAIRS - {"sort"}


def check_unpacking(spec: TensorSpec) -> None:
    """Check the iteration of a tensor that began in the caller's caller.

    Where the program unpacks the result of such a call to two variables, as in ``values, indices =
    x.max(1)``, warn if the result has two rows; raise ``ShapeMismatch`` otherwise.
    """
    frame = _frame_at(3)
    if frame is None or frame.f_code.co_code[frame.f_lasti] != _UNPACK:
        return
    name = _unpacked_call(frame.f_code, frame.f_lasti)
    if name is None or _is_ours(frame):
        return
    text = f"{name}(…) {AMBIGUOUS[name]}; here it returned only {spec}"
    if spec.shape[:1] != (2,):
        raise ShapeMismatch(text)
    warnings.warn(f"{text}, whose rows are assigned", RuntimeWarning, stacklevel=3)


def check_subscript(spec: TensorSpec) -> None:
    """Warn where the caller's caller selects a result of PyTorch's pair, as in ``x.max(1)[1]``.

    For indices that are the number 0 or 1. It takes 0.3 µs.
    """
    frame = _frame_at(3)
    if frame is None:
        return
    name = _subscripted_call(frame.f_code, frame.f_lasti)
    if name is not None and not _is_ours(frame):
        warnings.warn(
            f"{name}(…) {AMBIGUOUS[name]}; here it returned only {spec}, of which one row is "
            "selected",
            RuntimeWarning,
            stacklevel=3,
        )


def _frame_at(depth: int) -> FrameType | None:
    """Return the frame ``depth`` above this function; ``None`` if C code began the thread there."""
    try:
        frame = sys._getframe(depth)
    except ValueError as error:
        pass_on_of_signal_handler(error)
        return None
    return frame if frame.f_lasti >= 0 else None


def _is_ours(frame: FrameType) -> bool:
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0] == _PACKAGE


@functools.lru_cache(maxsize=1024)
def _unpacked_call(code: CodeType, instruction: int) -> str | None:
    """Return the function whose result an instruction unpacks to two variables, if it is one."""
    before = _instructions_until(code, instruction)
    return _pair_call(code, before[:-1]) if before[-1].arg == 2 else None


@functools.lru_cache(maxsize=1024)
def _subscripted_call(code: CodeType, instruction: int) -> str | None:
    """Return the function from whose result an instruction takes row 0 or 1, if it is one."""
    before = _instructions_until(code, instruction)
    if len(before) < 2 or not before[-1].opname.startswith("BINARY_"):
        return None
    name = _pair_call(code, before[:-2])
    return name if name in _SUBSCRIPTED else None


def _instructions_until(code: CodeType, offset: int) -> list[dis.Instruction]:
    found = itertools.takewhile(lambda one: one.offset <= offset, dis.get_instructions(code))
    return [one for one in found if one.opname != "EXTENDED_ARG"]


def _pair_call(code: CodeType, instructions: list[dis.Instruction]) -> str | None:
    """Return the name of the method that the last instruction calls, if PyTorch's returns a pair.

    ``None`` also if the call has the keyword ``axis``, as calls of NumPy do.
    """
    if not instructions or instructions[-1].opname not in _CALLS:
        return None
    *before, call = instructions
    if _CLARIFYING in _keywords(code, before, call):
        return None
    start = _start(call)
    called = (one.argval for one in reversed(before) if _loads_attribute(one, start))
    name = next(called, None)
    return name if name in PAIRS else None


def _keywords(
    code: CodeType, before: list[dis.Instruction], call: dis.Instruction
) -> tuple[str, ...]:
    """Return the keywords of a call, which the instruction before it loads."""
    named = [one for one in before[-2:] if one.opname != "PRECALL"][-1]
    if named.opname == "KW_NAMES":  # until Python 3.12
        names: tuple[str, ...] = code.co_consts[named.arg or 0]
        return names
    return named.argval if call.opname == "CALL_KW" else ()


def _loads_attribute(instruction: dis.Instruction, start: tuple[int | None, int | None]) -> bool:
    return instruction.opname in _ATTRIBUTES and None not in start and _start(instruction) == start


def _start(instruction: dis.Instruction) -> tuple[int | None, int | None]:
    positions = instruction.positions
    return (None, None) if positions is None else (positions.lineno, positions.col_offset)
