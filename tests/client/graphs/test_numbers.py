"""Numbers of compiled functions have the effect that they have in the functions themselves."""

from __future__ import annotations

import copy
import math
import queue
import warnings
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from support.servers import server


@pytest.fixture(scope="module")
def device() -> Iterator[br.Device]:
    with br.LocalDevice() as local:
        yield local


FUNCTIONS: dict[str, Callable[[br.Tensor, Any], Any]] = {
    "left of a tensor": lambda x, n: n * x - (n - x) / (1 + n * n),
    "compared with a tensor": lambda x, n: n < x,
    "power": lambda x, n: x**n,
    "power of a number": lambda x, n: n**x,
    "integer operators": lambda x, n: x * ((int(n) << 1) | 5 & ~int(n)),
    "bit operators": lambda x, n: x * (((n | 1) << 2) ^ 3) if isinstance(n, int) else x,
    "divmod": lambda x, n: x * divmod(n, 2)[1] + divmod(7, n + 20)[0],
    "complex numbers": lambda x, n: x * (n * 1j).imag + (2j * n).imag,
    "fractions": lambda x, n: x * float(Fraction(1, 3) * Fraction(n)),
    "math": lambda x, n: x * math.cos(n) + math.hypot(n, 1),
    "NumPy scalars": lambda x, n: x * (np.float32(0.1) * n) + n / np.float32(3),
    "NumPy functions": lambda x, n: x * np.tanh(n) + np.maximum(n, 2).item(),
    "rounding": lambda x, n: x * round(n, 1) + round(n) + math.floor(n) - math.trunc(n),
    "comparisons": lambda x, n: x * max(n, 2, -n) if n > 0 or n in (-1, -2) else x - n,
    "text": lambda x, n: f"{n:.1f} {n} {n!r} %.2f %d" % (n, n),
    "keys": lambda x, n: {n: x * n}.get(2, -x) * len({n, 2, 3}),
    "lists": lambda x, n: [x, x * n][int(n) % 2] * sum([n] * (int(n) % 3)),
    "copies": lambda x, n: x * copy.deepcopy([n, copy.copy(n)])[0],
    "full": lambda x, n: br.full((2, 2), n, device=x.device),
    "where": lambda x, n: br.where(x > n, x, n),
    "clip": lambda x, n: br.clip(x, -abs(n), abs(n)),
    "windows": lambda x, n: br.unfold(x, 0, int(abs(n) % 3) + 1, round(abs(n)) % 2 + 1),
    "sizes": lambda x, n: br.roll(x, round(n) % 100, axis=0).reshape((2, round(n) * 0 + 2)),
    "results": lambda x, n: [n, n + 1, -n, {"n": n * 2}],
    "types": lambda x, n: x + (1 if isinstance(n, int) else 2) + isinstance(n, float),
    "truth": lambda x, n: x * 2 if n else x,
}

NUMBERS = (2, 3.5, -1, -2, 2.0, 0.5, 0, 0.0, -0.0, 1, 10**15, -1e30,
           np.float32(0.3), np.float32(3), np.float64(0.3), np.int32(3), np.int8(-7))  # fmt: skip


