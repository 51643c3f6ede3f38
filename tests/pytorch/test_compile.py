"""``torch.compile(backend="burn_remote")``: a step is a few tasks, with the results of the CPU."""

from __future__ import annotations

import contextlib
import copy
import importlib
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from burn_remote.graphs.compiled import MAX_GRAPHS
from burn_remote_protocol.errors import OperationFailed
from support.session_tasks import Tasks

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
brt = importlib.import_module("burn_remote.torch")
lowering = importlib.import_module("burn_remote.torch.compiling.lowering")
nn = torch.nn
pytestmark = [
    pytest.mark.torch,
    # PyTorch's own code gives these warnings in the frames that it compiles.
    pytest.mark.filterwarnings("ignore:Dynamo:UserWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend="burn_remote", **options)


@pytest.fixture(scope="module")
def tasks() -> Iterator[Tasks]:
    with pytest.MonkeyPatch.context() as patch:
        yield Tasks(patch)


@pytest.fixture(scope="module")
def device(tasks: Tasks) -> Any:
    return brt.local()  # it keeps the methods of sessions that ``tasks`` has patched


# --- training ----------------------------------------------------------------------------------


class Transformer(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A causal language model of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(17, 64), nn.Embedding(8, 64)
        layer = nn.TransformerEncoderLayer(
            64, 4, dim_feedforward=128, dropout=0.0, activation="gelu", batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 17)

    def forward(self, x: Any) -> Any:
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf"), device=x.device).triu(1)
        places = torch.arange(x.shape[1], device=x.device)
        hidden = self.layers(self.tokens(x) + self.places(places), mask=mask, is_causal=True)
        return self.head(hidden).flatten(0, 1)


def perceptron() -> Any:
    return nn.Sequential(
        nn.Embedding(17, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 17), nn.Flatten(0, 1)
    )


MODELS: dict[str, Callable[[], Any]] = {"perceptron": perceptron, "transformer": Transformer}
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3),
}


def tokens() -> tuple[Any, Any]:
    drawn = torch.randint(0, 17, (4, 9), generator=torch.Generator().manual_seed(1))
    return drawn[:, :-1].contiguous(), drawn[:, 1:].flatten()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_a_compiled_training_step_is_three_tasks_with_the_losses_of_the_cpu(
    device: Any, tasks: Tasks, model: str, optimizer: str
) -> None:
    torch.manual_seed(0)
    theirs = MODELS[model]()
    ours = copy.deepcopy(theirs).to(device)
    inputs, targets = tokens()
    losses = []
    for network, place in ((ours, device), (theirs, torch.device("cpu"))):
        update = OPTIMIZERS[optimizer](network.parameters())
        x, y = inputs.to(place), targets.to(place)

        def loss_of(x: Any, y: Any, network: Any = network) -> Any:
            return nn.functional.cross_entropy(network(x), y)

        step = update.step
        if network is ours:
            loss_of, step = compiled(loss_of), compiled(step)
        seen = []
        for number in range(6):
            tasks.taken()
            loss = loss_of(x, y)
            loss.backward()
            step()
            update.zero_grad()
            if network is ours and number > 2:
                assert tasks.taken() == (0, 3)  # forward, backward and update
            elif network is ours and number == 0:
                assert tasks.taken()[0] > 20
            seen.append(loss.item())
        losses.append(seen)
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert losses[0][-1] < losses[0][0]


def test_step_counts_that_differ_are_told_apart(device: Any, tasks: Tasks) -> None:
    x = torch.ones(3)
    results = []
    for place in (device, torch.device("cpu")):
        parameters = [nn.Parameter(torch.ones(3, device=place)) for _ in range(3)]
        optimizer = torch.optim.Adam(parameters, lr=0.1)
        step = compiled(optimizer.step) if place is device else optimizer.step
        for number in range(8):
            for each in parameters:
                each.grad = x.to(place)
            tasks.taken()
            step()
            if place is device and number in (3, 7):
                assert tasks.taken() == (0, 1)
            if number == 4:
                optimizer.state[parameters[1]]["step"] += 10.0
        assert [optimizer.state[each]["step"].item() for each in parameters] == [8.0, 18.0, 8.0]
        results.append([each.detach().cpu() for each in parameters])
    torch.testing.assert_close(results[0], results[1])


def test_operations_on_one_parameter_are_consecutive() -> None:
    graph = torch.fx.Graph()
    inputs = [graph.placeholder(name) for name in "abc"]
    multiply, add = torch.ops.aten.mul.Tensor, torch.ops.aten.add.Tensor
    products = [graph.call_function(multiply, (x, x)) for x in inputs]
    sums = [graph.call_function(add, (x, y)) for x, y in zip(inputs, products, strict=True)]
    found = lowering._by_chains([*products, *sums], sums)
    assert found == [x for pair in zip(products, sums, strict=True) for x in pair]


def test_operations_that_draw_numbers_keep_their_order() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    steps = [graph.call_function(torch.ops.aten.bernoulli.p, (x, 0.5)) for _ in range(2)]
    assert lowering._by_chains(steps, steps[::-1]) == steps


# --- inference, shapes, numbers ----------------------------------------------------------------


def test_a_compiled_function_makes_a_graph_for_each_shape(device: Any, tasks: Tasks) -> None:
    model = nn.Linear(3, 2)
    ours = copy.deepcopy(model).to(device)

    @compiled
    def f(x: Any) -> Any:
        return ours(x).relu() * x.shape[0] + torch.arange(x.shape[0], device=x.device)[:, None]

    for count in (2, 5, 3, 5, 7, 2):
        x = torch.randn(count, 3)
        y = model(x).relu() * count + torch.arange(count)[:, None]
        with torch.no_grad():
            assert torch.allclose(f(x.to(device)).cpu(), y, atol=1e-5)
    x = x.to(device)
    tasks.taken()
    with torch.no_grad():
        f(x)
    assert tasks.taken() == (0, 1)


def test_numbers_may_change_from_call_to_call(device: Any) -> None:
    @compiled
    def f(x: Any, scale: float, shift: int) -> Any:
        return x * scale + shift, scale * 2

    x = torch.randn(4)
    for scale, shift in ((0.5, 1), (0.25, 2), (0.125, 3), (3.0, 4)):
        y, doubled = f(x.to(device), scale, shift)
        assert torch.allclose(y.cpu(), x * scale + shift)
        assert doubled == scale * 2


def test_gradients_of_a_convolutional_network_with_batch_norm(device: Any) -> None:
    torch.manual_seed(0)
    theirs = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 8, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip
    ours = copy.deepcopy(theirs).to(device)
    run = compiled(ours)
    for _ in range(3):
        x = torch.randn(6, 3, 8, 8)
        for network, place, call in ((ours, device, run), (theirs, "cpu", theirs)):
            network.zero_grad()
            (call(x.to(place)) ** 2).sum().backward()
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.allclose(mine.grad.cpu(), other.grad, atol=1e-4)
        for mine, other in zip(ours.buffers(), theirs.buffers(), strict=True):
            assert torch.allclose(mine.cpu(), other, atol=1e-5)
    ours.eval(), theirs.eval()
    assert torch.allclose(run(x.to(device)).cpu(), theirs(x), atol=1e-5)


def test_dropout_draws_the_numbers_of_the_uncompiled_program(device: Any, tasks: Tasks) -> None:
    def f(x: Any) -> Any:
        return nn.functional.dropout(x * 2, 0.5) + torch.rand_like(x)

    run, x = compiled(f), torch.ones(64, device=device)
    torch.manual_seed(3)
    expected = [f(x).cpu() for _ in range(3)]
    torch.manual_seed(3)
    seen = [run(x).cpu() for _ in range(3)]
    assert all(map(torch.equal, seen, expected))
    assert not torch.equal(seen[1], seen[2])
    tasks.taken()
    run(x)
    assert tasks.taken() == (0, 1)


def test_a_generator_draws_the_numbers_of_the_cpu_in_a_compiled_function(device: Any) -> None:
    def f(x: Any, generator: Any) -> Any:
        y = (x * 2).relu() + torch.rand(3, generator=generator, device=x.device)
        drawn = torch.empty(3, device=x.device).normal_(generator=generator)
        return y + drawn, torch.randint(0, 9, (3,), generator=generator, device=x.device) + 1

    run, x = compiled(f), torch.ones(3)
    generators = [torch.Generator(place).manual_seed(1) for place in (device, "cpu")]
    for _ in range(3):
        ours, theirs = run(x.to(device), generators[0]), f(x, generators[1])
        assert [one.tolist() for one in ours] == [one.tolist() for one in theirs]


def test_more_shapes_than_a_function_keeps_graphs_for_are_computed_too(
    device: Any, tasks: Tasks
) -> None:
    @compiled
    def f(x: Any) -> Any:
        return (x * 2).sum(0)

    def check(count: int) -> None:
        total = f(torch.ones(count, 2, device=device)).tolist()
        assert total == [2 * count, 2 * count]

    with pytest.warns(UserWarning, match="oldest graphs are discarded"):
        for count in range(2, 2 + MAX_GRAPHS + 3):
            check(count)
    x = torch.ones(MAX_GRAPHS, 2, device=device)
    tasks.taken()
    f(x)
    assert tasks.taken() == (0, 1)  # a graph that was kept


def transposed(x: Any) -> Any:
    y = x.t() * 2
    return y, y[1:], (x + 1).permute(1, 0)


def two_views(x: Any) -> Any:
    y = x * 2
    return y[0], y[:, 1], (x + 1).view(-1)


@pytest.mark.parametrize("function", [transposed, two_views])
def test_outputs_lie_in_memory_and_share_elements_as_without_compile(
    device: Any, function: Callable[[Any], Any]
) -> None:
    run = compiled(function)
    for count in (3, 5, 6, 7):
        x = torch.arange(4.0 * count).reshape(count, 4)
        seen = []
        for results in (run(x.to(device)), function(x)):
            results[0].zero_()
            results[1].add_(1)
            seen.append([(y.stride(), y.storage_offset(), y.tolist()) for y in results])
            seen[-1].append(results[1].as_strided((2,), (2,)).tolist())
        assert seen[0] == seen[1]


def test_a_gradient_on_another_device_is_compiled_there(device: Any) -> None:
    second = brt.local()
    theirs = nn.Linear(3, 2)
    ours = copy.deepcopy(theirs).to(second)
    run = compiled(ours)
    for _ in range(2):
        x = torch.randn(4, 3)
        for model, call, place in ((ours, run, second), (theirs, theirs, "cpu")):
            model.zero_grad()
            call(x.to(place)).square().sum().backward()
        assert ours.weight.grad.device == second
        assert torch.allclose(ours.weight.grad.cpu(), theirs.weight.grad, atol=1e-5)


# --- saved values ------------------------------------------------------------------------------


def saving(device: Any) -> tuple[Any, Any, Any]:
    """Return a network that saves values, the same on the CPU, and an input."""
    torch.manual_seed(0)
    theirs = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    return copy.deepcopy(theirs).to(device), theirs, torch.randn(4, 3)


def check_gradients(ours: Any, theirs: Any) -> None:
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), other.grad, atol=1e-5, rtol=1e-5)


