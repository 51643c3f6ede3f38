"""Whole programs, as users of PyTorch write them, give the CPU's results on a burn device."""

from __future__ import annotations

import copy
import functools
import io
from collections.abc import Callable
from typing import Any

import pytest

from support.torch_comparison import compared, drawn

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
brt = pytest.importorskip("burn_remote.torch")
nn: Any = torch.nn
functional: Any = torch.nn.functional
Dataset: Any = torch.utils.data.Dataset
Function: Any = torch.autograd.Function
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Dynamo:UserWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

# Name -> a program: from a device to results, all of whose numbers are drawn on the CPU.
PROGRAMS: dict[str, Callable[[Any], Any]] = {}


def program(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    PROGRAMS[function.__name__.replace("_", " ")] = function
    return function


@pytest.fixture(scope="module")
def device() -> Any:
    return brt.local()


def made(device: Any, build: Callable[[], Any]) -> Any:
    """Return a module with the same weights on every device."""
    torch.manual_seed(5)
    return build().to(device)


def perceptron() -> Any:
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))


def weights_of(model: Any) -> list[Any]:
    return [p.detach().clone() for p in model.parameters()]


# --- training -----------------------------------------------------------------------------------


@program
def a_warm_up_a_cosine_schedule_and_clipped_norms(device: Any) -> Any:
    model = made(device, perceptron)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], [3])
    norms = []
    for step in range(8):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        loss = functional.cross_entropy(
            model(drawn(device, 5, 6, seed=step)), torch.tensor([0, 1, 2, 1, 0], device=device)
        )
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
        schedule.step()
    return weights_of(model), norms, schedule.get_last_lr()


@program
def a_model_that_learns_from_micro_batches_with_groups_of_parameters(device: Any) -> Any:
    model = made(device, perceptron)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.2}, {"params": others, "lr": 0.3}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)
    for step in range(9):
        loss = model(drawn(device, 4, 6, seed=step)).pow(2).mean() / 3
        loss.backward()
        if step % 3 == 2:
            nn.utils.clip_grad_value_(model.parameters(), 0.01)
            optimizer.step()
            optimizer.zero_grad()
    return weights_of(model)


@program
def a_run_that_is_saved_and_continued_by_another_process(device: Any) -> Any:
    def step(model: Any, optimizer: Any, seed: int) -> None:
        optimizer.zero_grad()
        model(drawn(device, 4, 6, seed=seed)).square().mean().backward()
        optimizer.step()

    model = made(device, perceptron)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, amsgrad=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for seed in range(3):
        step(model, optimizer, seed)
        schedule.step()
    file = io.BytesIO()
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    torch.save({name: part.state_dict() for name, part in parts.items()}, file)
    file.seek(0)
    saved = torch.load(file, map_location=device, weights_only=True)
    again = made(device, perceptron)
    optimizer = torch.optim.Adam(again.parameters(), lr=9.0, amsgrad=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    again.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    schedule.load_state_dict(saved["schedule"])
    for seed in range(3, 6):
        step(again, optimizer, seed)
        schedule.step()
    return weights_of(again), schedule.get_last_lr()


@program
def scaled_losses_that_overflow_once(device: Any) -> Any:
    model = made(device, perceptron)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**10, growth_interval=2)
    scales = []
    for step in range(5):
        optimizer.zero_grad()
        loss = model(drawn(device, 4, 6, seed=step)).square().mean()
        loss = loss * (float("inf") if step == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return weights_of(model), scales


@program
def gradients_of_each_sample_by_func(device: Any) -> Any:
    model = made(device, perceptron)
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss_of(weights: Any, x: Any, y: Any) -> Any:
        logits = torch.func.functional_call(model, weights, (x.unsqueeze(0),))
        return functional.cross_entropy(logits, y.unsqueeze(0))

    grads = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))(
        weights, drawn(device, 4, 6), torch.tensor([0, 2, 1, 1], device=device)
    )
    return [grads[name] for name in sorted(grads)]


@program
def products_with_jacobians_by_func(device: Any) -> Any:
    x, direction = drawn(device, 3, 4), drawn(device, 3, 4, seed=1)

    def function(x: Any) -> Any:
        return torch.tanh(x @ x.t()).sum(1)

    value, slope = torch.func.jvp(function, (x,), (direction,))
    _, pull = torch.func.vjp(function, x)
    hessian = torch.func.hessian(lambda x: function(x).sum())(x)
    return value, slope, pull(torch.ones(3, device=device))[0], hessian


