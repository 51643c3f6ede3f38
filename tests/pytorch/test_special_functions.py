"""Special functions and fake quantization: the numbers of the CPU, or of SciPy where it errs."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
special = pytest.importorskip("scipy.special", reason="SciPy is in the dependency group oracle")
brt = importlib.import_module("burn_remote.torch")
pytestmark = pytest.mark.torch

INF, NAN = math.inf, math.nan


@pytest.fixture(scope="module")
def device() -> Any:
    return brt.local()


def in_float64(*values: float) -> Any:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("order", [1.0001, 1.5, 2, 3, 5, 11, 33.3, 100, 500, 1e4])
def test_zeta_has_the_numbers_of_the_cpu(device: Any, order: float) -> None:
    q = torch.cat([torch.linspace(0.01, 60, 200, dtype=torch.float64), in_float64(1e-3, 1e3, 1e6)])
    x = torch.full_like(q, order)
    ours = torch.special.zeta(x.to(device), q.to(device))
    torch.testing.assert_close(ours.cpu(), torch.special.zeta(x, q), rtol=1e-12, atol=0)


def test_zeta_of_negative_numbers_and_poles(device: Any) -> None:
    x = in_float64(2, 3, 4, 7, 2, 2.5, 2, 1, 0.5, NAN, 2, 3)
    q = in_float64(-0.3, -0.3, -7.25, -30.75, -1, -0.5, 0, 3, 3, 1, NAN, INF)
    ours = torch.special.zeta(x.to(device), q.to(device)).cpu()
    theirs = torch.special.zeta(x, q)
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=0, equal_nan=True)


def test_zeta_takes_numbers_and_has_a_gradient(device: Any) -> None:
    results = []
    for place in (device, "cpu"):
        q = torch.tensor([1.0, 2.5], device=place, requires_grad=True)
        x = torch.tensor([2, 3], device=place)
        torch.special.zeta(torch.tensor(3.0, device=place), q).sum().backward()
        results.append([torch.special.zeta(2.0, q), torch.special.zeta(x, 1), q.grad])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach())


def test_airy_ai_has_the_numbers_of_scipy(device: Any) -> None:
    # The CPU's function has errors of 3e-6 from -8 to -2.
    x = torch.linspace(-60, 60, 4001, dtype=torch.float64)
    expected = torch.from_numpy(special.airy(x.numpy())[0])
    ours = torch.special.airy_ai(x.to(device)).cpu()
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-13)
    positive = x > 0
    torch.testing.assert_close(ours[positive], expected[positive], rtol=1e-12, atol=0)
    others = in_float64(0, 103.9, 200, INF, -INF, NAN)
    theirs = torch.special.airy_ai(others)
    torch.testing.assert_close(
        torch.special.airy_ai(others.to(device)).cpu(), theirs, equal_nan=True
    )


def quantized_tensor(x: Any) -> Any:
    return torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -128, 127)


def quantized_by_tensors(x: Any) -> Any:
    scale = torch.tensor([0.1], device=x.device)
    zero_point = torch.tensor([2], dtype=torch.int32, device=x.device)
    return torch.fake_quantize_per_tensor_affine(x, scale, zero_point, -20, 20)


def quantized_channels(x: Any) -> Any:
    scales = torch.tensor([0.1, 0.2, 0.3, 0.4], device=x.device)
    zero_points = torch.arange(4, dtype=torch.int32, device=x.device)
    return torch.fake_quantize_per_channel_affine(x, scales, zero_points, 1, -20, 20)


def quantized_with_fractions(x: Any) -> Any:
    scales = torch.tensor([0.1, 0.2, 0.3, 0.4], device=x.device)
    zero_points = torch.arange(4, device=x.device) + 0.5
    return torch.fake_quantize_per_channel_affine(x, scales, zero_points, 1, -20, 20)


def quantized_module(x: Any) -> Any:
    from torch.ao.quantization import FakeQuantize

    module = FakeQuantize(quant_min=0, quant_max=255).to(x.device)
    module(x.detach())
    module.disable_observer()
    result = module(x * 2)
    module.disable_fake_quant()
    return result + module(x)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "function",
    [
        quantized_tensor,
        quantized_by_tensors,
        quantized_channels,
        quantized_with_fractions,
        quantized_module,
    ],
)
def test_fake_quantization_rounds_as_the_cpu(
    device: Any, function: Callable[[Any], Any], dtype: Any
) -> None:
    if function is quantized_module and dtype is not torch.float32:
        pytest.skip("the observer of the module takes float32")
    x = (torch.randn(7, 4, generator=torch.Generator().manual_seed(0)) * 5).to(dtype)
    x[0] = torch.tensor([0.25, 2.5, -0.05, 0.0])  # halves between two levels
    for _ in range(3):
        found = []
        for place in ("cpu", device):
            given = x.to(place).detach().requires_grad_()
            result = function(given)
            result.sum().backward()
            found.append((result.detach().cpu(), given.grad.cpu()))
        assert all(map(torch.equal, *found))
