"""Kernels and gradients that Burn defines like PyTorch agree with PyTorch.

The reference gradients come from PyTorch's autograd, with random output gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from support.layers import Convolution, Pooling, convolutions, poolings
from support.module_kernels import Array, normal, run, spec_of

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
functional = torch.nn.functional
pytestmark = pytest.mark.oracle
SETTINGS = settings(deadline=None, max_examples=60)


def agree(found: Array, expected: Any, tolerance: float = 1e-9) -> None:
    np.testing.assert_allclose(
        found, expected.detach().numpy(), rtol=tolerance, atol=tolerance, strict=True
    )


def leaf(array: Array) -> Any:
    return torch.from_numpy(array.copy()).requires_grad_()


def differentiated(
    function: Callable[..., Any], *arrays: Array | None, seed: int = 9
) -> tuple[Any, Array, list[Any]]:
    """Return a function's result, a random gradient of it, and the gradients of its tensors."""
    leaves = [None if array is None else leaf(array) for array in arrays]
    result = function(*leaves)
    grad = normal(seed, *result.shape)
    result.backward(torch.from_numpy(grad))
    return result, grad, [None if item is None else item.grad for item in leaves]


@given(convolutions())
@SETTINGS
def test_convolutions_and_their_gradients_agree(layer: Convolution) -> None:
    name, options = f"Conv{layer.rank}d", layer.options
    convolve = getattr(functional, f"conv{layer.rank}d")
    result, grad, (x, weight, bias) = differentiated(
        lambda *tensors: convolve(*tensors, **options), layer.x, layer.weight, layer.bias
    )
    tensors = (layer.x, layer.weight)
    agree(run(name, *tensors, layer.bias, **options), result)
    agree(run(f"{name}XBackward", *tensors, grad, **options), x)
    agree(run(f"{name}WeightBackward", *tensors, grad, **options), weight)
    if layer.bias is not None:
        agree(run(f"{name}BiasBackward", layer.x, layer.bias, grad), bias)


@given(convolutions(transposed=True))
@SETTINGS
def test_transposed_convolutions_agree(layer: Convolution) -> None:
    options = dict(layer.options)
    extra = options["padding_out"]
    sides = zip(extra, options["stride"], options["dilation"], strict=True)
    # PyTorch refuses paddings that Burn accepts.
    assume(all(added < max(stride, dilation) for added, stride, dilation in sides))
    found = run(f"ConvTranspose{layer.rank}d", layer.x, layer.weight, layer.bias, **options)
    options["output_padding"] = options.pop("padding_out")
    tensors = (layer.x, layer.weight, layer.bias)
    spread = getattr(functional, f"conv_transpose{layer.rank}d")
    arguments = [None if array is None else torch.from_numpy(array) for array in tensors]
    agree(found, spread(*arguments, **options))


