"""Invalid memory handles and sizes are refused and do not harm the GPU."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import TransferFailed
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends import Backend

pytestmark = pytest.mark.gpu

X = np.random.default_rng(7).standard_normal((1500, 2000)).astype(np.float32)


def upload(gpu: Backend, elements: int) -> Any:
    return gpu.empty(TensorSpec((elements,), F32))


@pytest.mark.parametrize("handle", [b"", b"\0" * 63, b"\0" * 64, b"\xff" * 64, bytes(range(64))])
def test_an_invalid_handle_is_refused_and_the_gpu_keeps_working(
    gpu: Backend, handle: bytes
) -> None:
    with pytest.raises(TransferFailed):
        gpu.borrow(upload(gpu, 2**20), handle)

    data = TensorData(X.tobytes(), X.shape, F32)
    assert bytes(gpu.to_bytes(gpu.to_device(data), F32)) == X.tobytes()


def test_a_process_cannot_borrow_its_own_memory(gpu: Backend) -> None:
    loan = gpu.lend(gpu.to_device(TensorData(X.tobytes(), X.shape, F32)), F32)
    assert loan is not None
    with pytest.raises(TransferFailed):
        gpu.borrow(upload(gpu, X.size), loan.handle)


LENDER = """
import sys
import numpy as np
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.tensors import TensorData
from burn_remote_server.backends import open_backends
(gpu,) = open_backends("cupy", 1)
array = np.arange(2**19, dtype=np.float32)  # 2 MiB, a whole block
loan = gpu.lend(gpu.to_device(TensorData(array.tobytes(), array.shape, F32)), F32)
print(loan.handle.hex(), flush=True)
sys.stdin.read()
"""


def test_no_byte_beyond_the_lent_block_is_copied(gpu: Backend) -> None:
    command = [sys.executable, "-c", LENDER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as lender:
        assert lender.stdout is not None
        handle = bytes.fromhex(lender.stdout.readline())
        with pytest.raises(TransferFailed, match="the lent memory has"):
            gpu.borrow(upload(gpu, 2**19 + 1), handle)

        whole = upload(gpu, 2**19)
        for _ in range(2):  # and it can be opened again
            gpu.borrow(whole, handle)
        elements = gpu.to_bytes(gpu.finished(whole, F32), F32)
        np.testing.assert_array_equal(np.frombuffer(elements, np.float32), np.arange(2**19))
