"""Factorizations, inverses and determinants: results, failures and refused gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import burn_remote as br

SINGULAR = np.ones((2, 3, 3))


def test_results_have_the_fields_of_the_standard(device: br.Device) -> None:
    x = br.tensor(np.random.default_rng(1).normal(size=(4, 4)), device=device)
    assert br.linalg.svd(x)._fields == ("U", "S", "Vh")
    assert br.linalg.qr(x)._fields == ("Q", "R")
    assert br.linalg.eigh(x)._fields == ("eigenvalues", "eigenvectors")
    assert br.linalg.slogdet(x)._fields == ("sign", "logabsdet")


def test_a_vector_on_the_right_gives_a_vector(device: br.Device) -> None:
    random = np.random.default_rng(2)
    matrices, vector = random.normal(size=(5, 3, 3)), random.normal(size=3)
    found = br.linalg.solve(br.tensor(matrices, device=device), br.tensor(vector, device=device))
    expected = np.linalg.solve(matrices, vector)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, strict=True)


def test_an_equation_may_have_a_complex_and_a_real_matrix(device: br.Device) -> None:
    random = np.random.default_rng(5)
    left, right = random.normal(size=(3, 3)) + 1j, random.normal(size=(3, 2))
    found = br.linalg.solve(br.tensor(left, device=device), br.tensor(right, device=device))
    np.testing.assert_allclose(found.numpy(), np.linalg.solve(left, right), rtol=1e-10)


@pytest.mark.parametrize(
    "function, message",
    [
        (lambda x: br.linalg.inv(x), "LinearAlgebra.Inv.*singular"),
        (lambda x: br.linalg.solve(x, x[0]), "LinearAlgebra.Solve.*singular"),
        (lambda x: br.linalg.cholesky(-x), "LinearAlgebra.Cholesky.*not positive definite"),
        (lambda x: br.linalg.svdvals(x * np.nan), "LinearAlgebra.Svdvals.*does not converge"),
    ],
)
def test_a_matrix_without_a_result_fails_when_it_is_read(
    function: Callable[[Any], Any], message: str
) -> None:
    with br.LocalDevice() as device:
        result = function(br.tensor(SINGULAR, device=device)) + 1
        with pytest.raises(br.OperationFailed, match=message):
            result.numpy()


def test_the_logarithm_of_the_determinant_of_a_singular_matrix_has_no_gradient() -> None:
    with br.LocalDevice() as device:
        x = br.tensor(SINGULAR, device=device).requires_grad_()
        (found,) = br.autograd.grad(br.linalg.slogdet(x).logabsdet.sum(), x)
        assert found is not None
        with pytest.raises(br.OperationFailed, match="singular"):
            found.numpy()


def test_arbitrary_vectors_have_no_gradient(device: br.Device) -> None:
    x = br.tensor(np.random.default_rng(3).normal(size=(4, 3)), device=device).requires_grad_()
    with pytest.raises(br.UsageError, match="use full_matrices=False"):
        br.linalg.svd(x).U.sum().backward()
    with pytest.raises(br.UsageError, match="use mode='reduced'"):
        br.linalg.qr(x, mode="complete").Q.sum().backward()
    # The singular values do not depend on the choice of those vectors.
    br.linalg.svd(x).S.sum().backward()
    u, _, vh = np.linalg.svd(x.detach().numpy(), full_matrices=False)
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), u @ vh, rtol=1e-10)


def test_the_gradients_of_symmetric_matrices_are_symmetric(device: br.Device) -> None:
    factor = np.random.default_rng(4).normal(size=(3, 3))
    functions: list[Callable[[Any], Any]] = [
        br.linalg.cholesky,
        br.linalg.eigvalsh,
        lambda x: br.linalg.eigh(x).eigenvectors,
    ]
    for function in functions:
        x = br.tensor(factor @ factor.T + np.eye(3), device=device).requires_grad_()
        (function(x) ** 2).sum().backward()
        assert x.grad is not None
        np.testing.assert_allclose(x.grad.numpy(), x.grad.numpy().T, atol=1e-12)


def test_the_gradient_of_a_complex_pseudoinverse_is_that_of_the_inverse(device: br.Device) -> None:
    random = np.random.default_rng(6)
    array = random.normal(size=(3, 3)) + 1j * random.normal(size=(3, 3))
    grads = []
    for function in (br.linalg.inv, br.linalg.pinv):
        x = br.tensor(array, device=device).requires_grad_()
        br.abs(function(x)).sum().backward()
        assert x.grad is not None
        grads.append(x.grad.numpy())
    np.testing.assert_allclose(grads[1], grads[0], rtol=1e-8)


def test_equal_eigenvalues_make_the_gradient_of_eigenvectors_visibly_undefined(
    device: br.Device,
) -> None:
    x = br.tensor(np.eye(3), device=device).requires_grad_()
    weights = br.tensor(np.arange(9.0).reshape(3, 3), device=device)
    (br.linalg.eigh(x).eigenvectors * weights).sum().backward()
    assert x.grad is not None
    assert not np.isfinite(x.grad.numpy()).all()


def test_an_unknown_mode_is_refused(device: br.Device) -> None:
    with pytest.raises(br.UsageError, match="'reduced' or 'complete', not 'raw'"):
        br.linalg.qr(br.zeros((3, 3), device=device), mode="raw")  # type: ignore[arg-type]


def test_integers_have_no_inverse(device: br.Device) -> None:
    with pytest.raises(br.DTypeMismatch, match=r"LinearAlgebra\.Inv"):
        br.linalg.inv(br.zeros((3, 3), dtype=br.int32, device=device))


def test_a_factorization_runs_inside_a_compiled_function(device: br.Device) -> None:
    compiled = br.compile(lambda x: br.linalg.svd(x, full_matrices=False))
    for seed in range(3):
        array = np.random.default_rng(seed).normal(size=(4, 3))
        u, s, vh = compiled(br.tensor(array, device=device))
        np.testing.assert_allclose((u * s @ vh).numpy(), array, atol=1e-12)
