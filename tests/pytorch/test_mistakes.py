"""Calls that PyTorch refuses on the CPU are refused on burn devices too.

Nothing here depends on elements: errors such as an index that is out of range are raised where
elements are read (``test_devices.py``).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
brt = importlib.import_module("burn_remote.torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::UserWarning"),  # of PyTorch, about arguments
]

F: Any = torch.nn.functional
z: Any = torch.zeros
r: Any = torch.rand


def L(*numbers: Any) -> Any:
    return torch.tensor(numbers)


@pytest.fixture(scope="module")
def device() -> Any:
    return brt.local()


# What is wrong -> a call with a device.
MISTAKES: dict[str, Callable[[Any], Any]] = {
    "layer_norm wrong": lambda p: F.layer_norm(r(2, 6).to(p), (8,)),
    "layer_norm []": lambda p: F.layer_norm(r(2, 6).to(p), ()),
    "layer_norm weight": lambda p: F.layer_norm(r(2, 6).to(p), (6,), r(1).to(p)),
    "rms_norm wrong": lambda p: F.rms_norm(r(2, 6).to(p), (8,)),
    "group_norm": lambda p: F.group_norm(r(2, 6, 3).to(p), 4),
    "group_norm weight": lambda p: F.group_norm(r(2, 6, 3).to(p), 3, r(3).to(p)),
    "batch_norm weight": lambda p: F.batch_norm(r(2, 6, 3).to(p), z(5).to(p), z(5).to(p)),
    "batch_norm weight1": lambda p: F.batch_norm(r(2, 6, 3).to(p), z(1).to(p), z(1).to(p)),
    "batch_norm one value": lambda p: F.batch_norm(r(1, 6).to(p), None, None, training=True),
    "instance_norm one": lambda p: F.instance_norm(r(1, 6, 1).to(p)),
    "avg_pool small": lambda p: F.avg_pool2d(r(1, 1, 2, 2).to(p), 3),
    "max_pool small": lambda p: F.max_pool2d(r(1, 1, 2, 2).to(p), 3),
    "max_pool pad": lambda p: F.max_pool2d(r(1, 1, 8, 8).to(p), 2, padding=2),
    "avg_pool pad": lambda p: F.avg_pool2d(r(1, 1, 8, 8).to(p), 2, padding=2),
    "reflect big": lambda p: F.pad(r(1, 1, 2).to(p), (2, 2), mode="reflect"),
    "circular big": lambda p: F.pad(r(1, 1, 2).to(p), (3, 3), mode="circular"),
    "reflect 0": lambda p: F.pad(r(1, 1, 0).to(p), (1, 1), mode="replicate"),
    "negative pad": lambda p: F.pad(r(1, 1, 2).to(p), (-2, -2)),
    "conv channels": lambda p: F.conv2d(r(1, 3, 4, 4).to(p), r(2, 4, 3, 3).to(p)),
    "conv big kernel": lambda p: F.conv2d(r(1, 3, 2, 2).to(p), r(2, 3, 3, 3).to(p)),
    "conv groups": lambda p: F.conv2d(r(1, 4, 4, 4).to(p), r(3, 2, 3, 3).to(p), groups=2),
    "conv bias": lambda p: F.conv2d(r(1, 4, 4, 4).to(p), r(3, 4, 3, 3).to(p), r(2).to(p)),
    "conv bias1": lambda p: F.conv2d(r(1, 4, 4, 4).to(p), r(3, 4, 3, 3).to(p), r(1).to(p)),
    "conv dtype": lambda p: F.conv2d(r(1, 4, 4, 4).to(p).double(), r(3, 4, 3, 3).to(p)),
    "linear dtype": lambda p: F.linear(r(1, 4).to(p).double(), r(3, 4).to(p)),
    "linear int": lambda p: F.linear(L([1, 2, 3, 4]).to(p), r(3, 4).to(p)),
    "mm dtype": lambda p: torch.mm(r(1, 4).to(p).half(), r(4, 3).to(p)),
    "mm 1d": lambda p: torch.mm(r(4).to(p), r(4, 3).to(p)),
    "mm 3d": lambda p: torch.mm(r(2, 3, 4).to(p), r(2, 4, 3).to(p)),
    "bmm 2d": lambda p: torch.bmm(r(3, 4).to(p), r(4, 3).to(p)),
    "bmm batch": lambda p: torch.bmm(r(1, 3, 4).to(p), r(2, 4, 3).to(p)),
    "dot 2d": lambda p: torch.dot(r(3, 4).to(p), r(3, 4).to(p)),
    "dot len": lambda p: torch.dot(r(3).to(p), r(1).to(p)),
    "addmm bias": lambda p: torch.addmm(r(5).to(p), r(2, 3).to(p), r(3, 4).to(p)),
    "addmm bias big": lambda p: torch.addmm(r(3, 2, 4).to(p), r(2, 3).to(p), r(3, 4).to(p)),
    "cat dims": lambda p: torch.cat([r(2, 3).to(p), r(3).to(p)]),
    "cat sizes": lambda p: torch.cat([r(2, 3).to(p), r(2, 4).to(p)]),
    "cat empty": lambda p: torch.cat([]),
    "stack": lambda p: torch.stack([r(2).to(p), r(3).to(p)]),
    "embedding float": lambda p: F.embedding(r(2).to(p), r(3, 4).to(p)),
    "embedding 1d": lambda p: F.embedding(L(0, 1).to(p), r(3).to(p)),
    "nll range": lambda p: F.nll_loss(r(2, 3).to(p), L(0, 5).to(p)).cpu(),
    "nll neg": lambda p: F.nll_loss(r(2, 3).to(p), L(0, -5).to(p)).cpu(),
    "nll shape": lambda p: F.nll_loss(r(2, 3).to(p), L(0, 1, 2).to(p)),
    "nll float": lambda p: F.nll_loss(r(2, 3).to(p), r(2).to(p)),
    "ce weight": lambda p: F.cross_entropy(r(2, 3).to(p), L(0, 1).to(p), weight=r(2).to(p)),
    "bcel shape": lambda p: F.binary_cross_entropy_with_logits(r(3, 1).to(p), r(3).to(p)),
    "gather dims": lambda p: r(2, 3).to(p).gather(0, L(0).to(p)),
    "gather sizes": lambda p: r(2, 3).to(p).gather(0, z(2, 4, dtype=torch.long).to(p)),
    "gather dtype": lambda p: r(2, 3).to(p).gather(0, z(2, 3, dtype=torch.int16).to(p)),
    "gather range": lambda p: r(2, 3).to(p).gather(0, z(2, 3, dtype=torch.long).to(p) + 7).cpu(),
    "gather neg": lambda p: r(2, 3).to(p).gather(0, z(2, 3, dtype=torch.long).to(p) - 1).cpu(),
    "index_select 2d": lambda p: r(2, 3).to(p).index_select(0, z(1, 2, dtype=torch.long).to(p)),
    "index_select float": lambda p: r(2, 3).to(p).index_select(0, z(2).to(p)),
    "index_add size": lambda p: r(2, 3).to(p).index_add(0, L(0, 1, 1).to(p), r(2, 3).to(p)),
    "scatter size": lambda p: (
        r(2, 3).to(p).scatter(0, z(3, 4, dtype=torch.long).to(p), r(3, 4).to(p))
    ),
    "scatter src": lambda p: (
        r(2, 3).to(p).scatter(0, z(2, 3, dtype=torch.long).to(p), r(1, 3).to(p))
    ),
    "mask size": lambda p: r(2, 3).to(p)[L(True, False, True).to(p)],
    "mask dtype": lambda p: r(3).to(p).masked_fill(L(1, 0, 1).to(p), 0.0),
    "index float": lambda p: r(3).to(p)[r(2).to(p)],
    "index many": lambda p: r(3).to(p)[0, 0],
    "index big": lambda p: r(3).to(p)[5],
    "index tens big": lambda p: r(3).to(p)[L(5).to(p)].cpu(),
    "assign size": lambda p: r(3).to(p).__setitem__(slice(0, 2), r(3).to(p)),
    "view bad": lambda p: r(3).to(p).view(2, 2),
    "reshape bad": lambda p: r(3).to(p).reshape(-1, -1),
    "expand bad": lambda p: r(3).to(p).expand(4),
    "expand less": lambda p: r(3, 3).to(p).expand(3),
    "permute": lambda p: r(3, 3).to(p).permute(0, 0),
    "transpose": lambda p: r(3, 3).to(p).transpose(0, 2),
    "t 3d": lambda p: r(3, 3, 2).to(p).t(),
    "as_strided": lambda p: r(3).to(p).as_strided((4,), (1,)),
    "narrow": lambda p: r(3).to(p).narrow(0, 2, 2),
    "unfold": lambda p: r(3).to(p).unfold(0, 4, 1),
    "glu odd": lambda p: F.glu(r(3).to(p)),
    "pixel_shuffle": lambda p: F.pixel_shuffle(r(1, 3, 2, 2).to(p), 2),
    "softmax dim": lambda p: F.softmax(r(3).to(p), 1),
    "topk big": lambda p: r(3).to(p).topk(4),
    "kth": lambda p: r(3).to(p).kthvalue(4),
    "max empty": lambda p: z(0).to(p).max(),
    "argmax empty": lambda p: z(0).to(p).argmax(),
    "mean int": lambda p: L(1, 2).to(p).mean(),
    "sqrt_ int": lambda p: L(1, 2).to(p).sqrt_(),
    "abs_ complex": lambda p: z(2, dtype=torch.complex64).to(p).abs_(),
    "dropout p": lambda p: F.dropout(r(3).to(p), 2.0),
    "arange": lambda p: torch.arange(3, 0, device=p),
    "eye neg": lambda p: torch.eye(-1, device=p),
    "zeros neg": lambda p: z(-1, device=p),
    "chol": lambda p: torch.linalg.cholesky(-torch.eye(3).to(p)).cpu(),
    "inv sing": lambda p: torch.linalg.inv(z(3, 3).to(p)).cpu(),
    "inv rect": lambda p: torch.linalg.inv(r(3, 2).to(p)),
    "solve shape": lambda p: torch.linalg.solve(r(3, 3).to(p), r(2).to(p)),
    "trace 3d": lambda p: torch.trace(r(3, 3, 3).to(p)),
    "diag 3d": lambda p: torch.diag(r(3, 3, 3).to(p)),
    "tril 1d": lambda p: torch.tril(r(3).to(p)),
    "cross": lambda p: torch.linalg.cross(r(3, 2).to(p), r(3, 2).to(p)),
    "lstm": lambda p: torch.nn.LSTM(3, 4).to(p)(r(2, 2, 5).to(p)),
    "gru hidden": lambda p: torch.nn.GRU(3, 4).to(p)(r(2, 2, 3).to(p), r(1, 3, 4).to(p)),
    "mha": lambda p: torch.nn.MultiheadAttention(4, 2).to(p)(
        r(2, 2, 5).to(p), r(2, 2, 5).to(p), r(2, 2, 5).to(p)
    ),
    "sdpa": lambda p: F.scaled_dot_product_attention(
        r(1, 2, 3).to(p), r(1, 2, 4).to(p), r(1, 2, 3).to(p)
    ),
    "interp": lambda p: F.interpolate(r(1, 1, 2).to(p), size=(2, 2)),
    "interp0": lambda p: F.interpolate(r(1, 1, 2).to(p), size=0),
    "grid": lambda p: F.grid_sample(r(1, 1, 2, 2).to(p), r(2, 2, 2, 2).to(p)),
    "bincount neg": lambda p: torch.bincount(L(-1).to(p)).cpu(),
    "histc": lambda p: torch.histc(r(3).to(p), 4, 3, 1),
    "cumsum": lambda p: r(3).to(p).cumsum(2),
    "flip": lambda p: r(3).to(p).flip(1),
    "roll": lambda p: r(3).to(p).roll((1, 2), (0,)),
    "repeat": lambda p: r(3, 2).to(p).repeat(2),
    "repeat_interleave by floats": lambda p: r(3).to(p).repeat_interleave(r(3).to(p)),
    "repeat_interleave": lambda p: r(3).to(p).repeat_interleave(L(1, 2).to(p)),
    "where dtype": lambda p: torch.where(r(2).to(p), 1.0, 0.0),
    "and float": lambda p: r(2).to(p) & r(2).to(p),
    "not float": lambda p: ~r(2).to(p),
    "shift float": lambda p: r(2).to(p) << 1,
    "bool sub": lambda p: (r(2).to(p) > 0) - (r(2).to(p) > 0),
    "bool neg": lambda p: -(r(2).to(p) > 0),
    "int pow": lambda p: L(2).to(p) ** -1,
    "int div0": lambda p: (L(2).to(p) // 0).cpu(),
    "item many": lambda p: r(2).to(p).item(),
    "bool many": lambda p: bool(r(2).to(p)),
    "backward vector": lambda p: r(2).to(p).requires_grad_().backward(),
    "grad int": lambda p: L(2).to(p).requires_grad_(),
    "maximum complex": lambda p: torch.maximum(z(2, dtype=torch.complex64).to(p), z(2).to(p)),
    "lt complex": lambda p: z(2, dtype=torch.complex64).to(p) < 1,
    "sort complex": lambda p: z(2, dtype=torch.complex64).to(p).sort(),
    "ctc": lambda p: F.ctc_loss(
        r(4, 1, 3).log_softmax(2).to(p), L([1, 2]).to(p), L(5).to(p), L(2).to(p)
    ).cpu(),
    "hinge": lambda p: F.hinge_embedding_loss(r(3).to(p), r(2).to(p)),
    "cosine_emb": lambda p: F.cosine_embedding_loss(r(2, 3).to(p), r(2, 3).to(p), L(1).to(p)[None]),
    "triplet": lambda p: F.triplet_margin_loss(r(2, 3).to(p), r(2, 3).to(p), r(2, 4).to(p)),
    "cdist": lambda p: torch.cdist(r(2, 3).to(p), r(2, 4).to(p)),
    "einsum": lambda p: torch.einsum("ij,jk->ik", r(2, 3).to(p), r(2, 4).to(p)),
    "tensordot": lambda p: torch.tensordot(r(2, 3).to(p), r(2, 4).to(p), 1),
    "fold": lambda p: F.fold(r(1, 5, 2).to(p), (2, 2), 2),
    "unfold im": lambda p: F.unfold(r(1, 1, 2, 2).to(p), 3),
    "searchsorted": lambda p: torch.searchsorted(r(2, 3).to(p), r(3, 1).to(p)),
    "conv_transpose pad": lambda p: F.conv_transpose1d(
        r(1, 2, 3).to(p), r(2, 2, 3).to(p), stride=2, output_padding=2
    ),
    "prelu": lambda p: F.prelu(r(2, 3).to(p), r(2).to(p)),
    "unflatten": lambda p: r(6).to(p).unflatten(0, (4, 2)),
    "chunk0": lambda p: r(2).to(p).chunk(0),
    "split neg": lambda p: r(2).to(p).split(-1),
    "movedim": lambda p: r(2, 2).to(p).movedim((0, 1), (0, 0)),
    "squeeze dim": lambda p: r(2, 2).to(p).squeeze(3),
    "fft n": lambda p: torch.fft.fft(r(2).to(p), n=0),
    "view_as_complex": lambda p: torch.view_as_complex(r(2, 3).to(p)),
    "linspace neg": lambda p: torch.linspace(0, 1, -2, device=p),
    "full big": lambda p: torch.full((2,), 300, dtype=torch.uint8, device=p),
    "fill big": lambda p: z(2, dtype=torch.uint8).to(p).fill_(300),
    "copy_ shape": lambda p: z(2).to(p).copy_(z(3).to(p)),
    "out dtype": lambda p: torch.add(r(2).to(p), 1, out=z(2, dtype=torch.long).to(p)),
    "clamp none": lambda p: r(2).to(p).clamp(),
    "norm empty": lambda p: z(0).to(p).norm(float("inf")).cpu(),
    "quantile": lambda p: torch.quantile(r(3).to(p), 2.0),
    "combinations": lambda p: torch.combinations(r(2, 2).to(p)),
    "meshgrid": lambda p: torch.meshgrid(r(2, 2).to(p), indexing="ij"),
    "bmm dtype": lambda p: torch.bmm(L([[1]])[None].to(p), r(1, 1, 1).to(p)),
    "put": lambda p: r(3).to(p).put_(L(5).to(p), r(1).to(p)).cpu(),
    "take": lambda p: r(3).to(p).take(L(5).to(p)).cpu(),
    "masked_scatter few": lambda p: (
        r(3).to(p).masked_scatter(L(True, True, True).to(p), r(2).to(p)).cpu()
    ),
    "index_copy": lambda p: r(3).to(p).index_copy(0, L(0, 1).to(p), r(3).to(p)),
    "index_fill": lambda p: r(3).to(p).index_fill(0, L(5).to(p), 0.0).cpu(),
}


if torch.__version__ < "2.15":  # whose tensors without elements do not check these
    del MISTAKES["addmm bias big"], MISTAKES["conv_transpose pad"]


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_as_on_the_cpu(device: Any, name: str) -> None:
    # Calls that are like earlier ones are issued another way: see test_plans.py.
    for place in ("cpu", device, device, device):
        with pytest.raises((RuntimeError, IndexError, TypeError, ValueError, AssertionError)):
            MISTAKES[name](place)


def test_a_call_of_other_shapes_is_refused_after_calls_that_were_not(device: Any) -> None:
    norm = torch.nn.LayerNorm(6, elementwise_affine=False)
    for _ in range(4):
        norm(torch.rand(2, 6, device=device))
    with pytest.raises(RuntimeError, match="normalized_shape"):
        norm(torch.rand(2, 8, device=device))


def test_products_of_two_dtypes_are_refused_by_name(device: Any) -> None:
    with pytest.raises(
        RuntimeError, match=r"mm expects tensors of the same dtype.*float16.*float32"
    ):
        torch.rand(2, 2, device=device).half() @ torch.rand(2, 2, device=device)


@pytest.mark.parametrize("place", ["cpu", "burn"])
def test_a_mask_of_another_length_is_refused(device: Any, place: str) -> None:
    x, mask = torch.zeros(2, 3, device=place), torch.tensor([True, False, True], device=place)
    with pytest.raises(IndexError, match="shape of the mask"):
        x[mask]
    with pytest.raises(IndexError, match="shape of the mask"):
        x[mask] = 1.0


def test_a_view_beyond_its_storage_is_refused(device: Any) -> None:
    with pytest.raises(RuntimeError, match="out of bounds for storage of 3"):
        torch.zeros(3, device=device).as_strided((4,), (1,))


def test_the_median_of_no_elements_is_nan(device: Any) -> None:
    assert torch.zeros(0, device=device).median().isnan().item()
