"""Random numbers of the gamma and Dirichlet distributions.

G. Marsaglia and W. W. Tsang, "A simple method for generating gamma variables" (2000): a number is
drawn until it is accepted. Devices draw all elements at once, so here each element has as many
tries as it can need.
"""

from __future__ import annotations

from typing import Any, Final

import burn_remote as br
from burn_remote.functions.casting import converted_to
from burn_remote.torch.aten.table import aten

__all__: list[str] = []

Tensor = br.Tensor

# A try is accepted with a probability of at least 0.95, so for 1 element in 2^52 all are refused.
_TRIES: Final = 12

_LEAST: Final = {br.float64: 2.2250738585072014e-308, br.float32: 1.1754943508222875e-38}


def _logarithm_of_gamma(shape: Tensor) -> Tensor:
    """Return logarithms of numbers of the gamma distribution, in float64."""
    size, device = shape.shape, shape.device

    def uniform() -> Tensor:
        # From above 0, whose logarithm is infinite, to 1.
        return 1 - br.random.uniform(size, dtype=br.float64, device=device)

    alpha = converted_to(shape, br.float64)
    is_small = alpha < 1
    d = br.where(is_small, alpha + 1, alpha) - 1 / 3
    c = 1 / br.sqrt(d * 9)
    result: Tensor | None = None
    is_found: Tensor | None = None
    for _ in range(_TRIES):
        x = br.random.normal(size, dtype=br.float64, device=device)
        root = 1 + c * x
        v = br.maximum(root * root * root, 1e-300)
        limit = x * x * 0.5 + d * (1 - v + br.log(v))
        is_accepted = br.logical_and(root > 0, br.log(uniform()) < limit)
        found = br.log(d * v)
        if result is None or is_found is None:
            result, is_found = found, is_accepted
        else:
            result = br.where(is_found, result, found)
            is_found = br.logical_or(is_found, is_accepted)
    assert result is not None
    # A number of the shape alpha is one of alpha + 1 times u^(1 / alpha).
    boost = br.log(uniform()) / br.where(is_small, alpha, 1.0)
    return br.where(is_small, result + boost, result)


@aten("_standard_gamma")
def standard_gamma(x: Tensor, *, generator: Any = None) -> Tensor:
    drawn = converted_to(br.exp(_logarithm_of_gamma(x)), x.dtype)
    drawn = br.maximum(drawn, _LEAST.get(x.dtype, 0.0))
    return br.mask_fill(drawn, br.logical_or(x < 0, br.isnan(x)), float("nan"))


@aten("_sample_dirichlet")
def sample_dirichlet(x: Tensor, *, generator: Any = None) -> Tensor:
    # Quotients of logarithms, because all numbers of small shapes may be 0.
    drawn = _logarithm_of_gamma(x)
    largest = br.max(drawn, axis=-1, keepdims=True)
    parts = br.exp(drawn - largest)
    shares = converted_to(parts / br.sum(parts, axis=-1, keepdims=True), x.dtype)
    return br.clip(shares, _LEAST.get(x.dtype, 0.0), 1.0)