def test_values_for_the_backward_graph_are_saved_as_one_tensor(device: Any) -> None:
    ours, _, x = saving(device)
    result = compiled(ours)(x.to(device))
    parameters = [id(one) for one in ours.parameters()]
    others = [one for one in result.grad_fn.saved_tensors if id(one) not in parameters]
    assert [tuple(one.shape) for one in others] == [(0,), (4, 3)]  # the bundle and the input


def test_saved_values_are_freed_after_the_backward_pass(device: Any) -> None:
    ours, _, x = saving(device)
    run = compiled(ours)
    run(x.to(device)).sum().backward()
    result = run(x.to(device))
    (bundle,) = [one for one in result.grad_fn.saved_tensors if one.shape == (0,)]
    freed = weakref.ref(bundle)
    del bundle
    assert freed() is not None
    result.sum().backward()
    assert freed() is None


def test_a_graph_that_is_kept_runs_backward_twice(device: Any) -> None:
    ours, theirs, x = saving(device)
    for call, place in ((compiled(ours), device), (theirs, "cpu")):
        loss = call(x.to(place)).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
    check_gradients(ours, theirs)


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_a_compiled_function_may_be_checkpointed(device: Any, is_reentrant: bool) -> None:
    ours, theirs, x = saving(device)
    run = compiled(ours)
    for _ in range(3):
        for call, place in ((run, device), (theirs, "cpu")):
            given = x.to(place).requires_grad_()
            torch.utils.checkpoint.checkpoint(
                call, given, use_reentrant=is_reentrant
            ).square().sum().backward()
    check_gradients(ours, theirs)


