"""Gradients of the extension rows for matrices.

Formulas: M. Giles, "An extended collection of matrix derivative results" (2008); I. Murray,
arXiv:1602.07527 (Cholesky); J. Townsend, "Differentiating the singular value decomposition" (2016);
S. Walter and L. Lehmann, arXiv:1009.6112 (QR); C. Boeddeker et al., arXiv:1701.00392 (complex
matrices). The singular vectors and eigenvectors of complex matrices are unique up to phases: their
gradients hold for functions that do not depend on these phases, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from burn_remote.autodiff.custom_vjp import custom_vjp
from burn_remote.autodiff.rule_table import PastCall, joint, rule
from burn_remote.dispatch.operators import Operator, counted, reshaped
from burn_remote.functions.arithmetic import add, divide, multiply, negative, subtract
from burn_remote.functions.casting import converted_to, rounded_once
from burn_remote.functions.complex_numbers import adjoint, complex, imag, real
from burn_remote.functions.factorizations import det, eig, eigh, inv, solve, svd
from burn_remote.functions.logic import equal, logical_and, logical_not, not_equal
from burn_remote.functions.manipulation import broadcast_to, concat, matrix_transpose, part
from burn_remote.functions.matrix_parts import tril, triu
from burn_remote.functions.selection import mask_fill, where
from burn_remote.functions.statistics import prod, sum
from burn_remote.gradient_rules.spreading import zeros
from burn_remote.gradient_rules.wide_rules import jointly_rounded_once
from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.operations.families import floats, matrix_rows
from burn_remote_protocol.tensors import TensorSpec

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

MATMUL: Final = Operator(floats.MATMUL)

Gradients = Mapping[str, Any]


# -- Building blocks ------------------------------------------------------------------------------


def _product(first: Tensor, *others: Tensor) -> Tensor:
    for other in others:
        first = MATMUL.binary(first, other)
    return first


def _adjoint(x: Tensor) -> Tensor:
    """Return the conjugate transposes."""
    return adjoint(matrix_transpose(x))


def _row(x: Tensor) -> Tensor:
    """Return vectors ``[…, n]`` as matrices of one row, which scale columns."""
    return reshaped(x, (*x.shape[:-1], 1, x.shape[-1]))


def _column(x: Tensor) -> Tensor:
    """Return vectors ``[…, n]`` as matrices of one column, which scale rows."""
    return reshaped(x, (*x.shape, 1))


def _numbers(x: Tensor) -> Tensor:
    """Return numbers ``[…]`` as matrices of one element."""
    return reshaped(x, (*x.shape, 1, 1))


def _off_diagonal(x: Tensor) -> Tensor:
    """Return a mask of the elements of matrices that are not on the diagonal."""
    places = counted(x.__class__, x.handle.client, x.shape[-1])
    return not_equal(_row(places), _column(places))


def _on_diagonal(x: Tensor) -> Tensor:
    """Return vectors ``[…, n]`` as diagonal matrices ``[…, n, n]``."""
    rows = broadcast_to(_row(x), (*x.shape, x.shape[-1]))
    return mask_fill(rows, _off_diagonal(rows), 0.0)


def _over_differences(x: Tensor, differences: Tensor) -> Tensor:
    """Divide by ``differences``, whose diagonal is 0; the diagonal of the result is 0."""
    off_diagonal = _off_diagonal(x)
    quotients = divide(x, mask_fill(differences, logical_not(off_diagonal), 1.0))
    return mask_fill(quotients, logical_not(off_diagonal), 0.0)


def _hermitian(x: Tensor) -> Tensor:
    """Return the Hermitian parts; of real matrices, the symmetric ones."""
    return multiply(add(x, _adjoint(x)), 0.5)


def _antihermitian(x: Tensor) -> Tensor:
    return subtract(x, _adjoint(x))


# -- Inverses and determinants --------------------------------------------------------------------

rule(
    matrix_rows.INV,
    input=rounded_once(lambda grad, out: negative(_product(_adjoint(out), grad, _adjoint(out)))),
)


def _filled(x: Tensor, are_identities: Tensor) -> Tensor:
    """Return matrices, with the identity in place of those where ``are_identities`` is true."""
    diagonal = logical_and(are_identities, logical_not(_off_diagonal(x)))
    return mask_fill(mask_fill(x, are_identities, 0.0), diagonal, 1.0)


def _cofactors_by_svd(x: Tensor) -> Tensor:
    """Return the conjugates of the cofactors, from the singular value decomposition ``u s vh``.

    The cofactors of a product are the product of the cofactors. Those of a unitary matrix are its
    conjugate times its determinant. Those of a diagonal matrix are diagonal, and each is the
    product of all elements but its own. No step divides, so matrices may have any rank.
    """
    u, values, vh = svd(x, full_matrices=False)
    rows = broadcast_to(_row(values), (*values.shape, values.shape[-1]))
    others = prod(mask_fill(rows, logical_not(_off_diagonal(rows)), 1.0), axis=-1)
    scaled = multiply(u, converted_to(_row(others), u.dtype))
    return multiply(_numbers(adjoint(det(_product(u, vh)))), _product(scaled, vh))


def _cofactors_forward(x: Tensor, determinant: Tensor) -> tuple[Tensor, Tensor]:
    # For regular matrices, the inverse is more accurate: unlike the decomposition, it keeps small
    # elements beside large ones. Each formula gets a harmless matrix in place of the other's.
    are_singular = _numbers(equal(determinant, 0))
    inverse = inv(_filled(x, are_singular))
    regular = multiply(_numbers(adjoint(determinant)), _adjoint(inverse))
    singular = _cofactors_by_svd(mask_fill(x, logical_not(are_singular), 0.0))
    return where(are_singular, singular, regular), x


def _cofactors_backward(x: Tensor, grad: Tensor) -> tuple[Tensor, None]:
    """Differentiate ``det(x) * inv(x)``, which needs matrices that are not singular."""
    inverse = inv(x)
    turned = matrix_transpose(inverse)
    share = sum(multiply(grad, turned), axis=(-2, -1), keepdims=True)
    change = subtract(multiply(share, turned), matrix_transpose(_product(inverse, grad, inverse)))
    return adjoint(multiply(_numbers(det(x)), change)), None


@custom_vjp(_cofactors_forward, _cofactors_backward)
def _cofactors(x: Tensor, determinant: Tensor) -> Tensor:
    """Return the conjugates of the cofactors of square matrices, also of singular ones."""
    return _cofactors_forward(x, determinant)[0]


rule(
    matrix_rows.DET,
    input=rounded_once(
        lambda grad, input, out: multiply(_numbers(grad), _cofactors(input, out.detach()))
    ),
)


@joint(matrix_rows.SLOGDET, uses=("tensor", "sign"))
@jointly_rounded_once
def _of_logarithm(call: PastCall) -> Gradients:
    of_sign, grad = call.grads
    x, sign = call["tensor"], call["sign"]
    if x.dtype.is_complex and of_sign is not None:
        # The angle of the sign is the imaginary part of the determinant's logarithm.
        of_angle = negative(imag(multiply(adjoint(of_sign), sign)))
        grad = complex(zeros(of_angle, of_angle.handle.spec) if grad is None else grad, of_angle)
    if grad is None:  # the sign of a real number is constant almost everywhere
        return {}
    return {"tensor": multiply(_numbers(grad), _adjoint(inv(x)))}


@joint(matrix_rows.SOLVE, uses=("lhs", "out"))
@jointly_rounded_once
def _of_solution(call: PastCall) -> Gradients:
    (grad,) = call.grads
    of_rhs = solve(_adjoint(call["lhs"]), grad)
    of_lhs = negative(_product(of_rhs, _adjoint(call["out"]))) if call.needs("lhs") else None
    return {"lhs": of_lhs, "rhs": of_rhs}


# -- Hermitian matrices ---------------------------------------------------------------------------


@rounded_once
def _of_cholesky(grad: Tensor, out: Tensor, upper: bool) -> Tensor:
    """Return the Hermitian gradient: Murray's equation 9, with ``solve`` instead of inverses."""
    factor, grad = (_adjoint(out), _adjoint(grad)) if upper else (out, grad)
    both = _product(_adjoint(factor), tril(grad))
    half = multiply(add(tril(both), tril(both, k=-1)), 0.5)
    left = solve(_adjoint(factor), half)
    return _hermitian(_adjoint(solve(_adjoint(factor), _adjoint(left))))


