"""Devices, random numbers, checkpoints, errors and conversions of PyTorch programs."""

from __future__ import annotations

import copy
import importlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

import burn_remote as br
from support.servers import server

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
brt = importlib.import_module("burn_remote.torch")
registration = importlib.import_module("burn_remote.torch.registration")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def device() -> Any:
    return brt.local()


def test_equal_seeds_give_equal_numbers(device: Any) -> None:
    drawn = []
    for _ in range(2):
        torch.manual_seed(7)
        drawn.append(
            [torch.rand(3, device=device).tolist(), torch.randn(2, device=device).tolist()]
        )
    assert drawn[0] == drawn[1]
    assert torch.rand(3, device=device).tolist() != drawn[0][0]


def test_a_random_state_repeats_the_numbers_drawn_after_it(device: Any) -> None:
    module = torch.burn
    torch.manual_seed(3)
    state = module.get_rng_state(device)
    first = torch.rand(3, device=device).tolist()
    second = torch.rand(3, device=device).tolist()
    with torch.random.fork_rng(devices=[device.index or 0], device_type="burn"):
        module.set_rng_state(state, device)
        assert torch.rand(3, device=device).tolist() == first
        assert torch.rand(3, device=device).tolist() == second

    torch.manual_seed(3)
    assert torch.equal(module.get_rng_state(device), state)
    assert torch.rand(3, device=device).tolist() == first


