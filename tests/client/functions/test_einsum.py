"""``einsum`` matches NumPy's, for random equations too."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import burn_remote as br
from burn_remote.functions.einsum_plan import planned

Case = tuple[str, list[tuple[int, ...]]]


def compared(equation: str, shapes: list[tuple[int, ...]], device: br.Device) -> None:
    random = np.random.default_rng(len(equation))
    arrays = [random.integers(-3, 4, shape).astype(np.float64) for shape in shapes]
    found = br.einsum(equation, *[br.tensor(array, device=device) for array in arrays])
    # Sums of small integers are exact in any order.
    np.testing.assert_array_equal(found.numpy(), np.einsum(equation, *arrays), strict=True)


@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("bij,bjk->bik", [(5, 2, 3), (5, 3, 4)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("iii->i", [(3, 3, 3)]),
        ("ij->ji", [(2, 3)]),
        ("ba", [(2, 3)]),
        ("i,i", [(3,), (3,)]),
        ("i,j->ij", [(2,), (3,)]),
        ("i,j->", [(2,), (3,)]),
        ("...ij,...jk", [(2, 1, 2, 3), (4, 3, 4)]),
        ("...i->...", [(2, 3)]),
        ("i...->...i", [(2, 3, 4)]),
        ("i ... -> ...", [(2, 3)]),
        ("ij,jk,kl->li", [(2, 3), (3, 4), (4, 5)]),
        ("ij,ji,jk", [(2, 3), (3, 2), (3, 3)]),
        ("a,b,c,d->dcba", [(2,), (3,), (1,), (2,)]),
        ("ij,kl->kj", [(2, 3), (1, 4)]),
        ("ij,jk->ik", [(2, 1), (3, 4)]),
        ("iij,jk->k", [(2, 2, 3), (1, 4)]),
        ("", [()]),
        (",", [(), ()]),
        ("ij->", [(0, 3)]),
        ("ij,jk", [(2, 0), (0, 3)]),
        ("i,i,i", [(0,), (0,), (0,)]),
    ],
)
def test_an_equation_gives_what_numpy_gives(
    equation: str, shapes: list[tuple[int, ...]], device: br.Device
) -> None:
    compared(equation, shapes, device)


@st.composite
def equations(draw: st.DrawFn) -> Case:
    """Return an equation and shapes, with repeated labels, ellipses and axes that broadcast."""
    labels = "abcdE"
    sizes = {label: draw(st.integers(0 if label == "d" else 1, 3)) for label in labels}
    hidden = draw(st.lists(st.integers(1, 3), max_size=2))
    terms, shapes = [], []
    for _ in range(draw(st.integers(1, 4))):
        term = draw(st.text(labels, max_size=3))
        shape = [sizes[label] for label in term]
        for place, label in enumerate(term):
            if term.count(label) == 1 and draw(st.integers(0, 5)) == 0:
                shape[place] = 1
        if draw(st.booleans()):
            place = draw(st.integers(0, len(term)))
            count = draw(st.integers(0, len(hidden)))
            shown = [1 if draw(st.integers(0, 3)) == 0 else size for size in hidden]
            shape[place:place] = shown[len(shown) - count :]
            term = f"{term[:place]}...{term[place:]}"
        terms.append(term)
        shapes.append(tuple(shape))
    equation = ",".join(terms)
    if draw(st.booleans()):
        used = sorted(set(equation) - {",", "."})
        output = "".join(draw(st.permutations(used))[: draw(st.integers(0, len(used)))])
        if "..." in equation:
            place = draw(st.integers(0, len(output)))
            output = f"{output[:place]}...{output[place:]}"
        equation += f"->{output}"
    return equation, shapes


@settings(max_examples=300)
@given(case=equations())
def test_random_equations_give_what_numpy_gives(case: Case, device: br.Device) -> None:
    equation, shapes = case
    compared(equation, shapes, device)


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "int8", "int64", "uint16", "bool"]
)
def test_the_result_has_the_dtype_of_the_operands(dtype: str, device: br.Device) -> None:
    x = np.arange(6).reshape(2, 3).astype(dtype)
    y = np.arange(12).reshape(3, 4).astype(dtype)
    left, right = br.tensor(x, device=device), br.tensor(y, device=device)
    for equation, tensors, arrays in [
        ("ij,jk->ki", (left, right), (x, y)),
        ("ij->i", (left,), (x,)),
        ("ij,kl->jk", (left, right), (x, y)),
    ]:
        found = br.einsum(equation, *tensors).numpy()
        np.testing.assert_array_equal(found, np.einsum(equation, *arrays), strict=True)


@pytest.mark.parametrize(
    "equation, dtypes",
    [
        ("i,i->i", ["bool", "float32"]),
        ("i,i", ["float32", "bool"]),
        ("i,i", ["bool", "int8"]),
        ("i,i,i", ["bool", "bool", "float64"]),
        # The product of the first two overflows int8.
        ("i,i,i->i", ["int8", "int8", "float64"]),
        ("ii,i", ["bool", "float32"]),
    ],
)
def test_operands_of_different_dtypes_are_converted_first(
    equation: str, dtypes: list[str], device: br.Device
) -> None:
    terms = equation.partition("->")[0].split(",")
    arrays = [
        (np.arange(4 ** len(term)) * 25.0).reshape((4,) * len(term)).astype(dtype)
        if dtype == "int8"
        else (np.arange(4 ** len(term)) % 3 / 2).reshape((4,) * len(term)).astype(dtype)
        for term, dtype in zip(terms, dtypes, strict=True)
    ]
    found = br.einsum(equation, *[br.tensor(array, device=device) for array in arrays])
    np.testing.assert_array_equal(found.numpy(), np.einsum(equation, *arrays), strict=True)


def test_an_even_number_of_true_elements_is_true(device: br.Device) -> None:
    x = br.ones((256,), dtype=br.bool, device=device)
    assert br.einsum("i,i->", x, x).item() is True


def test_long_products_are_contracted_pair_by_pair() -> None:
    plan = planned("ab,bc,cd->ad", ((50, 2), (2, 50), (50, 2)))
    assert all(len(places) == 2 for places in plan.steps)
    # The matrices with 2 rows and columns first: 200 multiplications instead of 5,000.
    assert plan.steps[0] == (1, 2)


@pytest.mark.parametrize(
    "equation, shapes, message",
    [
        ("ij,jk", [(2, 3)], "2 operands, but 1"),
        ("ij->ik", [(2, 3)], "no operand has the axis 'k'"),
        ("ij->ii", [(2, 3)], "the axis 'i' twice"),
        ("i1", [(2, 3)], "letters"),
        ("......i", [(2, 3)], "at most one ellipsis"),
        ("...i->i", [(2, 3)], "must have an ellipsis"),
        ("i->i->i", [(2,)], "letters"),
    ],
)
def test_a_malformed_equation_is_refused(
    equation: str, shapes: list[tuple[int, ...]], message: str, device: br.Device
) -> None:
    tensors = [br.zeros(shape, device=device) for shape in shapes]
    with pytest.raises(br.UsageError, match=message):
        br.einsum(equation, *tensors)


@pytest.mark.parametrize(
    "equation, shapes, message",
    [
        ("ij", [(2,)], "names 2 axes"),
        ("i", [(2, 3)], "names 1 axes"),
        ("ij,jk", [(2, 3), (4, 5)], "axis 'j' has the sizes 3 and 4"),
        ("ii", [(2, 3)], "sizes 2 and 3 along axes 'i'"),
        ("ii,i", [(1, 3), (3,)], "sizes 1 and 3 along axes 'i'"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    equation: str, shapes: list[tuple[int, ...]], message: str, device: br.Device
) -> None:
    tensors = [br.zeros(shape, device=device) for shape in shapes]
    with pytest.raises(br.ShapeMismatch, match=message):
        br.einsum(equation, *tensors)


def test_more_than_52_axes_are_refused() -> None:
    with pytest.raises(br.UsageError, match="more than 52"):
        planned("a...", ((1,) * 53,))


@pytest.mark.parametrize("first", [([0], [1]), (1, "ij")], ids=["array first", "no equation"])
def test_operands_without_tensors_are_refused(first: Any, device: br.Device) -> None:
    with pytest.raises(br.BurnRemoteError):
        br.einsum(*first)


def test_gradients_pass_through_an_equation(device: br.Device) -> None:
    random = np.random.default_rng(5)
    arrays = [random.normal(size=shape) for shape in [(3, 3, 2), (2, 4), (1, 3)]]
    tensors = [br.tensor(array, device=device).requires_grad_() for array in arrays]
    result = br.einsum("iij,jk,li->ki", *tensors)
    seed = random.normal(size=result.shape)
    (result * br.tensor(seed, device=device)).sum().backward()
    expected = [
        np.einsum("ki,jk,li->ij", seed, *arrays[1:]),
        np.einsum("ki,iij,li->jk", seed, arrays[0], arrays[2]),
        np.einsum("ki,iij,jk->i", seed, arrays[0], arrays[1])[None],
    ]
    on_diagonal = np.zeros((3, 3, 2))
    on_diagonal[range(3), range(3)] = expected[0]
    for x, wanted in zip(tensors, [on_diagonal, *expected[1:]], strict=True):
        assert x.grad is not None
        np.testing.assert_allclose(x.grad.numpy(), wanted, rtol=1e-12)


def test_an_equation_inside_a_compiled_function_is_replayed(device: br.Device) -> None:
    compiled = br.compile(lambda x, y: br.einsum("bij,bjk->bik", x, y))
    for seed in range(3):
        random = np.random.default_rng(seed)
        x, y = random.normal(size=(2, 3, 4)), random.normal(size=(2, 4, 5))
        found = compiled(br.tensor(x, device=device), br.tensor(y, device=device))
        np.testing.assert_allclose(found.numpy(), x @ y, rtol=1e-12)


def test_a_bounded_number_of_plans_is_kept() -> None:
    for size in range(1000):
        planned("ij,jk", ((size, 2), (2, 3)))
    assert planned.cache_info().currsize <= 512
    assert math.isfinite(planned.cache_info().maxsize or math.inf)
