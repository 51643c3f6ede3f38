"""Windows follow stride, padding and dilation."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.errors import ShapeMismatch
from burn_remote_server.backends.array.kernels.networks.axis_resampling import KEPT_ELEMENTS
from burn_remote_server.backends.array.kernels.networks.folding import taps_of
from burn_remote_server.backends.array.kernels.networks.windows import KEPT_TAPS, Axis, Windows
from support.module_kernels import run


@st.composite
def axes(draw: st.DrawFn) -> Axis:
    kernel, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    padding, stride = draw(st.integers(0, 5)), draw(st.integers(1, 4))
    least = max(1, dilation * (kernel - 1) + 1 - 2 * padding)
    size = draw(st.integers(least, least + 8))
    ceil_mode = draw(st.booleans())
    (axis,) = Windows.of(
        "Test", (size,), (kernel,), (stride,), (padding,), (dilation,), ceil_mode=ceil_mode
    )
    return axis


def elements_of(axis: Axis, window: int) -> list[tuple[int, int]]:
    """Return (tap, element) of a window, by definition."""
    places = [
        (tap, window * axis.stride + tap * axis.dilation - axis.padding)
        for tap in range(axis.kernel)
    ]
    return [(tap, place) for tap, place in places if 0 <= place < axis.size]


@given(axes(), st.data())
def test_a_tap_maps_windows_to_the_elements_under_it(axis: Axis, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, axis.outputs))
    last = data.draw(st.integers(first, axis.outputs))
    found = set()
    for tap in range(axis.kernel):
        windows, elements = axis.tap(tap, first, last)
        pairs = zip(range(axis.outputs - first)[windows], range(axis.size)[elements], strict=True)
        found |= {(first + window, tap, element) for window, element in pairs}
    assert found == {
        (window, tap, element)
        for window in range(first, last)
        for tap, element in elements_of(axis, window)
    }


@given(axes())
def test_taps_separate_fresh_windows_from_seen_ones(axis: Axis) -> None:
    reached: set[int] = set()
    for tap in taps_of(axis):
        windows = range(axis.outputs)
        assert reached.isdisjoint(windows[tap.fresh[0]])
        assert reached.issuperset(windows[tap.seen[0]])
        reached |= set(windows[tap.fresh[0]])
    assert reached == {window for window in range(axis.outputs) if elements_of(axis, window)}


@given(axes(), st.booleans())
def test_counts_are_those_of_the_taps_inside(axis: Axis, include_padding: bool) -> None:
    margin = axis.padding if include_padding else 0
    expected = [
        sum(
            -margin
            <= window * axis.stride + tap * axis.dilation - axis.padding
            < axis.size + margin
            for tap in range(axis.kernel)
        )
        for window in range(axis.outputs)
    ]
    assert list(axis.counts(include_padding)) == expected


@given(axes())
def test_an_axis_is_inside_when_all_taps_of_all_windows_are(axis: Axis) -> None:
    taps = [len(elements_of(axis, window)) for window in range(axis.outputs)]
    assert axis.inside == (taps == [axis.kernel] * axis.outputs)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"kernel": (3, 8)}, r"kernel_size is \[3, 8\], expected to fit .* \[7, 7\]"),
        ({"kernel": (3, 3), "dilation": (1, 4)}, r".* expected to fit .* dilation \[1, 4\]"),
        ({"kernel": (0, 3)}, r"kernel_size is \[0, 3\], expected values of at least 1"),
        ({"stride": (1, 0)}, r"stride is \[1, 0\], expected values of at least 1"),
        ({"stride": (-1, 1)}, r"stride is \[-1, 1\]"),
        ({"dilation": (0, 1)}, r"dilation is \[0, 1\]"),
        ({"padding": (0, -1)}, r"padding is \[0, -1\], expected values of at least 0"),
    ],
)
def test_invalid_windows_are_refused_by_name(
    changed: dict[str, tuple[int, int]], words: str
) -> None:
    usual: dict[str, Any] = {
        "kernel": (3, 3),
        "stride": (1, 1),
        "padding": (1, 1),
        "dilation": (1, 1),
    }
    with pytest.raises(ShapeMismatch, match=f"Conv2d: {words}"):
        Windows.of("Conv2d", (5, 5), **(usual | changed))


def test_taps_in_the_padding_of_all_windows_are_omitted() -> None:
    axis = Axis(size=3, kernel=10**6, stride=400_000, padding=500_000, dilation=4, outputs=2)
    assert [*axis.reaching(0, 2)] == [25_000, 125_000]
    assert [axis.window(number) for number in range(2)] == [slice(0, 1, 4)] * 2


def test_long_lists_of_taps_and_maps_of_long_axes_are_not_cached() -> None:
    def execute(kernel: int) -> None:
        x, weight = np.ones((1, 1, 2 * KEPT_TAPS)), np.ones((1, 1, kernel))
        options: dict[str, Any] = {"stride": (1,), "padding": (0,), "dilation": (1,)}
        run("Conv1d", x, weight, None, groups=1, **options)
        run("AdaptiveAvgPool1d", np.ones((1, 1, 2 * KEPT_ELEMENTS)), output_size=kernel)

    execute(KEPT_TAPS + 1)  # the first execution imports modules and, on a GPU, compiles kernels
    tracemalloc.start()
    try:
        for kernel in range(KEPT_TAPS + 2, KEPT_TAPS + 22):
            execute(kernel)
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
