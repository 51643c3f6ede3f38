"""PyTorch programs about layers, losses and random numbers."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from support.torch_comparison import drawn
from support.torch_programs import leaf, made, program

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
nn: Any = torch.nn
functional: Any = torch.nn.functional


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
