"""Reshaping, indexing, gathering and creation match NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, basic_indices

import burn_remote as br
from burn_remote import functional as F
from support.values import same


def counted(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


SHAPE = (2, 3, 4)
MOVES: list[tuple[Any, Any]] = [
    (lambda x: x.reshape(4, -1), lambda a: a.reshape(4, -1)),
    (lambda x: x.reshape((6, 4)), lambda a: a.reshape(6, 4)),
    (lambda x: x.flatten(), lambda a: a.ravel()),
    (lambda x: x.T if x.ndim == 2 else x.mT, lambda a: np.swapaxes(a, -1, -2)),
    (lambda x: x.transpose(), lambda a: a.transpose()),
    (lambda x: x.permute_dims((1, 2, 0)), lambda a: a.transpose(1, 2, 0)),
    (lambda x: x.moveaxis(0, -1), lambda a: np.moveaxis(a, 0, -1)),
    (lambda x: x.moveaxis((0, 1), (2, 0)), lambda a: np.moveaxis(a, (0, 1), (2, 0))),
    (lambda x: x.expand_dims((0, -1)), lambda a: np.expand_dims(a, (0, -1))),
    (lambda x: x.expand_dims(1).squeeze(1), lambda a: a),
    (lambda x: x[:1].squeeze(), lambda a: a[0]),
    (lambda x: x.broadcast_to((5, 2, 3, 4)), lambda a: np.broadcast_to(a, (5, 2, 3, 4))),
    (lambda x: x.flip(), lambda a: np.flip(a)),
    (lambda x: x.flip((0, 2)), lambda a: np.flip(a, (0, 2))),
    (lambda x: x.roll(5), lambda a: np.roll(a, 5)),
    (lambda x: x.roll((1, -2), (0, 2)), lambda a: np.roll(a, (1, -2), (0, 2))),
    (lambda x: x.tile((2, 1, 3)), lambda a: np.tile(a, (2, 1, 3))),
    (lambda x: x.tile((2, 1, 1, 2)), lambda a: np.tile(a, (2, 1, 1, 2))),
    (lambda x: x.repeat(3), lambda a: np.repeat(a, 3)),
    (lambda x: x.repeat(2, axis=1), lambda a: np.repeat(a, 2, axis=1)),
    (lambda x: x.repeat([2, 0, 1], axis=1), lambda a: np.repeat(a, [2, 0, 1], axis=1)),
    (lambda x: br.concat([x, x[:, :1]], axis=1), lambda a: np.concatenate([a, a[:, :1]], 1)),
    (lambda x: br.concat([x, x], axis=None), lambda a: np.concatenate([a, a], None)),
    (lambda x: br.stack([x, -x], axis=-1), lambda a: np.stack([a, -a], -1)),
    (lambda x: br.diff(x), lambda a: np.diff(a)),
    (lambda x: br.diff(x, axis=1, n=2), lambda a: np.diff(a, axis=1, n=2)),
    (lambda x: br.diff(x, 2, 0), lambda a: np.diff(a, 2, 0)),
    (lambda x: br.diff(x, n=0), lambda a: a),
    (lambda x: br.diff(x, axis=1, n=3), lambda a: np.diff(a, axis=1, n=3)),
    (lambda x: br.diff(x, axis=0, n=10**9), lambda a: np.diff(a, axis=0, n=99)),
    (lambda x: br.tril(x), lambda a: np.tril(a)),
    (lambda x: br.triu(x, k=1), lambda a: np.triu(a, 1)),
    (lambda x: br.tril(x, k=-1), lambda a: np.tril(a, -1)),
    (
        lambda x: x.unfold(2, 2, 1),
        lambda a: np.lib.stride_tricks.sliding_window_view(a, 2, axis=2),
    ),
    (lambda x: x.split(2, axis=2)[1], lambda a: np.split(a, 2, axis=2)[1]),
    (lambda x: x.split([1, 3], axis=2)[1], lambda a: np.split(a, [1, 3], axis=2)[1]),
    (lambda x: br.unstack(x, axis=1)[2], lambda a: a[:, 2]),
    (lambda x: list(x)[1], lambda a: a[1]),
    (lambda x: F.pad(x, (1, 2)), lambda a: np.pad(a, ((0, 0), (0, 0), (1, 2)))),
    (
        lambda x: F.pad(x, (1, 0, 2, 1), value=7),
        lambda a: np.pad(a, ((0, 0), (2, 1), (1, 0)), constant_values=7),
    ),
    (
        lambda x: F.pad(x, (2, 3), mode="reflect"),
        lambda a: np.pad(a, ((0, 0), (0, 0), (2, 3)), mode="reflect"),
    ),
    (
        lambda x: F.pad(x, (5, 1, 0, 2), mode="replicate"),
        lambda a: np.pad(a, ((0, 0), (0, 2), (5, 1)), mode="edge"),
    ),
    (
        lambda x: F.pad(x, (900, 700), mode="circular"),
        lambda a: np.pad(a, ((0, 0), (0, 0), (900, 700)), mode="wrap"),
    ),
    (
        lambda x: F.pad(x, (0, 0, 900, 700), mode="replicate"),
        lambda a: np.pad(a, ((0, 0), (900, 700), (0, 0)), mode="edge"),
    ),
    (
        lambda x: F.pad(x, (3, 1), mode="circular"),
        lambda a: np.pad(a, ((0, 0), (0, 0), (3, 1)), mode="wrap"),
    ),
    (lambda x: F.pad(x, (-1, -1, 0, 1)), lambda a: np.pad(a[..., 1:3], ((0, 0), (0, 1), (0, 0)))),
]


@pytest.mark.parametrize("move, expected", MOVES)
def test_shape_functions_match_numpy(device: br.Device, move: Any, expected: Any) -> None:
    a = counted(*SHAPE)
    same(move(br.tensor(a, device=device)), expected(a))


@given(data=st.data())
def test_basic_indices_read_and_write_as_in_numpy(device: br.Device, data: st.DataObject) -> None:
    shape = data.draw(array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    index = data.draw(basic_indices(shape, allow_newaxis=True, max_dims=5))
    a = counted(*shape)
    x = br.tensor(a, device=device)
    same(x[index], a[index])
    value = -np.ones_like(a[index])
    expected = a.copy()
    expected[index] = value
    same(x.set(index, br.tensor(value, device=device)), expected)
    same(x.set(index, -1), expected)


INDICES = [
    [0, 2], ([0, -1], [1, 2]), (slice(None), [0, 1]), np.array([[0, 1], [2, 3]]),
    (0, slice(None), [1, 2]), (slice(None), 0, [1, 2]), ([0, 1], slice(None), [1, 2]),
    (slice(1, None), [2, 0], slice(None, None, -1)), (None, [1], ...), (..., [1, 2]),
    (slice(None), [[0], [1]], [0, 1, 2]), np.array(2), ([1, 0], None, 0),
    np.arange(4) % 2 == 0, (slice(None), np.array([True, False, True])),
    (np.eye(4, 3, dtype=bool), slice(1, 3)), (0, [1, 2], slice(None)), ([1], 0, [2]),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=repr)
@pytest.mark.parametrize("on_device", [False, True])
def test_index_arrays_read_and_write_as_in_numpy(
    device: br.Device, index: Any, on_device: bool
) -> None:
    a = counted(4, 3, 5)
    x = br.tensor(a, device=device)
    used = _on(device, index, a.shape) if on_device else index
    same(x[used], a[index])
    value = -counted(*a[index].shape) - 1
    expected = a.copy()
    expected[index] = value
    same(x.set(used, br.tensor(value, device=device)), expected)
    expected[index] = 9
    same(x.set(used, 9), expected)


def _on(device: br.Device, index: Any, shape: tuple[int, ...]) -> Any:
    """Replace the lists in an index by tensors of nonnegative indices."""

    def moved(item: Any, size: int) -> Any:
        if isinstance(item, list) or (isinstance(item, np.ndarray) and item.dtype != np.bool_):
            return br.tensor(np.asarray(item) % size, device=device)
        return item

    if not isinstance(index, tuple):
        return moved(index, shape[0])
    axes = iter(shape)
    return tuple(item if item is None or item is ... else moved(item, next(axes)) for item in index)


@pytest.mark.parametrize(
    "update, ufunc",
    [("add", np.add), ("mul", np.multiply), ("min", np.minimum), ("max", np.maximum)],
)
@pytest.mark.parametrize("index", [[0, 2, 0], ([0, 0, 1], [1, 1, 0]), slice(1, 3), (..., 0)])
def test_updates_combine_old_and_new_elements(
    device: br.Device, update: Any, ufunc: Any, index: Any
) -> None:
    a = counted(4, 3) - 5
    value = counted(*a[index].shape) - 2
    expected = a.copy()
    ufunc.at(expected, index, value)
    x, y = br.tensor(a, device=device), br.tensor(value, device=device)
    same(x.set(index, y, update=update), expected)


def test_masks_write_as_in_numpy(device: br.Device) -> None:
    a = counted(4, 3)
    x = br.tensor(a, device=device)
    mask = a % 2 == 0
    m = br.tensor(mask, device=device)
    same(x.set(m, -1), np.where(mask, np.float32(-1), a))
    same(x.set(m, -x), np.where(mask, -a, a))
    same(x.set(m, 10, update="add"), np.where(mask, a + 10, a))
    rows = br.tensor(np.array([True, False, False, True]), device=device)
    expected = a.copy()
    expected[[0, 3]] = 5
    same(x.set(rows, 5), expected)


def test_gather_and_scatter_match_numpy(device: br.Device) -> None:
    a = counted(3, 4)
    x = br.tensor(a, device=device)
    i = np.array([[0, 2, 1, 1], [1, 1, 0, 2]])
    indices = br.tensor(i, device=device)
    same(x.gather(0, indices), np.take_along_axis(a, i, 0))
    same(x.gather(1, indices[:, :2]), np.take_along_axis(a[:2], i[:, :2], 1))
    same(
        x.take_along_axis(br.tensor(i[:1], device=device), axis=0), np.take_along_axis(a, i[:1], 0)
    )
    same(x.take_along_axis(indices[:, :1].broadcast_to((2, 1)), axis=0), a[i[:, :1], np.arange(4)])
    same(x.take(br.tensor([[2, 0]], device=device), axis=1), a.take([[2, 0]], axis=1))
    value = br.tensor(-counted(2, 4), device=device)
    expected = a.copy()
    np.add.at(expected, (i, np.arange(4)[None]), -counted(2, 4))
    same(x.scatter(0, indices, value, update="add"), expected)
    corners = br.tensor([[0, 0], [2, 3]], device=device)
    same(x.gather_nd(corners), a[[0, 2], [0, 3]])
    expected = a.copy()
    expected[[0, 2], [0, 3]] = 1
    same(x.scatter_nd(corners, br.ones((2,), device=device)), expected)


def test_creation_functions_match_numpy(device: br.Device) -> None:
    same(br.arange(5000, device=device), np.arange(5000))
    same(br.arange(2, 9000, 3, device=device), np.arange(2, 9000, 3))
    same(br.arange(0, 500, 0.1, device=device), (np.arange(5000) * 0.1).astype(np.float32))
    same(br.linspace(-1, 1, 3000, device=device), np.linspace(-1, 1, 3000, dtype=np.float32), 1e-7)
    same(br.linspace(0, 1, 5, endpoint=False, device=device), np.arange(5, dtype=np.float32) / 5)
    same(br.eye(3, 4, k=1, device=device), np.eye(3, 4, 1, dtype=np.float32))
    same(br.eye(2, dtype=br.bool, device=device), np.eye(2, dtype=bool))
    same(br.full((2, 2), True, device=device), np.ones((2, 2), bool))
    grids = br.meshgrid(br.arange(2, device=device), br.arange(3, device=device))
    for grid, expected in zip(grids, np.meshgrid(np.arange(2), np.arange(3)), strict=True):
        same(grid, expected)


def test_random_numbers_have_their_distribution(device: br.Device) -> None:
    device.seed(7)
    count = 20_000
    u = br.random.uniform((count,), low=-1, high=3, device=device).numpy()
    assert -1 <= u.min() < u.max() < 3 and abs(u.mean() - 1) < 0.05
    n = br.random.normal((count,), mean=5, std=2, device=device).numpy()
    assert abs(n.mean() - 5) < 0.1 and abs(n.std() - 2) < 0.1
    c = br.random.bernoulli((count,), 0.3, dtype=br.bool, device=device).numpy()
    assert abs(c.mean() - 0.3) < 0.02
    i = br.random.integers(2, 5, (count,), device=device).numpy()
    assert set(i.tolist()) == {2, 3, 4}
    p = br.random.permutation(100, device=device).numpy()
    assert sorted(p.tolist()) == list(range(100))
    kept = F.dropout(br.ones((count,), device=device), 0.25).numpy()
    assert set(np.unique(kept).tolist()) == {0.0, np.float32(1 / 0.75)}
    assert abs((kept == 0).mean() - 0.25) < 0.02
