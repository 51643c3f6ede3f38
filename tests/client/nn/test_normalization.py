"""Normalization matches its definition, in every precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional as F
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from support.values import same

RNG = np.random.default_rng(0)


def test_normalization_matches_its_definition(device: br.Device) -> None:
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
    same(F.rms_norm(x, (5,), eps=1e-5), a / np.sqrt((a**2).mean(-1, keepdims=True) + 1e-5), 1e-12)
    same(F.normalize(x), a / np.linalg.norm(a, axis=1, keepdims=True), 1e-12)
    same(F.normalize(x, p=3), a / (a**3).sum(1, keepdims=True) ** (1 / 3), 1e-12)
    cosine = (a[0] * a[1]).sum(1) / np.linalg.norm(a[0], axis=1) / np.linalg.norm(a[1], axis=1)
    same(F.cosine_similarity(x[0], x[1]), cosine, 1e-12)


@pytest.mark.parametrize("shape", [(3, 1), (1,), (4,), ()], ids=str)
def test_cosines_of_vectors_that_broadcast_are_those_of_the_broadcast_vectors(
    device: br.Device, shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(8)
    a, b = rng.standard_normal((3, 4)), rng.standard_normal(shape).astype(np.float32)
    x, y = br.tensor(a, device=device), br.tensor(b, device=device)
    full = np.broadcast_to(b.astype(np.float64), a.shape)
    cosine = (a * full).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(full, axis=1)
    for found in (F.cosine_similarity(x, y), F.cosine_similarity(y, x)):
        same(found, cosine, 1e-12)
    target = br.ones((3,), dtype=br.float64, device=device)
    same(F.cosine_embedding_loss(y, x, target, reduction="none"), 1 - cosine, 1e-10)


@pytest.mark.parametrize(
    "normalized",
    [
        lambda x, ones: F.layer_norm(x, (3,)),
        lambda x, ones: F.rms_norm(x, (3,)),
        lambda x, ones: F.group_norm(x, 1),
        lambda x, ones: F.instance_norm(x[:, None]),
        lambda x, ones: F.batch_norm(x, ones, ones),
        lambda x, ones: F.running_statistics(x, ones, ones),
    ],
    ids=["layer_norm", "rms_norm", "group_norm", "instance_norm", "batch_norm", "running"],
)
@pytest.mark.parametrize("dtype", [br.int64, br.bool, br.complex64], ids=str)
def test_normalization_refuses_inputs_that_are_not_floating_point(
    device: br.Device, normalized: Callable[[br.Tensor, br.Tensor], object], dtype: br.DType
) -> None:
    x = br.tensor([[1, 2, 4], [5, 7, 9]], device=device).astype(dtype)
    with pytest.raises(br.DTypeMismatch, match="must be floating-point"):
        normalized(x, br.ones((3,), device=device))


def test_rms_norm_takes_one_size_as_layer_norm_does(device: br.Device) -> None:
    x = br.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)
    same(F.rms_norm(x, 2), F.rms_norm(x, (2,)).numpy(), 0)


def test_running_statistics_of_a_vector_are_refused(device: br.Device) -> None:
    one = br.ones((), device=device)
    with pytest.raises(br.ShapeMismatch, match="no channels"):
        F.running_statistics(br.ones((3,), device=device), one, one)


@pytest.mark.parametrize("dtype", [br.float32, br.bfloat16, br.float16], ids=str)
def test_norms_of_numbers_whose_squares_overflow_float16(
    device: br.Device, dtype: br.DType
) -> None:
    held = array_dtype(dtype)
    rng = np.random.default_rng(3)
    given = (rng.standard_normal((2, 4, 6)) * 8000).astype(held)
    x = br.tensor(given, device=device)
    exact = given.astype(np.float64)
    rtol = 1e-5 if dtype is br.float32 else 2.0**-7

    def check(found: br.Tensor, expected: np.ndarray) -> None:
        assert found.dtype is dtype
        np.testing.assert_allclose(found.numpy().astype(np.float64), expected, rtol, rtol)

    def standard(one: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
        distance = one - one.mean(axis, keepdims=True)
        return np.asarray(distance / one.std(axis, keepdims=True))

    check(F.layer_norm(x, (6,)), standard(exact, 2))
    check(F.layer_norm(x, (6,), x[0, 0], x[0, 1]), standard(exact, 2) * exact[0, 0] + exact[0, 1])
    check(F.rms_norm(x, (6,)), exact / np.sqrt((exact**2).mean(-1, keepdims=True)))
    groups = standard(exact.reshape(2, 2, 12), 2).reshape(exact.shape)
    check(F.group_norm(x, 2), groups)
    check(F.instance_norm(x), standard(exact, 2))
    check(F.batch_norm(x, None, None, training=True), standard(exact, (0, 2)))
    check(F.normalize(x), exact / np.linalg.norm(exact, axis=1, keepdims=True))
    lengths = np.linalg.norm(exact[0], axis=1) * np.linalg.norm(exact[1], axis=1)
    check(F.cosine_similarity(x[0], x[1]), (exact[0] * exact[1]).sum(1) / lengths)
    check(x.std(axis=2), exact.std(2))
    check(br.vector_norm(x, axis=2), np.linalg.norm(exact, axis=2))


def test_running_statistics_have_pytorchs_positions(device: br.Device) -> None:
    a = np.arange(12.0).reshape(2, 3, 2)
    x = br.tensor(a, device=device)
    mean, var, weight, bias = (br.tensor(np.array(v) * 1.0, device=device) for v in
                               ([1, 2, 3], [4, 5, 6], [2, 3, 4], [5, 6, 7]))  # fmt: skip
    expected = (a - [[1], [2], [3]]) / np.sqrt(np.array([[4], [5], [6]]) + 1e-3)
    expected = expected * [[2], [3], [4]] + [[5], [6], [7]]
    found = F.batch_norm(x, mean, var, weight, bias, False, 0.1, 1e-3)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    found = F.instance_norm(x, mean, var, weight, bias, False, 0.1, 1e-3)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_running_statistics_approach_those_of_the_batches(device: br.Device) -> None:
    a, center, spread = RNG.normal(size=(4, 3, 5)) + 2, RNG.normal(size=3), RNG.random(3) + 1
    x, mean, var = (br.tensor(one, device=device) for one in (a, center, spread))
    x.requires_grad_()
    for _ in range(2):
        mean, var = F.running_statistics(x, mean, var, 0.2)
        center = 0.8 * center + 0.2 * a.mean((0, 2))
        spread = 0.8 * spread + 0.2 * a.var((0, 2), ddof=1)
        same(mean, center, 1e-12)
        same(var, spread, 1e-12)
    assert not mean.requires_grad
    half = br.tensor(a.astype(np.float16), device=device)
    with_half, _ = F.running_statistics(half, br.zeros(3, device=device), br.ones(3, device=device))
    assert with_half.dtype == br.float32
    np.testing.assert_allclose(with_half.numpy(), 0.1 * a.mean((0, 2)), rtol=1e-3)


@pytest.mark.parametrize(
    ("dtype", "eps"), [("float64", 2**-52), ("float32", 2**-23), ("float16", 2**-23)]
)
def test_the_default_eps_of_rms_norm_is_the_machine_epsilon(
    device: br.Device, dtype: str, eps: float
) -> None:
    small = np.array([[1e-3, 2e-3]]).astype(dtype).astype(np.float64)
    exact = small / np.sqrt((small**2).mean() + eps)
    found = F.rms_norm(br.tensor(small, dtype=dtype, device=device), (2,))
    same(found.astype(br.float64), exact, 1e-3 if dtype == "float16" else 1e-6)
