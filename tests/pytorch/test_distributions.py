"""Random numbers of ``torch.distributions`` on burn devices follow their distributions."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
stats = pytest.importorskip("scipy.stats", reason="SciPy is in the dependency group oracle")
brt = importlib.import_module("burn_remote.torch")
pytestmark = pytest.mark.torch

COUNT = 20_000


@pytest.fixture(scope="module")
def device() -> Any:
    return brt.local()


# Distribution -> how to make it of a tensor of equal numbers, and SciPy's distribution.
DRAWN: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
    "gamma 0.3": (lambda d, x: d.Gamma(x * 0.3, x * 2), stats.gamma(0.3, scale=0.5)),
    "gamma 1": (lambda d, x: d.Gamma(x, x), stats.gamma(1)),
    "gamma 7": (lambda d, x: d.Gamma(x * 7, x), stats.gamma(7)),
    "gamma 200": (lambda d, x: d.Gamma(x * 200, x), stats.gamma(200)),
    "beta": (lambda d, x: d.Beta(x * 0.4, x * 2), stats.beta(0.4, 2)),
    "chi-squared": (lambda d, x: d.Chi2(x * 3), stats.chi2(3)),
    "Student's t": (lambda d, x: d.StudentT(x * 4), stats.t(4)),
    "inverse gamma": (lambda d, x: d.InverseGamma(x * 3, x), stats.invgamma(3)),
    "F": (lambda d, x: d.FisherSnedecor(x * 5, x * 7), stats.f(5, 7)),
}


@pytest.mark.parametrize("name", DRAWN)
def test_numbers_follow_their_distribution(device: Any, name: str) -> None:
    make, expected = DRAWN[name]
    torch.manual_seed(1)
    drawn = make(torch.distributions, torch.ones(COUNT, device=device)).sample()
    found = stats.kstest(drawn.cpu().double().numpy(), expected.cdf)
    assert found.pvalue > 1e-3


def test_shares_of_a_dirichlet_distribution(device: Any) -> None:
    torch.manual_seed(1)
    weights = [0.2, 1.0, 3.0]
    drawn = torch.distributions.Dirichlet(torch.tensor(weights, device=device)).sample((COUNT,))
    shares = drawn.cpu().double()
    torch.testing.assert_close(shares.sum(1), torch.ones(COUNT, dtype=torch.float64))
    for share, weight in zip(shares.T, weights, strict=True):
        marginal = stats.beta(weight, sum(weights) - weight)
        assert stats.kstest(share.numpy(), marginal.cdf).pvalue > 1e-3


def test_gamma_numbers_are_independent_and_repeated_for_a_seed(device: Any) -> None:
    shapes = torch.full((COUNT, 2), 1.5, device=device)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(torch._standard_gamma(shapes).cpu())
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert abs(torch.corrcoef(drawn[0].T)[0, 1]) < 0.03


def test_edges_of_the_shape_of_a_gamma_distribution(device: Any) -> None:
    drawn = torch._standard_gamma(torch.tensor([0.0, 1e-6, float("inf")], device=device)).cpu()
    least = torch.finfo(torch.float32).tiny
    assert drawn.tolist() == [least, least, float("inf")]
    assert torch._standard_gamma(torch.zeros(0, device=device)).shape == (0,)
