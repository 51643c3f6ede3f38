"""einops: ``einops.array_api``, which takes the arrays of any library of the standard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import burn_remote as br

pytestmark = pytest.mark.ecosystem

IMAGES = np.arange(2 * 4 * 6 * 3, dtype=np.float64).reshape(2, 4, 6, 3)
ROWS = np.arange(12.0).reshape(3, 4)

CALLS: dict[str, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "rearrange, transposed": lambda e, to: e.rearrange(to(IMAGES), "b h w c -> b c h w"),
    "rearrange, split": lambda e, to: e.rearrange(
        to(IMAGES), "b (h p) (w q) c -> b h w (p q c)", p=2, q=3
    ),
    "rearrange, joined": lambda e, to: e.rearrange(to(IMAGES), "b h w c -> (b h) (w c)"),
    "rearrange, list": lambda e, to: e.rearrange([to(ROWS), to(ROWS)], "n r c -> r (n c)"),
    "rearrange, ellipsis": lambda e, to: e.rearrange(to(IMAGES), "b ... c -> c ... b"),
    "reduce, mean": lambda e, to: e.reduce(to(IMAGES), "b h w c -> b c", "mean"),
    "reduce, max": lambda e, to: e.reduce(
        to(IMAGES), "b (h p) (w q) c -> b h w c", "max", p=2, q=2
    ),
    "reduce, min": lambda e, to: e.reduce(to(IMAGES), "b h w c -> b 1 1 c", "min"),
    "reduce, sum": lambda e, to: e.reduce(to(IMAGES), "b h w c ->", "sum"),
    "reduce, prod": lambda e, to: e.reduce(to(ROWS), "r c -> r", "prod"),
    "repeat": lambda e, to: e.repeat(to(ROWS), "r c -> r n c", n=3),
    "repeat, scaled": lambda e, to: e.repeat(to(ROWS), "r c -> (r p) (c q)", p=2, q=2),
    "pack": lambda e, to: e.pack([to(ROWS), to(IMAGES[0, 0, :3, :])], "r *")[0],
    "unpack": lambda e, to: e.unpack(to(ROWS), [(1,), (3,)], "r *"),
    "asnumpy": lambda e, to: e.asnumpy(e.rearrange(to(ROWS), "r c -> c r")),
}


@pytest.mark.parametrize("name", CALLS)
def test_einops_computes_on_the_device_what_it_computes_with_numpy(
    name: str, box: br.Device
) -> None:
    import einops.array_api

    expected = CALLS[name](einops.array_api, np.asarray)
    result = CALLS[name](einops.array_api, lambda array: br.tensor(array, device=box))
    wanted = expected if isinstance(expected, list) else [expected]
    results = result if isinstance(result, list) else [result]
    assert len(results) == len(wanted)
    for one, array in zip(results, wanted, strict=True):
        assert isinstance(one, br.Tensor) or name == "asnumpy"
        np.testing.assert_allclose(np.asarray(one), array)


@pytest.mark.parametrize("function", ["rearrange", "reduce", "repeat", "einsum"])
def test_the_functions_of_einops_itself_name_what_to_use(function: str, box: br.Device) -> None:
    import einops

    x = br.tensor(ROWS, device=box)
    calls: dict[str, Callable[[], Any]] = {
        "rearrange": lambda: einops.rearrange(x, "r c -> c r"),
        "reduce": lambda: einops.reduce(x, "r c -> c", "sum"),
        "repeat": lambda: einops.repeat(x, "r c -> r c n", n=2),
        "einsum": lambda: einops.einsum(x, x, "r c, r c -> r"),
    }
    with pytest.raises(RuntimeError, match="Tensor type unknown to einops"):
        calls[function]()