def test_hooks_for_saved_tensors_see_each_value(device: Any) -> None:
    ours, theirs, x = saving(device)
    run = compiled(ours)
    for number in range(3):
        for call, place in ((run, device), (theirs, "cpu")):
            if number == 1:
                with (
                    torch.autograd.graph.save_on_cpu(),
                    contextlib.ExitStack() as stack,
                ):
                    if place is device:
                        stack.enter_context(pytest.warns(UserWarning, match="hooks for saved"))
                    loss = call(x.to(place)).square().sum()
            else:
                loss = call(x.to(place)).square().sum()
            loss.backward()
    check_gradients(ours, theirs)


def test_gradients_of_functions_of_other_lengths(device: Any) -> None:
    ours, theirs, _ = saving(device)
    run = compiled(ours, dynamic=True)
    for count in (2, 5, 3, 5):
        x = torch.randn(count, 3)
        for call, place in ((run, device), (theirs, "cpu")):
            call(x.to(place)).square().sum().backward()
    check_gradients(ours, theirs)


def test_compiled_autograd_is_refused(device: Any) -> None:
    ours, _, x = saving(device)
    loss = compiled(ours)(x.to(device)).sum()
    enabled = torch._dynamo.compiled_autograd._enable(compiled)
    with enabled, pytest.raises(NotImplementedError, match="compiled autograd"):
        loss.backward()