@program
def hooks_that_change_and_record(device: Any) -> Any:
    def halve(parameter: Any) -> None:
        parameter.grad.mul_(0.5)

    model, seen = made(device, perceptron), []
    model[0].register_forward_hook(lambda module, x, y: y * 2)
    model[1].register_forward_pre_hook(lambda module, x: (x[0] + 1,))
    model[3].register_full_backward_hook(lambda module, to_x, to_y: seen.append(to_y[0].clone()))
    model[0].weight.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
    model[2].weight.register_post_accumulate_grad_hook(halve)
    x = drawn(device, 4, 6)
    hidden = model[:2](x)
    hidden.retain_grad()
    model[2:](hidden).square().sum().backward()
    return [p.grad for p in model.parameters()], seen, hidden.grad


@program
def multi_head_attention_with_masks_of_all_kinds(device: Any) -> Any:
    attention = made(device, lambda: nn.MultiheadAttention(8, 2, batch_first=True))
    x, memory = drawn(device, 3, 5, 8).requires_grad_(), drawn(device, 3, 4, 8, seed=1)
    padding = torch.tensor([[False] * 4, [False] * 3 + [True], [False, False, True, True]])
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1).to(device)
    results = [attention(x, memory, memory, key_padding_mask=padding.to(device))]
    results += [attention(x, x, x, attn_mask=causal, need_weights=False)]
    results += [attention(x, x, x, attn_mask=causal.float() * -3, average_attn_weights=False)]
    results += [attention(x, x, x, attn_mask=drawn(device, 6, 5, 5), need_weights=True)]
    sum(one[0].square().sum() for one in results).backward()
    return results, x.grad, [p.grad for p in attention.parameters()]


@program
def recurrent_networks_over_packed_batches(device: Any) -> Any:
    results = []
    for build in (
        lambda: nn.LSTM(5, 6, 2, batch_first=True, bidirectional=True),
        lambda: nn.GRU(5, 6, batch_first=True),
        lambda: nn.LSTM(5, 6, batch_first=True, proj_size=3),
    ):
        model = made(device, build)
        packed = nn.utils.rnn.pack_padded_sequence(
            drawn(device, 3, 4, 5), torch.tensor([4, 1, 3]), batch_first=True, enforce_sorted=False
        )
        out, state = model(packed)
        padded, lengths = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        padded.square().sum().backward()
        results.append([padded, lengths, state, [p.grad for p in model.parameters()]])
    return results


@program
def bags_of_weighted_words(device: Any) -> Any:
    results = []
    words = torch.tensor([1, 4, 2, 2, 0, 3, 4], device=device)
    starts = torch.tensor([0, 3, 3, 5], device=device)
    for mode in ("sum", "mean", "max"):
        bag = made(device, functools.partial(nn.EmbeddingBag, 5, 3, mode=mode, padding_idx=2))
        weights = drawn(device, 7).requires_grad_() if mode == "sum" else None
        out = bag(words, starts, per_sample_weights=weights)
        out.square().sum().backward()
        results.append([out, bag.weight.grad, None if weights is None else weights.grad])
    return results


@program
def averaged_weights_with_fresh_batch_statistics(device: Any) -> Any:
    model = made(device, lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)))
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    schedule = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
    batches = [drawn(device, 5, 6, seed=step) for step in range(4)]
    for x in batches:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        average.update_parameters(model)
        schedule.step()
    torch.optim.swa_utils.update_bn(batches, average)
    return weights_of(average), [b.clone() for b in average.buffers()], average.eval()(batches[0])


@program
def parametrized_weights(device: Any) -> Any:
    parametrizations = nn.utils.parametrizations

    def build() -> Any:
        return nn.Sequential(
            parametrizations.weight_norm(nn.Linear(6, 6)),
            parametrizations.spectral_norm(nn.Linear(6, 6), n_power_iterations=2),
            parametrizations.spectral_norm(nn.Linear(6, 6), eps=1e-6),
        )

    model = made(device, build)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(drawn(device, 4, 6, seed=step)).square().mean().backward()
        optimizer.step()
    nn.utils.parametrize.remove_parametrizations(model[0], "weight")
    return weights_of(model), model[2].weight


@program
def a_copied_model_that_trains_by_itself(device: Any) -> Any:
    model = made(device, perceptron)
    teacher = copy.deepcopy(model).requires_grad_(False).eval()
    tied = nn.ModuleDict({"first": nn.Linear(6, 6), "second": nn.Linear(6, 6)}).to(device)
    torch.manual_seed(1)
    tied["first"].weight.data.copy_(drawn(device, 6, 6))
    tied["second"].weight = tied["first"].weight
    clone = copy.deepcopy(tied)
    with torch.no_grad():
        clone["first"].weight.add_(1)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    for step in range(3):
        x = drawn(device, 4, 6, seed=step)
        optimizer.zero_grad()
        loss = functional.kl_div(
            model(x).log_softmax(1), teacher(x).softmax(1), reduction="batchmean"
        )
        (loss + model(x).square().mean()).backward()
        optimizer.step()
    shares = clone["first"].weight is clone["second"].weight
    return weights_of(model), weights_of(teacher), shares, clone["second"].weight


