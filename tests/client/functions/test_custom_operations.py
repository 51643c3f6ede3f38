"""Calls of custom operations declare their outputs and are checked before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

import burn_remote as br
from support.runners import RecordingDevice

ONE = br.TensorSpec((3,), br.int8)


@pytest.fixture
def device() -> RecordingDevice:
    return RecordingDevice()


def test_one_declared_output_gives_a_tensor(device: RecordingDevice) -> None:
    x = br.ones(2, device=device)
    assert br.custom("name", x, outputs=ONE).handle.spec == ONE
    assert device.runner.names[-1].endswith("Custom")


@pytest.mark.parametrize("outputs", [[ONE], (ONE, ONE)])
def test_a_sequence_of_outputs_gives_a_tuple(device: RecordingDevice, outputs: Any) -> None:
    found = br.custom("name", br.ones(2, device=device), outputs=outputs)
    assert isinstance(found, tuple)
    assert [out.handle.spec for out in found] == list(outputs)


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "text"),
    [
        ("name", 0, ONE, "at least one input is required"),
        ("", 1, ONE, "must have 1 to 256 characters"),
        ("n" * 257, 1, ONE, "must have 1 to 256 characters"),
        ("name", 1, [], "must declare at least one tensor"),
        ("name", 1, br.TensorSpec((-1,), br.int8), "custom operation 'name'"),
        ("name", 1, br.TensorSpec((2**60,), br.int8), "custom operation 'name'"),
    ],
)
def test_an_invalid_call_is_refused_before_anything_is_sent(
    device: RecordingDevice, name: str, inputs: int, outputs: Any, text: str
) -> None:
    tensors = [br.ones(2, device=device)] * inputs
    before = len(device.runner.names)
    with pytest.raises(br.UsageError, match=text):
        br.custom(name, *tensors, outputs=outputs)
    assert len(device.runner.names) == before
