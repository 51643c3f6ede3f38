"""Numbers that a graph takes from each call, in place of the numbers of the call that recorded it.

While a function is recorded, its numeric arguments are ``TracedNumber`` objects. Arithmetic on them
is recorded in a ``NumberProgram``, which repeats it for the numbers of each later call. Where the
recorded function needs a definite value (a branch, a shape, ``math.cos``), the program gets a
*guard*: the graph is only valid for calls in which that expression has the same value again.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, final

import numpy as np

from burn_remote_protocol.operations.wire_values import Scalar
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler

__all__ = [
    "NumberProgram",
    "TracedNumber",
    "TracedScalar",
    "calculated",
    "definite",
    "scalar_of",
    "untraced",
]


class _Instruction(NamedTuple):
    """A call of ``function`` with the values of registers.

    The result fills the next register, or is compared with ``expected`` (a guard).
    """

    function: Callable[..., Any]
    operands: tuple[int, ...]
    is_guard: bool
    expected: object


@final
class NumberProgram:
    """Arithmetic and guards on the numbers of a call, in the order in which they were recorded.

    Registers first hold the numbers of the call, then constants and results.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self._registers: list[Any] = [*values]
        self._constants: dict[int, Any] = {}
        self._instructions: list[_Instruction] = []
        self._is_finished = False
        # From an expression to its result, and from a constant to its register, so that repeated
        # ones take one register. A guard is recorded once too.
        self._known: dict[Any, TracedNumber] = {}
        self._places_of_constants: dict[Any, int] = {}
        self._guards: set[Any] = set()
        self.inputs: Final = tuple(
            [TracedNumber(self, place, value) for place, value in enumerate(values)]
        )

    def finish(self) -> None:
        """End the recording: traced numbers that the function stored behave as plain ones now."""
        self._is_finished = True
        self._known.clear()
        self._places_of_constants.clear()
        self._guards.clear()

    def resume(self) -> None:
        """Continue the recording that ``finish`` ended."""
        self._is_finished = False

    def calculated(self, function: Callable[..., Any], *operands: Any) -> Any:
        """Record a call of a function of numbers, traced or not; return the traced result."""
        result = self._result(function, operands)
        if self._is_finished:
            return result
        places = tuple([self._place(operand) for operand in operands])
        known = _key(function, places)
        if known is not None and known in self._known:
            return self._known[known]
        self._instructions.append(_Instruction(function, places, False, None))
        self._registers.append(result)
        number = TracedNumber(self, len(self._registers) - 1, result)
        if known is not None:
            self._known[known] = number
        return number

    def guarded(self, function: Callable[..., Any], *operands: Any) -> Any:
        """Record a guard on the result of a function of numbers; return the result."""
        result = self._result(function, operands)
        if self._is_finished:
            return result
        places = tuple([self._place(operand) for operand in operands])
        self._guard(function, places, _exact(result), _key(function, places))
        return result

    def _guard(
        self, function: Callable[..., Any], places: tuple[int, ...], expected: object, key: Any
    ) -> None:
        """Record a guard, unless one with the same key was recorded: its result is the same."""
        if key is None or key not in self._guards:
            self._instructions.append(_Instruction(function, places, True, expected))
            if key is not None:
                self._guards.add(key)

    def _result(self, function: Callable[..., Any], operands: Sequence[Any]) -> Any:
        """Call a function of numbers, traced or not; if it raises, record a guard on that.

        The recorded function may catch the error: ``int(n)`` fails for a NaN, ``1 / n`` for 0.
        """
        try:
            return function(*map(untraced, operands))
        except Exception as error:  # an operand's own method may raise anything
            pass_on_of_signal_handler(error)
            if not self._is_finished:
                places = tuple([self._place(operand) for operand in operands])
                failing = partial(_failure, function)
                expected = _exact(_described(error))
                key = _key(function, places)
                self._guard(failing, places, expected, None if key is None else (_failure, key))
            raise

    @property
    def has_instructions(self) -> bool:
        """Whether anything is computed from the numbers, or decided by them."""
        return bool(self._instructions)

    def run(self, values: Sequence[Any]) -> list[Any] | None:
        """Return the registers for the numbers of a call, or ``None`` if the graph is not valid."""
        registers = [*values]
        if not self._instructions:
            return registers
        constants = self._constants
        try:
            for function, operands, is_guard, expected in self._instructions:
                while len(registers) in constants:
                    registers.append(constants[len(registers)])
                result = function(*[registers[place] for place in operands])
                if not is_guard:
                    registers.append(result)
                elif _exact(result) != expected:
                    return None
        except Exception as error:  # the recorded function would raise too, or branch before this
            pass_on_of_signal_handler(error)
            return None
        return registers

    def _place(self, operand: Any) -> int:
        if type(operand) is TracedNumber:
            return operand.place
        place = len(self._registers)
        if isinstance(operand, _CONSTANTS):
            key = _exact(operand)
            if key in self._places_of_constants:
                return self._places_of_constants[key]
            self._places_of_constants[key] = place
        self._constants[place] = operand
        self._registers.append(operand)
        return place


