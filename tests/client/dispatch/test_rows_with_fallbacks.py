"""Functions that use a row of Burn 0.22 give the results of their compositions of older rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest

import burn_remote as br
import burn_remote.functional as F
from burn_remote.dispatch.rows_with_fallbacks import CHOICES
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.vocabularies import Vocabulary
from support.runners import RecordingDevice

RANDOM: Final = np.random.default_rng(5)
ARRAYS: Final = {
    "edges": np.array([[0.0, -0.0, 1.5, -1.5, 30.0, -30.0, np.inf, -np.inf, np.nan]]),
    "matrix": RANDOM.normal(size=(7, 9)),
    "integers": RANDOM.integers(-4, 4, size=(7, 9)),
}

FUNCTIONS: Final[dict[str, Callable[[br.Tensor], Any]]] = {
    "negative": lambda x: -x,
    "sign": lambda x: x.sign(),
    "not_equal": lambda x: x != x,
    "not_equal to a number": lambda x: x != 1,
    "logical_xor": lambda x: br.logical_xor(x > 0, x < 1),
    "any": lambda x: br.any(x),
    "any of an axis": lambda x: br.any(x, axis=0),
    "all": lambda x: br.all(x),
    "all of an axis": lambda x: br.all(x, axis=1, keepdims=True),
    "sum of axes": lambda x: br.reshape(x[:, :9], (-1, 3, 3)).sum(axis=(0, 2)),
    "clip below": lambda x: x.clip(min=1),
    "clip above": lambda x: x.clip(max=1),
    "sort": lambda x: br.sort(x, axis=0),
    "sort descending": lambda x: br.sort(x, descending=True),
    "argsort": lambda x: br.argsort(x),
    "argsort descending": lambda x: br.argsort(x, axis=0, descending=True),
    "sort_with_indices": lambda x: br.sort_with_indices(x),
    "topk": lambda x: x.topk(3),
    "smallest": lambda x: x.topk(3, largest=False),
    "pad": lambda x: F.pad(x, (1, 2, 3, 0), value=2),
    "pad by reflection": lambda x: F.pad(x, (1, 2), mode="reflect"),
    "pad by the edge": lambda x: F.pad(x, (1, 2, 0, 3), mode="replicate"),
}
FLOAT_FUNCTIONS: Final[dict[str, Callable[[br.Tensor], Any]]] = {
    "signbit": br.signbit,
    "expm1": br.expm1,
    "log2": lambda x: br.log2(abs(x)),
    "log10": lambda x: br.log10(abs(x)),
    "floor_divide": lambda x: x // (0.7 - x),
    "floor_divide_number": lambda x: x // 0.1,
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "prelu": lambda x: F.prelu(x, br.full((9,), 0.3, dtype=x.dtype, device=x.device)),
    "sigmoid": F.sigmoid,
    "logsigmoid": F.logsigmoid,
    "gelu": F.gelu,
    "hard_sigmoid": F.hard_sigmoid,
    "softmax": F.softmax,
    "softmax of columns": lambda x: F.softmax(x, 0),
    "log_softmax": F.log_softmax,
    "softmin": F.softmin,
    "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(
        x[:, :8].reshape((1, -1, 2, 2, 2)), (1, 2, 3)
    ),
    "layer_norm": lambda x: F.layer_norm(x, 9, x[0], x[0]),
    "layer_norm without a bias": lambda x: F.layer_norm(x, 9, x[0]),
    "batch_norm": lambda x: F.batch_norm(x, x[0], abs(x[0]), x[0], x[0]),
    "unfold": lambda x: F.unfold(x[:, :9].reshape((1, -1, 3, 3)), 2, padding=1),
    "interpolate": lambda x: F.interpolate(
        x[:, :9].reshape((1, -1, 3, 3)), (5, 2), mode="nearest-exact"
    ),
}  # fmt: skip

# The composition of ``adaptive_avg_pool3d`` divides in three of its four steps, in another order
# than the row. The other compositions round twice where the row rounds once.
ROUNDED_OTHERWISE: Final = {"adaptive_avg_pool3d", "expm1", "log2", "log10"}


@pytest.fixture(scope="module")
def device() -> Iterator[br.Device]:
    with br.LocalDevice() as opened:
        yield opened


def without_new_rows(monkeypatch: pytest.MonkeyPatch, device: br.Device) -> None:
    """Have a session answer as one of Burn 0.21 does."""

    def has_row(_self: object, row: Row) -> bool:
        return row.lifetime.includes(Vocabulary.BURN_0_21)

    monkeypatch.setattr(type(device.session), "has_row", has_row)


def listed(result: Any) -> list[Any]:
    return [one.numpy() for one in (result if type(result) is tuple else (result,))]


CASES: Final = [
    *[(name, "matrix", "float32") for name in FUNCTIONS | FLOAT_FUNCTIONS],
    *[(name, "matrix", "float64") for name in FUNCTIONS | FLOAT_FUNCTIONS],
    *[(name, "edges", "float32") for name in FUNCTIONS | FLOAT_FUNCTIONS],
    *[(name, "integers", dtype) for name in FUNCTIONS for dtype in ("int64", "int8")],
]  # fmt: skip


@pytest.mark.parametrize("name, array, dtype", CASES)
def test_both_forms_have_the_same_bits(
    name: str, array: str, dtype: str, device: br.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = (FUNCTIONS | FLOAT_FUNCTIONS)[name]
    x = br.tensor(ARRAYS[array].astype(dtype), device=device)
    preferred = listed(function(x))
    without_new_rows(monkeypatch, device)
    composed = listed(function(x))

    for one, other in zip(preferred, composed, strict=True):
        assert one.dtype == other.dtype
        if name in ROUNDED_OTHERWISE:
            np.testing.assert_allclose(one, other, rtol=1e-6)
            continue
        np.testing.assert_array_equal(one, other)
        # The sign of -0 is 0 by the row, as in NumPy, and -0 by the composition. A sort that is not
        # stable may return either of 0 and -0 first, which are equal.
        if one.dtype.kind == "f" and not name.startswith(("sign", "sort", "topk", "smallest")):
            finite = ~np.isnan(one)
            np.testing.assert_array_equal(np.signbit(one[finite]), np.signbit(other[finite]))


def test_a_session_without_the_rows_is_sent_none_of_them(
    device: br.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = RecordingDevice()
    without_new_rows(monkeypatch, recorded)
    x = br.ones((7, 9), device=recorded)
    for function in (FUNCTIONS | FLOAT_FUNCTIONS).values():
        function(x)

    rows = {operation.signature.row for operation in recorded.runner.operations}
    assert all(row.lifetime.includes(Vocabulary.BURN_0_21) for row in rows)


def test_every_choice_is_compared(device: br.Device) -> None:
    recorded = RecordingDevice()
    x = br.ones((7, 9), device=recorded)
    for function in (FUNCTIONS | FLOAT_FUNCTIONS).values():
        function(x)

    names = {str(operation.signature.row) for operation in recorded.runner.operations}
    assert {str(choice.row) for choice in CHOICES} <= names
