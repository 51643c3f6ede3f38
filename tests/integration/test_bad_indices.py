"""An index out of range fails the operation with a typed error; the session continues."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional as F
from burn_remote import gradients as G

Call = Callable[[Callable[..., br.Tensor], Callable[..., br.Tensor]], br.Tensor]

# f(shape) makes ones, i(values) integers. Each case: operation, value seen, range expected.
CALLS: dict[str, tuple[Call, str, str]] = {
    "embedding": (lambda f, i: F.embedding(i([[9]]), f(3, 2)), "Module.Embedding", "9.*0..2"),
    "gather": (lambda f, i: br.gather(f(3), 0, i([7])), "Base.Gather", "7.*0 to 2"),
    "below zero": (lambda f, i: br.gather(f(3), 0, i([-4])), "Base.Gather", "-4.*0 to 2"),
    "scatter": (lambda f, i: br.scatter(f(3), 0, i([7]), f(1)), "Base.Scatter", "7.*0 to 2"),
    "gather_nd": (lambda f, i: br.gather_nd(f(3, 3), i([[5, 0]])), "Base.GatherNd", "5.*0 to 2"),
    "take": (lambda f, i: br.take(f(3), i([3]), axis=0), "Base.Select", "3.*0 to 2"),
    "a class": (lambda f, i: F.nll_loss(f(2, 3), i([0, 5]), reduction="none"), "Base.Gather", "5"),
    "a hot place": (lambda f, i: F.one_hot(i([0, 3]), 3), "Base.Scatter", "3.*0 to 2"),
    "a length": (
        lambda f, i: F.ctc_loss(f(4, 1, 3), i([[1, 2]]), [9], [2], reduction="none"),
        "Module.CtcLoss",
        "input_lengths is 9, expected in 0..4",
    ),
    "a label": (
        lambda f, i: F.ctc_loss(f(4, 1, 3), i([[1, 7]]), [4], [2], reduction="none"),
        "Module.CtcLoss",
        "targets is 7, expected in 0..2",
    ),
    "a place of a maximum": (
        lambda f, i: G.max_pool_backward(f(1, 1, 4), f(1, 1, 2), i([[[0, 9]]]), 2, 2),
        "Module.MaxPool1dWithIndicesBackward",
        "indices is 9",
    ),
    "a row of a gradient": (
        lambda f, i: G.embedding_backward(f(3, 2), f(1, 1, 2), i([[9]])),
        "Module.EmbeddingBackward",
        "indices is 9, expected in 0..2",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_index_out_of_range_fails_with_the_index_and_the_range(
    native_device: br.Device, name: str
) -> None:
    call, operation, sentence = CALLS[name]

    def f(*shape: int) -> br.Tensor:
        return br.ones(shape, device=native_device)

    result = call(f, lambda values: native_device.tensor(np.array(values)))
    with pytest.raises(br.OperationFailed, match=sentence) as caught:
        result.numpy()

    assert caught.value.operation == operation
    assert f(2).tolist() == [1, 1]
