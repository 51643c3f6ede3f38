"""PyTorch programs that train, save and load models."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest

from support.torch_comparison import drawn
from support.torch_programs import leaf, made, perceptron, program, trained, weights_of

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
nn: Any = torch.nn
functional: Any = torch.nn.functional
Dataset: Any = torch.utils.data.Dataset
Function: Any = torch.autograd.Function


OPTIMIZERS: tuple[Callable[[Any], Any], ...] = (
    lambda p: torch.optim.Adam(p, foreach=True, amsgrad=True),
    lambda p: torch.optim.RMSprop(p, foreach=True, momentum=0.5, centered=True),
    lambda p: torch.optim.Adagrad(p, foreach=True),
    lambda p: torch.optim.SGD(p, lr=0.1, nesterov=True, momentum=0.9, weight_decay=0.1),
    lambda p: torch.optim.NAdam(p),
    lambda p: torch.optim.RAdam(p),
    lambda p: torch.optim.Adadelta(p),
    lambda p: torch.optim.Adamax(p),
    lambda p: torch.optim.Rprop(p),
    lambda p: torch.optim.ASGD(p),
    lambda p: torch.optim.Adam(p, foreach=False),
    lambda p: torch.optim.Adam(p, capturable=False, maximize=True),
)


@program
def optimizers_over_lists_of_tensors(device: Any) -> Any:
    results = []
    for make in OPTIMIZERS:
        model = made(device, lambda: nn.Linear(6, 3))
        results.append(trained(model, device, make(model.parameters())))
    return results


@program
def lbfgs(device: Any) -> Any:
    model = made(device, lambda: nn.Linear(6, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
    x = drawn(device, 8, 6)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        return loss

    return [optimizer.step(closure) for _ in range(2)]


@program
def learning_rates_that_change(device: Any) -> Any:
    model = made(device, lambda: nn.Linear(6, 3))
    optimizer = torch.optim.AdamW(
        [{"params": [model.weight], "lr": 0.1}, {"params": [model.bias]}], lr=0.01
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=6)
    for step in range(4):
        optimizer.zero_grad()
        model(drawn(device, 4, 6, seed=step)).square().mean().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
        schedule.step()
    return norm, list(model.parameters()), schedule.get_last_lr()


@program
def scaled_gradients(device: Any) -> Any:
    model = made(device, lambda: nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(drawn(device, 4, 6, seed=step)).square().mean()
        if step == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return scaler.get_scale(), list(model.parameters())


@program
def averages_of_weights(device: Any) -> Any:
    model = made(device, lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)))
    ema = copy.deepcopy(model).requires_grad_(False)
    swa = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(drawn(device, 4, 6, seed=step)).square().mean().backward()
        optimizer.step()
        swa.update_parameters(model)
        with torch.no_grad():
            for kept, new in zip(ema.parameters(), model.parameters(), strict=True):
                kept.lerp_(new, 0.1)
    return list(ema.state_dict().values()), list(swa.state_dict().values())


@program
def accumulated_gradients(device: Any) -> Any:
    model = made(device, lambda: nn.Linear(6, 3))
    for step in range(3):
        (model(drawn(device, 4, 6, seed=step)).square().mean() / 3).backward()
    first = model.weight.grad
    model.zero_grad(set_to_none=False)
    return first, model.bias.grad, model.weight.grad is first


@program
def hooks(device: Any) -> Any:
    seen: list[Any] = []
    model = made(device, lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)))
    model[0].register_forward_hook(lambda _, x, y: y * 2)
    model[1].register_full_backward_hook(lambda _, given, out: seen.append(out[0]))
    model[2].weight.register_hook(lambda grad: grad * 3)
    model[0].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    x = leaf(device, 3, 6)
    y = model(x)
    y.retain_grad()
    y.sum().backward()
    return seen, x.grad, y.grad, [p.grad for p in model.parameters()]


@program
def checkpointed_activations(device: Any) -> Any:
    block = made(device, lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.0), nn.GELU()))
    x = leaf(device, 3, 6)
    for reentrant in (False, True):
        torch.utils.checkpoint.checkpoint(block, x, use_reentrant=reentrant).sum().backward()
    return x.grad, block[0].weight.grad


class Cube(torch.autograd.Function):  # type: ignore[misc,name-defined]
    """The third power, with a gradient written by hand."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * 3 * x**2


