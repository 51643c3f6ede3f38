"""Hypothesis strategies for convolutions and poolings, and their definitions as loops."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from support.module_kernels import normal

__all__ = ["Convolution", "Pooling", "convolutions", "convolve", "poolings", "reads", "spread"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Convolution:
    """A random layer: its tensors in f64 and its options."""

    x: Array
    weight: Array
    bias: Array | None
    options: dict[str, Any]

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return self.x.ndim - 2


@st.composite
def convolutions(draw: st.DrawFn, transposed: bool = False) -> Convolution:
    """Draw small layers with one to three spatial axes; every option varies per axis."""
    rank = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 3))
    # Pointwise and depthwise layers have separate code paths.
    channels, filters = draw(st.integers(1, 2)) * groups, draw(st.integers(1, 3)) * groups
    seed = draw(st.integers(0, 2**32))

    def per_axis(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    kernel, stride, dilation = per_axis(1, 3), per_axis(1, 3), per_axis(1, 2)
    options: dict[str, Any] = {"stride": stride, "dilation": dilation, "groups": groups}
    if transposed:
        sizes = per_axis(1, 4)
        reach = [
            (size - 1) * step + gap * (taps - 1) + 1
            for size, step, gap, taps in zip(sizes, stride, dilation, kernel, strict=True)
        ]
        options["padding"] = tuple(draw(st.integers(0, min(2, (n - 1) // 2))) for n in reach)
        options["padding_out"] = per_axis(0, 2)
        weight_shape = (channels, filters // groups, *kernel)
    else:
        options["padding"] = padding = per_axis(0, 2)
        sizes = tuple(
            draw(st.integers(max(1, gap * (taps - 1) + 1 - 2 * pad), 6))
            for gap, taps, pad in zip(dilation, kernel, padding, strict=True)
        )
        weight_shape = (filters, channels // groups, *kernel)
    batch = draw(st.integers(0, 3))
    return Convolution(
        normal(seed, batch, channels, *sizes),
        normal(seed + 1, *weight_shape),
        draw(st.sampled_from([None, normal(seed + 2, filters)])),
        options,
    )


@dataclass(frozen=True, slots=True)
class Pooling:
    """A random pooling of ``x``; ``geometry`` is kernel, stride, padding, dilation, per axis."""

    x: Array
    geometry: tuple[tuple[int, ...], ...]
    ceil_mode: bool

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return self.x.ndim - 2

    @property
    def outputs(self) -> tuple[int, ...]:
        """The number of windows along each axis, as Burn counts them."""
        return tuple(
            (size + 2 * p - d * (k - 1) - 1 + (s - 1 if self.ceil_mode else 0)) // s + 1
            for size, k, s, p, d in zip(self.x.shape[2:], *self.geometry, strict=True)
        )

    def options(self, *, dilated: bool = False) -> dict[str, Any]:
        """Return the parameters of a kernel: numbers for one axis, tuples for two."""
        names = ("kernel_size", "stride", "padding", "dilation")[: 4 if dilated else 3]
        values = self.geometry if self.rank == 2 else [value for (value,) in self.geometry]
        return {**dict(zip(names, values, strict=False)), "ceil_mode": self.ceil_mode}


@st.composite
def poolings(draw: st.DrawFn, dilated: bool = True) -> Pooling:
    """Draw small poolings with one or two spatial axes and many equal elements."""
    rank = draw(st.integers(1, 2))

    def per_axis(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    kernel, stride, padding = per_axis(1, 5), per_axis(1, 4), per_axis(0, 4)
    dilation = per_axis(1, 3 if dilated else 1)
    sizes = tuple(
        draw(st.integers(max(1, d * (k - 1) + 1 - 2 * p), 7 + d * (k - 1)))
        for k, p, d in zip(kernel, padding, dilation, strict=True)
    )
    batch = draw(st.integers(0, 2))
    x = np.round(normal(draw(st.integers(0, 2**32)), batch, 2, *sizes) * 2)
    return Pooling(x, (kernel, stride, padding, dilation), draw(st.booleans()))


def reads(
    sizes: tuple[int, ...],
    outputs: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """Yield each window, kernel element and matching input element, if there is one."""
    for window in np.ndindex(outputs):
        for tap in np.ndindex(kernel):
            place = tuple(
                o * s + k * d - p
                for o, s, k, d, p in zip(window, stride, tap, dilation, padding, strict=True)
            )
            if all(0 <= at < size for at, size in zip(place, sizes, strict=True)):
                yield window, tap, place


def convolve(layer: Convolution) -> Array:
    """Convolve by definition, one product at a time."""
    x, weight, options = layer.x, layer.weight, layer.options
    geometry = (options["stride"], options["padding"], options["dilation"])
    kernel = weight.shape[2:]
    outputs = tuple(
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, k, s, p, d in zip(x.shape[2:], kernel, *geometry, strict=True)
    )
    per_group, filters = weight.shape[1], weight.shape[0] // options["groups"]
    y = np.zeros((x.shape[0], weight.shape[0], *outputs))
    for window, tap, place in reads(x.shape[2:], outputs, kernel, *geometry):
        for o, c in itertools.product(range(weight.shape[0]), range(per_group)):
            channel = o // filters * per_group + c
            out: Any = (slice(None), o, *window)
            source: Any = (slice(None), channel, *place)
            y[out] += weight[(o, c, *tap)] * x[source]
    if layer.bias is not None:
        y += layer.bias.reshape(-1, *(1,) * layer.rank)
    return y


def spread(layer: Convolution) -> Array:
    """Apply a transposed convolution by definition: each element adds the kernel to the output."""
    x, weight, options = layer.x, layer.weight, layer.options
    geometry = (options["stride"], options["padding"], options["dilation"])
    kernel = weight.shape[2:]
    sizes = tuple(
        (size - 1) * s + d * (k - 1) + 1 + extra - 2 * p
        for size, k, extra, s, p, d in zip(
            x.shape[2:], kernel, options["padding_out"], *geometry, strict=True
        )
    )
    per_group = x.shape[1] // options["groups"]
    y = np.zeros((x.shape[0], weight.shape[1] * options["groups"], *sizes))
    for element, tap, place in reads(sizes, x.shape[2:], kernel, *geometry):
        for c, f in itertools.product(range(x.shape[1]), range(weight.shape[1])):
            filter_ = c // per_group * weight.shape[1] + f
            out: Any = (slice(None), filter_, *place)
            source: Any = (slice(None), c, *element)
            y[out] += weight[(c, f, *tap)] * x[source]
    if layer.bias is not None:
        y += layer.bias.reshape(-1, *(1,) * layer.rank)
    return y
