"""Runners around real sessions leave every result and every drop as it is, in both dialects."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import burn_remote as br
from burn_remote_protocol.operations.table import TABLE
from burn_remote_server.custom import custom_operation
from support.calls import CALLS, calling_on
from support.decorators import Recorder, SubtractingAdder
from support.servers import server

# Its elements are whatever lies in the memory.
UNDEFINED = ("Base", "Empty")


def elements(result: Any) -> Any:
    """Read whatever a call returns, or the text of the error with which that fails."""
    if isinstance(result, tuple | list):
        return [elements(one) for one in result]
    if result is None:  # an output that the call did not ask for
        return None
    assert isinstance(result, br.Tensor)
    try:
        if result.dtype.scheme is not None:
            return [part.tobytes() for part in br.read_quantized(result)]
        return result.numpy().tobytes()
    except br.OperationFailed as error:
        return error.reason


class Refusal(NamedTuple):
    """The error of a call whose row the session's dialect lacks."""

    text: str


def outcome(device: br.Device, key: tuple[str, str]) -> Any:
    """Return the elements that a call returns, or its refusal."""
    try:
        return elements(CALLS[key]())
    except br.Unsupported as error:
        assert not device.client.session.has_row(TABLE[key])
        return Refusal(error.reason)


def outcomes(device: br.Device, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Any]:
    device.seed(7)
    with calling_on(device):
        seen = {key: outcome(device, key) for key in keys}
    gc.collect()
    return seen


@pytest.fixture
def bare(device: br.Device) -> dict[Any, Any]:
    """What the calls return in this session without a runner around it."""
    return outcomes(device, [key for key in CALLS if key != UNDEFINED])


def test_results_do_not_change_under_recording_and_rewriting_runners(
    device: br.Device, bare: dict[Any, Any]
) -> None:
    refused = [key for key in bare if isinstance(bare[key], Refusal)]
    device.client = inner = Recorder(device.client)
    device.client = SubtractingAdder(device.client)
    device.client = outer = Recorder(device.client)
    decorated = outcomes(device, [key for key in bare if key not in refused])
    for recorder in (inner, outer):
        assert sorted(recorder.dropped) == sorted(recorder.made)
    assert len(outer.made) < len(inner.made)
    # Afterwards: a refused upload drops the id that it had reserved.
    decorated |= outcomes(device, refused)
    assert {key for key in bare if bare[key] != decorated[key]} == set()


def test_moves_between_servers_are_seen_once_at_each_end(
    remote_pair: tuple[br.RemoteDevice, br.RemoteDevice],
) -> None:
    source, target = remote_pair
    before = source.client, target.client
    source.client = sender = Recorder(source.client)
    target.client = receiver = Recorder(target.client)
    try:
        moved = br.ones((3,), device=source).to(target)
        assert (moved + 1).tolist() == [2, 2, 2]
    finally:
        source.client, target.client = before
    assert [event[0] for event in sender.events] == ["operation", "move", "drop"]
    assert [event[0] for event in receiver.events][:3] == ["fetch", "operation", "read"]


def test_moves_through_the_program_are_seen_as_an_upload_at_the_target(
    remote_pair: tuple[br.RemoteDevice, br.RemoteDevice],
) -> None:
    source, _ = remote_pair
    with br.LocalDevice() as target:
        target.client = receiver = Recorder(target.client)
        assert br.ones((3,), device=source).to(target).tolist() == [1, 1, 1]
        assert [event[0] for event in receiver.events] == ["upload", "read", "drop"]


def test_custom_operations_pass_through_the_runners() -> None:
    @custom_operation("double", inputs={"x": "any"}, shapes=lambda x: x)
    def double(xp: Any, x: Any) -> Any:
        return x + x

    with br.LocalDevice(custom_operations=[double]) as device:
        device.client = recorder = Recorder(device.client)
        x = br.ones((2,), device=device)
        y = br.custom("double", x, outputs=br.TensorSpec((2,), np.dtype("float32")))  # type: ignore[arg-type]
        assert y.tolist() == [2, 2]
        assert [event[0] for event in recorder.events] == ["operation", "operation", "read"]


def test_tensors_that_the_server_has_already_pass_through_the_runners(tmp_path: Path) -> None:
    weights = {"a": np.ones((200, 200), np.float32), "b": np.zeros(3, np.float32)}
    br.save(tmp_path / "weights.npz", weights)
    with (
        server("--data-dir", str(tmp_path)) as running,
        br.RemoteDevice(running.address) as device,
    ):
        device.client = inner = Recorder(device.client)
        device.client = outer = Recorder(device.client)
        shared = br.tensor(weights["a"], device=device, share=True)
        again = br.tensor(weights["a"], device=device, share=True)
        device.publish("named", shared)
        named = device.published("named")
        loaded = br.load("server:/weights.npz", device=device)
        for tensor in (shared, again, named, loaded["a"]):
            np.testing.assert_array_equal(tensor.numpy(), weights["a"])
        first, second, third = shared.handle.id, again.handle.id, named.handle.id
        del shared, again, named, loaded, tensor
        gc.collect()
        assert len(outer.made) >= 5
        assert sorted(outer.dropped) == sorted(outer.made)
        device.unpublish("named")
        assert device.list_published() == {}
        assert inner.events == outer.events
        storage = [event[1:] for event in outer.events if event[0] == "storage"]
        loads = [event for event in storage if event[0] == "LoadRange"]
        assert {ids for _, ids in loads} <= {(made,) for made in outer.made}
        assert len(loads) >= 2
        assert [event for event in storage if event[0] != "LoadRange"] == [
            ("OpenUpload", (first,)),
            ("FillTensor", (first,)),
            ("KeepUpload", (first,)),
            ("OpenUpload", (second,)),
            ("PublishTensor", (first,)),
            ("ListNames", ()),
            ("OpenPublishedTensor", (third,)),
            ("DescribeFile", ()),
            ("RemoveName", ()),
            ("ListNames", ()),
        ]
