"""Programs of the kinds that PyTorch's users write give the CPU's results on a burn device."""

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
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning"),
]

# Name -> a program: from a device to results, all of whose numbers are drawn on the CPU.
PROGRAMS: dict[str, Callable[[Any], Any]] = {}


def program(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    PROGRAMS[function.__name__.replace("_", " ")] = function
    return function


@pytest.fixture(scope="module")
def device() -> Any:
    return brt.local()


def leaf(device: Any, *shape: int, seed: int = 0) -> Any:
    return drawn(device, *shape, seed=seed).requires_grad_()


def made(device: Any, build: Callable[[], Any]) -> Any:
    """Return a module with the same weights on every device."""
    torch.manual_seed(5)
    return build().to(device)


def trained(model: Any, device: Any, optimizer: Any, steps: int = 3, width: int = 6) -> Any:
    for step in range(steps):
        optimizer.zero_grad()
        model(drawn(device, 4, width, seed=step)).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


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


# --- training -----------------------------------------------------------------------------------


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


# --- layers -------------------------------------------------------------------------------------


@program
def recurrent_layers(device: Any) -> Any:
    results: list[Any] = []
    for make in (
        lambda: nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True),
        lambda: nn.GRU(4, 5, batch_first=True),
        lambda: nn.RNN(4, 5, batch_first=True),
    ):
        layer, x = made(device, make), leaf(device, 2, 6, 4)
        y, state = layer(x)
        y.sum().backward()
        results += [y, state, x.grad, [p.grad for p in layer.parameters()]]
    cell = made(device, lambda: nn.LSTMCell(4, 3))
    return results, cell(drawn(device, 2, 4))


@program
def packed_sequences(device: Any) -> Any:
    layer, x = made(device, lambda: nn.LSTM(4, 5, batch_first=True)), leaf(device, 3, 6, 4)
    packed = nn.utils.rnn.pack_padded_sequence(
        x, torch.tensor([6, 2, 4]), batch_first=True, enforce_sorted=False
    )
    y, state = layer(packed)
    padded, lengths = nn.utils.rnn.pad_packed_sequence(y, batch_first=True)
    padded.sum().backward()
    return padded, lengths, state, x.grad


@program
def bags_of_embeddings(device: Any) -> Any:
    results = []
    for mode in ("sum", "mean", "max"):
        bag = made(device, functools.partial(nn.EmbeddingBag, 7, 3, mode=mode))
        index = torch.tensor([1, 2, 4, 5, 4, 3], device=device)
        y = bag(index, torch.tensor([0, 2, 2], device=device))
        y.square().sum().backward()
        results += [y, bag.weight.grad, bag(index.view(2, 3))]
    table = made(device, lambda: nn.Embedding(7, 3, padding_idx=0, max_norm=1.0))
    table(torch.tensor([[0, 1], [1, 3]], device=device)).sum().backward()
    return results, table.weight, table.weight.grad


@program
def transposed_convolutions(device: Any) -> Any:
    results = []
    for make, shape in (
        (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1), (2, 3, 5, 5)),
        (lambda: nn.ConvTranspose1d(4, 2, 4, stride=3, groups=2), (2, 4, 5)),
        (lambda: nn.Conv1d(4, 4, 3, padding="same", groups=4), (2, 4, 5)),
        (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (1, 2, 5, 5)),
        (lambda: nn.Conv3d(2, 3, 2, dilation=2), (1, 2, 4, 4, 4)),
    ):
        layer, x = made(device, make), leaf(device, *shape)
        y = layer(x)
        y.square().sum().backward()
        results += [y, x.grad, [p.grad for p in layer.parameters()]]
    return results


@program
def layers_of_many_kinds(device: Any) -> Any:
    results = []
    x = leaf(device, 2, 4, 6, 6)
    for layer in (
        nn.GroupNorm(2, 4),
        nn.InstanceNorm2d(4, affine=True),
        nn.LocalResponseNorm(2),
        nn.PixelShuffle(2),
        nn.PReLU(4),
        nn.AdaptiveMaxPool2d(3),
        nn.AvgPool2d(2),
        nn.Upsample(scale_factor=2),
        nn.LPPool2d(2, 2),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.ReflectionPad2d(1),
        nn.Softmax2d(),
        nn.GLU(1),
        nn.Hardswish(),
        nn.Mish(),
        nn.SELU(),
        nn.CELU(),
        nn.LogSigmoid(),
        nn.Softshrink(),
        nn.ZeroPad2d(1),
        nn.MaxPool2d(3, 2, 1),
        nn.RMSNorm(6),
        nn.Flatten(),
        nn.ChannelShuffle(2),
        nn.Hardtanh(),
        nn.ELU(),
    ):
        y = layer.to(device)(x)
        y.square().sum().backward()
        results.append(y)
    pooled, index = functional.max_pool2d(x, 2, return_indices=True)
    return results, x.grad, functional.max_unpool2d(pooled, index, 2)