DRAWN: dict[str, Callable[[Any, Any], Any]] = {
    "randn": lambda g, p: torch.randn(3, 4, generator=g, device=p),
    "rand": lambda g, p: torch.rand(5, generator=g, device=p, dtype=torch.float64),
    "randint": lambda g, p: torch.randint(10, (5,), generator=g, device=p),
    "randperm": lambda g, p: torch.randperm(9, generator=g, device=p),
    "randn_like": lambda g, p: torch.randn_like(torch.zeros(2, 3, device=p).t(), generator=g),
    "normal_": lambda g, p: torch.zeros(3, 4, device=p).t().normal_(1, 2, generator=g),
    "uniform_ of a slice": lambda g, p: torch.zeros(4, 6, device=p)[::2, 1:].uniform_(generator=g),
    "bernoulli": lambda g, p: torch.bernoulli(torch.full((9,), 0.4, device=p), generator=g),
    "normal": lambda g, p: torch.normal(torch.arange(3.0, device=p), 0.5, generator=g),
    "multinomial": lambda g, p: torch.multinomial(torch.ones(5, device=p), 3, generator=g),
    "poisson": lambda g, p: torch.poisson(torch.full((4,), 3.0, device=p), generator=g),
    "xavier_uniform_": lambda g, p: torch.nn.init.xavier_uniform_(
        torch.zeros(2, 3, device=p), generator=g
    ),
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_generator_gives_the_numbers_of_the_cpu(device: Any, name: str) -> None:
    expected = DRAWN[name](torch.Generator().manual_seed(5), "cpu")
    for generator in (torch.Generator(device), torch.Generator()):
        found = DRAWN[name](generator.manual_seed(5), device)
        assert found.device == device
        assert torch.equal(found.cpu(), expected)
        assert found.stride() == expected.stride()


def test_a_generator_continues_where_it_was(device: Any) -> None:
    generator = torch.Generator(device)
    state = generator.get_state()
    first = torch.rand(3, generator=generator, device=device).tolist()
    assert torch.rand(3, generator=generator, device=device).tolist() != first
    generator.set_state(state)
    assert torch.rand(3, generator=generator, device=device).tolist() == first


def test_generators_of_all_devices_are_instances_of_the_class(device: Any) -> None:
    generator = torch.Generator(device=device)
    assert generator.device == device
    assert isinstance(generator, torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)
    assert torch.Generator().device.type == "cpu"
    with pytest.raises(br.UsageError, match="burn:9 is not connected"):
        torch.Generator("burn:9")


def test_a_program_waits_for_the_accelerator_and_times_itself(device: Any) -> None:
    from torch.utils.benchmark import Timer

    torch.accelerator.synchronize()
    torch.accelerator.synchronize(device)
    for place in ("cpu", device):
        x = torch.ones(3, device=place)
        assert Timer("x.sin()", globals={"x": x}).timeit(2).number_per_run == 2


def test_an_emptied_cache_leaves_the_tensors(device: Any) -> None:
    x = torch.arange(3.0, device=device)
    view = x[1:]
    torch.get_device_module(device).empty_cache()
    torch.accelerator.empty_cache()
    view.add_(1)
    assert x.tolist() == [0, 2, 3]


@pytest.mark.parametrize(
    "share",
    ["__dlpack__", "torch.from_dlpack", "numpy.from_dlpack", "torch.to_dlpack", "a parameter"],
)
def test_dlpack_is_refused_with_what_to_call(device: Any, share: str) -> None:
    x = torch.ones(3, device=device)
    calls: dict[str, Callable[[], Any]] = {
        "__dlpack__": lambda: x.__dlpack__(),
        "torch.from_dlpack": lambda: torch.from_dlpack(x),
        "numpy.from_dlpack": lambda: numpy.from_dlpack(x),
        "torch.to_dlpack": lambda: torch.utils.dlpack.to_dlpack(x),
        "a parameter": lambda: torch.to_dlpack(torch.nn.Parameter(x)),
    }
    assert torch.from_dlpack(torch.to_dlpack(torch.ones(2))).tolist() == [1, 1]
    with pytest.raises(BufferError, match=r"burn:\d.*call x\.cpu\(\) first"):
        calls[share]()


def lazy_network(**options: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.LazyConv2d(4, 3, **options), nn.LazyBatchNorm2d(**options), nn.Flatten(),
        nn.LazyLinear(2, **options),
    )  # fmt: skip


def made_in_context(device: Any) -> Any:
    with device:
        return lazy_network()


def moved_by_a_copy(device: Any) -> Any:
    return torch.nn.Sequential(torch.nn.Flatten(), copy.deepcopy(torch.nn.LazyLinear(2).to(device)))


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
@pytest.mark.parametrize(
    ("build", "dtype"),
    [
        (lambda device: lazy_network().to(device), torch.float32),
        (lambda device: lazy_network(device=device), torch.float32),
        (made_in_context, torch.float32),
        (moved_by_a_copy, torch.float32),
        (lambda device: lazy_network().to(device, torch.float64), torch.float64),
        (lambda device: lazy_network().to(device).double(), torch.float64),
    ],
)
def test_lazy_parameters_get_their_elements_on_the_device(
    device: Any, build: Callable[[Any], Any], dtype: Any
) -> None:
    model = build(device)
    x = torch.randn(3, 3, 6, 6, dtype=dtype)
    model(x.to(device)).square().sum().backward()
    for one in (*model.parameters(), *model.buffers()):
        assert one.device == device
        assert one.dtype in (dtype, torch.int64)
    assert all(isinstance(one, torch.nn.Parameter) for one in model.parameters())
    torch.optim.SGD(model.parameters(), lr=0.01).step()
    ours = model(x.to(device))
    on_cpu = (
        lazy_network()
        if len(model) > 2
        else torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(2))
    )
    on_cpu.to(dtype)(x)
    on_cpu.load_state_dict(model.state_dict())
    torch.testing.assert_close(ours.cpu(), on_cpu(x), atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_a_lazy_module_moves_back_and_takes_a_checkpoint(device: Any) -> None:
    model = lazy_network().to(device).cpu()
    x = torch.randn(3, 3, 6, 6)
    assert model(x).device.type == "cpu"
    ours = lazy_network().to(device)
    ours.load_state_dict(model.state_dict())
    assert {one.device for one in (*ours.parameters(), *ours.buffers())} == {device}
    torch.testing.assert_close(
        ours.eval()(x.to(device)).cpu(), model.eval()(x), atol=1e-4, rtol=1e-4
    )
    with pytest.raises(br.UsageError, match="burn:99 is not connected"):
        torch.nn.LazyLinear(3, device="burn:99")


def test_a_state_of_another_device_is_refused(device: Any) -> None:
    with pytest.raises(br.UsageError, match="8 bytes on the CPU"):
        torch.burn.set_rng_state(torch.get_rng_state(), device)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_dropout_is_computed_again_with_the_same_mask(
    device: Any, reentrant: bool
) -> None:
    x = torch.ones(4000, device=device, requires_grad=True)
    for _ in range(3):  # from the second on by a recorded plan
        x.grad = None
        y = torch.utils.checkpoint.checkpoint(
            lambda x: torch.nn.functional.dropout(x * x, 0.5), x, use_reentrant=reentrant
        )
        torch.rand(5, device=device)  # others draw between the two computations
        y.sum().backward()
        kept = y.detach().cpu() != 0
        assert 1500 < int(kept.sum()) < 2500
        assert torch.equal(x.grad.cpu(), torch.where(kept, 4.0, 0.0))


def test_a_checkpoint_is_loaded_without_a_device(device: Any, tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2).to(device)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=True)
    assert loaded["weight"].device.type == "cpu"
    other = torch.nn.Linear(3, 2).to(device)
    other.load_state_dict(loaded)
    assert other.weight.tolist() == model.weight.tolist()
    assert other.weight.device == device


