"""NumPy's functions on tensors: computed on the device as NumPy does, or refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote.functions import iteration
from burn_remote.functions.iteration import RoundTripWarning

NAN, INFINITY = np.float32("nan"), np.float32("inf")

COMPUTED: dict[str, Callable[[Any], Any]] = {
    "absolute": lambda x: np.absolute(-x),
    "all": lambda x: np.all(x > 0),
    "angle": lambda x: np.angle(x - 3, deg=True),
    "atleast_1d": lambda x: np.atleast_1d(np.sum(x)),
    "atleast_2d": lambda x: np.atleast_2d(x[0]),
    "atleast_3d": lambda x: np.atleast_3d(x),
    "atleast_3d of a vector": lambda x: np.atleast_3d(x[0]),
    "average": lambda x: np.average(x, axis=0),
    "average with weights": lambda x: np.average(x, axis=1, weights=x + 1),
    "average with an array of weights": lambda x: np.average(x[0], weights=np.arange(3)),
    "average with a list of weights": lambda x: np.average(x[0], weights=[1, 2, 4]),
    "average of an array": lambda x: np.average(np.arange(3), weights=x[0]),
    "average along an axis": lambda x: np.average(x, axis=1, weights=[1, 2, 4]),
    "average and its weights": lambda x: np.average(x, axis=1, weights=[1, 2, 4], returned=True)[1],
    "average and its count": lambda x: np.average(x, axis=0, returned=True)[1],
    "argsort of all": lambda x: np.argsort(-x, axis=None),
    "argsort of a kind": lambda x: np.argsort(-x, kind="stable"),
    "astype": lambda x: np.astype(x, np.int32),
    "degrees": lambda x: np.degrees(x),
    "diff with a number before": lambda x: np.diff(x, prepend=0),
    "diff with an array after": lambda x: np.diff(x, axis=0, append=np.ones((1, 3), np.float32)),
    "divmod": lambda x: np.divmod(x, 2.5)[1],
    "divmod of a number": lambda x: np.divmod(7, x)[0],
    "histogram": lambda x: np.histogram(x, 3, (1, 5))[0],
    "histogram with weights": lambda x: np.histogram(x, bins=[0, 2, 9], weights=x)[0],
    "isin": lambda x: np.isin(x, [2, 3]),
    "isin inverted": lambda x: np.isin(x, [2, 3], False, True),
    "isin an array": lambda x: np.isin([[2.0, 9.0]], x),
    "keepdims by position": lambda x: np.max(x, 0, None, True),
    "singular values": lambda x: np.linalg.svd(x, compute_uv=False),
    "sort of all": lambda x: np.sort(-x, axis=None),
    "sort of a kind": lambda x: np.sort(-x, 0, "mergesort"),
    "take_along_axis": lambda x: np.take_along_axis(x, np.argsort(-x, 1), 1),
    "tril below": lambda x: np.tril(x, -1),
    "triu above": lambda x: np.triu(x, 1),
    "imag": lambda x: np.imag(x),
    "nan_to_num": lambda x: np.nan_to_num(np.where(x > 2, NAN, x), nan=7.0, copy=True),
    "nan_to_num of infinities": lambda x: np.nan_to_num(np.where(x > 2, -INFINITY, INFINITY + x)),
    "nan_to_num of complex numbers": lambda x: np.nan_to_num(
        np.where(x > 2, complex(np.nan, 1), complex(1, np.inf) + x).astype("complex64")
    ),
    "pad": lambda x: np.pad(x, 1),
    "pad at the edge": lambda x: np.pad(x, ((0, 1), (2, 0)), mode="edge"),
    "pad with a number": lambda x: np.pad(x, (1, 2), constant_values=3),
    "ptp": lambda x: np.ptp(x, axis=1),
    "radians": lambda x: np.radians(x),
    "real": lambda x: np.real(x),
    "rint": lambda x: np.rint(x / 2),
    "where with an array": lambda x: np.where(np.array([True, False, True]), x, 0),
    "arctan2": lambda x: np.arctan2(x, x + 1),
    "argmax": lambda x: np.argmax(x, axis=0),
    "array_split": lambda x: np.array_split(x, 2, axis=1)[0],
    "column_stack": lambda x: np.column_stack([x, x]),
    "corrcoef": lambda x: np.corrcoef(x),
    "cov": lambda x: np.cov(x, ddof=0),
    "cov of two": lambda x: np.cov(x[0], x[1]),
    "dstack": lambda x: np.dstack([x, x]),
    "flipud": lambda x: np.flipud(x),
    "hsplit": lambda x: np.hsplit(x, 3)[1],
    "interp": lambda x: np.interp(x, [0, 3, 9], [1, 2, 0]),
    "isclose": lambda x: np.isclose(x, x + 1e-3, atol=1e-2),
    "polyval": lambda x: np.polyval([1, 2, 3], x),
    "rot90": lambda x: np.rot90(x),
    "broadcast_to": lambda x: np.broadcast_to(x, (2, 2, 3)),
    "clip": lambda x: np.clip(x, 2, 3),
    "concatenate": lambda x: np.concatenate((x, x), axis=1),
    "cumsum": lambda x: np.cumsum(x),
    "cumsum along an axis": lambda x: np.cumsum(x, axis=1),
    "diff": lambda x: np.diff(x, 1, 0),
    "dot": lambda x: np.dot(x, x.T),
    "dot of more axes": lambda x: np.dot(x.reshape(1, 2, 3), x[0]),
    "dot with a number of axes": lambda x: np.dot(x, np.stack([x.T, x.T])),
    "einsum": lambda x: np.einsum("ij,kj->ik", x, x),
    "exp": lambda x: np.exp(x),
    "full_like": lambda x: np.full_like(x, 2),
    "hstack": lambda x: np.hstack([x, x]),
    "hstack of vectors": lambda x: np.hstack([x[0], x[1]]),
    "invert": lambda x: np.invert(x > 2),
    "less": lambda x: np.less(x, 2),
    "linalg.inv": lambda x: np.linalg.inv(x @ x.T + 1),
    "linalg.lstsq with a default": lambda x: np.linalg.lstsq(x.T, x.T, rcond=None)[0],
    "linalg.pinv with a default": lambda x: np.linalg.pinv(x, hermitian=False),
    "einsum with an order": lambda x: np.einsum("ij,kj->ik", x, x, optimize=True),
    "meshgrid with a default": lambda x: np.meshgrid(x[0], x[1], sparse=False)[0],
    "linalg.norm": lambda x: np.linalg.norm(x, axis=1),
    "linalg.svd": lambda x: np.linalg.svd(x, full_matrices=False)[1],
    "matmul": lambda x: np.matmul(x, x.T),
    "max": lambda x: np.max(x, axis=1, keepdims=True),
    "mean": lambda x: np.mean(x, 0),
    "outer": lambda x: np.outer(x, x),
    "power": lambda x: np.power(x, 2),
    "repeat": lambda x: np.repeat(x, 2, 1),
    "reshape": lambda x: np.reshape(x, (3, 2)),
    "round": lambda x: np.round(x),
    "scalar": lambda x: np.float32(2) * x,
    "iscomplexobj": lambda x: np.zeros(2) if np.iscomplexobj(x) else np.ones(3),
    "isrealobj": lambda x: np.zeros(2) if np.isrealobj(x) else np.ones(3),
    "scalar compared": lambda x: np.float32(2.5) < x,
    "scalar compared, float64": lambda x: np.float64(2.0) == x,
    "scalar compared, integer": lambda x: np.int8(2) >= x,
    "shape": lambda x: np.zeros(np.shape(x)),
    "sort": lambda x: np.sort(x, axis=0),
    "split": lambda x: np.split(x, 3, axis=1)[0],
    "squeeze": lambda x: np.squeeze(x[None]),
    "std": lambda x: np.std(x, ddof=1),
    "sum": lambda x: np.sum(x, axis=1, keepdims=True),
    "take": lambda x: np.take(x, [0, 1], axis=1),
    "tensordot": lambda x: np.tensordot(x, x, 2),
    "transpose": lambda x: np.transpose(x),
    "vstack": lambda x: np.vstack([x[0], x[1]]),
    "where": lambda x: np.where(x > 2, x, 0),
    "zeros_like": lambda x: np.zeros_like(x),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_numpys_functions_compute_on_the_device(device: br.LocalDevice, name: str) -> None:
    array = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    x = br.tensor(array, device=device)
    requests = device.traffic.requests
    result = COMPUTED[name](x)
    assert device.traffic.requests == requests
    expected = COMPUTED[name](array)
    assert np.shape(result) == np.shape(expected)
    np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("compute", [np.argwhere, np.flatnonzero])
def test_places_of_elements_are_those_of_numpy(
    compute: Callable[[Any], Any], device: br.LocalDevice
) -> None:
    array = np.array([[0, 1, 2], [3, 0, 0]])
    np.testing.assert_array_equal(
        np.asarray(compute(br.tensor(array, device=device))), compute(array)
    )


def test_padding_that_is_not_computed_is_refused_with_what_is(device: br.LocalDevice) -> None:
    x = br.zeros((3,), device=device)
    with pytest.raises(TypeError, match="'edge', 'reflect' or 'wrap'"):
        np.pad(x, 1, mode="maximum")
    for compute in (np.pad, lambda given, width: np.pad(given.numpy(), width)):
        with pytest.raises(ValueError, match="can't contain negative values"):
            compute(x, (1, -1))
    with pytest.raises(TypeError, match="weights of the same shape"):
        np.average(br.zeros((2, 3), device=device), axis=0, weights=x)


REFUSED: dict[str, tuple[Callable[[br.Tensor], object], str]] = {
    "no function here": (
        lambda x: np.lexsort(x),
        r"numpy\.lexsort .*; pass x\.numpy\(\) to it",
    ),
    "another name": (
        lambda x: np.convolve(x, x),
        r"write burn_remote\.functional\.conv1d\(x\[",
    ),
    "a reduction of a ufunc": (lambda x: np.add.reduce(x), r"numpy\.add\.reduce is not computed"),
    "an output": (lambda x: np.add(x, x, out=np.zeros(2)), "out= is not computed on the device"),
    "a ufunc without a row": (lambda x: np.spacing(x), r"numpy\.spacing is not computed"),
    "a keyword": (
        lambda x: np.quantile(x, 0.5, method="nearest"),
        r"numpy\.quantile with method= is not computed on the device; omit method=, or pass x\.num",
    ),
    "a keyword of a function in another form": (
        lambda x: np.unique(x, axis=0),
        r"numpy\.unique with axis= is not computed on the device",
    ),
    "a keyword of a ufunc": (
        lambda x: np.exp(x, dtype=np.float64),
        r"numpy\.exp with dtype= is not computed on the device",
    ),
    "a large array compared": (
        lambda x: np.ones((8193, 2), np.float32) < x,
        r"burn_remote\.tensor\(array, device=x\.device",
    ),
    "a large array": (
        lambda x: np.ones((4097, 2)) * x,
        r"array of 65,552 bytes .* up to 65,536.*burn_remote\.tensor\(array, device=x\.device\)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_functions_of_numpy_are_refused(device: br.LocalDevice, name: str) -> None:
    call, text = REFUSED[name]
    x = br.zeros((2,), device=device)
    requests = device.traffic.requests
    with pytest.raises(TypeError, match=text):
        call(x)
    assert device.traffic.requests == requests


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, y: x + y, lambda x, y: y - x, lambda x, y: x * y, lambda x, y: y / x,
        lambda x, y: x // y, lambda x, y: y % x, lambda x, y: abs(x) ** y, lambda x, y: y**2 + x,
        lambda x, y: x @ y.T, lambda x, y: y.T @ x, lambda x, y: x == y, lambda x, y: y != x,
        lambda x, y: x < y, lambda x, y: y >= x, lambda x, y: (x > 0) & (y > 0),
        lambda x, y: (y > 0) | (x > 1), lambda x, y: np.maximum(x, y), lambda x, y: np.hypot(y, x),
        lambda x, y: np.where(x > 2, x, y), lambda x, y: np.logical_xor(y, x > 1),
        lambda x, y: np.arctan2(x, y), lambda x, y: np.array(2.0) * x,
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_a_small_array_is_an_operand(
    compute: Callable[[Any, Any], Any], dtype: Any, device: br.Device
) -> None:
    x = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    y = (np.arange(6).reshape(2, 3) + 1).astype(dtype)
    found = compute(br.tensor(x, device=device), y)
    expected = compute(x, y)
    assert isinstance(found, br.Tensor)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)
    if dtype != "int32":  # integers take the dtype of the floats, as in PyTorch and JAX
        assert found.numpy().dtype == expected.dtype


def test_an_array_may_change_after_it_was_an_operand(device: br.Device) -> None:
    array = np.ones(3, np.float32)
    total = br.zeros(3, device=device) + array
    array[:] = 9
    np.testing.assert_array_equal(total.numpy(), [1, 1, 1])


def test_a_compiled_function_refuses_an_array_as_an_operand(device: br.Device) -> None:
    array = np.ones(3, np.float32)
    with pytest.raises(br.UsageError, match=r"uploads a tensor.*pass it as an argument"):
        br.compile(lambda x: x + array)(br.zeros(3, device=device))


def test_comparing_whole_arrays_reads_one_bool(device: br.LocalDevice) -> None:
    x = br.ones((2, 3), device=device)
    requests = device.traffic.requests
    assert np.array_equal(x, x)
    assert not np.array_equal(x, x + 1)
    assert device.traffic.requests - requests == 2
    assert not np.array_equal(x, x[0])


def test_reading_element_after_element_warns_once(
    device: br.LocalDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iteration, "_warned", False)
    x = br.arange(iteration.EXAMINED + 4, device=device)
    with pytest.warns(RoundTripWarning, match=r"int64\[20\] .*x\.tolist\(\)"):
        listed = [int(element) for element in x]
    assert listed == list(range(20))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [int(element) for element in x] == listed


def test_iterating_without_reading_does_not_warn(device: br.LocalDevice) -> None:
    assert len([element + 1 for element in br.arange(40, device=device)]) == 40


@pytest.mark.parametrize("where", [np.array([True, False, True]), np.array([True]), 0])
def test_a_ufunc_with_a_mask_is_refused(device: br.Device, where: Any) -> None:
    with pytest.raises(TypeError, match="where="):
        np.sin(br.ones(3, device=device), where=where)
