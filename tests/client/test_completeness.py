"""Every row of the operation table is issued by a method or function."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

import burn_remote as br
from burn_remote_protocol.operations.table import TABLE
from support.calls import CALLS, calling_on
from support.runners import RecordingDevice

# Rows for which the client has no function of their own name, and why: three act on handles, and no
# server executes the last one.
WITHOUT_A_CALL: Final = {
    ("Init", "Init"),
    ("Drop", "Drop"),
    ("Custom", "Custom"),
    ("Distributed", "AllReduce"),
}


def test_every_row_has_a_call() -> None:
    assert set(CALLS) == set(TABLE) - WITHOUT_A_CALL


@pytest.mark.parametrize("family, name", CALLS, ids=".".join)
def test_the_call_issues_its_row(family: str, name: str, device: RecordingDevice) -> None:
    with calling_on(device):
        CALLS[family, name]()
    issued = [operation.signature.row for operation in device.runner.operations]
    assert TABLE[family, name] in issued


def test_creating_a_tensor_uploads_it(device: RecordingDevice) -> None:
    tensor = br.tensor(np.ones((2, 3), np.float32), device=device)
    assert device.runner.uploads[tensor.handle.id].spec == tensor.handle.spec
