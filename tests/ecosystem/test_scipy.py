"""SciPy with ``SCIPY_ARRAY_API=1``: functions that get tensors compute on the device."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import burn_remote as br

pytestmark = pytest.mark.ecosystem

_random = np.random.default_rng(0)
A = _random.normal(size=(12, 4))
B = _random.normal(size=12) + 2.0
P = _random.uniform(0.05, 0.95, size=40)
SIGNAL = _random.normal(size=64)
LABELS = np.repeat(np.arange(3), 4)
FREQUENCIES = np.abs(A) + 0.5
SHARES = FREQUENCIES / FREQUENCIES.sum(0)
ROTATIONS = np.asarray([[0.0, 0.0, 1.0, 1.0], [0.5, 0.5, 0.5, 0.5]])


def call(name: str, *arguments: Any, reads: str = "", **options: Any) -> Callable[..., Any]:
    """Return a call of ``scipy.<name>``, with the attributes of its result that are compared."""
    module, _, function = name.rpartition(".")

    def run(to: Callable[[Any], Any]) -> Any:
        found = getattr(importlib.import_module(f"scipy.{module}"), function)
        given = [to(one) if isinstance(one, np.ndarray) else one for one in arguments]
        result = found(*given, **options)
        return [getattr(result, one) for one in reads.split()] if reads else result

    return run


def rotated(to: Callable[[Any], Any]) -> Any:
    from scipy.spatial.transform import Rotation

    rotation = Rotation.from_quat(to(ROTATIONS))
    turned = rotation.apply(to(A[:2, :3]))
    return [rotation.as_matrix(), turned, (rotation * rotation).as_rotvec(), rotation.magnitude()]


def cubature(to: Callable[[Any], Any]) -> Any:
    from array_api_compat import array_namespace
    from scipy.integrate import cubature

    def integrand(x: Any) -> Any:
        return array_namespace(x).exp(-x[:, 0])

    return cubature(integrand, to(np.zeros(1)), to(np.ones(1))).estimate


def root(to: Callable[[Any], Any]) -> Any:
    from scipy.optimize.elementwise import find_root

    bounds = (to(np.zeros(3)), to(np.full(3, 4.0)))
    return find_root(lambda x, c: x**3 - c, bounds, args=(to(np.asarray([1.0, 2.0, 3.0])),)).x


def derivative(to: Callable[[Any], Any]) -> Any:
    from scipy.differentiate import derivative

    return derivative(lambda x: x**3, to(P)).df


CALLS: dict[str, Callable[..., Any]] = {
    **{name: call(f"fft.{name}", SIGNAL) for name in (
        "fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "fftshift", "ifftshift",
    )},
    **{name: call(f"fft.{name}", A) for name in ("fft2", "fftn", "rfftn", "irfftn")},
    **{name: call(f"special.{name}", P) for name in (
        "erf", "erfc", "expit", "logit", "log_ndtr", "ndtr", "ndtri", "gammaln", "i0", "i1",
        "entr", "log1p", "exp1", "j0", "sinc",
    )},
    "logsumexp": call("special.logsumexp", A, axis=1),
    "softmax": call("special.softmax", A, axis=1),
    "log_softmax": call("special.log_softmax", A, axis=1),
    "xlogy": call("special.xlogy", P, P),
    "rel_entr": call("special.rel_entr", P, P[::-1].copy()),
    "chdtrc": call("special.chdtrc", P, P),
    "betainc": call("special.betainc", P, P, P),
    "describe": call("stats.describe", A, reads="mean variance skewness kurtosis"),
    "moment": call("stats.moment", A, order=3),
    "skew": call("stats.skew", A),
    "kurtosis": call("stats.kurtosis", A),
    "gmean": call("stats.gmean", FREQUENCIES),
    "hmean": call("stats.hmean", FREQUENCIES),
    "pmean": call("stats.pmean", FREQUENCIES, 3),
    "zscore": call("stats.zscore", A),
    "gzscore": call("stats.gzscore", FREQUENCIES),
    "variation": call("stats.variation", A),
    "sem": call("stats.sem", A),
    "entropy": call("stats.entropy", FREQUENCIES),
    "tmean": call("stats.tmean", B, (1.0, 3.0)),
    "tstd": call("stats.tstd", B, (1.0, 3.0)),
    "iqr": call("stats.iqr", A, axis=0),
    "rankdata": call("stats.rankdata", B),
    "pearsonr": call("stats.pearsonr", B, B**2, reads="statistic pvalue"),
    "spearmanr": call("stats.spearmanrho", B, B**2, reads="statistic pvalue"),
    "ttest_1samp": call("stats.ttest_1samp", A, 0.0, reads="statistic pvalue df"),
    "ttest_ind": call("stats.ttest_ind", A, A + 1.0, reads="statistic pvalue df"),
    "ttest_rel": call("stats.ttest_rel", A, A**2, reads="statistic pvalue df"),
    "normaltest": call("stats.normaltest", SIGNAL, reads="statistic pvalue"),
    "jarque_bera": call("stats.jarque_bera", SIGNAL, reads="statistic pvalue"),
    "skewtest": call("stats.skewtest", SIGNAL, reads="statistic pvalue"),
    "kurtosistest": call("stats.kurtosistest", SIGNAL, reads="statistic pvalue"),
    "chisquare": call("stats.chisquare", SHARES, reads="statistic pvalue"),
    "power_divergence": call("stats.power_divergence", SHARES, reads="statistic pvalue"),
    "bartlett": call("stats.bartlett", B, B**2, reads="statistic pvalue"),
    "levene": call("stats.levene", B, B**2, reads="statistic pvalue"),
    "combine_pvalues": call("stats.combine_pvalues", P, reads="statistic pvalue"),
    "circmean": call("stats.circmean", P),
    "circvar": call("stats.circvar", P),
    "boxcox_llf": call("stats.boxcox_llf", 0.5, FREQUENCIES[:, 0]),
    "differential_entropy": call("stats.differential_entropy", SIGNAL),
    "trim_mean": call("stats.trim_mean", B, 0.1),
    "vq": call("cluster.vq.vq", A, A[:3]),
    "whiten": call("cluster.vq.whiten", A),
    "kmeans": call("cluster.vq.kmeans", A, A[:3]),
    "kmeans2": call("cluster.vq.kmeans2", A, A[:3], minit="matrix"),
    "linkage": call("cluster.hierarchy.linkage", A),
    "pdist": call("spatial.distance.pdist", A),
    "correlate": call("signal.correlate", SIGNAL, SIGNAL[:8], method="fft"),
    "convolve": call("signal.convolve", SIGNAL, SIGNAL[:8]),
    "fftconvolve": call("signal.fftconvolve", SIGNAL, SIGNAL[:8]),
    "detrend": call("signal.detrend", SIGNAL),
    "hilbert": call("signal.hilbert", SIGNAL),
    "resample": call("signal.resample", SIGNAL, 32),
    "sosfilt": call("signal.sosfilt", np.asarray([[1.0, 2, 1, 1, 0.1, 0.2]]), SIGNAL),
    "gaussian_filter": call("ndimage.gaussian_filter", A, 1.0),
    "uniform_filter": call("ndimage.uniform_filter", A, 3),
    "sobel": call("ndimage.sobel", A),
    "zoom": call("ndimage.zoom", A, 2.0),
    "sum_labels": call("ndimage.sum_labels", B, LABELS, np.arange(3)),
    "trapezoid": call("integrate.trapezoid", A),
    "cumulative_trapezoid": call("integrate.cumulative_trapezoid", A),
    "cumulative_simpson": call("integrate.cumulative_simpson", A, dx=0.1),
    "Rotation": rotated,
    "cubature": cubature,
    "find_root": root,
    "derivative": derivative,
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_scipy_computes_on_the_device_what_it_computes_with_numpy(
    name: str, box: br.Device
) -> None:
    expected = flat(CALLS[name](np.asarray))
    results = flat(CALLS[name](lambda array: br.tensor(array, device=box)))
    assert len(results) == len(expected)
    assert any(isinstance(one, br.Tensor) for one in results)
    for result, wanted in zip(results, expected, strict=True):
        elements = result.numpy() if isinstance(result, br.Tensor) else result
        np.testing.assert_allclose(elements, wanted, rtol=1e-7, atol=1e-9)


def flat(result: Any) -> list[Any]:
    """Return the arrays of a result, which may be a tuple."""
    parts = result if isinstance(result, tuple | list) else [result]
    return [one for part in parts for one in (flat(part) if part is not result else [part])]
