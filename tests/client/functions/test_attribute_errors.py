"""All attributes of a tensor can be looked at, as debuggers and serializers do."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import pytest

import burn_remote as br
from support.runners import RecordingDevice

DEVICE = RecordingDevice()

TENSORS: dict[str, Callable[[], br.Tensor]] = {
    "scalar": lambda: br.ones((), device=DEVICE),
    "vector": lambda: br.ones((3,), device=DEVICE),
    "matrices": lambda: br.ones((2, 3, 4), device=DEVICE),
    "result": lambda: br.ones((2, 2), device=DEVICE).requires_grad_() * 2,
    "quantized": lambda: br.quantize(br.ones((4, 32), device=DEVICE)),
}


@pytest.mark.parametrize("name", TENSORS)
def test_inspect_lists_the_members_of_any_tensor(name: str) -> None:
    assert "shape" in dict(inspect.getmembers(TENSORS[name]()))


@pytest.mark.parametrize(
    ("name", "attribute", "error"),
    [
        ("vector", "T", br.ShapeMismatch),
        ("vector", "mT", br.ShapeMismatch),
        ("scalar", "mH", br.ShapeMismatch),
        ("matrices", "T", br.ShapeMismatch),
        ("quantized", "real", br.DTypeMismatch),
        ("result", "grad", br.UsageError),
    ],
)
def test_an_attribute_that_a_tensor_lacks_is_refused_by_its_kind(
    name: str, attribute: str, error: type[br.UsageError]
) -> None:
    x = TENSORS[name]()
    assert not hasattr(x, attribute)
    with pytest.raises(error):
        getattr(x, attribute)


@pytest.mark.parametrize(("name", "dtype"), [("fp32", br.float32), ("bf16", br.bfloat16)])
def test_short_names_of_dtypes_are_accepted(name: str, dtype: br.DType) -> None:
    assert br.tensor(np.ones(2), dtype=name, device=DEVICE).dtype == dtype