@pytest.mark.parametrize("groups", [(1, 1), (2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("geometry", [(1, 0, 1), (2, 1, 1), (1, 2, 2), (2, 2, 2)])
def test_deformable_convolutions_and_their_gradients_agree(
    groups: tuple[int, int], masked: bool, geometry: tuple[int, int, int]
) -> None:
    operations = pytest.importorskip("torchvision.ops", reason="in the dependency group oracle")
    stride, padding, dilation = geometry
    sizes = [(size + 2 * padding - 2 * dilation - 1) // stride + 1 for size in (7, 6)]
    taps = 9 * groups[1]
    x, weight = normal(1, 2, 4, 7, 6), normal(2, 4, 4 // groups[0], 3, 3)
    # Not integers, where the gradient is not defined.
    offset = normal(3, 2, 2 * taps, *sizes)
    mask, bias = normal(4, 2, taps, *sizes) if masked else None, normal(5, 4)

    def convolve(x: Any, offset: Any, weight: Any, mask: Any, bias: Any) -> Any:
        return operations.deform_conv2d(x, offset, weight, bias, stride, padding, dilation, mask)

    tensors = (x, offset, weight, mask, bias)
    result, grad, gradients = differentiated(convolve, *tensors)
    options: dict[str, Any] = {"stride": (stride,) * 2, "padding": (padding,) * 2}
    options |= {"dilation": (dilation,) * 2}
    options |= {"weight_groups": groups[0], "offset_groups": groups[1]}
    agree(run("DeformableConv2d", *tensors, **options), result)
    found = run("DeformableConv2dBackward", *tensors, grad, **options)
    for gradient, expected in zip(found, gradients, strict=True):
        assert (gradient is None) == (expected is None)
        if gradient is not None:
            agree(gradient, expected)


def comparable(layer: Pooling) -> bool:
    """Whether PyTorch accepts a pooling and has the same windows as Burn."""
    kernel, stride, padding, _ = layer.geometry
    limited = all(2 * pad <= taps for pad, taps in zip(padding, kernel, strict=True))
    # In ceil mode PyTorch drops a last window that starts past the input.
    starts = zip(layer.outputs, stride, padding, layer.x.shape[2:], strict=True)
    return limited and all((o - 1) * s < size + p for o, s, p, size in starts)


@given(poolings())
@SETTINGS
def test_maxima_their_indices_and_gradients_agree(layer: Pooling) -> None:
    assume(comparable(layer))
    name, options = f"MaxPool{layer.rank}d", layer.options(dilated=True)
    pool = getattr(functional, f"max_pool{layer.rank}d")
    x = leaf(layer.x)
    expected, places = pool(x, **options, return_indices=True)
    # For a window of padding only, PyTorch's index is outside the input, and Burn's is -1.
    assume(bool(torch.isfinite(expected).all()))
    agree(run(name, layer.x, **options), expected)
    requested = (spec_of(places.numpy().astype(np.float64)), spec_of(places.numpy()))
    found, indices = run(f"{name}WithIndices", layer.x, **options, requested=requested)
    agree(found, expected)
    np.testing.assert_array_equal(indices, places.numpy())
    grad = normal(3, *expected.shape)
    expected.backward(torch.from_numpy(grad))
    back = run(f"{name}WithIndicesBackward", layer.x, grad, indices, **options)
    agree(back, x.grad)


@given(poolings(dilated=False), st.booleans())
@SETTINGS
def test_means_of_windows_and_their_gradients_agree(layer: Pooling, included: bool) -> None:
    assume(comparable(layer))
    name = f"AvgPool{layer.rank}d"
    options = layer.options() | {"count_include_pad": included}
    pool = getattr(functional, f"avg_pool{layer.rank}d")
    result, grad, (x,) = differentiated(lambda x: pool(x, **options), layer.x)
    agree(run(name, layer.x, **options), result)
    agree(run(f"{name}Backward", layer.x, grad, **options), x)


@given(st.lists(st.tuples(st.integers(1, 7), st.integers(1, 9)), min_size=1, max_size=2))
@SETTINGS
def test_adaptive_means_and_their_gradients_agree(axes: list[tuple[int, int]]) -> None:
    rank = len(axes)
    x, outputs = normal(1, 2, 3, *(size for size, _ in axes)), tuple(n for _, n in axes)
    pool = getattr(functional, f"adaptive_avg_pool{rank}d")
    result, grad, (gradient,) = differentiated(lambda x: pool(x, outputs), x)
    name = f"AdaptiveAvgPool{rank}d"
    agree(run(name, x, output_size=outputs if rank == 2 else outputs[0]), result)
    agree(run(f"{name}Backward", x, grad), gradient)


@given(
    st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 9), st.integers(1, 9)),
    st.sampled_from([("Nearest", None), ("Bilinear", False), ("Bilinear", True)]),
)
@SETTINGS
def test_resized_images_and_their_gradients_agree(
    sizes: tuple[int, int, int, int], mode: tuple[str, bool | None]
) -> None:
    check_resized(normal(1, 2, 3, *sizes[:2]), sizes[2:], *mode)


@given(
    st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 9), st.integers(1, 9)),
    st.booleans(),
)
@SETTINGS
def test_bicubic_images_and_their_gradients_agree(
    sizes: tuple[int, int, int, int], aligned: bool
) -> None:
    check_resized(normal(1, 2, 3, *sizes[:2]), sizes[2:], "Bicubic", aligned)


def check_resized(x: Array, outputs: tuple[int, ...], mode: str, aligned: bool | None) -> None:
    def resize(x: Any) -> Any:
        return functional.interpolate(x, outputs, mode=mode.lower(), align_corners=aligned)

    result, grad, (gradient,) = differentiated(resize, x)
    options: dict[str, Any] = {"output_size": outputs, "mode": mode, "align_corners": bool(aligned)}
    agree(run("Interpolate", x, **options), result)
    agree(run("InterpolateBackward", x, grad, **options), gradient)


@given(
    st.tuples(*[st.integers(1, 3)] * 2, *[st.integers(1, 7)] * 4),
    st.sampled_from(["none", "mask", "bias", "causal"]),
    st.sampled_from([None, 0.3]),
)
@SETTINGS
def test_attention_agrees(shape: tuple[int, ...], kind: str, scale: float | None) -> None:
    batch, heads, queries, keys, dim, width = shape
    query, key = normal(1, batch, heads, queries, dim), normal(2, batch, heads, keys, dim)
    value, bias = normal(3, batch, heads, keys, width), normal(4, batch, heads, queries, keys)
    hidden = bias > 0.5
    hidden[..., 0] = False  # fully masked queries give NaN in PyTorch, zeros in Burn
    causal = kind == "causal"
    masks = {"mask": torch.from_numpy(~hidden), "bias": torch.from_numpy(bias)}
    expected = functional.scaled_dot_product_attention(
        *(torch.from_numpy(tensor) for tensor in (query, key, value)),
        masks.get(kind),
        is_causal=causal,
        scale=scale,
    )
    if causal:
        assume(queries == keys)  # otherwise Burn lets the last query see all keys
    found = run(
        "Attention",
        *(query, key, value),
        hidden if kind == "mask" else None,
        bias if kind == "bias" else None,
        scale=scale,
        softcap=None,
        is_causal=causal,
    )
    agree(found, expected)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 2, 4)])
