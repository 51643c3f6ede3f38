"""The kernels of extension rows against NumPy.

Burn wrote no traffic for these rows, so each is compared with NumPy's own function of float64 or
complex128 copies of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import pytest

from burn_remote_protocol.operations.releases import EXTENSION
from burn_remote_protocol.operations.table import TABLE
from burn_remote_protocol.tensors import TensorSpec
from support.kernels import compute

Array = np.ndarray[Any, Any]

RANDOM: Final = np.random.default_rng(20261122)


class Comparison(NamedTuple):
    """A call of an extension row, and what it must agree with.

    ``reference`` receives the tensors in double precision and the parameters; it returns one array,
    or a tuple for several outputs.
    """

    reference: Callable[..., Any]
    tensors: tuple[Array, ...]
    parameters: dict[str, Any]
    out: tuple[TensorSpec, ...]
    tolerance: float


COMPARISONS: Final[dict[str, list[Comparison]]] = {}


def compare(
    name: str,
    reference: Callable[..., Any],
    *tensors: Array,
    out: tuple[TensorSpec, ...] = (),
    tolerance: float = 1e-6,
    **parameters: Any,
) -> None:
    COMPARISONS.setdefault(name, []).append(
        Comparison(reference, tensors, parameters, out, tolerance)
    )


def floats(*shape: int, dtype: Any = np.float32) -> Array:
    return np.asarray(RANDOM.normal(size=shape)).astype(dtype)


# -- Elementwise ----------------------------------------------------------------------------------

for _dtype in (np.float32, np.float64):
    compare("Elementwise.Hypot", np.hypot, floats(3, 4, dtype=_dtype), floats(3, 4, dtype=_dtype))
    compare("Elementwise.Hypot", np.hypot, floats(3, 1, dtype=_dtype), floats(1, 4, dtype=_dtype))
compare("Elementwise.Hypot", np.hypot, np.full(2, 1e38, np.float32), np.full(2, 1e38, np.float32))
compare("Elementwise.Hypot", np.hypot, floats(9, dtype=np.float16), floats(9, dtype=np.float16),
        tolerance=1e-3)  # fmt: skip


# -- The comparison -------------------------------------------------------------------------------

CASES: Final = [
    pytest.param(name, case, id=f"{name}-{place}")
    for name, cases in COMPARISONS.items()
    for place, case in enumerate(cases)
]


def doubled(array: Array) -> Array:
    """Return floating-point and complex elements in double precision, others as they are."""
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    return array if array.dtype.kind in "iub" else array.astype(np.float64)


@pytest.mark.parametrize("name, case", CASES)
def test_the_kernel_agrees_with_numpy(name: str, case: Comparison) -> None:
    found = compute(name, *case.tensors, out=case.out, **case.parameters)
    expected = case.reference(*map(doubled, case.tensors), **case.parameters)

    found, expected = (one if type(one) is tuple else (one,) for one in (found, expected))
    for seen, right in zip(found, expected, strict=True):
        assert seen.shape == right.shape
        np.testing.assert_allclose(doubled(seen), right, rtol=case.tolerance, atol=case.tolerance)


def test_every_extension_row_is_compared() -> None:
    extensions = {str(row) for row in TABLE.values() if row.lifetime == EXTENSION}

    assert extensions == set(COMPARISONS)
