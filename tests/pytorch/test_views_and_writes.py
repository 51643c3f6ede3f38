"""Views share their elements: an operation in place changes all tensors that show them.

Random programs of views and operations in place run on the CPU and on a burn device; at the end,
every tensor of the program is compared.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
brt = importlib.import_module("burn_remote.torch")
pytestmark = pytest.mark.torch

Draw = st.DrawFn


@pytest.fixture(scope="module")
def device() -> Any:
    return brt.local()


def axis(x: Any, number: int) -> int:
    return number % max(int(x.dim()), 1)


def sliced(x: Any, a: int, b: int) -> Any:
    dim = axis(x, a)
    size = x.shape[dim] if x.dim() else 0
    if not x.dim():
        return x
    start = b % (size + 1)
    index = [slice(None)] * x.dim()
    index[dim] = slice(start, None, 1 + (a + b) % 3)
    return x[tuple(index)]


# Views: each takes a tensor and two numbers, and fits any tensor.
VIEWS: dict[str, Callable[[Any, int, int], Any]] = {
    "slice": sliced,
    "select": lambda x, a, b: (
        x.select(axis(x, a), b % x.shape[axis(x, a)]) if x.dim() and x.numel() else x
    ),
    "transpose": lambda x, a, b: x.transpose(axis(x, a), axis(x, b)) if x.dim() else x,
    "flat": lambda x, a, b: x.reshape(-1),
    "rows": lambda x, a, b: x.reshape(2, -1) if x.numel() and x.numel() % 2 == 0 else x,
    "unsqueeze": lambda x, a, b: x.unsqueeze(a % (x.dim() + 1)),
    "squeeze": lambda x, a, b: x.squeeze(),
    "diagonal": lambda x, a, b: x.diagonal(b % 3 - 1) if x.dim() >= 2 else x,
    "flip": lambda x, a, b: x.flip(axis(x, a)) if x.dim() else x,
    "split": lambda x, a, b: x.split(1 + b % 3, axis(x, a))[-1] if x.dim() else x,
    "unfold": lambda x, a, b: x.unfold(axis(x, a), 1, 2) if x.dim() and x.shape[axis(x, a)] else x,
    "expand": lambda x, a, b: x.unsqueeze(0).expand(2, *x.shape),
    "detach": lambda x, a, b: x.detach(),
    "as_strided": lambda x, a, b: (
        x.as_strided((2, 2), (1, 2), x.storage_offset())
        if x.is_contiguous() and x.numel() >= 4
        else x
    ),
    "clone": lambda x, a, b: x.clone(),
    "add": lambda x, a, b: x + 1,
    "where": lambda x, a, b: torch.where(x > a, x, -x),
    "outer": lambda x, a, b: x.unsqueeze(-1) + x.flatten()[:2] if x.numel() else x,
    "with transposed": lambda x, a, b: (
        x.mT * x if x.dim() > 1 and x.shape[-1] == x.shape[-2] else x
    ),
    "sum": lambda x, a, b: x.sum(axis(x, a), keepdim=b % 2 == 0) if x.dim() else x,
    "stack": lambda x, a, b: torch.stack([x, x], a % (x.dim() + 1)),
    "zeros_like": lambda x, a, b: torch.zeros_like(x),
    "to": lambda x, a, b: x.to(torch.int32).to(torch.int64),
    "contiguous": lambda x, a, b: x.contiguous(),
    "channels last": lambda x, a, b: (
        x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
    ),
}

# Operations in place: each takes the target, another tensor of the program, and a number.
WRITES: dict[str, Callable[[Any, Any, int], Any]] = {
    "add_": lambda x, y, a: x.add_(a),
    "mul_": lambda x, y, a: x.mul_(2),
    "zero_": lambda x, y, a: x.zero_(),
    "fill_": lambda x, y, a: x.fill_(a),
    "copy_": lambda x, y, a: x.copy_(y.flatten()[0]) if y.numel() else x,
    "item": lambda x, y, a: (
        x.__setitem__((0,) * x.dim(), a) if x.numel() and x.dim() else x.fill_(a)
    ),
    "rows": lambda x, y, a: x.__setitem__(slice(0, 1), a) if x.dim() else x,
    # PyTorch warns that it will refuse a mask on expanded tensors.
    "mask": lambda x, y, a: x if 0 in x.stride() else x.masked_fill_(x > a, -a),
    "out": lambda x, y, a: torch.add(x, a, out=x),
    "+=": lambda x, y, a: x.__iadd__(x),
    "clamp_": lambda x, y, a: x.clamp_(max=a),
    "data": lambda x, y, a: x.data.sub_(a),
}

Step = tuple[str, int, int, int]


def steps() -> st.SearchStrategy[list[Step]]:
    names = st.sampled_from([*VIEWS, *WRITES])
    number = st.integers(0, 7)
    return st.lists(st.tuples(names, number, number, number), min_size=1, max_size=12)


def run(program: list[Step], shape: tuple[int, ...], place: Any) -> tuple[list[Any], list[str]]:
    """Return the elements of all tensors at the end, and which error each step raised."""
    count = 1
    for size in shape:
        count *= size
    tensors = [torch.arange(count).reshape(shape).to(place)]
    errors = []
    for name, which, a, b in program:
        x = tensors[which % len(tensors)]
        try:
            if name in VIEWS:
                tensors.append(VIEWS[name](x, a, b))
            else:
                WRITES[name](x, tensors[b % len(tensors)], a)
            errors.append("")
        except (RuntimeError, IndexError) as error:
            errors.append(str(error))
    return tensors, errors


def layout_of(x: Any) -> tuple[Any, ...]:
    """Strides of axes without a second element are left out: no element is reached by them."""
    strides = [step for n, step in zip(x.shape, x.stride(), strict=True) if n > 1]
    return (x.is_contiguous(), *((strides, x.storage_offset()) if x.numel() else ()))


@settings(max_examples=200)
@given(
    program=steps(),
    shape=st.lists(st.integers(0, 4), min_size=0, max_size=4).map(tuple),
)
def test_programs_of_views_and_writes_end_as_on_the_cpu(
    device: Any, program: list[Step], shape: tuple[int, ...]
) -> None:
    _, errors = run(program, shape, "cpu")
    # A write whose source overlaps its target is refused on the CPU, and computed here.
    overlaps = ["some elements of the input" in error for error in errors]
    program = [step for step, left_out in zip(program, overlaps, strict=True) if not left_out]
    theirs, their_errors = run(program, shape, "cpu")
    ours, our_errors = run(program, shape, device)
    assert [bool(error) for error in our_errors] == [bool(error) for error in their_errors]
    for ours_one, theirs_one in zip(ours, theirs, strict=True):
        assert ours_one.cpu().tolist() == theirs_one.tolist()
        assert layout_of(ours_one) == layout_of(theirs_one)


def test_a_write_to_a_reshaped_sum_of_transposed_tensors_reaches_what_it_reaches_on_the_cpu(
    device: Any,
) -> None:
    seen = []
    for place in (device, "cpu"):
        x = torch.arange(6.0).reshape(2, 3).to(place).t() + 1  # its strides are (1, 3)
        copied, shared = x.reshape(-1), x.t().reshape(-1)
        copied.mul_(10)
        shared.add_(100)
        seen.append((x.tolist(), copied.tolist(), shared.tolist(), x.stride()))
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.empty_like(x),
        lambda x: torch.zeros_like(x, memory_format=torch.contiguous_format),
        lambda x: torch.empty((2, 3, 4, 5), device=x.device, memory_format=torch.channels_last),
        lambda x: x.contiguous().clone(memory_format=torch.channels_last),
        lambda x: x.double(),
        lambda x: x.cpu(),
        lambda x: x.relu() * x.mean((2, 3), keepdim=True),
        lambda x: torch.nn.functional.conv2d(x, torch.ones(2, 3, 2, 2, device=x.device)),
        lambda x: torch.nn.functional.max_pool2d(x, 2),
        lambda x: torch.nn.functional.softmax(x, 1),
        lambda x: torch._foreach_add([x], 1)[0],
        lambda x: torch.add(x, 1, out=torch.empty(0, device=x.device)),
        lambda x: torch.rand_like(x),
        lambda x: x.permute(3, 1, 0, 2).sin(),
        lambda x: x[:, :, ::2] + 1,
        lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
        lambda x: torch.roll(x, 1),
        lambda x: torch.roll(x, 1, 2),
        lambda x: torch.roll(x, (1, 2), (0, 3)),
    ],
)
def test_images_with_channels_last_keep_the_strides_of_the_cpu(
    device: Any, make: Callable[[Any], Any]
) -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert layout_of(make(x.to(device))) == layout_of(make(x))


@pytest.mark.parametrize("shape", [(3, 2), (2, 4, 3), (2, 3, 4, 5)])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
        lambda x: torch.nn.functional.batch_norm(
            x, *[torch.ones(x.shape[1], device=x.device) for _ in range(2)]
        ),
        lambda x: torch.autograd.grad(
            torch.nn.functional.batch_norm(x.requires_grad_(), None, None, training=True).sum(), x
        )[0],
        lambda x: torch.roll(x, 1),
        lambda x: torch.roll(x, 1, 1),
    ],
)
def test_normalized_and_rolled_transposes_have_the_strides_of_the_cpu(
    device: Any, make: Callable[[Any], Any], shape: tuple[int, ...]
) -> None:
    x = torch.randn(shape).mT
    assert layout_of(make(x.to(device))) == layout_of(make(x))


@pytest.mark.parametrize("is_inside", [False, True])
def test_a_view_of_an_inference_tensor_is_one(device: Any, is_inside: bool) -> None:
    for place in ("cpu", device):
        with torch.inference_mode():
            x = torch.zeros(2, 3, device=place)
        with torch.inference_mode(is_inside):
            view = x[0]
        assert view.is_inference()
        with pytest.raises(RuntimeError, match="outside InferenceMode"):
            view.fill_(1)


def test_an_output_without_elements_takes_the_shape_of_the_result(device: Any) -> None:
    out = torch.empty(0, device=device)
    torch.add(torch.ones(2, 3, device=device), 1, out=out)
    assert out.tolist() == [[2.0] * 3] * 2


def test_an_output_of_another_shape_is_resized_with_a_warning(device: Any) -> None:
    out = torch.empty(4, device=device)
    with pytest.warns(UserWarning, match="resized"):
        torch.add(torch.ones(2, device=device), 1, out=out)
    assert out.tolist() == [2.0, 2.0]


def test_a_gradient_passes_through_a_write_to_a_view(device: Any) -> None:
    grads = []
    for place in (device, "cpu"):
        w = torch.arange(6.0).to(place).requires_grad_()
        x = (w * 2).reshape(2, 3)
        x[0].mul_(3)
        x.t()[1].copy_(w[:2])
        (x * x).sum().backward()
        grads.append(w.grad.tolist())
    assert grads[0] == pytest.approx(grads[1])


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.t_(),
        lambda x: x.squeeze_(),
        lambda x: x.unsqueeze_(1),
        lambda x: x.transpose_(0, 1),
    ],
)
def test_another_shape_in_place_leaves_the_elements_of_views(
    device: Any, change: Callable[[Any], Any]
) -> None:
    seen = []
    for place in (device, "cpu"):
        x = torch.arange(4.0).reshape(2, 2).to(place)
        row = x[0]
        change(x)
        x.select(0, 1).add_(10)
        seen.append((x.tolist(), row.tolist(), x.stride()))
    assert seen[0] == seen[1]


def resized(place: Any) -> list[Any]:
    x = torch.arange(6.0).reshape(2, 3).to(place)
    whole, row, copied = x.detach(), x[1], x.clone()
    x.resize_(4)  # the storage keeps its elements
    x.add_(10)
    seen = [x.clone(), whole.clone(), row.clone()]
    row.resize_(2, 2)[0].mul_(2)  # one element more than the storage has
    whole.sub_(1)
    column = copied[:, 1].resize_(3)
    copied.resize_as_(torch.zeros(3, 2))
    images = (
        torch.zeros(2, 2, 2, 2).to(place).resize_(1, 2, 2, 3, memory_format=torch.channels_last)
    )
    return [*seen, row[0], whole, x, column, copied, images.zero_()]


def test_a_resized_tensor_has_the_elements_of_its_storage(device: Any) -> None:
    for ours, theirs in zip(resized(device), resized("cpu"), strict=True):
        assert ours.tolist() == theirs.tolist()
        assert layout_of(ours) == layout_of(theirs)


def test_an_output_without_elements_takes_random_numbers(device: Any) -> None:
    assert torch.rand(2, 3, out=torch.empty(0, device=device)).shape == (2, 3)


def test_a_view_of_parts_of_complex_numbers_cannot_be_enlarged(device: Any) -> None:
    parts = torch.view_as_real(torch.zeros(2, dtype=torch.complex64, device=device))
    with pytest.raises(NotImplementedError, match="clone"):
        parts.resize_(5)
    assert parts.resize_(3).tolist() == [0, 0, 0]


def test_a_tensor_that_is_set_shares_the_elements_of_the_other(device: Any) -> None:
    x, other = torch.zeros(2, device=device), torch.zeros(3, device=device)
    x.set_(other)
    x.add_(1)
    assert other.tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="Could not set tensor of type"):
        x.set_(torch.zeros(1, dtype=torch.int64, device=device))


@pytest.mark.parametrize(
    ("dtype", "number"), [(torch.int64, 1.5), (torch.float32, 1j), (torch.bool, 2)]
)
def test_a_write_of_a_higher_kind_of_number_is_refused(
    device: Any, dtype: Any, number: Any
) -> None:
    x = torch.ones(2, dtype=dtype, device=device)
    writes: list[Callable[[], Any]] = [
        lambda: x.mul_(number),
        lambda: torch.mul(torch.ones(2, device=device), 1j, out=x),
    ]
    if not isinstance(number, complex):
        writes.append(lambda: torch._foreach_mul_([x], [number]))
    for write in writes:
        with pytest.raises(RuntimeError, match="can't be cast"):
            write()
    assert torch.equal(x.cpu(), torch.ones(2, dtype=dtype))


@pytest.mark.parametrize("exponent", [2, 2.0, 1, 1.0, 0.5])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float16, torch.complex64])
def test_a_power_has_the_dtype_of_its_operands(device: Any, dtype: Any, exponent: Any) -> None:
    x = torch.tensor([1, 0, 1], dtype=dtype)
    found, expected = x.to(device) ** exponent, x**exponent
    assert found.dtype is expected.dtype
    assert torch.equal(found.cpu(), expected)


def test_a_write_to_repeated_elements_is_refused(device: Any) -> None:
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.ones(1, device=device).expand(3).add_(1)


def test_a_conversion_of_a_model_replaces_what_its_parameters_show(device: Any) -> None:
    layer = torch.nn.Linear(2, 2).to(device)
    weight = layer.weight
    layer.double()
    assert layer.weight is weight
    assert weight.dtype is torch.float64
    assert (weight + 0).cpu().dtype is torch.float64


def test_a_warning_is_not_needed_for_ordinary_programs(device: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = torch.zeros(3, device=device)
        x[1] = 2
        assert x.tolist() == [0, 2, 0]


@pytest.mark.parametrize("value", [2.0, torch.tensor(2.0)], ids=["number", "tensor"])
def test_an_expanded_tensor_can_be_filled(device: Any, value: Any) -> None:
    x = torch.arange(3.0, device=device)
    filled = x[:1].expand(4).fill_(value)
    assert x.tolist() == [2, 1, 2]
    assert filled.tolist() == [2, 2, 2, 2]
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        x[:1].expand(4).mul_(2)


def test_a_list_with_an_expanded_tensor_is_cleared(device: Any) -> None:
    for place in ("cpu", device):
        x, y = torch.ones(2, 1, device=place), torch.ones(3, device=place)
        torch._foreach_zero_([x.expand(2, 3), y])
        assert (x.tolist(), y.tolist()) == ([[0], [0]], [0, 0, 0])
        with pytest.raises(RuntimeError, match="single memory location"):
            torch._foreach_add_([x.expand(2, 3), y], 1.0)


# Writes that the CPU carries out on expanded tensors.
EXPANDED_WRITES: dict[str, Callable[[Any], Any]] = {
    "fill_": lambda x: x.fill_(2),
    "zero_": lambda x: x.zero_(),
    "masked_fill_": lambda x: x.masked_fill_(
        torch.tensor([[True, False, False], [False, False, True]]).to(x.device), 7.0
    ),
    "index_fill_": lambda x: x.index_fill_(1, torch.tensor([0, 2]).to(x.device), 5.0),
    "index_fill_ of rows": lambda x: x.index_fill_(0, torch.tensor([1]).to(x.device), 5.0),
    "tril_": lambda x: x.tril_(),
    "triu_": lambda x: x.triu_(1),
    "threshold": lambda x: torch.nn.functional.threshold_(x, 0.5, 9.0),
    "columns": lambda x: x.__setitem__((slice(None), [0, 2]), 3.0),
    "rows": lambda x: x.__setitem__([0], 3.0),
    "values of rows": lambda x: x.__setitem__([0, 1], torch.ones(2, 3).to(x.device)),
    "pairs": lambda x: x.__setitem__(([0, 1], [1, 1]), 4.0),
    "a mask of rows": lambda x: x.__setitem__(torch.tensor([True, False]).to(x.device), 6.0),
    "accumulated": lambda x: x.index_put_(
        (torch.tensor([0, 1, 1]).to(x.device),), torch.ones(3).to(x.device), accumulate=True
    ),
}


@pytest.mark.parametrize("name", EXPANDED_WRITES)
@pytest.mark.parametrize("shape", [(3,), (2, 1), (1, 1)])
def test_an_expanded_tensor_is_written_as_on_the_cpu(
    device: Any, name: str, shape: tuple[int, ...]
) -> None:
    seen = []
    for place in ("cpu", device):
        base = torch.arange(8.0).to(place)
        x = base[1 : 1 + math.prod(shape)].reshape(shape)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch deprecates it
            EXPANDED_WRITES[name](x.expand(2, 3))
        seen.append((base.tolist(), x.tolist()))
    assert seen[0] == seen[1]


# In-place operations whose functional overload has another name or another order of arguments.
RENAMED: dict[str, Callable[[Any], Any]] = {
    "ldexp_": lambda x: x.ldexp_(torch.tensor(3).to(x.device)),
    "polygamma_": lambda x: x.polygamma_(1),
    "rrelu_": lambda x: torch.nn.functional.rrelu_(x),
    "fill_ of complex numbers": lambda x: x.to(torch.complex64).fill_(True),
}


@pytest.mark.parametrize("name", RENAMED)
def test_a_write_by_another_name_has_the_result_of_the_cpu(device: Any, name: str) -> None:
    seen = []
    for place in ("cpu", device):
        base = torch.arange(-2.5, 9.5).reshape(3, 4).to(place)
        seen.append((RENAMED[name](base[:, 1::2]).cpu(), base.cpu()))
    torch.testing.assert_close(seen[0], seen[1])


def test_random_numbers_are_written_to_all_dtypes_that_the_cpu_writes(device: Any) -> None:
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32):
        drawn = torch.zeros(200, dtype=dtype, device=device).random_().cpu()
        assert 0 <= drawn.double().min() < drawn.double().max()
    assert set(torch.zeros(200, device=device).random_(3).tolist()) == {0.0, 1.0, 2.0}
    drawn = torch.zeros(4000, dtype=torch.complex64, device=device).normal_(1, 2).cpu()
    assert drawn.mean().item() == pytest.approx(1, abs=0.2)
    assert drawn.std().item() == pytest.approx(2, abs=0.2)
    drawn = torch.zeros(4000, dtype=torch.complex64, device=device).uniform_().cpu()
    assert drawn.imag.mean().item() == pytest.approx(0.5, abs=0.1)
    with pytest.raises(NotImplementedError):
        torch.zeros(2, dtype=torch.int64, device=device).normal_()
    with pytest.raises(NotImplementedError):
        torch.zeros(2, dtype=torch.int64, device=device).uniform_()
    with pytest.raises(NotImplementedError):
        torch.zeros(2, dtype=torch.complex64, device=device).random_()
