"""Kernels of linear algebra: properties of factors, singular matrices, and empty ones."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from burn_remote_protocol.errors import UsageError
from support.kernels import BFLOAT16, Array, compute

BOUNDS: Final = {
    np.dtype(np.float16): 2e-2,
    BFLOAT16: 2e-1,
    np.dtype(np.float32): 1e-5,
    np.dtype(np.float64): 1e-13,
    np.dtype(np.complex64): 1e-5,
    np.dtype(np.complex128): 1e-13,
}

shapes = array_shapes(min_dims=2, max_dims=4, min_side=0, max_side=5)


def drawn(shape: tuple[int, ...], dtype: Any, layout: str) -> Array:
    """Return random matrices in one of several memory layouts."""
    random = np.random.default_rng(sum(shape))
    array = random.normal(size=shape).astype(dtype)
    if np.iscomplexobj(array):
        array = array + (1j * random.normal(size=shape)).astype(dtype)
    if layout == "columns":
        return np.swapaxes(np.ascontiguousarray(np.swapaxes(array, -1, -2)), -1, -2)
    if layout == "reversed":
        return np.ascontiguousarray(array[..., ::-1, :])[..., ::-1, :]
    return array


def wide(array: Array) -> Array:
    return array.astype(np.result_type(array, np.float64))


def adjoint(array: Array) -> Array:
    return np.swapaxes(array, -1, -2).conj()


def close(seen: Array, right: Array, dtype: Any) -> None:
    np.testing.assert_allclose(seen, right, atol=BOUNDS[np.dtype(dtype)] * 10, rtol=0)


def has_orthonormal_columns(array: Array, dtype: Any) -> None:
    close(
        adjoint(array) @ array,
        np.broadcast_to(np.eye(array.shape[-1]), (*array.shape[:-2], *(array.shape[-1],) * 2)),
        dtype,
    )


kinds = st.tuples(
    shapes, st.sampled_from(list(BOUNDS)), st.sampled_from(["", "columns", "reversed"])
)


@given(case=kinds, full_matrices=st.booleans())
def test_a_singular_value_decomposition_multiplies_to_its_matrix(
    case: tuple[tuple[int, ...], Any, str], full_matrices: bool
) -> None:
    shape, dtype, layout = case
    x = drawn(shape, dtype, layout)
    found = compute("LinearAlgebra.Svd", x, full_matrices=full_matrices)
    assert [one.dtype for one in found] == [dtype, np.zeros(0, dtype).real.dtype, dtype]
    u, s, vh = map(wide, found)
    rank = min(shape[-2:])
    close(u[..., :rank] * s[..., None, :] @ vh[..., :rank, :], wide(x), dtype)
    has_orthonormal_columns(u, dtype)
    has_orthonormal_columns(adjoint(vh), dtype)
    assert np.all(np.diff(s) <= 0)
    assert np.all(s >= 0)
    values = compute("LinearAlgebra.Svdvals", x)
    close(wide(values), s, dtype)


@given(case=kinds, complete=st.booleans())
def test_an_orthogonal_and_a_triangular_factor_multiply_to_their_matrix(
    case: tuple[tuple[int, ...], Any, str], complete: bool
) -> None:
    shape, dtype, layout = case
    x = drawn(shape, dtype, layout)
    q, r = map(wide, compute("LinearAlgebra.Qr", x, complete=complete))
    close(q @ r, wide(x), dtype)
    has_orthonormal_columns(q, dtype)
    np.testing.assert_array_equal(r, np.triu(r))


@given(case=kinds)
def test_eigenvectors_are_scaled_by_their_eigenvalues(
    case: tuple[tuple[int, ...], Any, str],
) -> None:
    (*batch, side, _), dtype, layout = case
    x = drawn((*batch, side, side), dtype, layout)
    values, vectors = map(wide, compute("LinearAlgebra.Eigh", x))
    lower = np.tril(wide(x))
    # Neither the upper triangle nor the imaginary part of the diagonal is read.
    below = np.tril(lower, -1)
    diagonal = np.einsum("...ii->...i", lower).real
    symmetric = below + adjoint(below) + diagonal[..., None] * np.eye(side)
    close(symmetric @ vectors, vectors * values[..., None, :], dtype)
    has_orthonormal_columns(vectors, dtype)
    assert np.isrealobj(values)
    assert np.all(np.diff(values) >= 0)
    close(wide(compute("LinearAlgebra.Eigvalsh", x)), values, dtype)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", BOUNDS)
def test_a_cholesky_factor_reads_only_the_lower_triangle(dtype: Any, upper: bool) -> None:
    factor = np.tril(np.random.default_rng(1).normal(size=(2, 3, 3))) + 2 * np.eye(3)
    if np.dtype(dtype).kind == "c":
        factor = factor + 1j * np.tril(factor, -1)
    definite = (factor @ adjoint(factor)).astype(dtype)
    garbage = np.triu(np.full((3, 3), 9.0), 1).astype(dtype)
    found = wide(compute("LinearAlgebra.Cholesky", np.tril(definite) + garbage, upper=upper))
    close(adjoint(found) if upper else found, factor, dtype)


SINGULAR: Final = np.stack([np.eye(3), np.ones((3, 3))])


@pytest.mark.parametrize(
    "name, tensors, parameters, message",
    [
        ("Inv", (SINGULAR,), {}, "singular"),
        ("Solve", (SINGULAR, np.ones((2, 3, 1))), {}, "singular"),
        ("Cholesky", (-SINGULAR,), {"upper": False}, "not positive definite"),
        ("Svd", (np.full((3, 3), np.nan),), {"full_matrices": True}, "does not converge"),
        ("Svdvals", (np.full((3, 3), np.nan),), {}, "does not converge"),
    ],
)
def test_a_matrix_without_a_result_fails_its_batch(
    name: str, tensors: tuple[Array, ...], parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        compute(f"LinearAlgebra.{name}", *tensors, **parameters)


ITERATIONS: Final[dict[str, dict[str, Any]]] = {
    "Eig": {}, "Eigh": {}, "Eigvals": {}, "Eigvalsh": {}, "Svd": {"full_matrices": True},
    "Svdvals": {},
}  # fmt: skip


@pytest.mark.parametrize("size", [3, 40])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ITERATIONS)
def test_an_iteration_fails_for_matrices_that_are_not_finite_and_prints_nothing(
    name: str, bad: float, dtype: Any, size: int, capfd: pytest.CaptureFixture[str]
) -> None:
    for place in ((0, 0, 0), (1, size - 1, 0)):
        tensor = np.stack([np.eye(size), np.eye(size)]).astype(dtype)
        tensor[place] = bad
        with pytest.raises(UsageError, match="does not converge"):
            compute(f"LinearAlgebra.{name}", tensor, **ITERATIONS[name])
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["Eigh", "Eigvalsh"])
def test_an_upper_triangle_that_is_not_read_may_be_infinite(name: str) -> None:
    found = compute(f"LinearAlgebra.{name}", np.eye(3) + np.triu(np.full((3, 3), np.inf), 1))
    np.testing.assert_array_equal(found[0] if name == "Eigh" else found, np.ones(3))


def test_the_determinant_of_a_singular_matrix_is_zero() -> None:
    np.testing.assert_array_equal(compute("LinearAlgebra.Det", SINGULAR), [1, 0])
    sign, logarithm = compute("LinearAlgebra.Slogdet", SINGULAR)
    np.testing.assert_array_equal(sign, [1, 0])
    np.testing.assert_array_equal(logarithm, [0, -np.inf])


# A loop over this many empty matrices would take minutes.
MANY: Final = 2**40


@pytest.mark.parametrize(
    "name, shapes, parameters",
    [
        ("Cholesky", [(MANY, 0, 0)], {"upper": True}),
        ("Eigh", [(MANY, 0, 0)], {}),
        ("Eigvalsh", [(MANY, 0, 0)], {}),
        ("Inv", [(MANY, 0, 0)], {}),
        ("Qr", [(MANY, 0, 0)], {"complete": True}),
        ("Solve", [(MANY, 0, 0), (MANY, 0, 3)], {}),
        ("Svd", [(MANY, 0, 0)], {"full_matrices": True}),
        ("Svd", [(MANY, 0, 3)], {"full_matrices": False}),
        ("Svdvals", [(MANY, 0, 3)], {}),
    ],
)
def test_empty_matrices_take_no_time(
    name: str, shapes: list[tuple[int, ...]], parameters: dict[str, Any]
) -> None:
    found = compute(f"LinearAlgebra.{name}", *map(np.zeros, shapes), **parameters)
    for one in found if isinstance(found, tuple) else (found,):
        assert one.size == 0


@given(
    array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4),
    st.sampled_from([np.float32, np.float64, np.complex64, np.complex128]),
)
def test_eigenvectors_are_only_scaled_by_their_matrix(shape: tuple[int, ...], dtype: Any) -> None:
    matrices = np.random.default_rng(sum(shape)).normal(size=(*shape, shape[-1]))
    matrices = (matrices + 1j * matrices[..., ::-1]) if np.dtype(dtype).kind == "c" else matrices
    x = matrices.astype(dtype)
    values, vectors = compute("LinearAlgebra.Eig", x)
    assert values.dtype == vectors.dtype == np.result_type(dtype, np.complex64)
    bound = 1e-3 if np.dtype(dtype).itemsize in (4, 8) and dtype != np.float64 else 1e-10
    np.testing.assert_allclose(x @ vectors, vectors * values[..., None, :], atol=bound)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=-2), 1, atol=bound)
    alone = compute("LinearAlgebra.Eigvals", x)
    np.testing.assert_allclose(np.sort_complex(alone), np.sort_complex(values), atol=bound)
