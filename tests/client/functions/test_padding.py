"""Padding matches NumPy for every mode, and crops for negative sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import burn_remote as br
from burn_remote.dispatch.operators import MAX_UPLOADED_RANGE
from support.values import same

MODES: dict[str, Any] = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@given(pairs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=2))
@pytest.mark.parametrize("mode", MODES)
def test_modes_match_numpy(device: br.Device, mode: str, pairs: list[tuple[int, int]]) -> None:
    a = np.arange(20, dtype=np.float32).reshape(4, 5)
    flat = [size for pair in pairs for size in pair]
    borders = [(0, 0)] * (2 - len(pairs)) + pairs[::-1]
    same(br.pad(br.tensor(a, device=device), flat, mode=mode), np.pad(a, borders, mode=MODES[mode]))


@pytest.mark.parametrize(("dtype", "value"), [(np.float32, 1.5), (np.int8, -7), (np.bool_, True)])
def test_a_constant_border_has_the_tensors_dtype(device: br.Device, dtype: Any, value: Any) -> None:
    a = np.zeros((2, 3), dtype)
    expected = np.pad(a, ((0, 1), (2, 0)), constant_values=value)
    same(br.pad(br.tensor(a, device=device), (2, 0, 0, 1), value=value), expected)


def test_negative_sizes_crop(device: br.Device) -> None:
    a = np.arange(12).reshape(3, 4)
    same(br.pad(br.tensor(a, device=device), (-1, 2, 0, -2)), np.pad(a[:1, 1:], ((0, 0), (0, 2))))


@pytest.mark.parametrize("mode", ["replicate", "circular"])
def test_a_border_computed_on_the_device_matches_numpy(device: br.Device, mode: str) -> None:
    a = np.arange(5)
    border = (MAX_UPLOADED_RANGE, 3)
    same(
        br.pad(br.tensor(a, device=device), border, mode=mode), np.pad(a, border, mode=MODES[mode])
    )
