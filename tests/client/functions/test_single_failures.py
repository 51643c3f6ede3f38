"""A composite function that fails has one failure: after a read has raised it, sync raises none."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional

X = np.linspace(0.1, 1.0, 12, dtype=np.float32).reshape(3, 4)
Places = Callable[[br.Tensor, br.Tensor, br.Tensor], br.Tensor]

# Each gets logits, an index that is out of range, and a weight of each class.
FAILING: dict[str, Places] = {
    "cross_entropy": lambda x, bad, weight: functional.cross_entropy(x, bad),
    "weighted cross_entropy": lambda x, bad, weight: functional.cross_entropy(x, bad, weight),
    "weighted smoothed cross_entropy": lambda x, bad, weight: functional.cross_entropy(
        x, bad, weight, label_smoothing=0.1
    ),
    "smoothed cross_entropy": lambda x, bad, weight: functional.cross_entropy(
        x, bad, label_smoothing=0.1
    ),
    "weighted nll_loss": lambda x, bad, weight: functional.nll_loss(x, bad, weight),
    "ignoring nll_loss": lambda x, bad, weight: functional.nll_loss(x, bad, weight, 1, "none"),
    "gradient of weighted cross_entropy": lambda x, bad, weight: br.grad(
        lambda y: functional.cross_entropy(y, bad, weight)
    )(x),
    "gradient of embedding": lambda x, bad, weight: br.grad(
        lambda y: (functional.embedding(bad, y) ** 2).sum()
    )(x),
    "gradient of indexing": lambda x, bad, weight: br.grad(lambda y: (y[bad] ** 2).sum())(x),
    "two indices": lambda x, bad, weight: x[bad, bad],
    "floor_divide": lambda x, bad, weight: bad // (bad - bad),
    "remainder": lambda x, bad, weight: bad % (bad - bad),
}


@pytest.fixture
def local() -> Iterator[br.Device]:
    with br.LocalDevice() as device:
        yield device


@pytest.mark.parametrize("name", FAILING)
def test_a_failing_composite_function_has_one_failure(name: str, local: br.Device) -> None:
    bad = local.tensor([0, 9, 1])
    failed = FAILING[name](local.tensor(X), bad, local.tensor([1.0, 2.0, 0.5, np.nan]))
    with pytest.raises(br.OperationFailed):
        failed.numpy()
    local.sync()