class Rows(Dataset):  # type: ignore[misc]  # PyTorch has no types here
    """Rows whose elements are their position."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, at: int) -> Any:
        return torch.full((6,), float(at)), at % 3


@program
def batches_of_worker_processes(device: Any) -> Any:
    loader = torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=2, drop_last=True)
    model = made(device, perceptron)
    losses = []
    for x, y in loader:
        losses.append(functional.cross_entropy(model(x.to(device)), y.to(device)))
    return losses


@program
def a_compiled_function_with_other_lengths_and_a_break(device: Any) -> Any:
    weight = drawn(device, 6, 6).requires_grad_()

    def function(x: Any) -> Any:
        hidden = torch.relu(x @ weight)
        if hidden.sum() > 1e6:  # ends a graph
            hidden = hidden * 0
        return (hidden * x.shape[0]).mean(0)

    run: Any = function
    if device.type != "cpu":
        torch.compiler.reset()
        run = torch.compile(function, backend="burn_remote", dynamic=True)
    results = []
    for length in (3, 5, 3, 9, 5):
        weight.grad = None
        value = run(drawn(device, length, 6, seed=length))
        value.sum().backward()
        results.append([value, weight.grad.clone()])
    return results


# --- tensors ------------------------------------------------------------------------------------


@program
def writes_through_chains_of_views(device: Any) -> Any:
    x = drawn(device, 2, 3, 4)
    chain = x.transpose(0, 2)[1:].flatten(1)
    chain += 1  # a copy, because flatten of a transposed tensor copies
    x.transpose(0, 2)[1:].mul_(2)
    rows = x.view(6, 4).unbind(0)
    torch._foreach_add_(list(rows[:2]), 3.0)
    rows[4].copy_(rows[0])
    x.swapaxes(1, 2).select(0, 1)[::2] = -1
    torch.add(x[0], x[1], out=x[0])
    x.real.view(-1)[-3:].zero_()
    first, second = x.chunk(2, -1)
    first.sub_(second)
    return x, chain


@program
def indices_that_repeat_accumulate(device: Any) -> Any:
    x = torch.zeros(4, 3, device=device)
    rows = torch.tensor([0, 2, 0, 0], device=device)
    columns = torch.tensor([1, 1, 1, 2], device=device)
    x.index_put_((rows, columns), drawn(device, 4), accumulate=True)
    x.index_add_(0, rows, drawn(device, 4, 3, seed=1), alpha=0.5)
    y = x.clone().requires_grad_()
    (y[rows] * y[:, columns[:3]].sum()).sum().backward()
    z = torch.zeros(4, device=device).scatter_reduce(
        0, rows, drawn(device, 4, seed=2), "amax", include_self=False
    )
    return x, y.grad, z


@program
def masks_that_select_and_fill(device: Any) -> Any:
    x = drawn(device, 4, 5).requires_grad_()
    mask = drawn(device, 4, 5, seed=1) > 0
    filled = x.masked_scatter(mask, drawn(device, 20, seed=2))
    chosen = torch.masked_select(x, mask)
    (filled.square().sum() + chosen.sum()).backward()
    y = drawn(device, 4, 5)
    y[mask] = 0.5
    y[~mask] *= 2
    y[:, mask.any(0)] -= 1
    return filled, chosen, x.grad, y, torch.where(mask)


@program
def unique_values_and_counts(device: Any) -> Any:
    x = torch.tensor([[3, 1, 3], [2, 1, 3]], device=device)
    values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
    return values, inverse, counts, torch.bincount(x.flatten(), minlength=6)


@program
def signals_in_complex_numbers(device: Any) -> Any:
    x = (drawn(device, 3, 16) * 0.3).requires_grad_()
    spectrum = torch.fft.rfft(x)
    power = spectrum.abs().square() + spectrum.angle().cos()
    turned = torch.view_as_real(spectrum * torch.polar(power.detach(), power.detach()))
    back = torch.fft.irfft(torch.view_as_complex(turned.contiguous()), 16)
    (power.sum() + back.square().sum()).backward()
    matrix = torch.complex(drawn(device, 3, 3), drawn(device, 3, 3, seed=1))
    return power, back, x.grad, matrix.conj().t() @ matrix, matrix.H.resolve_conj()


@program
def sampling_of_text(device: Any) -> Any:
    logits = drawn(device, 3, 11)
    ordered, places = torch.sort(logits, descending=True)
    removed = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1) > 0.8
    kept = logits.masked_fill(removed.scatter(1, places, removed), float("-inf"))
    top = torch.topk(logits, 4)
    limited = logits.masked_fill(logits < top.values[:, -1:], float("-inf"))
    penalized = logits.clone()
    seen = torch.tensor([[1, 2], [3, 3], [0, 10]], device=device)
    score = penalized.gather(1, seen)
    penalized.scatter_(1, seen, torch.where(score < 0, score * 1.2, score / 1.2))
    return kept.softmax(-1), limited.log_softmax(-1), top, penalized.argmax(-1)


@program
def images_that_are_resized_and_warped(device: Any) -> Any:
    x = drawn(device, 1, 2, 6, 6).requires_grad_()
    small = functional.interpolate(x, scale_factor=0.5, mode="area")
    large = functional.interpolate(x, size=(9, 7), mode="bilinear", antialias=False)
    turn = torch.tensor([[[0.8, 0.2, 0.1], [-0.2, 0.9, 0.0]]], device=device)
    grid = functional.affine_grid(turn, list(x.shape), align_corners=False)
    warped = functional.grid_sample(x, grid, align_corners=False)
    patches = functional.unfold(functional.pad(x, (1, 1, 1, 1), mode="reflect"), 3, stride=2)
    (small.sum() + large.square().sum() + warped.square().sum() + patches.prod(1).sum()).backward()
    return small, large, warped, patches, x.grad


@program
def distances_and_assignments(device: Any) -> Any:
    points, centers = drawn(device, 20, 3), drawn(device, 4, 3, seed=1)
    for _ in range(3):
        nearest = torch.cdist(points, centers).argmin(1)
        sums = torch.zeros_like(centers).index_add_(0, nearest, points)
        counts = torch.bincount(nearest, minlength=4).clamp(min=1)
        centers = sums / counts.unsqueeze(1)
    similar = functional.cosine_similarity(points.unsqueeze(1), centers, dim=-1)
    return centers, nearest, similar


@program
def least_squares_by_factors(device: Any) -> Any:
    a, b = drawn(device, 6, 3), drawn(device, 6, 2, seed=1)
    gram = a.t() @ a + torch.eye(3, device=device)
    lower = torch.linalg.cholesky(gram)
    q, r = torch.linalg.qr(a)
    solved = torch.cholesky_solve(a.t() @ b, lower)
    return (
        solved,
        torch.linalg.solve_triangular(r, q.t() @ b, upper=True),
        lower.diagonal().log().sum(),
    )


class Clipped(Function):  # type: ignore[misc]  # PyTorch has no types here
    """Identity whose gradient is limited."""

    @staticmethod
    def forward(ctx: Any, x: Any, limit: float) -> Any:
        ctx.limit = limit
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad.clamp(-ctx.limit, ctx.limit) * (x > 0), None


@program
def functions_with_gradients_of_their_own(device: Any) -> Any:
    x = drawn(device, 4, 3).requires_grad_()
    Clipped.apply(x * 3, 0.5).square().sum().backward()
    with torch.no_grad():
        x -= 0.1 * x.grad
    with torch.inference_mode():
        shown = (x @ x.t()).relu()
    return x, x.grad, shown.clone()


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


def failing(*_: Any) -> Any:
    raise ValueError("of the hook")


def interrupted(*_: Any) -> Any:
    raise KeyboardInterrupt


def hooked_module(x: Any) -> Any:
    layer = torch.nn.Linear(3, 3).to(x.device)
    layer.register_full_backward_hook(failing)
    return layer(x)


def hooked_node(x: Any) -> Any:
    result = x.sin()
    result.grad_fn.register_hook(failing)
    return result


def hooked_leaf(x: Any, hook: Callable[..., Any] = failing) -> Any:
    x.register_hook(hook)
    return x.sin()


def hooked_accumulation(x: Any) -> Any:
    x.register_post_accumulate_grad_hook(failing)
    return x.sin()


def hooked_saved_tensors(x: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one, failing):
        return x.sin()


def hooked_backward_inside_a_hook(x: Any) -> Any:
    def hook(grad: Any) -> None:
        with torch.enable_grad():
            hooked_leaf(x.detach().requires_grad_()).sum().backward()

    result = x.sin()
    result.register_hook(hook)
    return result


@pytest.mark.parametrize(
    "make",
    [
        hooked_accumulation,
        hooked_backward_inside_a_hook,
        hooked_leaf,
        hooked_module,
        hooked_node,
        hooked_saved_tensors,
    ],
)
def test_an_error_of_a_hook_leaves_the_backward_pass(
    device: Any, make: Callable[[Any], Any]
) -> None:
    x = drawn(device, 2, 3).requires_grad_()
    with pytest.raises(ValueError, match="of the hook") as caught:
        make(x).sum().backward()
    assert caught.traceback[-1].name == "failing"
    y = drawn(device, 2, 3).requires_grad_()
    (y * 3).sum().backward()
    assert y.grad.tolist() == [[3.0] * 3] * 2


def test_an_interrupted_hook_interrupts_the_program(device: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        hooked_leaf(drawn(device, 3).requires_grad_(), interrupted).sum().backward()
