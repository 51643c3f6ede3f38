"""Results do not depend on what other sessions of a server compute at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import burn_remote as br
from support.servers import server
from support.waiting import PATIENCE_SECONDS


# OpenBLAS's kernels of this processor, and those whose bits depend on most divisions of a product.
@pytest.mark.parametrize("kernels", ["", "Haswell"])
def test_a_large_product_has_the_same_bits_while_another_session_multiplies(kernels: str) -> None:
    random = np.random.default_rng(3)
    first, second = (
        random.standard_normal(shape, dtype=np.float32) for shape in ((333, 777), (777, 111))
    )
    variables = {"OPENBLAS_CORETYPE": kernels} if kernels else {}
    done = threading.Event()
    with (
        server(**variables) as running,
        br.RemoteDevice(running.address, token="one") as device,
        br.RemoteDevice(running.address, token="another") as other,
        ThreadPoolExecutor(1) as threads,
    ):
        lhs, rhs = (br.tensor(each, device=device) for each in (first, second))

        def multiply() -> None:
            medium = br.ones((64, 784), device=other), br.ones((784, 128), device=other)
            while not done.is_set():
                products = [medium[0] @ medium[1] for _ in range(20)]
                assert float(products[-1][0, 0]) == 784

        expected = (lhs @ rhs).numpy().tobytes()
        multiplying = threads.submit(multiply)
        try:
            for _ in range(200):
                assert (lhs @ rhs).numpy().tobytes() == expected
        finally:
            done.set()
        multiplying.result(PATIENCE_SECONDS)


FUNCTIONS: Mapping[str, Callable[[br.Tensor], br.Tensor]] = {
    "Cholesky": lambda x: br.linalg.cholesky(x @ x.T + 400 * br.eye(400, device=x.device)),
    "Eigh": lambda x: br.linalg.eigh(x + x.T).eigenvectors,
    "Inv": br.linalg.inv,
    "Qr": lambda x: br.linalg.qr(x).R,
    "Solve": lambda x: br.linalg.solve(x, x.T),
    "Svdvals": br.linalg.svdvals,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("kernels", ["", "Haswell"])
def test_linear_algebra_has_the_same_bits_on_any_number_of_blas_threads(
    name: str, kernels: str
) -> None:
    matrix = np.random.default_rng(3).standard_normal((400, 400))
    found = set()
    for count in ("1", "2"):
        variables = {"OPENBLAS_NUM_THREADS": count}
        if kernels:
            variables["OPENBLAS_CORETYPE"] = kernels
        with server(**variables) as running, br.RemoteDevice(running.address) as device:
            result = FUNCTIONS[name](br.tensor(matrix, device=device))
            found.add(result.numpy().tobytes())
    assert len(found) == 1
