"""Tests of random tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.tensors import TensorSpec
from support.elements import FLOATS, INTEGERS
from support.kernels import Array, compute, new_session, spec_of

COUNT = 20_000


def spec(dtype: Any, *shape: int) -> TensorSpec:
    return TensorSpec(shape or (COUNT,), spec_of(np.empty(0, dtype)).dtype)


def drawn(dtype: Any, *distribution: Any, session: Any = None) -> Array:
    """Draw from a given session, or from a new one with the seed 1."""
    if session is None:
        session = new_session()
        session.seed(1)
    name = "Float.Random" if dtype in FLOATS else "Numeric.IntRandom"
    result: Array = compute(name, out=spec(dtype), session=session, distribution=distribution)
    return result


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_the_same_seed_draws_the_same_tensors_in_every_session(dtype: Any) -> None:
    first, second = new_session(), new_session()
    first.seed(5)
    second.seed(5)

    for distribution in (("Default",), ("Uniform", 0.0, 9.0), ("Normal", 1.0, 2.0)):
        one, other = (drawn(dtype, *distribution, session=session) for session in (first, second))
        assert one.tobytes() == other.tobytes()
    assert (
        drawn(dtype, "Default", session=first).tobytes()
        == drawn(dtype, "Default", session=second).tobytes()
    )


def test_sessions_draw_different_tensors_until_they_are_seeded() -> None:
    one, other = (drawn(np.dtype("f4"), "Default", session=new_session()) for _ in range(2))

    assert one.tobytes() != other.tobytes()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floating_point_numbers_are_below_the_end_of_their_range(dtype: Any) -> None:
    default = drawn(dtype, "Default").astype(np.float64)
    uniform = drawn(dtype, "Uniform", -3.0, 2.0).astype(np.float64)

    assert default.min() >= 0 and default.max() < 1
    assert abs(default.mean() - 0.5) < 0.02
    assert uniform.min() >= -3 and uniform.max() < 2
    assert abs(uniform.mean() + 0.5) < 0.05
    assert (drawn(dtype, "Uniform", 2.0, 2.0) == 2).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_normal_numbers_have_their_mean_and_deviation(dtype: Any) -> None:
    normal = drawn(dtype, "Normal", 3.0, 2.0).astype(np.float64)

    assert abs(normal.mean() - 3) < 0.1
    assert abs(normal.std() - 2) < 0.1


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_bernoulli_draws_ones_with_its_probability(dtype: Any) -> None:
    flags = drawn(dtype, "Bernoulli", 0.25).astype(np.float64)

    assert set(flags) == {0, 1}
    assert abs(flags.mean() - 0.25) < 0.02
    assert not drawn(dtype, "Bernoulli", 0.0).any()
    assert drawn(dtype, "Bernoulli", 1.0).all()


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_are_drawn_from_the_whole_dtype_or_a_given_range(dtype: Any) -> None:
    limits = np.iinfo(dtype)
    default = drawn(dtype, "Default").astype(np.float64)
    uniform = drawn(dtype, "Uniform", 3.7, 9.0)

    assert default.min() < limits.min + 0.1 * (float(limits.max) - limits.min)
    assert default.max() > limits.max - 0.1 * (float(limits.max) - limits.min)
    assert set(uniform.tolist()) == {3, 4, 5, 6, 7, 8}


def test_normal_integers_saturate() -> None:
    assert set(drawn(np.dtype("u1"), "Normal", 1e6, 1.0).tolist()) == {255}


@pytest.mark.parametrize("dtype", ["f4", "i4"])
@pytest.mark.parametrize(
    ("distribution", "said"),
    [
        (("Bernoulli", 1.5), "probability"),
        (("Normal", 0.0, -1.0), "deviation"),
        (("Normal", 0.0, np.nan), "deviation"),
        (("Uniform", 2.0, 1.0), "range"),
    ],
)
def test_an_invalid_distribution_raises(
    dtype: str, distribution: tuple[Any, ...], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        drawn(np.dtype(dtype), *distribution)
