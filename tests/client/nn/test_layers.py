"""Layers, norms and losses give what their definitions give, with PyTorch's shapes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional as F
from burn_remote import gradients as G
from support.values import same

RNG = np.random.default_rng(0)


def softmax(a: np.ndarray, axis: int = -1) -> Any:
    powers = np.exp(a - a.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def correlate(
    x: np.ndarray,
    w: np.ndarray,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> np.ndarray:
    """Convolve ``[batch, in, spatial…]`` by the definition, one output element at a time."""
    x = np.pad(x, [(0, 0), (0, 0), *[(p, p) for p in padding]])
    spatial = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(x.shape[2:], w.shape[2:], stride, dilation, strict=True)
    ]
    out = np.zeros((x.shape[0], w.shape[0], *spatial))
    share, width = w.shape[0] // groups, w.shape[1]
    for place in np.ndindex(*spatial):
        window = tuple(
            slice(p * s, p * s + d * (k - 1) + 1, d)
            for p, s, d, k in zip(place, stride, dilation, w.shape[2:], strict=True)
        )
        for channel in range(w.shape[0]):
            first = (channel // share) * width
            part = x[(slice(None), slice(first, first + width), *window)]
            out[(slice(None), channel, *place)] = (part * w[channel]).reshape(len(x), -1).sum(1)
    return out


CONVOLUTIONS = [
    (F.conv1d, (2, 4, 9), (6, 2, 3), {"stride": 2, "padding": 1, "dilation": 1, "groups": 2}),
    (F.conv2d, (1, 2, 6, 7), (3, 2, 3, 2), {"stride": (1, 2), "padding": (1, 0), "dilation": 1}),
    (F.conv2d, (1, 2, 7, 7), (3, 2, 3, 3), {"dilation": 2}),
    (F.conv3d, (1, 2, 4, 5, 4), (2, 2, 2, 3, 2), {"padding": 1}),
]


@pytest.mark.parametrize("function, shape, kernel, options", CONVOLUTIONS)
def test_convolutions(
    device: br.Device, function: Any, shape: Any, kernel: Any, options: dict[str, Any]
) -> None:
    a, w, b = RNG.random(shape), RNG.random(kernel), RNG.random(kernel[0])
    spatial = len(shape) - 2

    def each(name: str, default: int) -> tuple[int, ...]:
        value = options.get(name, default)
        return value if isinstance(value, tuple) else (value,) * spatial

    groups = options.get("groups", 1)
    expected = correlate(
        a, w, each("stride", 1), each("padding", 0), each("dilation", 1), groups
    ) + b.reshape(-1, *(1,) * spatial)
    x, weight, bias = (br.tensor(one, device=device) for one in (a, w, b))
    same(function(x, weight, bias, **options), expected, 1e-12)
    same(function(x[0], weight, bias, **options), expected[0], 1e-12)


@pytest.mark.parametrize("size", [2, 3])
def test_same_padding_keeps_the_size(device: br.Device, size: int) -> None:
    a, w = RNG.random((1, 2, 6)), RNG.random((3, 2, size))
    x, weight = br.tensor(a, device=device), br.tensor(w, device=device)
    left = (size - 1) // 2
    padded = np.pad(a, ((0, 0), (0, 0), (left, size - 1 - left)))
    same(F.conv1d(x, weight, padding="same"), correlate(padded, w, (1,), (0,), (1,), 1), 1e-12)
    same(F.conv1d(x, weight, padding="valid"), correlate(a, w, (1,), (0,), (1,), 1), 1e-12)
    with pytest.raises(br.UsageError, match="same"):
        F.conv1d(x, weight, padding="same", stride=2)


@pytest.mark.parametrize("stride, padding, extra", [(1, 0, 0), (2, 1, 1)])
def test_transposed_convolutions_are_gradients(
    device: br.Device, stride: int, padding: int, extra: int
) -> None:
    a, w = RNG.random((1, 3, 4, 4)), RNG.random((3, 2, 3, 3))
    x, weight = br.tensor(a, device=device), br.tensor(w, device=device)
    spread = F.conv_transpose2d(x, weight, None, stride, padding, extra)
    like = br.zeros(spread.shape, dtype=br.float64, device=device)
    same(spread, G.conv_x_backward(like, weight, x, stride, padding).numpy(), 1e-12)


def test_linear_layers_and_embeddings(device: br.Device) -> None:
    a, w, b = RNG.random((2, 5, 3)), RNG.random((4, 3)), RNG.random(4)
    x, weight, bias = (br.tensor(one, device=device) for one in (a, w, b))
    same(F.linear(x, weight, bias), a @ w.T + b, 1e-12)
    same(F.linear(x, weight), a @ w.T, 1e-12)
    for places in (
        np.array([[0, 3], [2, 2]]),
        np.array([1]),
        np.array(2),
        np.zeros((2, 1, 3), int),
    ):
        same(F.embedding(br.tensor(places, device=device), weight), w[places])
    same(
        F.one_hot(br.tensor([[0, 2], [1, 1]], device=device), 3),
        np.eye(3, dtype=int)[[[0, 2], [1, 1]]],
    )
    with pytest.raises(br.UsageError, match="num_classes"):
        F.one_hot(br.tensor([0], device=device), -1)


def test_attention(device: br.Device) -> None:
    q, k, v = RNG.random((2, 3, 4, 8)), RNG.random((2, 3, 5, 8)), RNG.random((2, 3, 5, 6))
    query, key, value = (br.tensor(one, device=device) for one in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(8)
    attend = F.scaled_dot_product_attention
    same(attend(query, key, value), softmax(scores) @ v, 1e-12)
    seen = RNG.random((4, 5)) < 0.7
    seen[:, 0] = True
    masked = np.where(seen, scores, -np.inf)
    mask = br.tensor(seen, device=device)
    same(attend(query, key, value, mask), softmax(masked) @ v, 1e-12)
    same(attend(query[0], key[0], value[0], mask), softmax(masked[0]) @ v[0], 1e-12)
    bias = RNG.random((4, 5))
    added = attend(query, key, value, br.tensor(bias, device=device), scale=0.5)
    same(added, softmax(q @ k.swapaxes(-1, -2) / 2 + bias) @ v, 1e-12)
    square = attend(query, key[:, :, :4], value[:, :, :4], is_causal=True)
    causal = np.where(np.tri(4, dtype=bool), scores[..., :4], -np.inf)
    same(square, softmax(causal) @ v[:, :, :4], 1e-12)
    with pytest.raises(br.UsageError, match="dropout"):
        attend(query, key, value, dropout_p=0.1)


def test_pools(device: br.Device) -> None:
    a = RNG.random((1, 2, 6, 6))
    x = br.tensor(a, device=device)
    blocks = a.reshape(1, 2, 3, 2, 3, 2)
    same(F.avg_pool2d(x, 2), blocks.mean((3, 5)), 1e-12)
    same(F.max_pool2d(x, 2), blocks.max((3, 5)))
    same(F.adaptive_avg_pool2d(x, 3), blocks.mean((3, 5)), 1e-12)
    row = x[:, :, 0]
    pairs = a[:, :, 0].reshape(1, 2, 3, 2)
    same(F.avg_pool1d(row, 2), pairs.mean(3), 1e-12)
    same(F.max_pool1d(row, 2), pairs.max(3))
    same(F.adaptive_avg_pool1d(row, 3), pairs.mean(3), 1e-12)
    values, places = F.max_pool1d_with_indices(row, 2)
    same(values, pairs.max(3))
    same(places, pairs.argmax(3) + np.arange(0, 6, 2))
    values, places = F.max_pool2d_with_indices(x, 2)
    flat = a.reshape(1, 2, 36)
    same(values, np.take_along_axis(flat, places.numpy().reshape(1, 2, 9), 2).reshape(1, 2, 3, 3))


def test_sampling(device: br.Device) -> None:
    a = RNG.random((1, 2, 3, 4))
    x = br.tensor(a, device=device)
    same(F.interpolate(x, scale_factor=2), a.repeat(2, 2).repeat(2, 3))
    same(F.interpolate(x, size=(3, 4), mode="bilinear"), a, 1e-12)
    same(F.interpolate(x[:, :, 0], size=8), a[:, :, 0].repeat(2, 2))
    rows, columns = np.meshgrid(np.linspace(-1, 1, 3), np.linspace(-1, 1, 4), indexing="ij")
    grid = br.tensor(np.stack([columns, rows], -1)[None], device=device)
    same(F.grid_sample(x, grid, align_corners=True), a, 1e-12)
    real, imaginary = F.rfft(x)
    same(real, np.fft.rfft(a).real, 1e-12)
    same(imaginary, np.fft.rfft(a).imag, 1e-12)
    same(F.irfft(real, imaginary), a, 1e-12)
    with pytest.raises(br.UsageError, match="exactly one of size and scale_factor"):
        F.interpolate(x)


def test_norms(device: br.Device) -> None:
    a, w, b = RNG.random((4, 6, 5)), RNG.random(6), RNG.random(6)
    x, weight, bias = (br.tensor(one, device=device) for one in (a, w, b))

    def standard(one: np.ndarray, axis: Any) -> Any:
        spread = one.var(axis, keepdims=True)
        return (one - one.mean(axis, keepdims=True)) / np.sqrt(spread + 1e-5)

    same(F.layer_norm(x, (6, 5)), standard(a, (1, 2)), 1e-12)
    same(F.layer_norm(x.mT, (6,), weight, bias), standard(a.swapaxes(1, 2), 2) * w + b, 1e-12)
    groups = standard(a.reshape(4, 3, 10), 2).reshape(a.shape) * w[:, None] + b[:, None]
    same(F.group_norm(x, 3, weight, bias), groups, 1e-12)
    same(F.instance_norm(x), standard(a, 2), 1e-12)
    same(F.batch_norm(x, None, None, training=True), standard(a, (0, 2)), 1e-12)
    running = (a - b[:, None]) / np.sqrt(w[:, None] + 1e-5)
    same(F.batch_norm(x, bias, weight), running, 1e-12)
    same(F.rms_norm(x, (5,)), a / np.sqrt((a**2).mean(-1, keepdims=True) + 1e-5), 1e-12)
    same(F.normalize(x), a / np.linalg.norm(a, axis=1, keepdims=True), 1e-12)
    same(F.normalize(x, p=3), a / (a**3).sum(1, keepdims=True) ** (1 / 3), 1e-12)
    cosine = (a[0] * a[1]).sum(1) / np.linalg.norm(a[0], axis=1) / np.linalg.norm(a[1], axis=1)
    same(F.cosine_similarity(x[0], x[1]), cosine, 1e-12)


def test_losses_of_numbers(device: br.Device) -> None:
    a, t = RNG.normal(size=(3, 4)) * 2, RNG.random((3, 4))
    x, y = br.tensor(a, device=device), br.tensor(t, device=device)
    d = np.abs(a - t)
    same(F.mse_loss(x, y), (d**2).mean(), 1e-12)
    same(F.l1_loss(x, y, reduction="sum"), d.sum(), 1e-12)
    same(F.huber_loss(x, y, "none", 0.5), np.where(d < 0.5, d**2 / 2, 0.5 * (d - 0.25)), 1e-12)
    same(F.smooth_l1_loss(x, y, "none"), np.where(d < 1, d**2 / 2, d - 0.5), 1e-12)
    p = 1 / (1 + np.exp(-a))
    expected = -(t * np.log(p) + (1 - t) * np.log(1 - p)).mean()
    same(F.binary_cross_entropy_with_logits(x, y), expected, 1e-12)
    same(F.binary_cross_entropy(x.sigmoid(), y), expected, 1e-12)
    t[0, 0] = 0
    y = br.tensor(t, device=device)
    single = np.where(t == 0, 0, t * (np.log(np.where(t == 0, 1, t)) - a))
    same(F.kl_div(x, y, reduction="batchmean"), single.sum() / 3, 1e-12)
    same(F.kl_div(x, y.clip(min=0.1).log(), "sum", log_target=True),
         (np.clip(t, 0.1, None) * (np.log(np.clip(t, 0.1, None)) - a)).sum(), 1e-12)  # fmt: skip
    with pytest.raises(br.UsageError, match="reduction"):
        F.mse_loss(x, y, reduction="median")


def test_losses_of_classes(device: br.Device) -> None:
    a, w = RNG.normal(size=(5, 4, 2)), RNG.random(4)
    labels = RNG.integers(0, 4, (5, 2))
    x, weight, y = (br.tensor(one, device=device) for one in (a, w, labels))
    logs = np.log(softmax(a, 1))
    picked = -np.take_along_axis(logs, labels[:, None], 1)[:, 0]
    same(F.cross_entropy(x, y), picked.mean(), 1e-12)
    same(F.cross_entropy(x, y, reduction="none"), picked, 1e-12)
    same(F.cross_entropy(x, y, weight), (picked * w[labels]).sum() / w[labels].sum(), 1e-12)
    counts = labels != 2
    same(F.cross_entropy(x, y, ignore_index=2), picked[counts].mean(), 1e-12)
    marked = br.tensor(np.where(counts, labels, -100), device=device)
    same(F.cross_entropy(x, marked, ignore_index=-100), picked[counts].mean(), 1e-12)
    same(F.cross_entropy(x, y.astype(br.uint8), ignore_index=-100), picked.mean(), 1e-12)
    with pytest.raises(br.OperationFailed, match="index -100 is not in"):
        F.cross_entropy(x, marked).numpy()
    shares = w[labels] * counts
    same(F.cross_entropy(x, y, weight, 2), (picked * shares).sum() / shares.sum(), 1e-12)
    same(F.nll_loss(F.log_softmax(x, dim=1), y, reduction="sum"), picked.sum(), 1e-12)
    smooth = 0.9 * picked.mean() - 0.1 * logs.mean(1).mean()
    same(F.cross_entropy(x, y, label_smoothing=0.1), smooth, 1e-12)
    hot = np.moveaxis(np.eye(4)[labels], -1, 1)
    soft = br.tensor(hot, device=device)
    same(F.cross_entropy(x, soft, label_smoothing=0.1), smooth, 1e-12)
    same(F.cross_entropy(x, soft, weight, reduction="none"), picked * w[labels], 1e-12)
    one = F.cross_entropy(x[0, :, 0], y[0, 0])
    same(one, picked[0, 0], 1e-12)
    with pytest.raises(br.ShapeMismatch, match="targets"):
        F.nll_loss(x, y[:, 0])


def test_the_ctc_loss_of_a_path_that_is_the_only_one(device: br.Device) -> None:
    probabilities = softmax(RNG.normal(size=(2, 1, 3)))
    x = br.tensor(np.log(probabilities), device=device)
    targets = br.tensor([[1, 2]], device=device)
    expected = -np.log(probabilities[0, 0, 1] * probabilities[1, 0, 2])
    same(F.ctc_loss(x, targets, [2], [2], reduction="none"), np.array([expected]), 1e-12)
    same(F.ctc_loss(x, targets, [2], [2]), expected / 2, 1e-12)
    same(F.ctc_loss(x, targets, [1], [2], reduction="sum", zero_infinity=True), 0.0)


def test_gradients_of_layers(device: br.Device) -> None:
    a, w, g = RNG.random((2, 5, 3)), RNG.random((3, 4)), RNG.random((2, 5, 4))
    x, weight, grad = (br.tensor(one, device=device) for one in (a, w, g))
    same(G.linear_x_backward(weight, grad), g @ w.T, 1e-12)
    same(G.linear_weight_backward(x, grad), np.einsum("bni,bno->io", a, g), 1e-12)
    same(G.linear_bias_backward(grad), g.sum((0, 1)), 1e-12)
    places = np.array([[0, 2], [2, 2]])
    rows = RNG.random((2, 2, 4))
    expected = np.zeros((3, 4))
    np.add.at(expected, places, rows)
    indices, row_grad = br.tensor(places, device=device), br.tensor(rows, device=device)
    same(G.embedding_backward(weight, row_grad, indices), expected, 1e-12)
