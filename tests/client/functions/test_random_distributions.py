"""Draws of elements, and distributions that follow from the uniform one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest

import burn_remote as br

COUNT: Final = 200_000


@pytest.fixture(scope="module")
def opened() -> Iterator[br.LocalDevice]:
    with br.LocalDevice() as device:
        yield device


@pytest.fixture
def device(opened: br.LocalDevice) -> br.LocalDevice:
    """The device, whose draws do not depend on the tests before."""
    opened.seed(7)
    return opened


# The probability that a draw is at most x.
DISTRIBUTIONS: Final[dict[str, tuple[dict[str, Any], Callable[[Any], Any]]]] = {
    "exponential": ({"scale": 2.0}, lambda x: 1 - np.exp(-x / 2)),
    "gumbel": ({"mode": 1.0, "scale": 2.0}, lambda x: np.exp(-np.exp((1 - x) / 2))),
    "laplace": (
        {"mean": 1.0, "scale": 2.0},
        lambda x: 0.5 + 0.5 * np.sign(x - 1) * (1 - np.exp(-np.abs(x - 1) / 2)),
    ),
    "logistic": ({"mean": -1.0, "scale": 0.5}, lambda x: 1 / (1 + np.exp(-(x + 1) / 0.5))),
    "lognormal": (
        {"mean": 0.5, "std": 0.7},
        lambda x: [(1 + math.erf((math.log(max(one, 1e-300)) - 0.5) / 0.7 / math.sqrt(2))) / 2
                   for one in x],
    ),
    "pareto": ({"a": 3.0}, lambda x: 1 - (1 + x) ** -3),
    "rayleigh": ({"scale": 2.0}, lambda x: 1 - np.exp(-(x**2) / 8)),
    "standard_cauchy": ({}, lambda x: np.arctan(x) / np.pi + 0.5),
    "standard_normal": ({}, lambda x: [(1 + math.erf(one / math.sqrt(2))) / 2 for one in x]),
    "weibull": ({"a": 1.5}, lambda x: 1 - np.exp(-(x**1.5))),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_draws_have_their_distribution(name: str, dtype: Any, device: br.LocalDevice) -> None:
    options, cumulative = DISTRIBUTIONS[name]
    found = getattr(br.random, name)((COUNT,), dtype=dtype, device=device, **options)
    drawn = np.sort(found.numpy().astype(np.float64))
    assert found.dtype == br.tensor(np.zeros(1, dtype), device=device).dtype
    finite = drawn[np.isfinite(drawn)]
    assert len(finite) > COUNT * 0.999  # float16 overflows at the ends
    expected = np.asarray(cumulative(finite))
    seen = (np.searchsorted(drawn, finite, side="right") - 0.5) / COUNT
    # Kolmogorov and Smirnov: the largest difference exceeds this once in 10**10 runs. The generator
    # has a fixed seed. float16 has steps, in which many draws are equal.
    assert np.abs(expected - seen).max() < 3.5 / math.sqrt(COUNT) + (dtype == "float16") * 2e-3


def test_a_scale_that_is_not_positive_is_refused(device: br.LocalDevice) -> None:
    with pytest.raises(br.UsageError, match="scale must be positive"):
        br.random.exponential(3, scale=0, device=device)
    with pytest.raises(br.UsageError, match="a must be positive"):
        br.random.weibull(3, a=-1, device=device)
    with pytest.raises(br.UsageError, match="floating-point dtype"):
        br.random.exponential(3, dtype="int32", device=device)


def test_choices_with_probabilities_are_as_frequent(device: br.LocalDevice) -> None:
    p = np.array([0.1, 0.0, 0.6, 0.3])
    for given in (p, p.tolist(), br.tensor(p * 5, device=device)):
        drawn = br.random.choice(4, (COUNT,), p=given, device=device)
        shares = np.bincount(drawn.numpy(), minlength=4) / COUNT
        assert drawn.dtype == br.int64
        np.testing.assert_allclose(shares, p, atol=0.01)
        assert shares[1] == 0


def test_choices_without_probabilities_are_uniform(device: br.LocalDevice) -> None:
    drawn = br.random.choice(5, (COUNT,), device=device).numpy()
    np.testing.assert_allclose(np.bincount(drawn) / COUNT, 0.2, atol=0.01)
    assert br.random.choice(5, device=device).shape == ()


def test_choices_without_replacement_are_different(device: br.LocalDevice) -> None:
    p = [0.5, 0.25, 0.0, 0.125, 0.125]
    firsts = []
    for _ in range(50):
        assert sorted(br.random.choice(5, 5, replace=False, device=device).tolist()) == [*range(5)]
        order = br.random.choice(5, (2, 2), p=p, replace=False, device=device).numpy().reshape(-1)
        assert sorted(order) == [0, 1, 3, 4]
        firsts.append(order[0])
    assert np.mean(np.array(firsts) == 0) > 0.3


def test_elements_of_a_tensor_are_drawn_along_an_axis(device: br.LocalDevice) -> None:
    x = br.tensor(np.arange(12).reshape(3, 4), device=device)
    drawn = br.random.choice(x, (2, 5), axis=1).numpy()
    assert drawn.shape == (3, 2, 5)
    np.testing.assert_array_equal(drawn[1] - drawn[0], np.full((2, 5), 4))


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda d: br.random.choice(3, 4, replace=False, device=d), "4 elements cannot be drawn"),
        (lambda d: br.random.choice(0, 1, device=d), "1 elements cannot be drawn from 0"),
        (lambda d: br.random.choice(2, 1, p=[0.5, -0.5], device=d), "not negative"),
        (lambda d: br.random.choice(2, 2, p=[1, 0], replace=False, device=d), "must be positive"),
        (lambda d: br.random.choice(2, 1, p=[0, 0], device=d), "must be positive"),
    ],
)
def test_impossible_draws_are_refused(call: Callable[[Any], Any], text: str,
                                      device: br.LocalDevice) -> None:  # fmt: skip
    with pytest.raises(br.UsageError, match=text):
        call(device)


def test_probabilities_of_other_elements_are_refused(device: br.LocalDevice) -> None:
    with pytest.raises(br.ShapeMismatch, match="there are 3 elements"):
        br.random.choice(3, p=[0.5, 0.5], device=device)