def result(function: Callable[..., Any], *args: Any) -> Any:
    """Return the bytes and types of a result, or the class and text of an error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # overflows of NumPy's scalars
            return exact(function(*args))
    except Exception as error:
        return type(error), str(error)


def exact(value: Any) -> Any:
    if isinstance(value, br.Tensor):
        array = value.numpy()
        return array.dtype, array.shape, array.tobytes()
    if isinstance(value, list | tuple):
        return type(value), [exact(one) for one in value]
    if isinstance(value, dict):
        return type(value), [(exact(key), exact(one)) for key, one in value.items()]
    return type(value), repr(value)


@pytest.mark.parametrize("dtype", [br.float32, br.float16, br.int32], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_other_numbers_have_the_effect_of_the_function(
    device: br.Device, name: str, dtype: Any
) -> None:
    function = FUNCTIONS[name]
    fast = br.compile(function)
    for place, number in enumerate([*NUMBERS, *NUMBERS[::-1]]):
        x = device.tensor([place, 1, -3, 7], dtype=dtype)
        assert result(fast, x, number) == result(function, x, number), number


def test_a_number_left_of_a_tensor_takes_the_tensor_of_its_call(device: br.Device) -> None:
    fast = br.compile(lambda w, gradient, rate: w - rate * gradient)
    for place in range(3):
        w, gradient = device.tensor([1.0, place]), device.tensor([3.0 * place, 5.0])
        np.testing.assert_array_equal(fast(w, gradient, 0.5).numpy(), (w - gradient * 0.5).numpy())


@pytest.mark.parametrize("dialect", ["native", "burn-0.21"])
def test_functions_without_operations_work_in_each_dialect(dialect: str) -> None:
    with server() as running, br.RemoteDevice(running.address, dialect=dialect) as remote:
        fast, x = br.compile(lambda x, n: (x, n + 1)), remote.tensor([1.0])
        for number in range(3):
            assert fast(x, number) == (x, number + 1)


def test_decisions_about_the_same_number_share_their_check(device: br.Device) -> None:
    def function(x: br.Tensor, n: float) -> br.Tensor:
        for _ in range(100):
            x = x + 1 if n else x - 1
        return x

    fast, x = br.compile(function), device.tensor([1.0])
    assert fast(x, 1.0).item() == 101.0
    ((recorded,),) = fast._graphs.values()
    assert len(recorded.numbers._instructions) < 10


@pytest.mark.parametrize(
    "is_large",
    [
        lambda n: n > 0.5,
        lambda n: n * 2 - 1 > 0.5,
        lambda n: math.isclose(n, 1.0),
        lambda n: round(n, 2) == 1,
        lambda n: bool(n % 2),
    ],
)
def test_decisions_with_constants_in_a_loop_share_their_checks(
    device: br.Device, is_large: Callable[[float], bool]
) -> None:
    def function(x: br.Tensor, n: float) -> br.Tensor:
        for _ in range(100):
            x = x + 1 if is_large(n) else x - 1
        return x

    fast, x = br.compile(function), device.tensor([1.0])
    assert fast(x, 1.0).item() == 101.0
    ((recorded,),) = fast._graphs.values()
    assert len(recorded.numbers._instructions) < 10
    assert len(recorded.numbers._registers) < 10
    assert fast(x, 0.0).item() == -99.0
    assert fast(x, 1.0).item() == 101.0


def test_equal_constants_of_other_types_are_told_apart(device: br.Device) -> None:
    def function(x: br.Tensor, n: float) -> list[Any]:
        return [x * 1, n * 1, n * 1.0, n * True, n * 0.0, n * -0.0, n + math.nan]

    fast, x = br.compile(function), device.tensor([1.0])
    for n in (3, 4, 2.5):
        found, expected = fast(x, n)[1:], function(x, n)[1:]
        assert [repr(one) for one in found] == [repr(one) for one in expected]


def test_a_number_of_another_call_is_no_result(device: br.Device) -> None:
    left: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def function(x: br.Tensor, n: float) -> Any:
        left.put(n)
        return x * n, left.get_nowait()

    fast = br.compile(function)
    left.put(3.0)
    assert fast(device.tensor([1.0]), 2.0)[1] == 3.0
    with pytest.raises(br.UsageError, match="a number that was recorded in another call"):
        fast(device.tensor([1.0, 2.0]), 2.0)


def test_numbers_that_a_function_leaves_behind_do_not_change_its_graph(
    device: br.Device,
) -> None:
    left: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def function(x: br.Tensor, n: float) -> br.Tensor:
        left.put(n)
        return x * (n + 1)

    fast, x = br.compile(function), device.tensor([1.0])
    fast(x, 2.0)
    number = left.get_nowait()
    assert number + 1 == 3
    assert number == 2.0
    for value in (3.0, 4.0):
        assert fast(x, value).item() == value + 1
        assert left.empty()


FAILING: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...]]] = {
    "conversion": (int, (2.0, math.nan, 2.0, math.inf, 3.0)),
    "division by the number": (lambda n: 1 / n, (2, 0, 2, 4)),
    "division of the number": (lambda n: n / (n - 2), (2, 3, 2, 4)),
    "remainder": (lambda n: 7 % n, (2, 0, 2, 4)),
    "power": (lambda n: 10.0**n, (2, 400, 2, 3)),
    "shift": (lambda n: 1 << n, (2, -1, 2, 4)),
    "rounding": (math.floor, (2.0, math.inf, math.nan, 2.0)),
    "large integers": (float, (2, 10**400, 2, 4)),
    "text": (lambda n: len(str(n)), (2, 10**5000, 2, 4)),
    "math": (math.sqrt, (4, -1, 4, 9)),
    "index": (lambda n: (3, 4)[n], (0, 5, 1, 0)),
}


@pytest.mark.parametrize("name", FAILING)
def test_an_error_that_a_number_causes_and_the_function_catches_is_not_repeated_for_others(
    name: str, device: br.Device
) -> None:
    compute, numbers = FAILING[name]

    def function(x: br.Tensor, n: Any) -> Any:
        try:
            factor = compute(n)
        except Exception as error:
            return x * -100, type(error).__name__
        return x * factor, ""

    compiled = br.compile(function)
    x = br.tensor([1.0, 2.0], device=device)

    for n in numbers * 2:
        (tensor, error), (expected, expected_error) = compiled(x, n), function(x, n)
        assert error == expected_error
        assert tensor.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("recorded", "unfit"), [(2**63, 2**64), (2**63, 10**30), (-1, -(2**63) - 1)]
)
def test_an_integer_beyond_64_bits_is_refused_as_outside_of_compiled_functions(
    device: br.Device, recorded: int, unfit: int
) -> None:
    def plain(x: br.Tensor, n: int) -> br.Tensor:
        return x**n

    x = br.ones((3,), device=device)
    for power in (plain, br.compile(plain)):
        for fits in (recorded, recorded - 1 if recorded < 0 else recorded + 1, 2):
            assert power(x, fits).tolist() == [1, 1, 1]
        with pytest.raises(br.UsageError, match=str(unfit)):
            power(x, unfit)
        assert power(x, recorded).tolist() == [1, 1, 1]