def test_embeddings_and_linear_layers_agree_and_so_do_their_gradients(
    shape: tuple[int, ...],
) -> None:
    places = np.random.default_rng(0).integers(0, 5, shape if len(shape) == 2 else (2, *shape[:1]))
    table = normal(1, 5, 4)
    result, grad, (gradient,) = differentiated(
        lambda table: functional.embedding(torch.from_numpy(places), table), table
    )
    agree(run("Embedding", table, places), result)
    agree(run("EmbeddingBackward", table, grad, places), gradient)

    x, weight, bias = normal(2, *shape, 4), normal(3, 4, 6), normal(4, 6)
    result, grad, gradients = differentiated(
        lambda x, weight, bias: functional.linear(x, weight.T, bias), x, weight, bias
    )
    agree(run("Linear", x, weight, bias), result)
    agree(run("LinearXBackward", weight, grad), gradients[0])
    agree(run("LinearWeightBackward", x, grad), gradients[1])
    agree(run("LinearBiasBackward", grad), gradients[2])


@given(st.integers(0, 2**32), st.integers(4, 9), st.integers(1, 4), st.integers(3, 6))
@SETTINGS
def test_the_ctc_loss_and_its_gradient_agree(
    seed: int, steps: int, batch: int, classes: int
) -> None:
    generator = np.random.default_rng(seed)
    logits = torch.from_numpy(normal(seed, steps, batch, classes))
    log_probs = torch.log_softmax(logits, -1).requires_grad_()
    targets = generator.integers(1, classes, (batch, 3))
    input_lengths = generator.integers(1, steps + 1, batch)
    target_lengths = generator.integers(0, 4, batch)
    losses = functional.ctc_loss(
        log_probs,
        *(torch.from_numpy(item) for item in (targets, input_lengths, target_lengths)),
        reduction="none",
        zero_infinity=False,
    )
    tensors = (log_probs.detach().numpy(), targets, input_lengths, target_lengths)
    agree(run("CtcLoss", *tensors, blank=0), losses.detach())
    # PyTorch's gradient of an infinite loss is NaN.
    assume(bool(torch.isfinite(losses).all()))
    grad = normal(seed + 1, batch)
    losses.backward(torch.from_numpy(grad))
    agree(run("CtcLossBackward", *tensors, grad, blank=0), log_probs.grad)


@given(st.integers(1, 12), st.one_of(st.none(), st.integers(1, 14)), st.integers(0, 2))
@SETTINGS
def test_spectra_and_the_signals_of_spectra_agree(length: int, n: int | None, dim: int) -> None:
    shape = [2, 3, 2]
    shape[dim] = length
    signal = normal(1, *shape)
    real, imaginary = run("Rfft", signal, dim=dim, n=n)
    expected = torch.fft.rfft(torch.from_numpy(signal), n=n, dim=dim)
    agree(real, expected.real.contiguous())
    agree(imaginary, expected.imag.contiguous())
    assume(n is not None or length > 1)
    spectrum = torch.complex(torch.from_numpy(signal), torch.from_numpy(normal(2, *shape)))
    found = run("IRfft", signal, normal(2, *shape), dim=dim, n=n)
    agree(found, torch.fft.irfft(spectrum, n=n, dim=dim))