def test_a_saved_optimizer_continues_after_it_is_loaded(device: Any) -> None:
    model = torch.nn.Linear(3, 1).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 3, device=device)).sum().backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    optimizer.load_state_dict(torch.load(file, weights_only=True))
    optimizer.step()
    assert optimizer.state_dict()["state"][0]["exp_avg"].device == device


def test_a_copied_model_has_elements_of_its_own(device: Any) -> None:
    model = torch.nn.Linear(2, 2).to(device)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.weight.zero_()
    assert isinstance(other.weight, torch.nn.Parameter)
    assert model.weight.abs().sum().item() > 0


def test_nothing_is_tracked_in_no_grad(device: Any) -> None:
    weight = torch.ones(2, device=device, requires_grad=True)
    with torch.no_grad():
        assert not (weight * 2).requires_grad
    assert (weight * 2).requires_grad


def test_batches_of_a_loader_move_to_the_device(device: Any) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(4.0))
    batches = [
        batch.to(device, non_blocking=True).tolist()
        for (batch,) in torch.utils.data.DataLoader(data, batch_size=2)
    ]
    assert batches == [[0, 1], [2, 3]]


def test_autocast_multiplies_in_bfloat16(device: Any) -> None:
    layer = torch.nn.Linear(4, 2).to(device)
    with torch.autocast("burn", dtype=torch.bfloat16):
        result = layer(torch.ones(1, 4, device=device))
        assert result.dtype is torch.bfloat16
        assert torch.softmax(result, 1).dtype is torch.float32
    result.float().sum().backward()
    assert layer.weight.grad.dtype is torch.float32
    assert layer(torch.ones(1, 4, device=device)).dtype is torch.float32


def test_printing_shows_elements_and_device(device: Any) -> None:
    shown = repr(torch.tensor([1.5, 2.0], device=device))
    assert shown == f"tensor([1.5000, 2.0000], device='{device}')"


def test_the_error_of_an_unknown_operation_names_it_and_the_remedy(device: Any) -> None:
    x = torch.ones(2, 2, device=device)
    with pytest.raises(NotImplementedError, match=r"aten::geqrf.*fallback\(\"cpu\"\)"):
        torch.geqrf(x)


def test_an_unknown_operation_runs_on_the_cpu_if_that_is_allowed(device: Any) -> None:
    x = torch.ones(2, 2, device=device)
    brt.fallback("cpu")
    try:
        with pytest.warns(UserWarning, match="aten::geqrf runs on the CPU") as warned:
            a, _ = torch.geqrf(x)
        assert [one.filename for one in warned] == [__file__]
        torch.geqrf(x)  # no second warning
    finally:
        brt.fallback(None)
    assert a.device == device
    assert torch.allclose(a.cpu(), torch.geqrf(x.cpu())[0])


def test_an_error_in_a_backward_pass_is_raised_by_it(device: Any) -> None:
    shape = torch.ones(3, device=device, requires_grad=True)
    drawn = torch.distributions.Gamma(shape, 1.0).rsample()
    with pytest.raises(brt.UnsupportedOperation, match="_standard_gamma_grad"):
        drawn.sum().backward()


