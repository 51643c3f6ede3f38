"""PyTorch programs give the CPU's results on a burn device; what a device lacks is refused."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

import support.torch_layer_programs
import support.torch_tensor_programs
import support.torch_training_programs  # noqa: F401  # they fill the registry
from support.torch_comparison import compared, drawn
from support.torch_programs import PROGRAMS, made, perceptron, weights_of

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
brt = importlib.import_module("burn_remote.torch")

functional: Any = torch.nn.functional
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning"),
    pytest.mark.filterwarnings("ignore:Dynamo:UserWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


@pytest.fixture(scope="module")
def device() -> Any:
    return brt.local()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_the_results_of_the_cpu(device: Any, name: str) -> None:
    theirs = PROGRAMS[name](torch.device("cpu"))
    # Calls that are like earlier ones are issued another way: see test_plans.py.
    for _ in range(3):
        compared(PROGRAMS[name](device), theirs)


def test_autocast_trains_in_bfloat16_as_on_the_cpu(device: Any) -> None:
    results = []
    for place in (device, torch.device("cpu")):
        model = made(place, perceptron)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        dtypes = []
        for step in range(4):
            optimizer.zero_grad()
            with torch.autocast(place.type, dtype=torch.bfloat16):
                out = model(drawn(place, 4, 6, seed=step))
                dtypes.append(out.dtype)
                loss = out.float().square().mean()
            loss.backward()
            optimizer.step()
        results.append((dtypes, weights_of(model)))
    assert results[0][0] == results[1][0]
    for ours, theirs in zip(results[0][1], results[1][1], strict=True):
        # bfloat16 has 8 significant bits, and the CPU rounds in other places.
        torch.testing.assert_close(ours.cpu(), theirs, atol=0.02, rtol=0.02)


def test_tensors_are_printed_like_those_of_the_cpu(device: Any) -> None:
    for x in (drawn("cpu", 3, 4), torch.arange(5), torch.tensor([True, False]), torch.tensor(2.5)):
        shown = repr(x.to(device))
        assert shown == f"{repr(x)[:-1]}, device='{device}')"
    assert f"{torch.tensor(1.25, device=device):.1f}" == "1.2"


# Operation -> a program that needs it.
REFUSED: dict[str, Callable[[Any], Any]] = {
    "aten::segment_reduce": lambda x: torch.segment_reduce(
        x, "sum", lengths=torch.tensor([1, 2], device=x.device)
    ),
    "aten::_to_sparse": lambda x: x.to_sparse(),
    "aten::view.dtype": lambda x: x.view(torch.int32),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_operation_that_is_missing_is_named(device: Any, name: str) -> None:
    with pytest.raises(NotImplementedError, match=f"{name}.* is not available on burn devices"):
        REFUSED[name](drawn(device, 3, 4))


@pytest.mark.parametrize("loss", ["mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss"])
def test_the_gradient_of_a_mean_of_no_elements_is_empty(device: Any, loss: str) -> None:
    for place in ("cpu", device):
        x = torch.zeros(0, 3, device=place, requires_grad=True)
        getattr(functional, loss)(x, torch.zeros(0, 3, device=place)).backward()
        assert x.grad.shape == (0, 3)


def test_random_slopes_of_rrelu_are_those_of_its_gradient(device: Any) -> None:
    x = (-drawn(device, 50).abs()).requires_grad_()
    result = functional.rrelu(x, 0.25, 0.5, training=True)
    result.sum().backward()
    assert ((x.grad >= 0.25) & (x.grad <= 0.5)).all()
    torch.testing.assert_close(result.detach().cpu(), (x * x.grad).detach().cpu())
    still = functional.rrelu(x, 0.25, 0.5, training=False)
    torch.testing.assert_close(still.detach().cpu(), x.detach().cpu() * 0.375)


def test_sparse_tensors_are_refused(device: Any) -> None:
    with pytest.raises(NotImplementedError):
        drawn(device, 3, 4).to_sparse()


@pytest.mark.parametrize(
    "refused",
    [
        lambda x: x.to_sparse_csr(),
        lambda x: torch.sparse.mm(x.to_sparse(), x),
        lambda x: torch.sparse_coo_tensor([[0], [1]], [2.0], (2, 2), device=x.device),
        lambda x: x.to(torch.float8_e4m3fn),
        lambda x: x.pin_memory(),
        lambda x: x.numpy(),
    ],
)
def test_what_a_device_lacks_is_refused_with_an_error(
    device: Any, refused: Callable[[Any], Any]
) -> None:
    with pytest.raises((NotImplementedError, RuntimeError, TypeError)):
        refused(drawn(device, 3, 3))
