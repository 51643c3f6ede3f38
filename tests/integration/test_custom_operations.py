"""Custom operations, in both dialects."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import burn_remote as br
from burn_remote.sessions.native.native_session import NativeSession
from burn_remote_server.custom import CustomOperation
from support.servers import RunningServer, server

EXAMPLES = Path(__file__).parents[2] / "examples"

# The example's operations, and some that fail.
TROUBLE = """
from burn_remote.sessions.native.native_session import NativeSession
from burn_remote_server.custom import custom_operation

@custom_operation("broken", inputs={"x": "any"}, shapes=lambda x: x)
def broken(xp, x):
    raise LookupError("no such row")

@custom_operation("huge", inputs={"x": "any"}, shapes=lambda x: type(x)((2**40,), x.dtype))
def huge(xp, x):
    raise AssertionError("it ran although there is no room for its result")

@custom_operation("leave", inputs={"x": "any"}, shapes=lambda x: x)
def leave(xp, x):
    raise SystemExit

@custom_operation("halt", inputs={"x": "any"}, shapes=lambda x: x)
def halt(xp, x):
    raise KeyboardInterrupt

def never(x):
    raise KeyboardInterrupt

@custom_operation("formless", inputs={"x": "any"}, shapes=never)
def formless(xp, x):
    return x
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("operators")
    (path / "trouble.py").write_text(TROUBLE)
    return path


@pytest.fixture(scope="module")
def custom_server(folder: Path) -> Iterator[RunningServer]:
    flags = ("--custom-operations", "custom_operations", "--custom-operations", "trouble")
    search = ":".join([*sys.path, str(EXAMPLES), str(folder)])
    with server(*flags, PYTHONPATH=search) as running:
        yield running


def loaded(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["memory", "websocket", "burn"])
def device(
    request: pytest.FixtureRequest, custom_server: RunningServer, folder: Path
) -> Iterator[br.Device]:
    if request.param == "memory":
        files = (EXAMPLES / "custom_operations.py", folder / "trouble.py")
        operations = [item for file in files for item in vars(loaded(file)).values()]
        opened: br.Device = br.LocalDevice(
            custom_operations=[item for item in operations if isinstance(item, CustomOperation)]
        )
    else:
        dialect = "burn-0.21" if request.param == "burn" else "native"
        opened = br.RemoteDevice(custom_server.address, dialect=dialect)
    with opened:
        yield opened


def test_a_custom_operation_runs_on_the_device(device: br.Device) -> None:
    x = np.random.default_rng(5).standard_normal((4, 3))
    remote = device.tensor(x)

    gated = br.custom("swish_gate", remote, remote, outputs=br.TensorSpec(x.shape, br.float64))
    rows = br.TensorSpec((4,), br.float64)
    mean, spread = br.custom("mean_and_spread", gated + 1, outputs=[rows, rows])

    expected = x * x / (1 + np.exp(-x))
    np.testing.assert_allclose(gated.numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(mean.numpy(), expected.mean(axis=1) + 1, rtol=1e-12)
    np.testing.assert_allclose(spread.numpy(), np.ptp(expected, axis=1), rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "shape", "kind", "sentence"),
    [
        ("swish_gait", (3,), br.Unsupported, "it has .*mean_and_spread, swish_gate"),
        ("broken", (3,), br.OperationFailed, "LookupError: no such row"),
        ("leave", (3,), br.OperationFailed, "SystemExit"),
        ("swish_gate", (3,), br.OperationFailed, r"takes \(x, gate\), not 1"),
        (
            "broken",
            (4,),
            br.OperationFailed,
            r"out is float64\[3\], but the call declares float64\[4",
        ),
        ("huge", (2**40,), br.QuotaExceeded, "tensor bytes: 8,796,093,022,208 would be held"),
    ],
)
def test_a_failing_call_gives_the_reason_and_the_session_continues(
    device: br.Device,
    name: str,
    shape: tuple[int, ...],
    kind: type[br.OperationFailed],
    sentence: str,
) -> None:
    x = device.tensor(np.ones(3))
    with pytest.raises(br.OperationFailed, match=sentence) as caught:
        br.custom(name, x, outputs=br.TensorSpec(shape, br.float64)).numpy()
    if isinstance(device.session, NativeSession):  # Burn's dialect has only text for errors
        assert type(caught.value) is kind
        assert caught.value.operation == f"Custom '{name}'"
    assert (x + 1).tolist() == [2, 2, 2]


@pytest.mark.parametrize("name", ["halt", "formless"])
@pytest.mark.parametrize("size", [3, 300_000])  # on the event loop, on the session's worker
@pytest.mark.parametrize("dialect", ["native", "burn-0.21"])
def test_an_operation_that_raises_keyboard_interrupt_fails_and_its_server_continues(
    custom_server: RunningServer, name: str, size: int, dialect: str
) -> None:
    with br.RemoteDevice(custom_server.address, dialect=dialect) as device:
        x = device.tensor(np.ones(size))
        with pytest.raises(br.OperationFailed, match="KeyboardInterrupt"):
            br.custom(name, x, outputs=br.TensorSpec((size,), br.float64)).numpy()
        assert (x + 1)[:2].tolist() == [2, 2]


def test_invalid_calls_are_refused_at_the_call(device: br.Device) -> None:
    x = device.tensor(np.ones(3))
    spec = br.TensorSpec((3,), br.float64)
    with pytest.raises(br.UsageError, match="'swish_gate': at least one input is required"):
        br.custom("swish_gate", outputs=spec)
    with pytest.raises(br.UsageError, match="1 to 256 characters"):
        br.custom("", x, outputs=spec)
    with pytest.raises(br.UsageError, match="at least one tensor"):
        br.custom("swish_gate", x, outputs=[])
    with pytest.raises(br.ShapeMismatch, match="non-negative integer, not -1"):
        br.custom("swish_gate", x, outputs=br.TensorSpec((-1,), br.float64))
    with br.LocalDevice() as other, pytest.raises(br.DeviceMismatch):
        br.custom("swish_gate", x, other.tensor(np.ones(3)), outputs=spec)


def test_a_call_with_the_maximum_of_tensors_succeeds(
    device: br.Device,
) -> None:
    x = br.ones((1,), device=device)
    out = br.custom("none_such", *[x] * 1000, outputs=[br.TensorSpec((1,), br.float32)] * 3000)
    with pytest.raises(br.OperationFailed):
        out[-1].numpy()
    assert x.numpy() == [1]


def test_a_session_without_custom_operations_says_so() -> None:
    with br.LocalDevice() as device, pytest.raises(br.Unsupported, match="and no others"):
        br.custom("mine", device.tensor([1.0]), outputs=br.TensorSpec((1,), br.float32)).numpy()


def test_a_module_that_cannot_be_imported_gives_one_sentence_at_start() -> None:
    command = [sys.executable, "-m", "burn_remote_server", "--port", "0"]
    ended = subprocess.run(
        [*command, "--custom-operations", "no_such_module"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr == (
        "burn-remote-server: custom operations: 'no_such_module' cannot be imported; "
        "install its package, or put its folder into PYTHONPATH\n"
    )
