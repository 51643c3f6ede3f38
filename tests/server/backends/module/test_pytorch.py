"""Where Burn's definitions are PyTorch's, the kernels agree with PyTorch on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.module_kernels import Array, normal, run

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
functional = torch.nn.functional
pytestmark = pytest.mark.oracle


def agree(found: Array, expected: Any) -> None:
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_convolutions_agree(rank: int, groups: int) -> None:
    x, weight = normal(1, 2, 4, *(7,) * rank), normal(2, 8, 4 // groups, *(3,) * rank)
    stride, padding, dilation = (2,) * rank, (1,) * rank, (2,) * rank
    expected = getattr(functional, f"conv{rank}d")(
        torch.from_numpy(x), torch.from_numpy(weight), None, stride, padding, dilation, groups
    )
    options: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation}
    agree(run(f"Conv{rank}d", x, weight, None, **options, groups=groups), expected)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolutions_agree(rank: int, groups: int) -> None:
    x, weight = normal(1, 2, 4, *(5,) * rank), normal(2, 4, 3, *(3,) * rank)
    stride, padding, extra, dilation = (2,) * rank, (1,) * rank, (1,) * rank, (2,) * rank
    expected = getattr(functional, f"conv_transpose{rank}d")(
        torch.from_numpy(x),
        torch.from_numpy(weight),
        None,
        stride,
        padding,
        extra,
        groups,
        dilation,
    )
    options: dict[str, Any] = {"stride": stride, "padding": padding, "padding_out": extra}
    name = f"ConvTranspose{rank}d"
    agree(run(name, x, weight, None, **options, dilation=dilation, groups=groups), expected)


def test_pooling_agrees() -> None:
    x = normal(1, 2, 3, 9, 8)
    pairs: dict[str, Any] = {"kernel_size": (3, 2), "stride": (2, 2), "padding": (1, 1)}
    tensor = torch.from_numpy(x)
    expected = functional.max_pool2d(tensor, **pairs, dilation=(2, 1))
    agree(run("MaxPool2d", x, **pairs, dilation=(2, 1), ceil_mode=False), expected)
    for included in (False, True):
        options: dict[str, Any] = {"count_include_pad": included, "ceil_mode": False}
        expected = functional.avg_pool2d(tensor, **pairs, **options)
        agree(run("AvgPool2d", x, **pairs, **options), expected)
    expected = functional.adaptive_avg_pool2d(tensor, (4, 5))
    agree(run("AdaptiveAvgPool2d", x, output_size=(4, 5)), expected)


@pytest.mark.parametrize("mode", ["Bilinear", "Bicubic"])
@pytest.mark.parametrize("aligned", [False, True])
def test_interpolation_agrees(mode: str, aligned: bool) -> None:
    x = normal(1, 2, 3, 5, 6)
    expected = functional.interpolate(
        torch.from_numpy(x), (8, 4), mode=mode.lower(), align_corners=aligned
    )
    found = run("Interpolate", x, output_size=(8, 4), mode=mode, align_corners=aligned)
    agree(found, expected)


def test_attention_agrees() -> None:
    query, key, value = normal(1, 2, 3, 5, 4), normal(2, 2, 3, 7, 4), normal(3, 2, 3, 7, 6)
    bias = normal(4, 2, 3, 5, 7)
    expected = functional.scaled_dot_product_attention(
        *(torch.from_numpy(tensor) for tensor in (query, key, value)), torch.from_numpy(bias)
    )
    parameters: dict[str, Any] = {"scale": None, "softcap": None, "is_causal": False}
    tensors: tuple[Any, ...] = (query, key, value, None, bias)
    agree(run("Attention", *tensors, **parameters), expected)


def test_the_ctc_loss_and_its_gradient_agree() -> None:
    logits = torch.from_numpy(normal(1, 9, 3, 5))
    log_probs = torch.log_softmax(logits, -1).requires_grad_()
    targets = np.array([[1, 2, 2], [3, 3, 1], [4, 1, 2]])
    input_lengths, target_lengths = np.array([9, 8, 7]), np.array([3, 2, 0])
    losses = functional.ctc_loss(
        log_probs,
        *(torch.from_numpy(item) for item in (targets, input_lengths, target_lengths)),
        reduction="none",
    )
    losses.sum().backward()
    tensors = (log_probs.detach().numpy(), targets, input_lengths, target_lengths)
    agree(run("CtcLoss", *tensors, blank=0), losses.detach())
    agree(run("CtcLossBackward", *tensors, np.ones(3), blank=0), log_probs.grad)