@program
def gradients_written_by_hand(device: Any) -> Any:
    x = leaf(device, 4)
    Cube.apply(x).sum().backward()
    y = leaf(device, 4)
    first = torch.autograd.grad(Cube.apply(y).sum(), y, create_graph=True)[0]
    return x.grad, torch.autograd.grad(first.sum(), y)[0]


@program
def second_derivatives(device: Any) -> Any:
    x, model = (
        leaf(device, 4, 6),
        made(device, lambda: nn.Sequential(nn.Linear(6, 3), nn.Softplus())),
    )
    (grad,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (grad.norm(dim=1) - 1).square().mean().backward()
    return x.grad, model[0].weight.grad


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


# --- programs around the model ------------------------------------------------------------------


@program
def saved_modules(device: Any) -> Any:
    model = made(device, lambda: nn.Sequential(nn.Linear(6, 3), nn.Tanh()))
    optimizer = torch.optim.Adam(model.parameters())
    trained(model, device, optimizer)
    file = io.BytesIO()
    torch.save({"model": model, "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    again = loaded["model"].to(device)
    other = torch.optim.Adam(again.parameters())
    other.load_state_dict(loaded["optimizer"])
    return trained(again, device, other)


@program
def batches_of_a_data_loader(device: Any) -> Any:
    data = torch.utils.data.TensorDataset(torch.arange(12.0).view(6, 2), torch.arange(6))
    found = []
    for workers in (0, 1):
        for x, y in torch.utils.data.DataLoader(data, batch_size=4, num_workers=workers):
            found.append((x.to(device, non_blocking=True).sum(1), y.to(device)))
    return found


@program
def parameters_that_are_shared_or_changed(device: Any) -> Any:
    torch.manual_seed(5)
    table, head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
    head.weight = table.weight
    model = nn.ModuleDict({"table": table, "head": head}).to(device)
    tied = model["head"].weight is model["table"].weight
    model["head"](model["table"](torch.tensor([1, 2], device=device))).square().sum().backward()
    normed = nn.utils.parametrizations.weight_norm(made(device, lambda: nn.Linear(4, 3)))
    spectral = nn.utils.parametrizations.spectral_norm(made(device, lambda: nn.Linear(4, 3))).eval()
    y = normed(drawn(device, 2, 4)).sum() + 0 * spectral(drawn(device, 2, 4)).sum()
    y.backward()
    vector = nn.utils.parameters_to_vector(normed.parameters())
    nn.utils.vector_to_parameters(vector * 2, normed.parameters())
    return (
        tied,
        model["table"].weight.grad,
        y,
        vector,
        normed.weight,
        [p.grad for p in normed.parameters()],
    )


@program
def an_optimizer_made_before_the_model_moves(device: Any) -> Any:
    torch.manual_seed(5)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = model.weight
    model.to(device)
    results = trained(model, device, optimizer)
    model.cpu()
    return results, kept is model.weight, trained(model, torch.device("cpu"), optimizer)


@program
def changed_data(device: Any) -> Any:
    x = leaf(device, 3)
    x.data = x.data * 2
    x.data.add_(1)
    with torch.no_grad():
        x[0] = 5
    x.detach().mul_(2)
    y = (x * x).sum()
    y.backward()
    x.grad.zero_()
    x.grad += 3
    z = torch.zeros(2, device=device)
    z += torch.ones(2, device=device)
    z.set_(x.detach()[:2])
    z.add_(1)
    torch.add(x.detach(), 1, out=(out := torch.empty(3, device=device)))
    return x, x.grad, out, x._version > 0