# Constants that are compared by value and type.
_CONSTANTS: Final = (int, float, complex, str, type(None), np.number)


def _key(function: Callable[..., Any], places: tuple[int, ...]) -> Any:
    """Return a key that is equal only for calls with equal results; ``None`` if there is none.

    Each operation makes a new ``partial`` for the conversion of a number to a dtype, so partials
    are compared by their contents.
    """
    contents: Any = function
    if isinstance(function, partial):
        given = (*function.args, *function.keywords.items())
        contents = (function.func, given, tuple(map(type, given)))
    try:
        hash(contents)
    except TypeError:
        return None
    return contents, places


def _failure(function: Callable[..., Any], *operands: Any) -> object:
    """Return the description of the error that a function raises, or ``None``."""
    try:
        function(*operands)
    except Exception as error:  # an operand's own method may raise anything
        pass_on_of_signal_handler(error)
        return _described(error)
    return None


def _described(error: Exception) -> object:
    return type(error), str(error)


def _exact(value: Any) -> object:
    """Return a key that is equal only for the same value of the same type, also for NaN and -0."""
    return type(value), value if value and value == value else repr(value)


def untraced(value: Any) -> Any:
    """Return the value of a traced number, or anything else unchanged."""
    return value.value if type(value) is TracedNumber else value


def _arithmetic(function: Callable[..., Any]) -> Any:
    def calculate(self: TracedNumber, *others: Any) -> Any:
        if any(not _is_number(untraced(other)) for other in others):
            return NotImplemented
        return self.program.calculated(function, self, *others)

    return calculate


def _reflected(function: Callable[..., Any]) -> Any:
    def calculate(self: TracedNumber, other: Any) -> Any:
        if not _is_number(untraced(other)):
            return NotImplemented
        return self.program.calculated(function, other, self)

    return calculate


def _divided(self: Any, other: Any) -> Any:
    return self // other, self % other


def _reflected_divided(self: Any, other: Any) -> Any:
    return other // self, other % self


def _guarded(function: Callable[..., Any]) -> Any:
    def decide(self: TracedNumber, *others: Any) -> Any:
        if any(not _is_number(untraced(other)) for other in others):
            return NotImplemented
        return self.program.guarded(function, self, *others)

    return decide


def _is_number(value: Any) -> bool:
    # Not a tensor or an array: they combine with the number themselves.
    return isinstance(value, int | float | complex | np.generic)