rule(matrix_rows.CHOLESKY, tensor=_of_cholesky)


@joint(matrix_rows.EIGH, uses=("values", "vectors"))
@jointly_rounded_once
def _of_eigenvectors(call: PastCall) -> Gradients:
    of_values, of_vectors = call.grads
    vectors = call["vectors"]
    values = converted_to(call["values"], vectors.dtype)
    inner = None if of_values is None else _on_diagonal(converted_to(of_values, vectors.dtype))
    if of_vectors is not None:
        differences = subtract(_row(values), _column(values))
        turned = _over_differences(_product(_adjoint(vectors), of_vectors), differences)
        inner = turned if inner is None else add(inner, turned)
    assert inner is not None
    return {"tensor": _hermitian(_product(vectors, inner, _adjoint(vectors)))}


@rounded_once
def _of_real_eigenvalues(grad: Tensor, input: Tensor) -> Tensor:
    vectors = eigh(input).eigenvectors
    return _product(multiply(vectors, _row(grad)), _adjoint(vectors))


rule(matrix_rows.EIGVALSH, input=_of_real_eigenvalues)

# -- Other factorizations -------------------------------------------------------------------------


@joint(matrix_rows.QR, uses=("q", "r"))
@jointly_rounded_once
def _of_orthogonal_triangular(call: PastCall) -> Gradients:
    of_q, of_r = call.grads
    q, r = call["q"], call["r"]
    rows, columns = call.spec("tensor").shape[-2:]
    if call.parameters["complete"] and rows > columns:
        raise UsageError(
            "the gradient of qr(x, mode='complete') does not exist for more rows than columns: the "
            "last columns of Q are arbitrary; use mode='reduced'"
        )
    of_q = zeros(q, q.handle.spec) if of_q is None else of_q
    of_r = zeros(r, r.handle.spec) if of_r is None else triu(of_r)
    if rows >= columns:
        return {"tensor": _of_independent_columns(q, r, of_q, of_r)}
    # The last columns of the matrix are the product of Q and the last columns of R, so their
    # gradient adds to that of Q.
    axis = len(call.spec("tensor").shape) - 1
    first, last = part(r, axis, 0, rows), part(r, axis, rows, columns)
    of_first, of_last = part(of_r, axis, 0, rows), part(of_r, axis, rows, columns)
    of_q = add(of_q, _product(q, last, _adjoint(of_last)))
    of_columns = _of_independent_columns(q, first, of_q, of_first)
    return {"tensor": concat([of_columns, _product(q, of_last)], axis=axis)}