@program
def losses_of_many_kinds(device: Any) -> Any:
    x, y = leaf(device, 4, 5), drawn(device, 4, 5, seed=1)
    labels = torch.tensor([0, 2, -100, 4], device=device)
    p, q = torch.softmax(x, 1), torch.softmax(y, 1)
    losses = [
        functional.cross_entropy(x, labels, label_smoothing=0.1),
        functional.cross_entropy(x, q, weight=y[0].abs()),
        functional.nll_loss(p.log(), labels.clamp(min=0), reduction="none").sum(),
        functional.binary_cross_entropy(p, q),
        functional.binary_cross_entropy_with_logits(x, q, pos_weight=y[1].abs()),
        functional.kl_div(p.log(), q, reduction="batchmean"),
        functional.smooth_l1_loss(x, y),
        functional.huber_loss(x, y),
        functional.l1_loss(x, y),
        functional.cosine_embedding_loss(x, y, torch.tensor([1, -1, 1, -1], device=device)),
        functional.triplet_margin_loss(x, y, y.flip(0)),
        functional.poisson_nll_loss(x, q),
        functional.gaussian_nll_loss(x, y, q),
        functional.hinge_embedding_loss(x, y.sign()),
        functional.margin_ranking_loss(x, y, y.sign()),
        functional.multilabel_soft_margin_loss(x, (y > 0).float()),
        functional.soft_margin_loss(x, y.sign()),
    ]
    sum(losses).backward()
    return losses, x.grad


@program
def attention(device: Any) -> Any:
    layer = made(device, lambda: nn.MultiheadAttention(8, 2, batch_first=True))
    x = leaf(device, 2, 5, 8)
    hidden = torch.tensor([[False] * 5, [False] * 3 + [True] * 2], device=device)
    y, weights = layer(x, x, x, key_padding_mask=hidden)
    causal = functional.scaled_dot_product_attention(x, x, x, is_causal=True)
    (y.sum() + causal.sum()).backward()
    whole = made(device, lambda: nn.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=True)).eval()
    with torch.no_grad():
        fast = whole(x, x)
        padded = whole.encoder(x, src_key_padding_mask=hidden)[~hidden]
        masked = whole.encoder(x, mask=torch.ones(5, 5, device=device).triu(1).bool())
        both = whole.encoder(x, torch.ones(5, 5, device=device).triu(1).bool(), hidden)
        alone = layer.eval()(x, x, x)
    return y, weights, causal, x.grad, fast, padded, masked, both, alone


@program
def random_numbers_of_a_seed(device: Any) -> Any:
    drawn = []
    for _ in range(2):
        torch.manual_seed(11)
        x = torch.ones(200, device=device)
        drawn.append(
            [
                functional.dropout(x, 0.3),
                torch.rand(3, device=device),
                torch.randperm(5, device=device),
                torch.randint(0, 9, (4,), device=device),
                torch.multinomial(x, 3),
                torch.empty(3, device=device).normal_(),
                torch.bernoulli(x * 0.5),
                functional.alpha_dropout(x, 0.2),
                torch.normal(x, x),
                nn.init.trunc_normal_(torch.empty(5, device=device)),
                nn.init.orthogonal_(torch.empty(3, 3, device=device)),
                torch.distributions.Categorical(logits=x[:4]).sample(),
                torch.rand_like(x[:2]),
            ]
        )
    same = [bool(torch.equal(a.cpu(), b.cpu())) for a, b in zip(*drawn, strict=True)]
    return same, [x.shape for x in drawn[0]], [x.dtype for x in drawn[0]]


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


# --- refusals -----------------------------------------------------------------------------------

# Operation -> a program that needs it.
REFUSED: dict[str, Callable[[Any], Any]] = {
    "aten::frexp": torch.frexp,
    "aten::gcd": lambda x: torch.gcd(x.long(), x.long()),
    "aten::igamma": lambda x: torch.igamma(x, x),
    "aten::linalg_matrix_exp": lambda x: torch.matrix_exp(x[:, :3]),
    "aten::unique_dim": lambda x: torch.unique(x, dim=0),
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


# --- comparison ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_the_results_of_the_cpu(device: Any, name: str) -> None:
    theirs = PROGRAMS[name](torch.device("cpu"))
    compared(PROGRAMS[name](device), theirs)