@final
class TracedNumber:
    """A number of a recorded call: ``value``, and its register in the program.

    Its ``__class__`` is that of the value, so ``isinstance(x, float)`` is true for a float.
    """

    __slots__ = ("place", "program", "value")

    def __init__(self, program: NumberProgram, place: int, value: Any) -> None:
        self.program = program
        self.place = place
        self.value = value

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.value)

    __add__ = _arithmetic(operator.add)
    __radd__ = _reflected(operator.add)
    __sub__ = _arithmetic(operator.sub)
    __rsub__ = _reflected(operator.sub)
    __mul__ = _arithmetic(operator.mul)
    __rmul__ = _reflected(operator.mul)
    __truediv__ = _arithmetic(operator.truediv)
    __rtruediv__ = _reflected(operator.truediv)
    __floordiv__ = _arithmetic(operator.floordiv)
    __rfloordiv__ = _reflected(operator.floordiv)
    __mod__ = _arithmetic(operator.mod)
    __rmod__ = _reflected(operator.mod)
    __pow__ = _arithmetic(operator.pow)
    __rpow__ = _reflected(operator.pow)
    __and__ = _arithmetic(operator.and_)
    __rand__ = _reflected(operator.and_)
    __or__ = _arithmetic(operator.or_)
    __ror__ = _reflected(operator.or_)
    __xor__ = _arithmetic(operator.xor)
    __rxor__ = _reflected(operator.xor)
    __lshift__ = _arithmetic(operator.lshift)
    __rlshift__ = _reflected(operator.lshift)
    __rshift__ = _arithmetic(operator.rshift)
    __rrshift__ = _reflected(operator.rshift)
    __divmod__ = _divided
    __rdivmod__ = _reflected_divided
    __invert__ = _arithmetic(operator.invert)
    __neg__ = _arithmetic(operator.neg)
    __pos__ = _arithmetic(operator.pos)
    __abs__ = _arithmetic(operator.abs)
    __round__ = _arithmetic(round)
    __floor__ = _arithmetic(math.floor)
    __ceil__ = _arithmetic(math.ceil)
    __trunc__ = _arithmetic(math.trunc)

    __eq__ = _guarded(operator.eq)
    __ne__ = _guarded(operator.ne)
    __lt__ = _guarded(operator.lt)
    __le__ = _guarded(operator.le)
    __gt__ = _guarded(operator.gt)
    __ge__ = _guarded(operator.ge)
    __bool__ = _guarded(bool)
    __int__ = _guarded(int)
    __float__ = _guarded(float)
    __complex__ = _guarded(complex)
    __index__ = _guarded(operator.index)
    __hash__ = _guarded(hash)
    __str__ = _guarded(str)
    __repr__ = _guarded(repr)

    def __format__(self, form: str) -> str:
        return format(self._definite(), form)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        # ``numpy.sqrt(x)``, and operators of NumPy scalars.
        if (
            method == "__call__"
            and not options
            and all(_is_number(untraced(one)) for one in inputs)
        ):
            return self.program.calculated(ufunc, *inputs)
        return getattr(ufunc, method)(*[_definite(one) for one in inputs], **options)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self._definite(), dtype=dtype)

    def __getattr__(self, name: str) -> Any:
        # Attributes such as ``is_integer`` and ``item`` are those of the definite value.
        return getattr(self._definite(), name)

    def _definite(self) -> Any:
        return self.program.guarded(_same, self)

    def __copy__(self) -> TracedNumber:
        return self

    def __deepcopy__(self, memo: object) -> TracedNumber:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a number of a compiled function cannot be pickled while it is recorded")


def _same(value: Any) -> Any:
    return value


def _definite(value: Any) -> Any:
    return value.program.guarded(_same, value) if type(value) is TracedNumber else value


class TracedScalar(Scalar):
    """A parameter of an operation that comes from a traced number."""

    __slots__ = ("number",)

    number: TracedNumber

    def __init__(self, number: TracedNumber) -> None:
        known = Scalar.of(number.value)
        super().__init__(known.variant, known.value)
        object.__setattr__(self, "number", number)

    # Signatures with it must not be mistaken for those of the plain number.
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def calculated(function: Callable[..., Any], *numbers: Any) -> Any:
    """Call a function of numbers; the result is traced if one of them is.

    The function may branch on the numbers. It has to be pure: a graph calls it for the numbers of
    each call.
    """
    for number in numbers:
        if type(number) is TracedNumber:
            return number.program.calculated(function, *numbers)
    return function(*numbers)


def definite(value: Any) -> Any:
    """Return nested tuples and lists with guarded values in place of traced numbers."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(definite, value))
    if type(value) is tuple or type(value) is list:
        return type(value)(map(definite, value))
    return _definite(value)


def scalar_of(number: Any) -> Scalar:
    """Return a number as a parameter of an operation."""
    if type(number) is not TracedNumber:
        return Scalar.of(number)
    # A graph is looked up by the types of its arguments, so a float needs no guard on its type.
    is_argument = number.place < len(number.program.inputs)
    if not (is_argument and type(number.value) is float):
        number.program.guarded(_variant, number)
    if type(number.value) not in (float, int):  # a NumPy scalar, which has no form on the wire
        number = number.program.calculated(_sent, number)
    return TracedScalar(number)


def _variant(value: Any) -> str:
    return Scalar.of(value).variant


def _sent(value: Any) -> Any:
    return Scalar.of(value).value
