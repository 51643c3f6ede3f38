"""Covariances and correlations, under NumPy's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from burn_remote.arguments.arrays import Array
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import reshaped
from burn_remote.functions.arithmetic import divide, multiply, subtract
from burn_remote.functions.casting import as_float, at_least_float32, converted_to
from burn_remote.functions.complex_numbers import adjoint, complex, imag, real
from burn_remote.functions.elementwise import sqrt
from burn_remote.functions.linear_algebra import matmul
from burn_remote.functions.manipulation import concat, matrix_transpose, squeeze
from burn_remote.functions.matrix_parts import diagonal
from burn_remote.functions.operands import alike, operands, sent
from burn_remote.functions.selection import clip
from burn_remote.functions.statistics import sum
from burn_remote.functions.tensor_value import is_tensor
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import ShapeMismatch, UsageError

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["corrcoef", "cov"]


@explained
def cov(
    x: Tensor,
    y: Tensor | Array | None = None,
    /,
    *,
    rowvar: bool = True,
    bias: bool = False,
    correction: int | None = None,
    fweights: Tensor | Array | None = None,
    aweights: Tensor | Array | None = None,
) -> Tensor:
    """Return the covariances of variables, as ``numpy.cov`` does.

    Shapes: ``[variables, observations]``, or the transpose without ``rowvar``, to ``[variables,
    variables]``; a vector is one variable, and gives ``[]``. ``y`` has further variables. The sums
    are divided by the number of observations minus ``correction``, by default 1, or 0 with
    ``bias``. ``fweights`` ``[observations]`` says how often each observation counts, ``aweights``
    ``[observations]`` how important it is. Integers give float32; the dtype is at least float32.
    Raises ``ShapeMismatch``, and ``UsageError`` unless ``correction`` is an integer.
    """
    if correction is not None and int(correction) != correction:
        raise UsageError(f"correction must be an integer, not {correction!r}")
    variables = _rows(x, rowvar)
    if y is not None:
        _, beside = operands(x, y)
        variables = concat([variables, _rows(beside, rowvar)], axis=0)
    count = variables.shape[1]
    correction = (0 if bias else 1) if correction is None else int(correction)
    frequencies = _weights("fweights", fweights, variables)
    importances = _weights("aweights", aweights, variables)
    given = [one for one in (frequencies, importances) if one is not None]
    if not given:
        centred = subtract(variables, divide(sum(variables, axis=1, keepdims=True), count))
        products = matmul(centred, adjoint(matrix_transpose(centred)))
        return squeeze(divide(products, max(count - correction, 0)))
    weights = given[0] if len(given) == 1 else multiply(given[0], given[1])
    total = sum(weights)
    means = divide(sum(multiply(variables, weights), axis=1, keepdims=True), total)
    centred = subtract(variables, means)
    products = matmul(centred, adjoint(matrix_transpose(multiply(centred, weights))))
    lost: Tensor | int = correction
    if importances is not None:
        lost = multiply(divide(sum(multiply(weights, importances)), total), correction)
    return squeeze(divide(products, clip(subtract(total, lost), min=0)))


def _rows(x: Tensor, rowvar: bool) -> Tensor:
    """Return variables as the rows of a matrix of floats or complex numbers."""
    if x.ndim > 2:
        raise ShapeMismatch(f"variables are a vector or a matrix, not {x.handle.spec}")
    wide = at_least_float32(as_float(x, F32))
    if x.ndim < 2:
        return reshaped(wide, (1, x.size))
    return wide if rowvar else matrix_transpose(wide)


def _weights(name: str, weights: Tensor | Array | None, variables: Tensor) -> Tensor | None:
    """Return the weights of observations in the real dtype of the variables."""
    if weights is None:
        return None
    given = weights if is_tensor(weights) else sent(variables, weights)
    if given.shape != variables.shape[1:]:
        raise ShapeMismatch(
            f"{name} are {given.handle.spec}, but there are {variables.shape[1]} observations"
        )
    return converted_to(given, real(variables).dtype)


@explained
def corrcoef(x: Tensor, y: Tensor | Array | None = None, /, *, rowvar: bool = True) -> Tensor:
    """Return the Pearson correlation coefficients of variables, as ``numpy.corrcoef`` does.

    Shapes and dtypes are those of ``cov``. Coefficients, or both parts of complex ones, are limited
    to the range from -1 to 1.
    """
    covariances = cov(x, y, rowvar=rowvar)
    if not covariances.ndim:
        return divide(covariances, covariances)
    deviations = sqrt(real(diagonal(covariances)))
    covariances, deviations = alike(covariances, deviations)
    size = deviations.size
    quotients = divide(covariances, reshaped(deviations, (size, 1)))
    quotients = divide(quotients, deviations)
    if not quotients.dtype.is_complex:
        return clip(quotients, min=-1, max=1)
    return complex(clip(real(quotients), -1, 1), clip(imag(quotients), -1, 1))