def _of_independent_columns(q: Tensor, r: Tensor, of_q: Tensor, of_r: Tensor) -> Tensor:
    both = subtract(_product(r, _adjoint(of_r)), _product(_adjoint(of_q), q))
    # R has a real diagonal, so only real parts count there.
    mirrored = _hermitian(add(tril(both), tril(both, k=-1)))
    return _adjoint(solve(r, _adjoint(add(of_q, _product(q, mirrored)))))


@joint(matrix_rows.SVD, uses=("u", "s", "vh"))
@jointly_rounded_once
def _of_singular_vectors(call: PastCall) -> Gradients:
    of_u, of_s, of_vh = call.grads
    u, s, vh = call["u"], call["s"], call["vh"]
    rows, columns = call.spec("tensor").shape[-2:]
    rank, axis = min(rows, columns), len(call.spec("tensor").shape) - 2
    if call.parameters["full_matrices"] and rows != columns:
        if of_u is not None or of_vh is not None:
            raise UsageError(
                "the gradient of the singular vectors of svd(x) does not exist for matrices that "
                "are not square: the last vectors are arbitrary; use full_matrices=False"
            )
        u, vh = part(u, axis + 1, 0, rank), part(vh, axis, 0, rank)
    if of_u is None and of_vh is None:
        return {"tensor": _product(multiply(u, _row(of_s)), vh)}
    s = converted_to(s, u.dtype)
    # Differences of the squares, as products, because subtracting squares would lose digits.
    gaps = multiply(subtract(_row(s), _column(s)), add(_row(s), _column(s)))
    inner = zeros(u, TensorSpec((*s.shape, rank), s.dtype))
    if of_s is not None:
        inner = _on_diagonal(converted_to(of_s, u.dtype))
    outside = None
    if of_u is not None:
        projected = _product(_adjoint(u), of_u)
        skew = _antihermitian(projected)
        inner = add(inner, multiply(_over_differences(skew, gaps), _row(s)))
        inner = _with_phases(inner, skew, s)
        if rows > rank:
            outside = _product(divide(subtract(of_u, _product(u, projected)), _row(s)), vh)
    if of_vh is not None:
        projected = _product(of_vh, _adjoint(vh))
        skew = _antihermitian(_adjoint(projected))
        inner = add(inner, multiply(_column(s), _over_differences(skew, gaps)))
        inner = _with_phases(inner, negative(skew), s)
        if columns > rank:
            outside = _product(u, divide(subtract(of_vh, _product(projected, vh)), _column(s)))
    found = _product(u, inner, vh)
    return {"tensor": found if outside is None else add(found, outside)}