def test_a_function_without_tensors_runs_on_the_device_that_it_names(device: Any) -> None:
    second = brt.local()
    for place in (device, second):
        run = compiled(
            lambda place=place: (torch.arange(3, device=place) * 2, torch.ones(2, device=place))
        )
        for _ in range(3):
            numbers, ones = run()
            assert (numbers.device, ones.device) == (place, place)
            assert (numbers.tolist(), ones.tolist()) == ([0, 2, 4], [1, 1])


def test_inputs_that_exchange_their_elements(device: Any) -> None:
    def f(x: Any, y: Any) -> None:
        kept = x.clone()
        x.copy_(y)
        y.copy_(kept)

    run = compiled(f)
    x, y = torch.zeros(3, device=device), torch.ones(3, device=device)
    for expected in (1, 0, 1):
        run(x, y)
        assert x.tolist() == [expected] * 3
        assert y.tolist() == [1 - expected] * 3


# --- writes ------------------------------------------------------------------------------------


def test_writes_to_inputs_reach_all_their_views(device: Any) -> None:
    @compiled
    def f(x: Any, y: Any) -> Any:
        x.add_(1)
        x[1:].mul_(y)
        return x[0], x * 2

    for _ in range(3):
        x, y = torch.randn(3, 2), torch.randn(2)
        ours = x.to(device)
        view = ours[:, 0]
        first, double = f(ours, y.to(device))
        x += 1
        x[1:] *= y
        for mine, theirs in ((ours, x), (view, x[:, 0]), (first, x[0]), (double, x * 2)):
            assert torch.allclose(mine.cpu(), theirs)
        first.zero_()  # a view of the input
        assert torch.equal(ours[0].cpu(), torch.zeros(2))


def added(x: Any, y: Any) -> Any:
    x.add_(1)
    return y * 2


def test_a_write_to_an_input_reaches_another_view_of_the_same_tensor(device: Any) -> None:
    run = compiled(added)
    for count in range(1, 4):
        if count == 1:
            whole = torch.zeros(4, device=device)
        result = run(whole[:2], whole[1:])
        assert whole.tolist() == [count, count, 0, 0]
        assert result.tolist() == [2 * count, 0, 0]


def test_inputs_that_share_elements_unknown_to_pytorch_run_uncompiled(device: Any) -> None:
    run, x = compiled(added), torch.zeros(4, device=device)
    assert run(x, torch.ones(4, device=device)).tolist() == [2, 2, 2, 2]
    with pytest.warns(UserWarning, match="share elements"):
        result = run(x, x.data)
    assert x.tolist() == [2, 2, 2, 2]
    assert result.tolist() == [4, 4, 4, 4]


# --- failures ----------------------------------------------------------------------------------


def test_a_failure_inside_a_graph_names_the_line_of_the_program(device: Any) -> None:
    table = torch.randn(3, 2, device=device)

    @compiled
    def f(places: Any) -> Any:
        y = places + 1
        return table[y] * 2  # the line

    assert f(torch.tensor([0, 1], device=device)).shape == (2, 2)
    assert f(torch.tensor([1, 1], device=device)).shape == (2, 2)
    line = next(
        number
        for number, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if text.endswith("# the line")
    )
    failed = f(torch.tensor([0, 7], device=device))
    with pytest.raises(OperationFailed, match=rf"test_compile.py:{line}"):
        failed.cpu()
    assert f(torch.tensor([1, 1], device=device)).cpu().shape == (2, 2)


def test_an_operation_outside_of_the_table_is_named(device: Any) -> None:
    @compiled
    def f(x: Any) -> Any:
        return torch.special.legendre_polynomial_p(x, x) + 1

    with pytest.raises(Exception, match=r"test_compile.py:\d+: aten.special_legendre_polynomial_p"):
        f(torch.eye(3, device=device))


def test_a_function_on_the_cpu_runs_as_without_the_backend() -> None:
    assert compiled(lambda x: x * 2)(torch.ones(2)).tolist() == [2, 2]


def test_a_function_runs_on_the_device_of_its_arguments(device: Any) -> None:
    second = brt.local()

    @compiled
    def f(x: Any) -> Any:
        return (x * 2).sum()

    with torch.no_grad():
        for place in (device, second, device, second):
            result = f(torch.ones(3, device=place))
            assert result.device == place
            assert result.item() == 6
