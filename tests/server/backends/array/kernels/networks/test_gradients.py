"""Every backward variant agrees with finite differences in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pytest

from burn_remote_protocol.dtypes import I64
from burn_remote_protocol.operations.table import TABLE
from burn_remote_protocol.tensors import TensorSpec
from support.gradients import numeric_gradient
from support.kernels import compute
from support.module_kernels import Array, normal, run, spec_of


class Case(NamedTuple):
    """A forward variant with its tensors and parameters, and its backward variant.

    The backward variant takes some of the tensors, given by position (-1 is the gradient), and
    differentiates with respect to one of them.
    """

    forward: str
    tensors: tuple[Array | None, ...]
    takes: tuple[int, ...]
    of: tuple[int, ...]
    parameters: Mapping[str, Any] = {}
    given: Mapping[str, Any] | None = None  # parameters of the backward variant, if others


def axes(rank: int, *values: int) -> tuple[int, ...]:
    return values[:rank]


def convolution(rank: int, takes: tuple[int, ...], of: int, bare: bool = False) -> Case:
    sizes, kernel = axes(rank, 6, 5, 4), axes(rank, 3, 2, 2)
    parameters = {
        "stride": axes(rank, 2, 1, 1),
        "padding": axes(rank, 1, 2, 0),
        "dilation": axes(rank, 1, 2, 1),
        "groups": 2,
    }
    tensors = (normal(1, 2, 4, *sizes), normal(2, 2, 2, *kernel), normal(3, 2))
    return Case(f"Conv{rank}d", tensors, takes, (of,), parameters, {} if bare else None)


def transposed(rank: int, takes: tuple[int, ...], of: int, bare: bool = False) -> Case:
    sizes, kernel = axes(rank, 4, 3, 2), axes(rank, 3, 2, 2)
    parameters = {
        "stride": axes(rank, 2, 1, 1),
        "padding": axes(rank, 1, 0, 1),
        "padding_out": axes(rank, 1, 0, 0),
        "dilation": axes(rank, 1, 2, 1),
        "groups": 2,
    }
    tensors = (normal(1, 2, 4, *sizes), normal(2, 4, 3, *kernel), normal(3, 6))
    given: dict[str, Any] | None = {} if bare else None
    return Case(f"ConvTranspose{rank}d", tensors, takes, (of,), parameters, given)


def pooling(kind: str, rank: int, parameters: dict[str, Any]) -> Case:
    window = {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 1), **parameters}
    window = {
        name: value[0] if rank == 1 and type(value) is tuple else value
        for name, value in window.items()
    }
    return Case(f"{kind}{rank}d", (normal(1, 2, 3, *axes(rank, 7, 5)),), (0, -1), (0,), window)


def resizing(mode: str) -> Case:
    parameters = {"output_size": (7, 3), "mode": mode, "align_corners": False}
    return Case("Interpolate", (normal(1, 2, 2, 4, 5),), (0, -1), (0,), parameters)


LINEAR: Final = (normal(1, 2, 3, 4), normal(2, 4, 5), normal(3, 5))
DEFORMABLE: Final = Case(
    "DeformableConv2d",
    (
        normal(1, 1, 2, 4, 5),
        normal(2, 1, 8, 3, 4),
        normal(3, 2, 2, 2, 2),
        normal(4, 1, 4, 3, 4),
        normal(5, 2),
    ),
    (0, 1, 2, 3, 4, -1),
    (0, 1, 2, 3, 4),
    {
        "stride": (1, 1),
        "padding": (0, 0),
        "dilation": (1, 1),
        "weight_groups": 1,
        "offset_groups": 1,
    },
)
AVERAGE: Final = {"count_include_pad": False, "ceil_mode": False}
MAXIMUM: Final = {"dilation": (1, 2), "ceil_mode": False}
CTC: Final = (
    normal(1, 4, 2, 3),
    np.array([[1, 2], [2, 2]]),
    np.array([4, 4]),
    np.array([2, 1]),
)

CASES: Final[dict[str, Case]] = {
    **{f"Conv{rank}dXBackward": convolution(rank, (0, 1, -1), 0) for rank in (1, 2, 3)},
    **{f"Conv{rank}dWeightBackward": convolution(rank, (0, 1, -1), 1) for rank in (1, 2, 3)},
    **{f"Conv{rank}dBiasBackward": convolution(rank, (0, 2, -1), 2, True) for rank in (1, 2, 3)},
    **{
        f"ConvTranspose{rank}dWeightBackward": transposed(rank, (0, 1, -1), 1) for rank in (1, 2, 3)
    },
    **{
        f"ConvTranspose{rank}dBiasBackward": transposed(rank, (0, 2, -1), 2, True)
        for rank in (1, 2, 3)
    },
    "LinearXBackward": Case("Linear", LINEAR, (1, -1), (0,)),
    "LinearWeightBackward": Case("Linear", LINEAR, (0, -1), (1,)),
    "LinearBiasBackward": Case("Linear", LINEAR, (-1,), (2,)),
    "EmbeddingBackward": Case(
        "Embedding", (normal(1, 4, 3), np.array([[0, 2, 2], [1, 0, 2]])), (0, -1, 1), (0,)
    ),
    "DeformableConv2dBackward": DEFORMABLE,
    **{f"AvgPool{rank}dBackward": pooling("AvgPool", rank, AVERAGE) for rank in (1, 2)},
    "AdaptiveAvgPool1dBackward": Case(
        "AdaptiveAvgPool1d", (normal(1, 2, 3, 7),), (0, -1), (0,), {"output_size": 3}, {}
    ),
    "AdaptiveAvgPool2dBackward": Case(
        "AdaptiveAvgPool2d", (normal(1, 2, 3, 5, 4),), (0, -1), (0,), {"output_size": (3, 6)}, {}
    ),
    "AdaptiveAvgPool3dBackward": Case(
        "AdaptiveAvgPool3d",
        (normal(1, 2, 2, 4, 3, 5),),
        (0, -1),
        (0,),
        {"output_size": (2, 3, 7)},
        {},
    ),
    "InterpolateBackward": resizing("Bicubic"),
    "InterpolateBackward exact": resizing("NearestExact"),
    "InterpolateBackward nearest": resizing("Nearest"),
    "InterpolateBackward bilinear": resizing("Bilinear"),
    "InterpolateBackward lanczos": resizing("Lanczos3"),
}


# The backward variants of activations: the forward variant, and whether they take its result
# rather than its input.
ACTIVATIONS: Final = {
    "ReluBackward": ("Relu", True),
    "GeluBackward": ("Gelu", False),
    "SigmoidBackward": ("Sigmoid", True),
    "LogSigmoidBackward": ("LogSigmoid", False),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_backward_variant_agrees_with_finite_differences(name: str) -> None:
    forward, tensors, takes, of, parameters, given = CASES[name]

    def result(place: int) -> Callable[[Array], Array]:
        def moved(tensor: Array) -> Array:
            replaced = [*tensors[:place], tensor, *tensors[place + 1 :]]
            found: Array = run(forward, *replaced, **parameters)
            return found

        return moved

    grad = normal(9, *run(forward, *tensors, **parameters).shape)
    arguments = [grad if place == -1 else tensors[place] for place in takes]
    gradients = run(name.split()[0], *arguments, **(parameters if given is None else given))
    for place, found in zip(of, gradients if len(of) > 1 else (gradients,), strict=True):
        tensor = tensors[place]
        assert tensor is not None
        expected = numeric_gradient(result(place), tensor, grad, step=1e-6)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("rank", [1, 2])
def test_the_gradient_of_maxima_goes_to_their_positions(rank: int) -> None:
    forward, (x,), _, _, parameters, _ = pooling("MaxPool", rank, MAXIMUM)
    assert x is not None
    best = run(forward, x, **parameters)
    requested = (spec_of(best), TensorSpec(best.shape, I64))
    _, indices = run(f"{forward}WithIndices", x, requested=requested, **parameters)
    grad = normal(9, *best.shape)

    found = run(f"{forward}WithIndicesBackward", x, grad, indices, **parameters)

    expected = numeric_gradient(lambda x: run(forward, x, **parameters), x, grad, step=1e-6)
    np.testing.assert_allclose(found, expected, atol=1e-7)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_the_gradient_of_an_activation_agrees_with_finite_differences(name: str) -> None:
    forward, takes_result = ACTIVATIONS[name]
    x, grad = normal(1, 4, 6), normal(9, 4, 6)

    def result(x: Array) -> Array:
        found: Array = compute(f"Activation.{forward}", x)
        return found

    found = compute(f"Activation.{name}", result(x) if takes_result else x, grad)

    np.testing.assert_allclose(found, numeric_gradient(result, x, grad), rtol=1e-6, atol=1e-7)


def test_the_gradient_of_the_ctc_loss_includes_that_of_the_log_softmax() -> None:
    logits, *rest = CTC
    grad = normal(9, 2)

    def loss(logits: Array) -> Array:
        found: Array = run("CtcLoss", normalized(logits), *rest, blank=0)
        return found

    found = run("CtcLossBackward", normalized(logits), *rest, grad, blank=0)

    np.testing.assert_allclose(found, numeric_gradient(loss, logits, grad), atol=1e-7)


def normalized(logits: Array) -> Array:
    result: Array = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return result


def test_every_backward_variant_is_covered() -> None:
    tested = {name.split()[0] for name in CASES}
    tested |= {f"MaxPool{rank}dWithIndicesBackward" for rank in (1, 2)} | {"CtcLossBackward"}
    tested |= ACTIVATIONS.keys()
    assert tested == {name for _, name in TABLE if name.endswith("Backward")}
