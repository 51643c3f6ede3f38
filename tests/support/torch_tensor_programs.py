"""PyTorch programs about tensors: views, writes, dtypes, numbers, function transforms."""

from __future__ import annotations

from typing import Any

import pytest

from support.torch_comparison import drawn
from support.torch_programs import leaf, made, program

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
nn: Any = torch.nn
functional: Any = torch.nn.functional


# --- views and writes ---------------------------------------------------------------------------


@program
def in_place_operations_on_views(device: Any) -> Any:
    x = drawn(device, 4, 6)
    x[1:3, ::2].mul_(2)
    x.t()[0].zero_()
    x.view(-1)[5:9] += 1
    x[:, 1].copy_(x[:, 2].clone())
    x.diagonal().fill_(7)
    x.narrow(1, 2, 2).clamp_(-1, 1)
    x.unsqueeze(0).transpose(1, 2)[0, 3].sub_(0.5)
    return x


@program
def writes_to_views_of_a_tensor_with_a_history(device: Any) -> Any:
    w = leaf(device, 4, 3)
    x = w * 2
    x[0] = 0
    x[1].mul_(w[2])
    y = x.view(2, 6)
    y[:, 0].exp_()
    x.sum().backward()
    return x, y, w.grad


@program
def masks_and_indices(device: Any) -> Any:
    x = drawn(device, 5, 4)
    x.masked_fill_(x > 1, 0.0)
    x[x < -1] = 3.0
    x[torch.tensor([0, 2], device=device), torch.tensor([1, 3], device=device)] = 9.0
    x.index_put_(
        (torch.tensor([0, 0, 1], device=device),), torch.ones(3, 4, device=device), accumulate=True
    )
    x[:, [0, 2]] *= 2
    x[-1, ..., None] += 1
    rows = torch.tensor([True, False, True, False, True], device=device)
    return x, x[rows], x[rows, 1], x[x > 0], torch.where(x > 0), x.nonzero(), x[[1, 1], :2]


@program
def scatters_and_gathers(device: Any) -> Any:
    index = torch.tensor([[0, 1, 2], [2, 0, 0]], device=device)
    x, source = leaf(device, 3, 4), leaf(device, 2, 3, seed=1)
    a = x.scatter(0, index, source)
    b = x.scatter_add(1, index, source)
    c = x.scatter_reduce(0, index, source, "amax")
    d = x.gather(1, index)
    (a.sum() + (b * b).sum() + c.sum() + d.exp().sum()).backward()
    counts = torch.bincount(index.flatten(), minlength=5)
    e = drawn(device, 3, 4)
    e.scatter_(1, index[:1], 0.0)
    e.index_fill_(0, torch.tensor([1], device=device), 4.0).index_add_(
        1, torch.tensor([0, 0], device=device), torch.ones(3, 2, device=device)
    )
    return a, b, c, d, e, x.grad, source.grad, counts, torch.take_along_dim(x, x.argsort(1), 1)


@program
def expanded_tensors(device: Any) -> Any:
    x = leaf(device, 1, 3)
    y = x.expand(4, 3)
    z = y.reshape(2, 6) * y.contiguous().view(6, 2).t()
    z.sum().backward()
    return y, z, x.grad, y.stride(), x.expand_as(y).sum(0), torch.broadcast_tensors(x, y)[0]


@program
def windows_and_strides(device: Any) -> Any:
    x = leaf(device, 10)
    windows = x.unfold(0, 4, 2)
    strided = torch.as_strided(x, (3, 3), (2, 1), 1)
    (windows.square().sum() + strided.sum()).backward()
    image = drawn(device, 1, 2, 6, 6)
    patches = functional.unfold(image, 3, stride=2)
    return windows, strided, x.grad, patches, functional.fold(patches, 6, 3, stride=2)