def test_tensors_of_the_cpu_and_the_device_do_not_mix(device: Any) -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, device=device) + torch.ones(2)


def test_shapes_that_do_not_fit_are_a_runtime_error_as_in_pytorch(device: Any) -> None:
    x, y = torch.ones(2, 3, device=device), torch.ones(2, 4, device=device)
    with pytest.raises(RuntimeError, match="do not broadcast") as caught:
        x + y
    assert isinstance(caught.value.__cause__, br.ShapeMismatch)


def test_a_number_of_the_cpu_mixes_with_tensors_of_the_device(device: Any) -> None:
    assert (torch.ones(2, device=device) * torch.tensor(3.0)).tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    ("count", "connected"),
    [(0, "no device is"), (1, "only burn:0 is"), (3, "only burn:0 to burn:2 are")],
)
def test_the_error_for_an_index_without_a_device_says_which_ones_there_are(
    device: Any, count: int, connected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = importlib.import_module("burn_remote.torch.device_registry")
    monkeypatch.setattr(registry, "_devices", [registry.wire_device(device)] * count)
    with pytest.raises(br.UsageError, match=f"burn:7 is not connected, {connected}; call"):
        registry.wire_device("burn:7")


def test_an_index_without_a_device_is_refused(device: Any) -> None:
    with pytest.raises(br.UsageError, match="burn:77 is not connected"):
        torch.zeros(1, device="burn:77")


def test_a_failure_names_its_reason_and_the_line_of_the_program(device: Any) -> None:
    table = torch.zeros(3, 2, device=device)
    picked = torch.nn.functional.embedding(torch.tensor([5], device=device), table)
    with pytest.raises(RuntimeError, match=r"test_devices\.py") as caught:
        picked.tolist()
    assert isinstance(caught.value, br.OperationFailed)


@pytest.mark.parametrize("version", ["2.12.1", "2.16.0", "3.0.1+cu128"])
def test_an_untested_version_warns(version: str) -> None:
    with pytest.warns(UserWarning, match=r"tested with PyTorch from 2\.13"):
        registration.check_version(version)


def test_a_process_with_a_cuda_device_is_warned_of_its_backward_passes(
    recwarn: pytest.WarningsRecorder,
) -> None:
    registration.warn_of_cuda(False)
    assert not recwarn
    with pytest.warns(UserWarning, match=r"backward\(\) of CUDA tensors fails"):
        registration.warn_of_cuda(True)


def test_tensors_move_between_servers() -> None:
    with server() as first, server() as second:
        one, two = brt.connect(first.address), brt.connect(second.address)
        assert one != two
        x = torch.arange(4.0, device=one).requires_grad_()
        moved = x.to(two)
        (moved * moved).sum().backward()
        assert x.grad.device == one
        assert x.grad.tolist() == [0, 2, 4, 6]


def test_a_seed_reaches_the_other_devices_when_a_server_is_gone(device: Any) -> None:
    with server() as running:
        gone = brt.connect(running.address)
    with pytest.raises(br.ConnectionLost):
        torch.ones(1, device=gone).cpu()
    drawn = []
    for _ in range(2):
        torch.manual_seed(5)
        drawn.append(torch.rand(3, device=device).tolist())
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    "make",
    [
        torch.ones_like,
        torch.empty_like,
        torch.rand_like,
        lambda x, device: torch.full_like(x, 2, device=device),
        lambda x, device: torch.randint_like(x, 5, device=device),
        lambda x, device: x.new_zeros(2, device=device),
        lambda x, device: x.new_full((2,), 3, device=device),
        lambda x, device: x.new_empty_strided((2, 2), (1, 2), device=device),
    ],
)
def test_a_tensor_like_another_one_is_made_on_the_device_that_is_named(make: Any) -> None:
    device, second = brt.local(), brt.local()
    x = torch.ones(2, 3, device=device).t()
    theirs = make(x.cpu().contiguous().t().contiguous().t(), device="cpu")
    for place in (torch.device("cpu"), device, second):
        made = make(x, device=place)
        assert (made.device, made.dtype, made.shape) == (place, theirs.dtype, theirs.shape)
    assert make(x, device=None).device == device
