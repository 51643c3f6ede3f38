"""Elementwise calls give the results of their operations, also into an operand's memory."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from burn_remote_server.backends.numpy.backend import NumpyBackend
from support.workloads import DRAWN, draw


@pytest.mark.parametrize("name", DRAWN)
def test_a_ufunc_takes_the_output_by_position_without_a_warning(name: str) -> None:
    backend = NumpyBackend()
    session = backend.open_session()
    for seed in range(5):
        workload = draw(name, Random(f"{name} {seed}"), 20)
        if workload is None:
            continue
        calls = session.bind_elementwise(workload.signature)
        if len(calls) != 1 or calls[0].into is not calls[0].function:
            continue
        with np.errstate(all="ignore"):
            expected = session.bind(workload.signature)(*workload.arrays)
            out = np.empty_like(expected)
            result = calls[0].function(*workload.arrays, *calls[0].constants, out)
        assert result is out
        assert out.tobytes() == expected.tobytes()
