"""Factorizations, inverses and determinants of matrices, and systems of linear equations.

A matrix is the last two axes; leading axes are a batch. The functions are those of ``xp.linalg``,
which call LAPACK, or cuSOLVER and cuBLAS. They read only the lower triangle of symmetric matrices.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.array.core.kernel_forms import Array, Kernel, KernelFamily
from burn_remote_server.backends.array.kernels.blas_threads import on_one_thread

__all__ = ["NO_CONVERGENCE", "MatrixKernels"]

_SINGULAR: Final = "a matrix is singular, so it has no inverse; burn_remote.linalg.pinv has one"
_NOT_DEFINITE: Final = "a matrix is not positive definite, so it has no Cholesky factor"
NO_CONVERGENCE: Final = "the iteration did not converge"
_NOT_FINITE: Final = "the iteration does not converge for a matrix with NaN or infinity"


class MatrixKernels(KernelFamily):
    """Linear algebra by the array module's ``linalg``. A failed matrix fails its whole batch."""

    family = "LinearAlgebra"

    def table(self) -> Mapping[str, Kernel]:
        return {
            "Cholesky": self.cholesky,
            "Det": self.det,
            "Eig": self.eig,
            "Eigh": self.eigh,
            "Eigvals": self.eigvals,
            "Eigvalsh": self.eigvalsh,
            "Inv": self.inv,
            "Qr": self.qr,
            "Slogdet": self.slogdet,
            "Solve": self.solve,
            "Svd": self.svd,
            "Svdvals": self.svdvals,
        }

    def cholesky(self, tensor: Array, *, upper: bool, out: TensorSpec) -> Array:
        """Return the triangular factor L of A = L Lᴴ, or Lᴴ if ``upper``."""
        if not tensor.size:
            return self._empty(out)
        factor = self._computed(self.xp.linalg.cholesky, _NOT_DEFINITE, tensor)
        return self.xp.swapaxes(factor, -1, -2).conj() if upper else factor

    def det(self, input: Array, *, out: TensorSpec) -> Array:
        """Return the determinants; those of empty matrices are 1."""
        return self._computed(self.xp.linalg.det, "", input)

    def slogdet(self, tensor: Array, *, out: tuple[TensorSpec, ...]) -> tuple[Array, ...]:
        """Return the signs and the logarithms of the absolute values of the determinants."""
        found = self._computed(self.xp.linalg.slogdet, "", tensor)
        return tuple([self.xp.asarray(one) for one in found])

    def eig(self, tensor: Array, *, out: tuple[TensorSpec, ...]) -> tuple[Array, ...]:
        """Return eigenvalues and the eigenvectors in the columns of a matrix, both complex."""
        if not tensor.size:
            return self._all_empty(out)
        self._require_finite(tensor)
        found = self._computed(self._general("eig"), NO_CONVERGENCE, tensor)
        # NumPy returns real arrays if all eigenvalues are real.
        return tuple(
            [one.astype(array_dtype(spec.dtype)) for one, spec in zip(found, out, strict=True)]
        )

    def eigvals(self, input: Array, *, out: TensorSpec) -> Array:
        """Return complex eigenvalues."""
        if not input.size:
            return self._empty(out)
        self._require_finite(input)
        found = self._computed(self._general("eigvals"), NO_CONVERGENCE, input)
        return found.astype(array_dtype(out.dtype))

    def _general(self, name: str) -> Callable[..., Any]:
        """Return a function for matrices that are not symmetric; CuPy before 14 has none."""
        function: Callable[..., Any] | None = getattr(self.xp.linalg, name, None)
        if function is None:
            raise UsageError(f"the device's array library has no {name}; update it")
        return function

    def eigh(self, tensor: Array, *, out: tuple[TensorSpec, ...]) -> tuple[Array, ...]:
        """Return ascending eigenvalues and the eigenvectors in the columns of a matrix."""
        if not tensor.size:
            return self._all_empty(out)
        self._require_finite(tensor, lower=True)
        return tuple(self._computed(self.xp.linalg.eigh, NO_CONVERGENCE, tensor))

    def eigvalsh(self, input: Array, *, out: TensorSpec) -> Array:
        """Return ascending eigenvalues."""
        if not input.size:
            return self._empty(out)
        self._require_finite(input, lower=True)
        return self._computed(self.xp.linalg.eigvalsh, NO_CONVERGENCE, input)

    def inv(self, input: Array, *, out: TensorSpec) -> Array:
        """Return the inverses."""
        if not input.size:
            return self._empty(out)
        return self._computed(self.xp.linalg.inv, _SINGULAR, input)

    def qr(
        self, tensor: Array, *, complete: bool, out: tuple[TensorSpec, ...]
    ) -> tuple[Array, ...]:
        """Return a matrix with orthonormal columns, and an upper triangular one."""
        if not any(spec.size for spec in out):
            return self._all_empty(out)
        mode = "complete" if complete else "reduced"
        function = self.xp.linalg.qr
        return tuple(self._computed(function, NO_CONVERGENCE, tensor, mode=mode))

    def solve(self, lhs: Array, rhs: Array, *, out: TensorSpec) -> Array:
        """Return x of A x = B; batches broadcast."""
        if not out.size:
            return self._empty(out)
        return self._computed(self.xp.linalg.solve, _SINGULAR, lhs, rhs)

    def svd(
        self, tensor: Array, *, full_matrices: bool, out: tuple[TensorSpec, ...]
    ) -> tuple[Array, ...]:
        """Return U, the descending singular values, and Vᴴ."""
        if not any(spec.size for spec in out):
            return self._all_empty(out)
        self._require_finite(tensor)
        function = self.xp.linalg.svd
        return tuple(self._computed(function, NO_CONVERGENCE, tensor, full_matrices=full_matrices))

    def svdvals(self, input: Array, *, out: TensorSpec) -> Array:
        """Return the descending singular values."""
        if not out.size:
            return self._empty(out)
        self._require_finite(input)
        return self._computed(self.xp.linalg.svd, NO_CONVERGENCE, input, compute_uv=False)

    def _require_finite(self, tensor: Array, *, lower: bool = False) -> None:
        """Refuse matrices with NaN or infinity; if ``lower``, check only the lower triangles.

        LAPACK's singular value decomposition of a 3x3 matrix with one infinite element never
        returns, and larger ones print to the process's standard error. CuPy's ``eig`` returns NaN.
        """
        invalid = ~self.xp.isfinite(tensor)
        if (self.xp.tril(invalid) if lower else invalid).any():
            raise UsageError(_NOT_FINITE)

    def raising(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which the array module raises ``LinAlgError``; NumPy always does."""
        return contextlib.nullcontext()

    def _computed(
        self, function: Callable[..., Any], reason: str, *tensors: Array, **options: Any
    ) -> Any:
        """Call a function of ``linalg``. Raises ``UsageError`` with the reason if it fails.

        A function without a reason never fails.
        """
        # On one thread, also for small matrices. The number of threads would depend on what other
        # sessions compute, and the last bits depend on it, even those of 50x50 matrices.
        function = on_one_thread(functools.partial(function, **options))
        try:
            with self.raising() if reason else contextlib.nullcontext():
                return function(*tensors)
        except np.linalg.LinAlgError as error:
            raise UsageError(reason) from error

    def _empty(self, out: TensorSpec) -> Array:
        # Without a call of the library, which would loop over a whole batch of empty matrices.
        return self.xp.empty(out.shape, array_dtype(out.dtype))

    def _all_empty(self, out: tuple[TensorSpec, ...]) -> tuple[Array, ...]:
        return tuple([self._empty(spec) for spec in out])
