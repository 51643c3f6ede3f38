"""Habits of PyTorch programs: pinned memory, ``torch.compile`` without a backend, names of CUDA."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from burn_remote.diagnostics.foreign_names import PYTORCH_FUNCTIONS

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
brt = importlib.import_module("burn_remote.torch")
nn = torch.nn
MODULES = [
    f"torch{name}"
    for name in (
        *("", ".autograd", ".autograd.functional", ".cuda", ".linalg", ".nn", ".nn.functional"),
        *(".nn.parallel", ".nn.utils", ".optim", ".optim.lr_scheduler", ".utils.data"),
    )
]
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:Dynamo:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def device() -> Any:
    return brt.local()


@pytest.fixture
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("name", PYTORCH_FUNCTIONS)
def test_the_names_of_pytorch_in_the_table_of_advice_exist_there(name: str) -> None:
    modules = map(importlib.import_module, ("safetensors.torch", *MODULES))
    assert any(hasattr(module, name) for module in modules)


def test_safetensors_saves_tensors_of_a_device_and_knows_which_are_shared(
    device: Any, tmp_path: Path
) -> None:
    safetensors = importlib.import_module("safetensors.torch")
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, bias=False)).to(device)
    path = str(tmp_path / "model.safetensors")
    safetensors.save_file(model.state_dict(), path)
    saved = safetensors.load_file(path)
    assert [*saved] == ["0.bias", "0.weight", "1.weight"]
    assert torch.equal(saved["1.weight"], model[1].weight.detach().cpu())
    model[1].weight = model[0].weight
    with pytest.raises(RuntimeError, match="share memory"):
        safetensors.save_file(model.state_dict(), path)
    safetensors.save_model(model, path)
    assert [*safetensors.load_file(path)] == ["0.bias", "0.weight"]
    with pytest.raises(AttributeError, match=r"x\.cpu\(\)\.storage\(\) has them"):
        model[0].weight.storage().size()


def test_a_data_loader_may_pin_memory(device: Any) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    loader = torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True)
    sums = [x.to(device, non_blocking=True).sum().item() for (x,) in loader]
    assert sums == [6.0, 22.0]


@pytest.mark.parametrize(
    "options", [{}, {"mode": "reduce-overhead"}, {"backend": "burn_remote", "mode": "max-autotune"}]
)
def test_a_model_is_compiled_without_naming_the_backend(
    device: Any, fresh: None, options: dict[str, Any]
) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
    x = torch.rand(4, 8, device=device)
    y = torch.compile(model, **options)(x)
    assert torch.allclose(y.cpu(), model(x).cpu(), atol=1e-6)
    y.sum().backward()
    assert model[0].weight.grad.device == device


def test_a_function_of_the_cpu_is_left_to_the_default_backend(
    device: Any, fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    compiler = importlib.import_module("torch._inductor.compile_fx")

    def compile_fx(module: Any, inputs: Any, **_: Any) -> Any:
        seen.append(module)
        return module.forward

    monkeypatch.setattr(compiler, "compile_fx", compile_fx)
    assert torch.compile(lambda x: x + 1)(torch.zeros(2)).tolist() == [1.0, 1.0]
    assert len(seen) == 1


def test_options_of_the_default_backend_are_refused(device: Any, fresh: None) -> None:
    doubled = torch.compile(lambda x: x * 2, backend="burn_remote", options={"trace": True})
    with pytest.raises(Exception, match="burn_remote has none, so leave them out"):
        doubled(torch.ones(2, device=device))


@pytest.mark.parametrize(
    ("module", "name", "advice"),
    [
        (torch.burn, "memory_allocated", "metrics"),
        (torch.burn, "Stream", "synchronize"),
        (brt, "close", "device.close"),
        (brt, "devices", "device_count"),
    ],
)
def test_a_name_that_is_missing_has_advice(module: Any, name: str, advice: str) -> None:
    with pytest.raises(AttributeError, match=advice):
        getattr(module, name)


def test_the_name_of_a_device_is_its_address(device: Any) -> None:
    assert torch.burn.get_device_name(device) == "local:numpy"
    assert torch.burn.is_bf16_supported()


def test_a_connection_without_an_address_uses_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BURN_REMOTE_ADDRESS", "gpu-box:1:2")
    with pytest.raises(brt.br.ConnectionFailed, match="gpu-box:1:2"):
        brt.connect()
