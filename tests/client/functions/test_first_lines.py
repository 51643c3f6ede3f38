"""Lines that a program of NumPy, PyTorch or JAX would try first.

Each line computes what NumPy computes, or its error says what to write instead.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest

import burn_remote as br
import burn_remote.functional as F

RANDOM: Final = np.random.default_rng(0)
A: Final = RANDOM.normal(size=(4, 6)).astype(np.float32)
ARRAYS: Final = {"A": A, "V": RANDOM.normal(size=6).astype(np.float32), "S": A[:, :4].copy(),
                 "I": np.arange(12).reshape(3, 4)}  # fmt: skip

# A line for us, and the line of NumPy with the same result: ``a``, ``v``, ``s`` and ``i`` are
# tensors with the elements of the arrays ``A``, ``V``, ``S`` and ``I``.
LINES: Final = """
a.item(1, 2) | A.item(1, 2)
a.item(-1) | A.flatten()[-1]
a.sum() | A.sum()
a.T.shape | A.T.shape
a.mean(axis=0) | A.mean(axis=0)
a.mean(0) | A.mean(0)
a.std(0, ddof=1) | A.std(0, ddof=1)
a.var(ddof=1) | A.var(ddof=1)
a.max(1) | A.max(1)
a.argmax(axis=1) | A.argmax(axis=1)
a.cumsum(0) | A.cumsum(0)
br.cumsum(a, axis=1) | np.cumsum(A, axis=1)
br.cumprod(a, axis=1) | np.cumprod(A, axis=1)
a.ravel() | A.ravel()
a.flatten() | A.flatten()
a.reshape(-1) | A.reshape(-1)
a.reshape(2, -1, 3) | A.reshape(2, -1, 3)
a[:, None] | A[:, None]
a[..., 0] | A[..., 0]
a[[0, 2]] | A[[0, 2]]
a[[0, 2], [1, 3]] | A[[0, 2], [1, 3]]
a[a > 0] | A[A > 0]
a[:, [True, False, True, False, True, False]] | A[:, [True, False, True, False, True, False]]
a[-1, ::-1] | A[-1, ::-1]
a[np.array([0, 1])] | A[np.array([0, 1])]
a @ v | A @ V
a.dot(v) | A.dot(V)
br.dot(a, v) | np.dot(A, V)
br.inner(v, v) | np.inner(V, V)
br.outer(v, v) | np.outer(V, V)
br.vdot(v, v) | np.vdot(V, V)
np.dot(a, v) | np.dot(A, V)
np.vdot(v, v) | np.vdot(V, V)
np.inner(v, v) | np.inner(V, V)
np.einsum('ij,j->i', a, v) | np.einsum('ij,j->i', A, V)
br.einsum('ij,kj->ik', a, a) | np.einsum('ij,kj->ik', A, A)
a + 1j | A + 1j
a * A | A * A
A - a | A - A
a // 2 | A // 2
a % 0.3 | A % 0.3
divmod(a, 2)[0] | divmod(A, 2)[0]
abs(a) | abs(A)
-a | -A
a ** 2 | A ** 2
2 ** a | 2 ** A
np.power(a, 2) | np.power(A, 2)
br.power(a, 2) | np.power(A, 2)
br.sqrt(abs(a)) | np.sqrt(abs(A))
br.exp(a) | np.exp(A)
a.exp() | np.exp(A)
br.log(abs(a)) | np.log(abs(A))
br.clip(a, 0, 1) | np.clip(A, 0, 1)
a.clip(0, 1) | A.clip(0, 1)
a.clip(min=0) | A.clip(min=0)
br.maximum(a, 0) | np.maximum(A, 0)
br.where(a > 0, a, 0) | np.where(A > 0, A, 0)
br.where(a > 0) | np.where(A > 0)
br.nan_to_num(a) | np.nan_to_num(A)
br.sort(a, axis=0) | np.sort(A, axis=0)
br.argsort(a) | np.argsort(A)
br.unique(i) | np.unique(I)
np.unique(i) | np.unique(I)
br.flip(a) | np.flip(A)
br.roll(a, 1, axis=0) | np.roll(A, 1, axis=0)
br.roll(a, 1) | np.roll(A, 1)
br.tile(v, 3) | np.tile(V, 3)
br.repeat(v, 2) | np.repeat(V, 2)
br.concatenate([a, a]) | np.concatenate([A, A])
br.concat([a, a], axis=1) | np.concatenate([A, A], axis=1)
br.stack([a, a]) | np.stack([A, A])
br.vstack([a, v]) | np.vstack([A, V])
br.hstack([v, v]) | np.hstack([V, V])
br.append(v, v) | np.append(V, V)
br.split(a, 2) | np.split(A, 2)
br.array_split(v, 4) | np.array_split(V, 4)
br.expand_dims(v, 0) | np.expand_dims(V, 0)
br.squeeze(v[None]) | np.squeeze(V[None])
br.swapaxes(a, 0, 1) | np.swapaxes(A, 0, 1)
br.moveaxis(a, 0, 1) | np.moveaxis(A, 0, 1)
br.rollaxis(a, 1) | np.rollaxis(A, 1)
br.transpose(a) | np.transpose(A)
br.diag(v) | np.diag(V)
br.diagonal(s) | np.diagonal(S)
br.trace(s) | np.trace(S)
np.trace(s) | np.trace(S)
br.tril(s) | np.tril(S)
br.linalg.norm(a) | np.linalg.norm(A)
br.linalg.inv(s) | np.linalg.inv(S)
br.linalg.solve(s, s) | np.linalg.solve(S, S)
br.linalg.det(s) | np.linalg.det(S)
br.linalg.svd(a)[1] | np.linalg.svd(A)[1]
br.linalg.lstsq(a.T, a.T)[0] | np.linalg.lstsq(A.T, A.T, rcond=None)[0]
br.linalg.cond(s) | np.linalg.cond(S)
br.linalg.multi_dot([s, s, s]) | np.linalg.multi_dot([S, S, S])
br.linalg.matrix_rank(a) | np.linalg.matrix_rank(A)
br.fft.fft(v) | np.fft.fft(V)
br.fft.rfft(v) | np.fft.rfft(V)
br.fft.fft2(a) | np.fft.fft2(A)
br.fft.fftfreq(8) | np.fft.fftfreq(8)
br.histogram(v, 4)[0] | np.histogram(V, 4)[0]
br.bincount(i.flatten()) | np.bincount(I.flatten())
br.digitize(v, br.linspace(-1, 1, 5)) | np.digitize(V, np.linspace(-1, 1, 5))
br.searchsorted(br.sort(v), v) | np.searchsorted(np.sort(V), V)
br.percentile(a, 30) | np.percentile(A, 30)
br.quantile(a, [0.2, 0.5]) | np.quantile(A, [0.2, 0.5])
br.median(a, axis=0) | np.median(A, axis=0)
br.average(a, axis=0) | np.average(A, axis=0)
br.average(v, weights=abs(v)) | np.average(V, weights=abs(V))
br.cov(a) | np.cov(A)
br.corrcoef(a) | np.corrcoef(A)
br.ptp(a) | np.ptp(A)
br.gradient(v) | np.gradient(V)
br.trapezoid(v) | np.trapezoid(V)
br.convolve(v, v) | np.convolve(V, V)
br.correlate(v, v) | np.correlate(V, V)
br.interp(v, [-1, 0, 1], [0, 1, 0]) | np.interp(V, [-1, 0, 1], [0, 1, 0])
br.polyfit(v, v**2, 2) | np.polyfit(V, V**2, 2)
br.polyval([1, 2], v) | np.polyval([1, 2], V)
br.isclose(a, a) | np.isclose(A, A)
br.allclose(a, a) | np.allclose(A, A)
br.array_equal(a, a) | np.array_equal(A, A)
br.isnan(a).any() | np.isnan(A).any()
br.count_nonzero(a) | np.count_nonzero(A)
br.any(a > 2) | np.any(A > 2)
br.sign(a) | np.sign(A)
br.round(a, 2) | np.round(A, 2)
br.around(a, 2) | np.around(A, 2)
br.deg2rad(v) | np.deg2rad(V)
br.radians(v) | np.radians(V)
br.sinc(v) | np.sinc(V)
br.heaviside(v, 0.5) | np.heaviside(V, 0.5)
br.cbrt(v) | np.cbrt(V)
br.logaddexp(v, v) | np.logaddexp(V, V)
br.hypot(v, v) | np.hypot(V, V)
br.arctan2(v, v) | np.arctan2(V, V)
br.mod(i, 5) | np.mod(I, 5)
br.fmod(a, 0.3) | np.fmod(A, 0.3)
br.floor_divide(i, 5) | np.floor_divide(I, 5)
br.true_divide(a, 2) | np.true_divide(A, 2)
br.amax(a, 0) | np.amax(A, 0)
br.nanmean(a) | np.nanmean(A)
br.nanmedian(a) | np.nanmedian(A)
br.argwhere(a > 0) | np.argwhere(A > 0)
br.flatnonzero(a > 0) | np.flatnonzero(A > 0)
br.take(a, [0, 1], axis=1) | np.take(A, [0, 1], axis=1)
br.take_along_axis(a, br.argsort(a), axis=1) | np.take_along_axis(A, np.argsort(A), axis=1)
br.meshgrid(v, v)[0] | np.meshgrid(V, V)[0]
br.indices((2, 3)) | np.indices((2, 3))
br.arange(0, 1, 0.25) | np.arange(0, 1, 0.25)
br.linspace(0, 1, 5) | np.linspace(0, 1, 5)
br.logspace(0, 2, 3) | np.logspace(0, 2, 3)
br.geomspace(1, 100, 3) | np.geomspace(1, 100, 3)
br.zeros((2, 3)) | np.zeros((2, 3))
br.zeros(2, 3) | np.zeros((2, 3))
br.zeros_like(a) | np.zeros_like(A)
br.full((2,), 7) | np.full((2,), 7)
br.eye(3) | np.eye(3)
br.identity(3) | np.identity(3)
br.array([1, 2]) | np.array([1, 2])
br.asarray([[1.0, 2]]) | np.asarray([[1.0, 2]])
br.vander(v, 3) | np.vander(V, 3)
br.tri(3) | np.tri(3)
br.pad(v, (1, 2)) | np.pad(V, (1, 2))
br.delete(v, 1) | np.delete(V, 1)
br.insert(v, 1, 5) | np.insert(V, 1, 5)
br.copysign(v, -1) | np.copysign(V, -1)
br.float_power(abs(v), 2) | np.float_power(abs(V), 2)
br.select([v > 0], [v], 0) | np.select([V > 0], [V], 0)
br.apply_along_axis(br.sum, 0, a) | np.apply_along_axis(np.sum, 0, A)
br.atleast_2d(v) | np.atleast_2d(V)
br.size(a) | np.size(A)
br.shape(a) | np.shape(A)
br.ndim(a) | np.ndim(A)
a.astype('int32') | A.astype('int32')
a.astype(int) | A.astype(int)
a.astype(float) | A.astype(float)
a.copy() | A.copy()
a.tolist() | A.tolist()
a.item(0) | A.item(0)
a.size | A.size
a.nbytes | A.nbytes
a.itemsize | A.itemsize
a.transpose(1, 0) | A.transpose(1, 0)
a.fill_diagonal_(0) | A
a.all() | A.all()
a.nonzero() | A.nonzero()
a.ptp() | np.ptp(A)
a.trace() | A.trace()
a.diagonal() | A.diagonal()
a.prod() | A.prod()
a.round(1) | A.round(1)
a.conj() | A.conj()
a.real | A.real
a.searchsorted(v) | A
a.view('int32') | A.view('int32')
a.unsqueeze(0) | A[None]
a.permute(1, 0) | A.T
a.contiguous() | A
a.numel() | A.size
a.to('cpu') | A
a.norm() | np.linalg.norm(A)
a.pow(2) | A**2
a.add(1) | A+1
a.sub(1) | A-1
a.mul(2) | A*2
a.matmul(v) | A@V
a.t() | A.T
a.sigmoid() | 1/(1+np.exp(-A))
a.softmax(-1) | np.exp(A)/np.exp(A).sum(-1,keepdims=True)
a.relu() | np.maximum(A,0)
a.topk(2)[0] | -np.sort(-A)[:, :2]
a.gather(1, br.zeros((4,1),dtype='int64')) | A[:, :1]
a.masked_fill(a > 0, 0) | np.where(A>0,0,A)
a.unbind() | list(A)
a.chunk(2) | np.split(A,2)
a.expand(2, 4, 6) | np.broadcast_to(A,(2,4,6))
a.logsumexp(1) | np.log(np.exp(A).sum(1))
a.amax(1) | A.max(1)
a.long() | A.astype('int64')
a.double() | A.astype('float64')
a.at[0].set(1) | A
br.lax.scan | V
br.numpy.sum(a) | A.sum()
br.vmap(lambda x: x)(a) | V
br.random.rand(3).shape | (3,)
br.random.randn(2, 3).shape | (2, 3)
br.random.normal(0, 1, (3,)).shape | (3,)
br.random.uniform(0, 1, (3,)).shape | (3,)
br.random.randint(0, 5, (3,)).shape | (3,)
br.random.choice(5, 3, p=[.2]*5).shape | (3,)
br.random.shuffle(v) | V
br.random.seed(0) | V
br.random.default_rng(0) | V
br.random.permutation(5).shape | (5,)
br.random.poisson(3, 4).shape | (4,)
F.softmax(a, dim=-1) | np.exp(A)/np.exp(A).sum(-1,keepdims=True)
F.one_hot(i % 3, 3).shape | (3,4,3)
F.cross_entropy(a, br.tensor([0,1,2,3])).shape | ()
len(a) | len(A)
float(a[0, 0]) | float(A[0, 0])
f"{a.sum():.3f}" | f"{A.sum():.3f}"
list(v)[0].item() | V[0]
v.tolist()[0] | V.tolist()[0]
sum(v) | sum(V)
max(v).item() | max(V)
sorted(v.tolist()) | sorted(V.tolist())
a == a | A == A
(a > 0) & (a < 1) | (A > 0) & (A < 1)
~(a > 0) | ~(A > 0)
i << 1 | I << 1
i & 3 | I & 3
np.mean(a) | np.mean(A)
np.std(a, axis=0) | np.std(A, axis=0)
np.allclose(a, a) | True
np.argsort(a) | np.argsort(A)
np.linalg.eigh(s @ s.T)[0] | np.linalg.eigh(S @ S.T)[0]
np.fft.fft(v) | np.fft.fft(V)
np.concatenate([a, A]) | np.concatenate([A, A])
np.stack([v, v]) | np.stack([V, V])
np.clip(a, 0, 1) | np.clip(A, 0, 1)
np.asarray(a) | A
np.cov(a) | np.cov(A)
np.gradient(v) | np.gradient(V)
np.maximum.reduce(a) | np.maximum.reduce(A)
np.add.reduce(a) | np.add.reduce(A)
np.random.default_rng(0).permutation(v) | V
3 in i | 3 in I
99 in i | 99 in I
None in i | None in I
i % -5 | I % -5
-7 // (i + 1) | -7 // (I + 1)
(i.astype('uint8') - 1) | (I.astype('uint8') - 1)
(i > 3) * 2 | (I > 3) * 2
(i > 3) ^ (i > 3) | (I > 3) ^ (I > 3)
(i > 3) + (i > 3) | I
a.astype('float16').var() | A.astype('float16').var()
a[np.ix_([0, 2], [1, 3])] | A[np.ix_([0, 2], [1, 3])]
a[(a > 0).any(axis=1)] | A[(A > 0).any(axis=1)]
a[a.argsort(axis=0)[0], 1] | A[A.argsort(axis=0)[0], 1]
a[10:].shape | A[10:].shape
a[0:0].sum() | A[0:0].sum()
a + [1, 2, 3, 4, 5, 6] | A
i.astype('uint8') + 300 | A
a.size() | A.shape
a.size(0) | 4
a.sum() / a.size | A.mean()
a[: a.size() [0]] | A
br.arange(a.size).shape | (24,)
br.Tensor([1, 2]) | A
br.Tensor(2, 3) | A
br.FloatTensor([1]) | A
br.LongTensor([1]) | A
br.set_printoptions(precision=3) | A
br.split(v, np.int64(3)) | np.split(V, 3)
br.array_equal(v, V.tolist()) | True
br.exp(1j * v) | np.exp(1j * V)
(a + 1j).conj().T | (A + 1j).conj().T
np.float32(2) * a | np.float32(2) * A
A[0] * a | A[0] * A
V @ a.T | V @ A.T
np.float64(0.5) ** a | 0.5 ** A
np.testing.assert_allclose(a, A) is None | True
'%.3f' % a.mean() | '%.3f' % A.mean()
f"{a.size:04d}" | "0024"
max(v.tolist()) | max(V)
next(iter(v)).item() | V[0]
divmod(i, 5)[1] | divmod(I, 5)[1]
br.round(br.tensor([0.5, 1.5, 2.5])) | np.round([0.5, 1.5, 2.5])
br.argmax(br.tensor([1, np.nan, 3])) | 1
br.clip(i, 2.5, 5) | np.clip(I, 2.5, 5)
br.maximum(i, 2.5) | np.maximum(I, 2.5)
br.concat([a, a], axis=None) | np.concatenate([A, A], axis=None)
br.linspace(0, 1, 5, endpoint=False) | np.linspace(0, 1, 5, endpoint=False)
br.tensor(A[::2, ::-1]) | A[::2, ::-1]
br.tensor(np.array([1, 2], dtype='>i4')) | np.array([1, 2])
br.grad(lambda q: (q ** 2).sum())(a) | 2 * A
br.tree.map(lambda q: q + 1, {'a': a})['a'] | A + 1
br.tree_map(lambda q: q + 1, {'a': a}) | A
br.jit(lambda q: q)(a) | A
br.random.PRNGKey(0) | A
br.device_get(a) | A
a.block_until_ready() | A
a.cuda() | A
a.to('cuda') | A
a.add_(1) | A
a.rehsape(3) | A
a.shpae | A
br.zeors(3) | A
br.zeros(3, dtpye='float32') | A
pickle.dumps(br.LocalDevice()) | A
"""

# What an error says if it gives advice.
WAYS: Final = (
    "in burn_remote: ", "write ", "pass x.numpy()", "did you mean", "makes a tensor of",
    ") converts a tensor", "make another",
)  # fmt: skip


@pytest.fixture(scope="module")
def names() -> Iterator[dict[str, Any]]:
    with br.LocalDevice() as device:
        br.set_default_device(device)
        tensors = {name.lower(): br.tensor(array) for name, array in ARRAYS.items()}
        yield {"br": br, "np": np, "F": F, "pickle": pickle, **ARRAYS, **tensors}
        br.set_default_device(None)


def value(result: Any) -> Any:
    if isinstance(result, br.Tensor):
        return result.numpy()
    if isinstance(result, list | tuple):
        return [value(one) for one in result]
    return result


def assert_same(found: Any, expected: Any) -> None:
    if (
        isinstance(found, list)
        and isinstance(expected, list)
        and expected
        and not np.isscalar(expected[0])
    ):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            assert_same(*pair)
    elif isinstance(expected, str | tuple | list) and not expected:
        assert not found
    elif isinstance(expected, str):
        assert found == expected
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore::burn_remote.functions.iteration.RoundTripWarning")
@pytest.mark.parametrize("line", LINES.strip().splitlines())
def test_a_first_line_computes_what_numpy_does_or_its_error_gives_advice(
    line: str, names: dict[str, Any]
) -> None:
    ours, theirs = line.rsplit(" | ", 1)
    try:
        found = eval(ours, names)
    except (AttributeError, TypeError, br.BurnRemoteError) as error:
        assert any(way in str(error) for way in WAYS), error
        return
    assert_same(value(found), value(eval(theirs, names)))
