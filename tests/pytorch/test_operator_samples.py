"""PyTorch's samples of operators beyond core ATen have the results and gradients of the CPU.

``benchmarks/torch_coverage.py`` compares those of core ATen.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
brt = importlib.import_module("burn_remote.torch")
pytest.importorskip("expecttest", reason="expecttest is in the dependency group oracle")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's samples, some of which are deprecated
]

# Operators, and how many of their samples (evenly spaced) are compared.
MOST = 12
OPERATORS = [
    "cholesky_inverse",
    "digamma",
    "erfc",
    "erfinv",
    "fmax",
    "fmin",
    "frexp",
    "gcd",
    "histogram",
    "grid_sampler_3d",
    "i0",
    "igamma",
    "igammac",
    "index_reduce",
    "lcm",
    "lgamma",
    "linalg.lstsq",
    "linalg.lu",
    "linalg.lu_factor",
    "linalg.lu_solve",
    "lu_unpack",
    "masked.median",
    "mvlgamma",
    "nanmedian",
    "nn.functional.adaptive_max_pool1d",
    "nn.functional.adaptive_max_pool2d",
    "nn.functional.adaptive_max_pool3d",
    "nn.functional.ctc_loss",
    "nn.functional.multi_margin_loss",
    "nn.functional.multilabel_margin_loss",
    "polygamma",
    "put",
    "searchsorted",
    *[f"special.bessel_{kind}" for kind in ("j0", "j1", "y0", "y1")],
    *[f"special.chebyshev_polynomial_{kind}" for kind in "tuvw"],
    *[f"special.shifted_chebyshev_polynomial_{kind}" for kind in "tuvw"],
    *[f"special.modified_bessel_{kind}" for kind in ("i0", "i1", "k0", "k1")],
    *[f"special.scaled_modified_bessel_{kind}" for kind in ("k0", "k1")],
    "special.spherical_bessel_j0",
    "special.erfcx",
    "special.i0e",
    "special.i1",
    "special.i1e",
    "special.log_ndtr",
    "special.ndtri",
    "take",
    "triangular_solve",
    "unique",
    "unique_consecutive",
]


@pytest.fixture(scope="module", autouse=True)
def device() -> Any:
    return brt.local()


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", OPERATORS)
def test_samples_have_the_results_of_the_cpu(name: str, backward: bool) -> None:
    from torch.testing._internal.common_methods_invocations import op_db

    from support.operator_samples import measure

    found = [op for op in op_db if op.name == name]
    assert found
    for op in found:
        if backward and not op.supports_autograd:
            continue
        count = measure(op, backward, MOST)
        assert not count.reasons
        assert count.total
