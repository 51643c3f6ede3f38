"""Near a full memory pool, what a program drops makes room for what it uploads next."""

from __future__ import annotations

import numpy as np
import pytest

import burn_remote as br
from support.servers import server

MIB = 2**20
POOL_BYTES = 128 * MIB
UPLOAD = np.ones(150 * 1024, np.float32)  # 600 KiB


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_uploads_fit_into_the_room_of_the_tensors_that_were_dropped_before(is_busy: bool) -> None:
    limits = ("--max-total-bytes", str(POOL_BYTES), "--max-session-bytes", str(POOL_BYTES))
    with (
        server(*limits) as running,
        br.RemoteDevice(running.address, automatic_graphs=False) as device,
    ):
        square = br.ones((1024, 1024), device=device)  # 4 MiB
        room = 4 * MIB + 5 * UPLOAD.nbytes // 4  # of a product, and of one upload
        count = (POOL_BYTES - square.size * 4 - room) // MIB
        held = [br.ones((MIB // 4,), device=device) for _ in range(count)]
        device.sync()
        if is_busy:  # so that the uploads wait
            for _ in range(20):
                square @ square
        for _ in range(60):
            br.tensor(UPLOAD, device=device)  # dropped at once
        device.sync()
        assert all(tensor.numpy().sum() == MIB // 4 for tensor in held[:2])
