"""Functions named like PyTorch's accept its arguments and return its results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import burn_remote as br
import burn_remote.functional as F
from support.module_kernels import normal

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
functional = torch.nn.functional
pytestmark = [
    pytest.mark.oracle,
    # PyTorch warns that it will change the mean of kl_div.
    pytest.mark.filterwarnings("ignore:reduction. 'mean' divides"),
]


@pytest.fixture(scope="module")
def device() -> Iterator[br.Device]:
    with br.LocalDevice() as local:
        yield local


def sent(value: Any, device: br.Device) -> Any:
    return br.tensor(value, device=device) if isinstance(value, np.ndarray) else value


def known(value: Any) -> Any:
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value


def check(
    device: br.Device, name: str, arguments: tuple[Any, ...], options: dict[str, Any], bound: float
) -> None:
    found = getattr(F, name)(
        *(sent(value, device) for value in arguments),
        **{key: sent(value, device) for key, value in options.items()},
    )
    expected = getattr(functional, name)(
        *map(known, arguments), **{key: known(value) for key, value in options.items()}
    )
    np.testing.assert_allclose(
        found.numpy(), expected.numpy(), rtol=bound, atol=bound, strict=True, err_msg=name
    )


X = np.concatenate([normal(1, 3, 4, 5) * 3, np.linspace(-90, 90, 20).reshape(1, 4, 5)])
SHAPES: list[tuple[str, dict[str, Any]]] = [
    ("celu", {"alpha": 1.3}),
    ("elu", {"alpha": 0.7}),
    ("gelu", {}),
    ("gelu", {"approximate": "tanh"}),
    ("hardshrink", {"lambd": 0.4}),
    ("hardsigmoid", {}),
    ("hardswish", {}),
    ("hardtanh", {"min_val": -0.5, "max_val": 2.0}),
    ("leaky_relu", {"negative_slope": 0.2}),
    ("log_softmax", {"dim": 1}),
    ("log_softmax", {"dim": -1}),
    ("logsigmoid", {}),
    ("mish", {}),
    ("normalize", {"dim": 2}),
    ("normalize", {"p": 3.0}),
    ("relu", {}),
    ("relu6", {}),
    ("selu", {}),
    ("sigmoid", {}),
    ("silu", {}),
    ("softmax", {"dim": 0}),
    ("softmax", {"dim": -1}),
    ("softmin", {"dim": 1}),
    ("softplus", {}),
    ("softplus", {"beta": 2.5}),
    ("softshrink", {"lambd": 0.3}),
    ("softsign", {}),
    ("tanh", {}),
    ("tanhshrink", {}),
    ("threshold", {"threshold": 0.3, "value": -7.0}),
    ("glu", {"dim": 1}),
    ("layer_norm", {"normalized_shape": (5,)}),
    (
        "layer_norm",
        {"normalized_shape": (4, 5), "weight": normal(2, 4, 5), "bias": normal(3, 4, 5)},
    ),
    ("rms_norm", {"normalized_shape": (5,), "weight": normal(2, 5), "eps": 1e-5}),
    ("rms_norm", {"normalized_shape": (5,)}),
    ("group_norm", {"num_groups": 2, "weight": normal(2, 4), "bias": normal(3, 4)}),
    ("instance_norm", {"weight": normal(2, 4), "bias": normal(3, 4)}),
    (
        "batch_norm",
        {"running_mean": normal(2, 4), "running_var": normal(3, 4) ** 2, "weight": normal(4, 4)},
    ),
    ("pad", {"pad": (1, 2, 0, 3)}),
    ("pad", {"pad": (-1, 2), "value": 4.0}),
    ("pad", {"pad": (2, 1), "mode": "reflect"}),
    ("pad", {"pad": (2, 3), "mode": "replicate"}),
    ("pad", {"pad": (5, 1), "mode": "circular"}),
    ("prelu", {"weight": normal(5, 4)}),
    ("avg_pool1d", {"kernel_size": 3, "stride": 2, "padding": 1}),
    ("max_pool1d", {"kernel_size": 2, "stride": 1}),
    ("adaptive_avg_pool1d", {"output_size": 3}),
    ("interpolate", {"size": 9, "mode": "linear", "align_corners": True}),
    ("interpolate", {"scale_factor": 2.0, "mode": "nearest"}),
]


@pytest.mark.parametrize(("name", "options"), SHAPES)
@pytest.mark.parametrize(("dtype", "bound"), [(np.float64, 1e-10), (np.float32, 3e-5)])
def test_functions_of_one_tensor_agree(
    device: br.Device, name: str, options: dict[str, Any], dtype: Any, bound: float
) -> None:
    narrowed = {
        key: value.astype(dtype) if isinstance(value, np.ndarray) else value
        for key, value in options.items()
    }
    check(device, name, (X.astype(dtype),), narrowed, bound)


SCORES, CHANCES = normal(1, 6, 4), np.random.default_rng(1).random((6, 4))
CLASSES = np.array([0, 3, 1, 1, 2, 0])
LOSSES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("mse_loss", (SCORES, CHANCES), {}),
    ("l1_loss", (SCORES, CHANCES), {}),
    ("smooth_l1_loss", (SCORES, CHANCES), {"beta": 0.4}),
    ("huber_loss", (SCORES, CHANCES), {"delta": 0.7}),
    ("binary_cross_entropy", (CHANCES, CHANCES[::-1].copy()), {}),
    ("binary_cross_entropy", (CHANCES, CHANCES[::-1].copy()), {"weight": CHANCES[0]}),
    ("binary_cross_entropy_with_logits", (SCORES * 30, CHANCES), {}),
    ("kl_div", (SCORES, CHANCES), {}),
    ("kl_div", (SCORES, SCORES + 1), {"log_target": True}),
    ("nll_loss", (SCORES, CLASSES), {}),
    ("nll_loss", (SCORES, CLASSES), {"weight": CHANCES[0], "ignore_index": 1}),
    ("cross_entropy", (SCORES, CLASSES), {}),
    ("cross_entropy", (SCORES, CLASSES), {"weight": CHANCES[0], "ignore_index": 1}),
    ("cross_entropy", (SCORES, CLASSES), {"label_smoothing": 0.2}),
    ("cross_entropy", (SCORES, CLASSES), {"label_smoothing": 0.2, "weight": CHANCES[0]}),
    (
        "cross_entropy",
        (SCORES, CLASSES),
        {"label_smoothing": 0.2, "weight": CHANCES[0], "ignore_index": 1},
    ),
    ("cross_entropy", (SCORES, CHANCES), {}),
    ("cross_entropy", (SCORES, CHANCES), {"label_smoothing": 0.1, "weight": CHANCES[0]}),
    ("cross_entropy", (SCORES[0], CLASSES[:1].reshape(())), {"label_smoothing": 0.2}),
    ("cross_entropy", (normal(4, 2, 4, 3), np.array([[0, 1, 2], [3, 3, 0]])), {}),
]


@pytest.mark.parametrize(("name", "arguments", "options"), LOSSES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_agree(
    device: br.Device,
    name: str,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    reduction: str,
) -> None:
    check(device, name, arguments, options | {"reduction": reduction}, 1e-12)


IMAGES, GRID = normal(1, 2, 3, 6, 7), np.random.default_rng(2).uniform(-1.7, 1.7, (2, 4, 5, 2))
ON_IMAGES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("avg_pool2d", (IMAGES, (3, 2)), {"stride": 2, "padding": 1, "count_include_pad": False}),
    ("max_pool2d", (IMAGES, 3), {"stride": 2, "padding": 1, "dilation": (2, 1)}),
    ("max_pool2d", (IMAGES, 3), {"ceil_mode": True}),
    ("avg_pool2d", (IMAGES, 2), {"stride": 4, "padding": 1, "ceil_mode": True}),
    ("avg_pool2d", (IMAGES, (3, 12)), {"stride": (2, 9), "ceil_mode": True}),
    ("adaptive_avg_pool2d", (IMAGES, (4, 5)), {}),
    ("interpolate", (IMAGES, (9, 4)), {"mode": "bicubic"}),
    ("interpolate", (IMAGES,), {"scale_factor": 1.7}),
    ("interpolate", (IMAGES, (4, 3)), {"mode": "area"}),
    ("interpolate", (IMAGES,), {"scale_factor": (0.6, 2.3), "mode": "nearest-exact"}),
    ("interpolate", (IMAGES,), {"scale_factor": (2.1, 1.1), "mode": "nearest"}),
    ("interpolate", (IMAGES,), {"scale_factor": (2.1, 1.1), "mode": "bilinear"}),
    ("interpolate", (IMAGES[0],), {"scale_factor": 1.1, "mode": "linear"}),
    ("interpolate", (IMAGES,), {"scale_factor": 1.7, "mode": "bilinear"}),
    ("interpolate", (IMAGES,), {"scale_factor": (0.4, 2.6), "mode": "bicubic"}),
    ("interpolate", (IMAGES,), {"scale_factor": 1.7, "mode": "bicubic", "align_corners": True}),
    ("interpolate", (IMAGES, (3, 11)), {"mode": "bilinear", "align_corners": True}),
    ("conv2d", (IMAGES, normal(2, 4, 3, 3, 3), normal(3, 4)), {"padding": "same", "dilation": 2}),
    ("conv2d", (IMAGES[0], normal(2, 4, 3, 3, 3)), {"stride": 2, "padding": 1}),
    ("conv_transpose2d", (IMAGES, normal(2, 3, 2, 3, 3)), {"stride": 2, "output_padding": 1}),
    ("cosine_similarity", (IMAGES, normal(5, 2, 3, 6, 7)), {"dim": 2}),
]
ON_IMAGES += [
    ("grid_sample", (IMAGES, GRID, mode, border), {"align_corners": aligned})
    for mode in ("nearest", "bilinear", "bicubic")
    for border in ("zeros", "border", "reflection")
    for aligned in (False, True)
]


@pytest.mark.parametrize(("name", "arguments", "options"), ON_IMAGES)
def test_functions_of_images_agree(
    device: br.Device, name: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    check(device, name, arguments, options, 1e-10)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_ctc_loss_agrees(device: br.Device, reduction: str) -> None:
    log_probs = torch.log_softmax(torch.from_numpy(normal(1, 9, 3, 5)), -1).numpy()
    targets = np.array([[1, 2, 2], [3, 3, 1], [4, 1, 2]])
    lengths = np.array([9, 8, 7]), np.array([3, 2, 1])
    check(device, "ctc_loss", (log_probs, targets, *lengths), {"reduction": reduction}, 1e-10)


@pytest.mark.parametrize(("axis", "size", "step"), [(0, 2, 1), (1, 3, 2), (-1, 4, 3), (1, 5, 5)])
def test_windows_along_an_axis_agree(device: br.Device, axis: int, size: int, step: int) -> None:
    x = normal(1, 6, 5, 7)
    found = br.tensor(x, device=device).unfold(axis, size, step)
    expected = torch.from_numpy(x).unfold(axis, size, step)
    np.testing.assert_array_equal(found.numpy(), expected.numpy())


@pytest.mark.parametrize("mask", ["none", "bools", "floats", "causal"])
def test_attention_agrees(device: br.Device, mask: str) -> None:
    shapes = ((2, 3, 6, 4), (2, 3, 6, 4), (2, 3, 6, 5))
    tensors = [normal(seed, *shape) for seed, shape in enumerate(shapes)]
    scores = normal(7, 2, 3, 6, 6)
    options: dict[str, dict[str, Any]] = {
        "none": {},
        "bools": {"attn_mask": scores < 1},
        "floats": {"attn_mask": scores},
        "causal": {"is_causal": True},
    }
    check(device, "scaled_dot_product_attention", tuple(tensors), options[mask], 1e-10)