@program
def channels_last_images(device: Any) -> Any:
    model = made(device, lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()))
    model = model.to(memory_format=torch.channels_last)
    x = drawn(device, 2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    y = model(x)
    y.sum().backward()
    return y, y.stride(), y.is_contiguous(memory_format=torch.channels_last), model[0].weight.grad


# --- function transforms ------------------------------------------------------------------------


@program
def vmap_and_jacobians(device: Any) -> Any:
    model = made(device, lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    parameters = dict(model.named_parameters())
    x, y = drawn(device, 5, 3), drawn(device, 5, 2, seed=1)

    def loss(parameters: Any, x: Any, y: Any) -> Any:
        return (torch.func.functional_call(model, parameters, (x,)) - y).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, x, y)
    return (
        list(each.values()),
        torch.func.jacrev(model)(x[0]),
        torch.func.jacfwd(torch.sin)(x[0]),
        torch.func.hessian(lambda v: (v**3).sum())(x[0]),
        torch.vmap(torch.dot)(x, x),
        torch.func.jvp(torch.exp, (x,), (x,)),
    )


# --- dtypes -------------------------------------------------------------------------------------


@program
def nested_autocast(device: Any) -> Any:
    x, w = drawn(device, 4, 6), drawn(device, 6, 3, seed=1)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        a = x @ w
        with torch.autocast(device.type, enabled=False):
            b = a.float() @ w.t()
        c = b @ w
        d = torch.softmax(c.float(), 1)
    return a.dtype, b.dtype, c.dtype, b.round(), d.dtype


@program
def complex_numbers(device: Any) -> Any:
    x = torch.view_as_complex(drawn(device, 4, 3, 2)).requires_grad_()
    y = (x * x.conj()).real + x.imag.abs() + x.abs() + torch.fft.fft(x, dim=0).angle()
    y.sum().backward()
    z = x.detach().clone()
    z.real.mul_(2)
    z.imag.zero_()
    pairs = torch.view_as_real(z)
    pairs[0].fill_(4)
    again = torch.view_as_complex(pairs)
    again[1].mul_(1j)
    return y, pairs, again, x.grad, z, x.conj().resolve_conj(), x @ x.mH, torch.polar(y, y).detach()


@program
def mixed_dtypes(device: Any) -> Any:
    i = torch.arange(6, device=device).view(2, 3)
    x = drawn(device, 2, 3)
    return (
        i + x,
        i / 2,
        i // 2,
        i % 4,
        i * 1.5,
        x.half() + x,
        x.double() + 1,
        i > x,
        ~(i > 2),
        i.sum(),
        (i > 2).sum(),
        i.float().mean(),
        -i,
        i << 1,
        i & 3,
        x.to(torch.int32),
        x.bool(),
        True + i,
        torch.result_type(i, x),
        x.long().type(),
        i.to(torch.uint8) - 1,
        torch.tensor(3, device=device) ** i,
        2**x,
        i**2,
        7 - i,
        1 / x,
        torch.remainder(-i, 4),
        torch.fmod(-i, 4),
        i.bitwise_not(),
    )


# --- numbers ------------------------------------------------------------------------------------


@program
def einsums(device: Any) -> Any:
    a, b = leaf(device, 2, 3, 4), leaf(device, 2, 4, 5, seed=1)
    c = torch.einsum("bij,bjk->bik", a, b)
    d = torch.einsum("bij,bij->b", a, a) + torch.einsum("...ij->...", b)
    (c.sum() + d.sum()).backward()
    e = (
        torch.tensordot(a, b, ([2], [1])),
        torch.kron(a[0], b[0]),
        torch.einsum("ii->i", a[0, :, :3]),
    )
    return c, d, e, a.grad, b.grad


@program
def sorted_tensors(device: Any) -> Any:
    x = leaf(device, 4, 6)
    values, index = x.sort(1, descending=True)
    top, at = x.topk(2, dim=0)
    (values[:, 0].sum() + top.square().sum() + x.kthvalue(3, 1).values.sum()).backward()
    i = torch.tensor([3, 1, 3, 2, 1], device=device)
    return (
        values,
        index,
        top,
        at,
        x.grad,
        x.argsort(0),
        x.median(1),
        x.max(1),
        x.min(),
        x.cummax(1),
        torch.unique(i, return_inverse=True, return_counts=True),
        x.quantile(0.3),
        torch.isin(i, i[:1]),
        x.msort(),
        x.aminmax(),
        torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0], device=device)),
        x.logcumsumexp(1),
    )


@program
def reductions(device: Any) -> Any:
    x = leaf(device, 3, 4)
    losses = [
        x.var(),
        x.std(1).sum(),
        x.logsumexp(1).sum(),
        x.norm(),
        x.norm(1, dim=0).sum(),
        x.prod(),
        x.amax((0, 1)),
        x.cumsum(1).square().sum(),
        x.cumprod(0).sum(),
        x.logcumsumexp(1).sum(),
        x.renorm(2, 0, 1.0).sum(),
        torch.linalg.norm(x, "nuc"),
        torch.cdist(x, x + 1).sum(),
        x.diff(dim=1).square().sum(),
        x.trace(),
        x.square().mean(0, keepdim=True).sqrt().sum(),
        torch.trapezoid(x).sum(),
        x.nansum(),
        x.softmax(0).amin(),
        torch.linalg.inv(x @ x.t()).sum(),
        torch.linalg.cholesky(x @ x.t()).sum(),
        torch.linalg.svdvals(x).sum(),
        torch.linalg.solve_triangular((x @ x.t()).tril(), x, upper=False).sum(),
    ]
    sum(losses).backward()
    return (
        losses,
        x.grad,
        x.all(),
        x.any(1),
        x.count_nonzero(),
        torch.var_mean(x, 1),
        torch.corrcoef(x),
    )


@program
def shapes(device: Any) -> Any:
    x = drawn(device, 2, 3, 4)
    return (
        x.flip(0, 2),
        x.roll(1, 2),
        x.rot90(1, (1, 2)),
        x.repeat(2, 1, 1),
        x.repeat_interleave(2, 1),
        x.tile(2),
        torch.stack([x, x], 1),
        torch.cat([x, x], 2),
        x.chunk(2, 2),
        x.split([1, 2], 1),
        x.unbind(1),
        x.movedim(0, 2),
        x.tril(),
        x.triu(1),
        torch.block_diag(x[0], x[1]),
        torch.meshgrid(x[0, 0], x[0, :, 0], indexing="ij"),
        functional.pad(x, (1, 2)),
        functional.pad(x, (1, 1), mode="reflect"),
        functional.one_hot(x[0].long().abs()),
        torch.cartesian_prod(x[0, 0], x[0, :, 0]),
        torch.combinations(x[0, 0]),
        torch.tril_indices(3, 3, device=device),
        torch.diag_embed(x),
        x[..., -1],
        x[:, None, 1:, ::2],
        x.flatten(1).unflatten(1, (4, 3)),
        x.swapaxes(0, 1),
        torch.repeat_interleave(x[0], torch.tensor([1, 0, 2], device=device), dim=0),
        torch.hstack([x, x]),
        torch.dstack([x, x]),
        torch.atleast_3d(x[0]),
        torch.vander(x[0, 0]),
        x.mT,
    )


@program
def control_flow_on_elements(device: Any) -> Any:
    x, steps = drawn(device, 5), 0
    while x.abs().max() > 0.1:
        x = x * 0.5
        steps += 1
    best = min(x, key=abs)
    chosen = [float(v) for v in x if v > 0]
    return (
        steps,
        best,
        chosen,
        x.tolist(),
        int(x.argmax()),
        bool((x == x).all()),
        len(x),
        f"{x[0]:.3f}",
    )


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
