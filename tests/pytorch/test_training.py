"""PyTorch modules train on a burn device with PyTorch's own optimizers, as on the CPU."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
brt = importlib.import_module("burn_remote.torch")
nn = torch.nn
pytestmark = pytest.mark.torch

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3),
}


@pytest.fixture(scope="module")
def device() -> Any:
    return brt.local()


def transformer() -> Any:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        32, 4, dim_feedforward=64, dropout=0.0, activation="gelu", batch_first=True
    )
    return nn.Sequential(
        nn.Embedding(17, 32),
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        nn.LayerNorm(32),
        nn.Linear(32, 17),
        nn.Flatten(0, 1),
    )


def perceptron() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(17, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 17), nn.Flatten(0, 1)
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", [perceptron, transformer])
def test_the_losses_of_a_training_are_those_of_the_cpu(
    device: Any, model: Callable[[], Any], optimizer: str
) -> None:
    ours, theirs = model(), model()
    ours.to(device)
    tokens = torch.randint(0, 17, (4, 9), generator=torch.Generator().manual_seed(1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()
    losses = []
    for network, place in ((ours, device), (theirs, torch.device("cpu"))):
        step = OPTIMIZERS[optimizer](network.parameters())
        seen = []
        for _ in range(4):
            step.zero_grad()
            loss = nn.functional.cross_entropy(network(inputs.to(place)), targets.to(place))
            loss.backward()
            step.step()
            seen.append(loss.item())
        losses.append(seen)
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert losses[0][-1] < losses[0][0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:Dynamo")
@pytest.mark.parametrize("is_compiled", [False, True])
def test_the_example_trains_with_the_losses_of_the_cpu_in_one_round_trip(is_compiled: bool) -> None:
    import torch_train

    losses, expected, round_trips = torch_train.compare(steps=8, compiled=is_compiled)
    assert losses == pytest.approx(expected, abs=1e-4)
    assert round_trips == 1  # of the losses, read at the end


def test_a_model_moves_to_the_device_and_back(device: Any) -> None:
    model = perceptron()
    original = copy.deepcopy(model.state_dict())
    model.to(device)
    assert {p.device for p in model.parameters()} == {device}
    assert all(isinstance(p, nn.Parameter) for p in model.parameters())
    model.cpu()
    for name, value in model.state_dict().items():
        assert torch.equal(value, original[name])
