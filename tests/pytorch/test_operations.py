"""Single operations give the CPU's values, dtypes, shapes and strides, or are refused as there."""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Callable
from typing import Any

import pytest

from support.torch_comparison import drawn

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
brt = importlib.import_module("burn_remote.torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

Make = Callable[[Any], Any]


@pytest.fixture(scope="module")
def device() -> Any:
    return brt.local()


def counted(device: Any, *shape: int, dtype: Any = None) -> Any:
    """Return a tensor with the numbers from 1 on, integers by default."""
    numbers = torch.arange(1, 1 + math.prod(shape), dtype=dtype or torch.int64)
    return numbers.reshape(shape).to(device)


def described(x: Any) -> tuple[Any, ...]:
    return x.dtype, tuple(x.shape), x.stride()


def assert_same(make: Make, device: Any) -> None:
    wanted, found = make("cpu"), make(device)
    wanted, found = (x if isinstance(x, tuple | list) else (x,) for x in (wanted, found))
    assert [*map(described, found)] == [*map(described, wanted)]
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(
            ours.detach().cpu(), theirs.detach(), rtol=1e-4, atol=1e-5, equal_nan=True
        )


def with_gradients(function: Callable[..., Any], *tensors: Any) -> tuple[Any, ...]:
    """Return results and the gradients of the tensors."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    results = function(*leaves)
    results = results if isinstance(results, tuple | list) else (results,)
    total = sum(
        (torch.view_as_real(x) if x.is_complex() else x).sum() * place
        for place, x in enumerate(results, 1)
        if x.is_floating_point() or x.is_complex()
    )
    total.backward()
    # Strides of gradients are not those of the CPU for all operations.
    return *results, *[x.grad.contiguous() for x in leaves]


FACTORS = [(0.5, 1), (1, 0.5), (2, 3), (2.5, 3.5), (0, 1)]
PRODUCTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "addmm": ((2, 2), (2, 2), (2, 2)),
    "addmv": ((2,), (2, 2), (2,)),
    "baddbmm": ((3, 2, 2), (3, 2, 2), (3, 2, 2)),
    "addbmm": ((2, 2), (3, 2, 2), (3, 2, 2)),
}


@pytest.mark.parametrize(("beta", "alpha"), FACTORS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_factors_of_integer_products_are_integers(
    device: Any, name: str, beta: float, alpha: float
) -> None:
    def make(place: Any) -> Any:
        operands = [counted(place, *shape) for shape in PRODUCTS[name]]
        return getattr(torch, name)(*operands, beta=beta, alpha=alpha)

    assert_same(make, device)


@pytest.mark.parametrize("value", [0.5, 2, 2.5])
def test_the_factor_of_addcmul_of_integers_is_an_integer(device: Any, value: float) -> None:
    assert_same(lambda place: torch.addcmul(*[counted(place, 3)] * 3, value=value), device)


CASES: dict[str, Make] = {
    f"{name} of a 0-d {number}": lambda place, name=name, number=number: with_gradients(  # type: ignore[misc]
        lambda x: getattr(torch, name)(x, 0), torch.tensor(number).to(place)
    )
    for name in ("softmax", "log_softmax")
    for number in (2.0, math.nan, math.inf, -math.inf)
}
CASES |= {
    "clamp_min of floats by a bool": lambda place: torch.clamp_min(drawn(place, 3), True),
    "clamp_min of integers by a bool": lambda place: torch.clamp_min(counted(place, 3) - 2, True),
    "clamp by bools": lambda place: torch.clamp(drawn(place, 9), False, True),
    "clamp_min_ by a bool": lambda place: drawn(place, 3).clamp_min_(True),
    "clamp of integers by a float": lambda place: counted(place, 3).clamp_min(1.5),
}


def mask(place: Any) -> Any:
    return torch.tensor([True, False, True]).to(place)


def places(place: Any) -> Any:
    return torch.tensor([0, 2]).to(place)


CASES |= {
    "masked_fill_ of integers by a float": lambda p: counted(p, 3).masked_fill_(mask(p), 1.5),
    "masked_fill of integers by a float": lambda p: counted(p, 3).masked_fill(mask(p), -1.5),
    "masked_fill_ of bools by an integer": lambda p: (counted(p, 3) > 2).masked_fill_(mask(p), 5),
    "masked_fill_ of halves by infinity": lambda p: (
        drawn(p, 3).half().masked_fill_(mask(p), -math.inf)
    ),
    "scatter_ of integers by a float": lambda p: counted(p, 3).scatter_(0, places(p), 1.5),
    "scatter_ of bools by an integer": lambda p: (counted(p, 3) > 2).scatter_(0, places(p), 5),
    "index_fill_ of integers by a float": lambda p: counted(p, 3).index_fill_(0, places(p), 1.5),
    "index_add of integers with a float factor": lambda p: counted(p, 3).index_add(
        0, places(p), counted(p, 2), alpha=2
    ),
}


def square(place: Any, *batch: int, seed: int = 0, dtype: Any = None) -> Any:
    """Return well-conditioned matrices of 4 rows."""
    return drawn(place, *batch, 4, 4, seed=seed, dtype=dtype) + 4 * torch.eye(4, dtype=dtype).to(
        place
    )


def positive(place: Any) -> Any:
    x = drawn(place, 4, 4)
    return x @ x.mT + torch.eye(4).to(place)


linalg: Any = torch.linalg
COMPLEX: Any = torch.complex64
CASES |= {
    "solve": lambda p: with_gradients(linalg.solve, square(p), drawn(p, 4, 2)),
    "solve of a transpose": lambda p: with_gradients(
        lambda x, y: linalg.solve(x.mT, y), square(p), drawn(p, 4, 2)
    ),
    "solve of a transposed leaf": lambda p: with_gradients(
        linalg.solve, square(p).mT, drawn(p, 4, 2)
    ),
    "solve for a vector": lambda p: with_gradients(linalg.solve, square(p), drawn(p, 4)),
    "solve for vectors": lambda p: with_gradients(linalg.solve, square(p, 3), drawn(p, 3, 4)),
    "solve batches": lambda p: with_gradients(linalg.solve, square(p, 3), drawn(p, 3, 4, 2)),
    "solve from the right": lambda p: with_gradients(
        lambda x, y: linalg.solve(x, y, left=False), square(p), drawn(p, 2, 4)
    ),
    "solve complex": lambda p: with_gradients(
        linalg.solve, square(p, dtype=COMPLEX), drawn(p, 4, 2, dtype=COMPLEX)
    ),
    "det": lambda p: with_gradients(linalg.det, square(p)),
    "det of a transposed leaf": lambda p: with_gradients(linalg.det, square(p).mT),
    "det of batches": lambda p: with_gradients(linalg.det, square(p, 2, 3)),
    "det complex": lambda p: with_gradients(linalg.det, square(p, dtype=COMPLEX)),
    "det of small elements beside zeros": lambda p: with_gradients(
        lambda x: linalg.det(x * 1e-6) * 1e18,
        torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]).to(p),
    ),
    "slogdet": lambda p: with_gradients(lambda x: linalg.slogdet(x)[1], square(p)),
    "slogdet of a transposed leaf": lambda p: with_gradients(
        lambda x: linalg.slogdet(x)[1], square(p, 2).mT
    ),
    "logdet": lambda p: with_gradients(torch.logdet, positive(p)),
    "inv": lambda p: with_gradients(linalg.inv, square(p)),
    "pinv": lambda p: linalg.pinv(drawn(p, 4, 3)),
    "cholesky": lambda p: with_gradients(linalg.cholesky, positive(p)),
    "cholesky_solve": lambda p: torch.cholesky_solve(drawn(p, 4, 2), linalg.cholesky(positive(p))),
    "qr": lambda p: tuple(linalg.qr(drawn(p, 4, 3))),
    "eigvals": lambda p: linalg.eigvals(positive(p)).real.sort().values,
    "matrix_power": lambda p: linalg.matrix_power(square(p), 3),
    "matrix_rank": lambda p: linalg.matrix_rank(square(p)),
    "cond": lambda p: linalg.cond(square(p)),
    "tensorinv": lambda p: linalg.tensorinv(square(p).reshape(2, 2, 4)).contiguous(),
}
CASES |= {
    f"{name} complex": lambda p, name=name: with_gradients(  # type: ignore[misc]
        getattr(torch, name), drawn(p, 3, 4, dtype=COMPLEX)
    )
    for name in ("tanh", "sigmoid", "sin", "log1p", "expm1", "rsqrt", "reciprocal", "sgn", "sinc")
}
CASES |= {
    "silu complex": lambda p: torch.nn.functional.silu(drawn(p, 3, 4, dtype=COMPLEX)),
    "logaddexp complex": lambda p: torch.logaddexp(
        drawn(p, 3, 4, dtype=COMPLEX), drawn(p, 4, dtype=COMPLEX, seed=1)
    ),
    "logsumexp complex": lambda p: torch.logsumexp(drawn(p, 3, 4, dtype=COMPLEX), 1),
    "logcumsumexp complex": lambda p: torch.logcumsumexp(drawn(p, 3, 4, dtype=COMPLEX), 1),
}
BITS = [[True, False, True], [False, False, True]]
CASES |= {
    f"{name} of bools": lambda p, name=name: getattr(torch, name)(  # type: ignore[misc]
        torch.tensor(BITS).to(p), torch.tensor(BITS[0]).to(p)
    )
    for name in ("maximum", "minimum", "fmax", "fmin", "clamp_min", "clamp_max")
}
CASES |= {
    "cummax of bools": lambda p: torch.cummax(torch.tensor(BITS).to(p), 1),
    "cummin of bools": lambda p: torch.cummin(torch.tensor(BITS).to(p), 1),
    "logsumexp of no elements": lambda p: torch.logsumexp(drawn(p, 0, 3), 0),
    "masked_select of nothing": lambda p: with_gradients(
        lambda x: x.masked_select(x > 100), drawn(p, 3, 4)
    ),
}
CASES |= {
    "matrix_exp": lambda p: with_gradients(torch.matrix_exp, square(p)),
    "matrix_exp of large and small matrices": lambda p: torch.matrix_exp(
        drawn(p, 3, 4, 4) * torch.tensor([1e-3, 0.3, -6.0]).to(p).reshape(3, 1, 1)
    ),
    "matrix_exp of huge matrices": lambda p: torch.matrix_exp(
        torch.tensor(
            [
                [[-3e6, 1.0], [0.0, -1.0]],
                [[-1e12, 0.0], [0.0, -2.0]],
                [[-3e38, 0.0], [0.0, 1.0]],
                [[0.0, 1e30], [0.0, 0.0]],
                [[1e20, 0.0], [0.0, 1.0]],
            ]
        )
        .double()
        .to(p)
    ),
    "matrix_exp of huge numbers": lambda p: torch.matrix_exp(
        torch.tensor([-3e38, -3e6, 3e6, 3e38]).reshape(4, 1, 1).to(p)
    ),
    "matrix_exp of infinities": lambda p: torch.matrix_exp(
        torch.tensor([[-math.inf, 0.0], [0.0, 1.0]]).to(p)
    ),
    "lu of wide matrices": lambda p: tuple(linalg.lu(drawn(p, 2, 3, 5))),
    "lu of tall matrices": lambda p: tuple(linalg.lu(drawn(p, 2, 5, 3))),
    "lu_factor": lambda p: tuple(linalg.lu_factor(drawn(p, 3, 4, 4))),
    "lu_factor of a singular matrix": lambda p: tuple(linalg.lu_factor_ex(drawn(p, 4, 4) * 0)),
    "lu_factor complex": lambda p: tuple(linalg.lu_factor(square(p, dtype=COMPLEX))),
    "gradients of lu_factor": lambda p: with_gradients(
        lambda x: linalg.lu_solve(*linalg.lu_factor(x), drawn(p, 4, 2)), square(p)
    ),
    "lu_solve from the right": lambda p: linalg.lu_solve(
        *linalg.lu_factor(square(p)), drawn(p, 2, 4), left=False
    ).contiguous(),
    "lu_solve adjoint": lambda p: linalg.lu_solve(
        *linalg.lu_factor(square(p, dtype=COMPLEX)), drawn(p, 4, 2, dtype=COMPLEX), adjoint=True
    ).contiguous(),
    "gcd": lambda p: torch.gcd(torch.tensor([12, -18, 0, 2**40]).to(p), counted(p, 4) * 6),
    "lcm": lambda p: torch.lcm(torch.tensor([12, -18, 0, 5]).to(p), counted(p, 4)),
    "gcd of bytes": lambda p: torch.gcd(
        torch.tensor([255, 12], dtype=torch.uint8).to(p),
        torch.tensor([85, 0], dtype=torch.uint8).to(p),
    ),
}
CASES |= {
    "frexp": lambda p: torch.frexp(
        torch.tensor(
            [0.0, -0.0, 1.0, -0.5, 3.7, 1e300, 5e-324, -2e-310, math.inf, math.nan, 2.0**1023],
            dtype=torch.float64,
        ).to(p)
    ),
    "frexp of halves": lambda p: torch.frexp(torch.tensor([6e-8, 65504.0, -0.3]).half().to(p)),
    "searchsorted in rows": lambda p: torch.searchsorted(
        drawn(p, 3, 5).sort().values, drawn(p, 3, 2, seed=1), right=True
    ),
    "searchsorted of NaN in rows": lambda p: torch.searchsorted(
        drawn(p, 2, 5).sort().values, torch.tensor([[math.nan, 0.1], [0.1, math.nan]]).to(p)
    ),
    "histogram": lambda p: torch.histogram(drawn(p, 50), 5, range=(-1.0, 1.5), density=True),
}
REPEATED = [[1.0, 2.0, 2.0, 3.0], [3.0, 1.0, 3.0, 1.0], [1.0, 1.0, 1.0, 1.0], [4.0, 3.0, 2.0, 1.0]]
CASES |= {
    "mode": lambda p: with_gradients(torch.mode, torch.tensor(REPEATED).to(p)),
    "mode along the first axis": lambda p: torch.mode(torch.tensor(REPEATED).to(p), 0, True),
    "mode of integers": lambda p: torch.mode(torch.tensor(REPEATED).long().to(p)),
    "mode of one number": lambda p: torch.mode(torch.tensor(3.0).to(p)),
    "histc": lambda p: torch.histc(drawn(p, 200), 10, -2, 2),
    "histc of all elements": lambda p: torch.histc(drawn(p, 200), 7),
    "histc of equal elements": lambda p: torch.histc(torch.full((5,), 2.0).to(p), 4),
    "histc without elements": lambda p: torch.histc(drawn(p, 0), 4),
    "histc with NaN": lambda p: torch.histc(torch.tensor([0.5, math.nan, 3.0]).to(p), 4, 0, 2),
}
CASES |= {
    f"{name} of degree {degree}": lambda p, name=name, degree=degree: getattr(  # type: ignore[misc]
        torch.special, name
    )(torch.linspace(-2.5, 2.5, 41, dtype=torch.float64).to(p), degree)
    for name in (
        "hermite_polynomial_h",
        "hermite_polynomial_he",
        "laguerre_polynomial_l",
        "legendre_polynomial_p",
        "chebyshev_polynomial_t",
        "shifted_chebyshev_polynomial_w",
    )
    for degree in (-1, 0, 1, 2, 7)
}
WIDE = [1e-8, 0.3, 1.9, 2.1, 7.9, 8.1, 25.0, 300.0, 0.0, -0.0, -3.0, -30.0, math.nan]
CASES |= {
    f"{name} of near and far arguments": lambda p, name=name: getattr(  # type: ignore[misc]
        torch.special, name
    )(torch.tensor(WIDE).to(p))
    for name in (
        *[f"bessel_{kind}" for kind in ("j0", "j1", "y0", "y1")],
        *[f"modified_bessel_{kind}" for kind in ("k0", "k1")],
        *[f"scaled_modified_bessel_{kind}" for kind in ("k0", "k1")],
        "spherical_bessel_j0",
    )
}
SHAPES = [0.0, 1e-3, 0.5, 1.0, 4.2, 29.9, 30.1, 900.0, 1e5, math.inf, -1.0]
CASES |= {
    f"{name} of small and large arguments": lambda p, name=name: torch.stack(  # type: ignore[misc]
        [
            getattr(torch.special, name)(a, (a * factor).nan_to_num(2.0, math.inf))
            for a in (torch.tensor(SHAPES, dtype=torch.float64).to(p),)
            for factor in (0.0, 0.3, 0.97, 1.0, 1.02, 1.5, 40.0)
        ]
    )
    for name in ("gammainc", "gammaincc")
}


@pytest.mark.parametrize("name", CASES)
def test_an_operation_has_the_results_of_the_cpu(device: Any, name: str) -> None:
    assert_same(CASES[name], device)


REFUSED: dict[str, Make] = {
    "addr with a float factor": lambda p: torch.addr(*[counted(p, 2)] * 3, alpha=0.5),
    "add with a float factor": lambda p: torch.add(*[counted(p, 3)] * 2, alpha=0.5),
    "sub with a float factor": lambda p: torch.sub(*[counted(p, 3)] * 2, alpha=0.5),
    "rsub with a float factor": lambda p: torch.rsub(*[counted(p, 3)] * 2, alpha=0.5),
    "addcdiv of integers": lambda p: torch.addcdiv(*[counted(p, 3)] * 3),
    "lerp of integers": lambda p: torch.lerp(*[counted(p, 3)] * 2, 0.5),
    "halves that overflow": lambda p: drawn(p, 3).half().masked_fill_(mask(p), 1e9),
    "integers that overflow": lambda p: counted(p, 3).to(torch.int8).masked_fill_(mask(p), 300),
    "complex numbers among floats": lambda p: drawn(p, 3).masked_fill_(mask(p), 1j),
    "scatter_ of another dtype": lambda p: drawn(p, 3).scatter_(0, places(p), counted(p, 2)),
    "scatter_add_ of another dtype": lambda p: drawn(p, 3).scatter_add_(
        0, places(p), counted(p, 2)
    ),
    "index_put_ of another dtype": lambda p: drawn(p, 3).index_put_((places(p),), counted(p, 2)),
    "index_add_ of another dtype": lambda p: drawn(p, 3).index_add_(0, places(p), counted(p, 2)),
    "index_copy_ of another dtype": lambda p: drawn(p, 3).index_copy_(0, places(p), counted(p, 2)),
    "solve of a singular matrix": lambda p: linalg.solve(*drawn(p, 2, 3, 3) * 0).cpu(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_operation_is_refused_as_on_the_cpu(device: Any, name: str) -> None:
    for place in ("cpu", device):
        with pytest.raises(RuntimeError):
            REFUSED[name](place)


def test_a_polynomial_of_unknown_degree_is_refused_by_name(device: Any) -> None:
    x = torch.ones(2, device=device)
    with pytest.raises(NotImplementedError, match="hermite_polynomial_h"):
        torch.special.hermite_polynomial_h(x, x)
    with pytest.raises(NotImplementedError, match="degrees up to 256"):
        torch.special.laguerre_polynomial_l(x, 1000)


def test_factors_of_the_cpu_solve_on_the_device(device: Any) -> None:
    factors, pivots = linalg.lu_factor(square("cpu"))
    right = drawn("cpu", 4, 2)
    found = linalg.lu_solve(factors.to(device), pivots.to(device), right.to(device))
    torch.testing.assert_close(found.cpu(), linalg.lu_solve(factors, pivots, right))


COPIED: dict[str, Make] = {
    "a transpose": lambda p: drawn(p, 3, 4).t(),
    "every second column": lambda p: drawn(p, 4, 6)[:, 1::2],
    "repeated rows": lambda p: drawn(p, 1, 3).expand(4, 3),
    "images in channels_last": lambda p: drawn(p, 2, 3, 4, 4).to(memory_format=torch.channels_last),
    "the real parts of complex numbers": lambda p: drawn(p, 3, dtype=COMPLEX).real,
    "elements that nobody wrote": lambda p: torch.zeros(3, 2, device=p),
}


@pytest.mark.parametrize("name", COPIED)
def test_a_deep_copy_has_the_strides_of_the_cpu(device: Any, name: str) -> None:
    assert_same(lambda place: copy.deepcopy(COPIED[name](place)), device)


def test_deep_copies_share_elements_as_their_originals_do(device: Any) -> None:
    def make(place: Any) -> Any:
        x = drawn(place, 3, 4)
        whole, row, plane = copy.deepcopy([x, x[1], x.t()])
        row.fill_(7)
        plane[0] *= 2
        return x, whole, row, plane

    assert_same(make, device)


def test_a_deep_copy_of_a_written_view_shows_the_writes(device: Any) -> None:
    def make(place: Any) -> Any:
        x = drawn(place, 3, 4)
        view = x[:, 1]
        copied = copy.deepcopy(view)
        x.mul_(10)
        second = copy.deepcopy(view)
        second.add_(1)
        return copied, second, view, x

    assert_same(make, device)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_gradients_of_bicubic_samples(device: Any, padding: str, align_corners: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(2, 3, 5, 7, generator=generator, dtype=torch.float64)
    # Some points are outside of the image.
    grid = torch.randn(2, 4, 6, 2, generator=generator, dtype=torch.float64) * 1.5
    found = []
    for place in ("cpu", device):
        x, points = (one.to(place).detach().requires_grad_() for one in (image, grid))
        sampled = torch.nn.functional.grid_sample(
            x, points, mode="bicubic", padding_mode=padding, align_corners=align_corners
        )
        (sampled * torch.arange(sampled.numel(), device=place).view_as(sampled)).sum().backward()
        found.append((x.grad.cpu(), points.grad.cpu()))
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    "options",
    [
        {"size": (5, 4)},
        {"size": (3, 17)},
        {"size": (1, 1)},
        {"size": (23, 40), "align_corners": True},
        {"size": (4, 5), "align_corners": True},
        {"scale_factor": (0.37, 1.9)},
        {"scale_factor": 0.5, "recompute_scale_factor": True},
    ],
)
def test_images_are_resized_without_aliases(device: Any, mode: str, options: Any) -> None:
    image = torch.randn(2, 3, 11, 13, generator=torch.Generator().manual_seed(0)).double()
    found = []
    for place in ("cpu", device):
        x = image.to(place).detach().requires_grad_()
        resized = torch.nn.functional.interpolate(x, mode=mode, antialias=True, **options)
        (resized * torch.arange(resized.numel(), device=place).view_as(resized)).sum().backward()
        found.append((resized.detach().cpu(), x.grad.cpu()))
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)
