"""A tensor of windows keeps no more memory alive than the session's quota counts for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends import Backend
from support.kernels import signature

pytestmark = pytest.mark.gpu

ROWS, COLUMNS = 4000, 64


def windows(gpu: Backend, **parameters: Any) -> tuple[Any, Any, Any]:
    """Return a tensor, its windows along the first axis, and their elements on the host."""
    x = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    session = gpu.open_session()
    session.activate()
    tensor = session.adopt(gpu.to_device(TensorData(x.tobytes(), x.shape, F32)))
    signed = signature("Base.Unfold", TensorSpec(x.shape, F32), dim=0, **parameters)
    result = session.bind(signed)(tensor)
    gpu.sync()
    seen = np.frombuffer(gpu.to_bytes(result, F32), np.float32).reshape(result.shape)
    expected = np.lib.stride_tricks.sliding_window_view(x, parameters["size"], 0)
    np.testing.assert_array_equal(seen, expected[:: parameters["step"]])
    return tensor, result, seen


def test_few_windows_are_a_copy(gpu: Backend) -> None:
    tensor, result, seen = windows(gpu, size=1, step=1000)

    assert result.data.mem is not tensor.data.mem
    assert result.data.mem.size < 2 * seen.nbytes


def test_windows_that_overlap_share_the_memory_of_the_tensor(gpu: Backend) -> None:
    tensor, result, _ = windows(gpu, size=3, step=1)

    assert result.data.mem is tensor.data.mem