def _with_phases(inner: Tensor, skew: Tensor, s: Tensor) -> Tensor:
    """Add half of what the phases of complex singular vectors contribute to the diagonal.

    A change of the matrix determines the difference between the phases of a left and a right
    vector. Each of the two gets half of it.
    """
    if not skew.dtype.is_complex:
        return inner
    halves = divide(skew, multiply(_row(s), 4.0))
    return add(inner, mask_fill(halves, _off_diagonal(halves), 0.0))


@rounded_once
def _of_singular_values(grad: Tensor, input: Tensor) -> Tensor:
    u, _, vh = svd(input, full_matrices=False)
    return _product(multiply(u, _row(grad)), vh)


rule(matrix_rows.SVDVALS, input=_of_singular_values)


# -- General matrices -----------------------------------------------------------------------------


def _of_general(x: TensorSpec, vectors: Tensor, inner: Tensor) -> Tensor:
    """Return ``V⁻ᴴ inner Vᴴ``, for real matrices its real part."""
    found = solve(_adjoint(vectors), _product(inner, _adjoint(vectors)))
    return found if x.dtype.is_complex else real(found)


@joint(matrix_rows.EIG, uses=("values", "vectors"))
def _of_general_eigenvectors(call: PastCall) -> Gradients:
    of_values, of_vectors = call.grads
    values, vectors = call["values"], call["vectors"]
    inner = None if of_values is None else _on_diagonal(of_values)
    if of_vectors is not None:
        projected = _product(_adjoint(vectors), of_vectors)
        # The vectors keep the norm 1, so a change along them has no effect.
        along = real(mask_fill(projected, _off_diagonal(projected), 0.0)).sum(axis=-2)
        across = subtract(projected, multiply(_product(_adjoint(vectors), vectors), _row(along)))
        differences = adjoint(subtract(_row(values), _column(values)))
        turned = _over_differences(across, differences)
        inner = turned if inner is None else add(inner, turned)
    assert inner is not None
    return {"tensor": _of_general(call.spec("tensor"), vectors, inner)}


def _of_general_eigenvalues(grad: Tensor, input: Tensor) -> Tensor:
    return _of_general(input.handle.spec, eig(input).eigenvectors, _on_diagonal(grad))


rule(matrix_rows.EIGVALS, input=_of_general_eigenvalues)
