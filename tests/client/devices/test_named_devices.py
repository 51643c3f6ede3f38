"""Devices by name: in calls, by ``br.device`` and as the default."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import burn_remote as br
from support.ports import reserved_port
from support.runners import RecordingDevice
from support.servers import RunningServer, server


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    with server() as one:
        yield one


@pytest.fixture
def default() -> Iterator[None]:
    yield
    br.set_default_device(None)


def test_a_name_in_a_call_stands_for_the_device_at_that_address(running: RunningServer) -> None:
    with br.RemoteDevice(running.address) as opened:
        x = br.zeros((2,), device=running.address)
        assert x.device == opened == br.device(running.address)
        assert (x + br.ones((2,), device=opened)).tolist() == [1, 1]
        br.device(running.address).close()


def test_two_forms_of_one_address_are_one_device(running: RunningServer) -> None:
    short = running.address.removeprefix("ws://")
    with br.device(short) as device:
        assert br.device(f"{running.address}/0/") is device


def test_a_name_opens_another_device_once_its_device_is_closed(running: RunningServer) -> None:
    with br.device(running.address) as closed:
        pass
    with br.device(running.address) as opened:
        assert opened != closed
        assert br.ones((1,), device=running.address).device == opened


def test_local_is_one_device_for_all_calls_until_it_is_closed() -> None:
    with br.device("local") as device:
        assert isinstance(device, br.LocalDevice)
        x = br.ones((2,), device="local") + br.tensor([1.0, 2.0], device="local")
        assert x.device is device
        assert x.tolist() == [2, 3]
    with br.device("local") as another:
        assert another != device


def test_threads_that_use_a_name_first_share_its_device() -> None:
    start, found = threading.Barrier(4), list[Any]()

    def use() -> None:
        start.wait()
        found.append(br.ones((1,), device="local"))

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(found[1:], found[0]).tolist() == [4]
    br.device("local").close()


def test_tensors_move_and_groups_form_by_name(running: RunningServer) -> None:
    with br.device("local") as local, br.device(running.address) as remote:
        x = br.arange(3, device=local).to(running.address)
        assert x.device == remote
        assert x.to_device("local").tolist() == [0, 1, 2]
        group = br.distributed.Group(["local", running.address])
        assert group.devices == (local, remote)
        group.close()


def test_a_device_is_returned_as_it_is() -> None:
    with br.LocalDevice() as device:
        assert br.device(device) is device


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("cuda", "'ws://host:3000'"),
        ("cuda:0", "'ws://host:3000'"),
        ("cpu", "'local'"),
        ("float64", "x.astype"),
        ("bfloat16", "x.astype"),
    ],
)
def test_names_of_other_libraries_are_refused_with_ours(name: str, instead: str) -> None:
    with pytest.raises(br.UsageError, match=instead):
        br.zeros((1,), device=name)


def test_a_value_that_is_no_device_is_refused() -> None:
    with pytest.raises(br.UsageError, match="a name such as"):
        br.device(3)  # type: ignore[arg-type]


def test_a_chosen_default_device_serves_calls_without_one(
    running: RunningServer, default: None
) -> None:
    with br.LocalDevice() as local:
        br.set_default_device(local)
        assert br.ones((1,)).device is br.default_device() is local
        assert br.random.uniform((1,)).device is local
        br.set_default_device(running.address)
        with br.default_device():
            assert br.ones((1,)).device == br.device(running.address)


def test_a_default_device_that_was_closed_is_not_replaced_silently(default: None) -> None:
    with br.LocalDevice() as local:
        br.set_default_device(local)
    with pytest.raises(br.ClosedDevice):
        br.ones((1,))


def test_none_restores_the_default_device_of_the_environment(
    running: RunningServer, default: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BURN_REMOTE_ADDRESS", running.address)
    with br.LocalDevice() as local:
        br.set_default_device(local)
        br.set_default_device(None)
        with br.default_device() as restored:
            assert br.ones((1,)).device == restored == br.RemoteDevice(running.address)


@pytest.mark.parametrize(("kind", "instead"), [("cuda", "'ws://host:3000'"), ("cpu", "'local'")])
def test_a_device_of_pytorch_gets_the_name_to_write(kind: str, instead: str) -> None:
    device: Any = SimpleNamespace(type=kind, index=0)  # as torch.device
    with pytest.raises(br.UsageError, match=f"; write {instead}"):
        br.ones((2,), device=device)
    with pytest.raises(br.UsageError, match=f"; write {instead}"):
        br.ones((2,), device="local").to(device)


def test_a_device_of_no_kind_names_the_kinds() -> None:
    for arguments in ((), ("ws://127.0.0.1:3000",), ("cuda",)):
        with pytest.raises(br.ArgumentMismatch, match=r"RemoteDevice\('ws://host:3000'\) or Local"):
            br.Device(*arguments)


@pytest.mark.parametrize("name", ["cupy", "cuda", "gpu"])
def test_a_local_device_on_a_gpu_is_refused_with_the_command_of_a_server(name: str) -> None:
    with pytest.raises(br.UsageError, match="start burn-remote-server --backend cupy"):
        br.LocalDevice(name)


def test_a_local_device_without_the_servers_packages_names_the_extra() -> None:
    program = """
import sys
sys.modules["pydantic"] = None
import burn_remote as br
try:
    br.LocalDevice()
except br.UsageError as error:
    print(error)
"""
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert "a LocalDevice contains a server, whose package pydantic is not installed" in shown
    assert 'run pip install "burn-remote[server]"' in shown


def test_the_hint_for_connect_opens_a_device() -> None:
    with pytest.raises(AttributeError, match=r"burn_remote\.RemoteDevice\('ws://host:3000'\)"):
        br.connect  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_copying_a_device_says_what_to_send_instead(copied: Any) -> None:
    with (
        br.LocalDevice() as device,
        pytest.raises(br.ArgumentMismatch, match=r"pickled nor copied; make another .*x.numpy"),
    ):
        copied(device)
    with pytest.raises(br.ArgumentMismatch, match=r"pickled nor copied; send its address"):
        copied(RecordingDevice())


def test_pickling_a_tensor_says_to_pickle_its_elements() -> None:
    with (
        br.LocalDevice() as device,
        pytest.raises(br.ArgumentMismatch, match=r"pickle x\.numpy\(\)"),
    ):
        pickle.dumps(br.ones((1,), device=device))


def test_a_mistyped_path_is_named_with_the_right_address(running: RunningServer) -> None:
    with pytest.raises(br.ConnectionFailed) as caught:
        br.RemoteDevice(f"{running.address}/foo")
    assert f"no such path as /foo; write {running.address}, or" in str(caught.value)


@pytest.mark.parametrize("how", ["constructor", "call", "name", "default"])
def test_a_missing_server_is_one_exception_of_few_frames(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reserved_port() as port:
        address = f"ws://127.0.0.1:{port}"
        monkeypatch.setenv("BURN_REMOTE_ADDRESS", address)
        calls: dict[str, Callable[[], object]] = {
            "constructor": lambda: br.RemoteDevice(address),
            "call": lambda: br.zeros((1,), device=address),
            "name": lambda: br.device(address),
            "default": lambda: br.zeros((1,)),
        }
        with pytest.raises(br.ConnectionFailed) as caught:
            calls[how]()
    printed = traceback.format_exception(caught.value)
    assert "".join(printed).count("Traceback") == 1
    # The call in this test, the lambda, and one of the package.
    assert len(traceback.extract_tb(caught.value.__traceback__)) <= 3
    assert str(caught.value).startswith(f"nothing listens at {address}; ")
