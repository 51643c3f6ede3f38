"""Error messages for invalid calls: keywords, positions, and arguments that are not tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import burn_remote
from burn_remote import functional, gradients, init, random
from burn_remote.diagnostics.foreign_names import AMBIGUOUS, POSITIONAL, RENAMED_KEYWORDS
from support.runners import RecordingDevice

# Typed as Any, because a type checker rejects these calls.
br: Final[Any] = burn_remote
F: Final[Any] = functional
DEVICE: Final[Any] = RecordingDevice()

FUNCTIONS: Final = {
    f"{module.__name__}.{name}": function
    for module in (burn_remote, functional, gradients, init, random)
    for name in module.__all__
    if inspect.isfunction(function := getattr(module, name))
}


def parameters_of(function: Callable[..., object]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def f(*shape: int) -> Any:
    return br.ones(shape, device=DEVICE)


def refused(call: Callable[[], object], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        call()


OTHER_NAMES: dict[str, Callable[[], object]] = {
    "unbiased=; in burn_remote: correction=0 for False, correction=1": lambda: f(2).std(
        unbiased=False
    ),
    "kind=; in burn_remote: stable=True or stable=False": lambda: f(2).argsort(kind="stable"),
    "size_average=; in burn_remote: reduction='mean', 'sum'": lambda: F.mse_loss(
        f(2), f(2), size_average=1
    ),
    "requires_grad=; in burn_remote: x.requires_grad_()": lambda: br.arange(3, requires_grad=True),
    "inplace=; in burn_remote: x = the result": lambda: F.relu(f(2), inplace=True),
    r"to: it has no argument dtype=; in burn_remote: x\.astype": lambda: f(2).to(dtype=br.float16),
}


@pytest.mark.parametrize("text", OTHER_NAMES)
def test_a_foreign_keyword_gives_our_equivalent(text: str) -> None:
    refused(OTHER_NAMES[text], br.ArgumentMismatch, text)


def test_a_misspelled_keyword_gives_the_similar_one() -> None:
    text = r"sum: it has no argument keepdms=; did you mean keepdims=\?"
    refused(lambda: f(2).sum(keepdms=True), br.ArgumentMismatch, text)


def test_an_unknown_keyword_raises_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'unheard_of'"):
        f(2).sum(unheard_of=1)


@pytest.mark.parametrize("row", RENAMED_KEYWORDS, ids=lambda row: "-".join(row[:2]))
def test_the_equivalents_of_keywords_exist(row: tuple[str, str, str]) -> None:
    typed, here, _ = row
    classes: list[Any] = [burn_remote.RemoteDevice, burn_remote.distributed.Group]
    functions: list[Any] = [*FUNCTIONS.values(), *classes]
    names = [{p.name for p in parameters_of(function)} for function in functions]
    assert any(here in given and typed not in given for given in names)


TOO_MANY: dict[str, Callable[[], object]] = {
    r"write x\.swapaxes\(0, 1\) to exchange two axes": lambda: f(2, 3).transpose(0, 1),
    r"write normal\(\(2, 3\), mean=0.0, std=1.0\)": lambda: br.random.normal(2, 3, device=DEVICE),
    r"write uniform\(\(2, 3\), low=0.0": lambda: br.random.uniform(2, 3, device=DEVICE),
    "by position, but 3 arguments are given; by keyword: dtype=, keepdims=": lambda: f(2).sum(
        0, True
    ),
}


@pytest.mark.parametrize("text", TOO_MANY)
def test_surplus_positional_arguments_give_the_correct_call(text: str) -> None:
    refused(TOO_MANY[text], br.ArgumentMismatch, text)


@pytest.mark.parametrize("name", POSITIONAL)
def test_functions_with_a_correct_call_exist(name: str) -> None:
    functions = {qualified.rpartition(".")[2] for qualified in FUNCTIONS}
    assert name in {*functions, "RemoteDevice.__init__"}


def with_arrays(function: Callable[..., object]) -> list[object]:
    """Return the required arguments of a function, with arrays in place of tensors."""
    values = {"str": "name", "AnyDType": "float32", "Iterable[Tensor]": [np.ones((3, 3))]}
    return [
        values.get(p.annotation, np.ones((3, 3)) if "Tensor" in p.annotation else 1)
        for p in parameters_of(function)
        if p.default is p.empty and p.kind is not p.KEYWORD_ONLY
    ]


# These may return their argument unchanged; custom has a test below.
UNTOUCHED: Final = {f"burn_remote.{name}" for name in ("clip", "custom", "moveaxis", "positive")}
# These take dtypes as well, and refuse an array as something that is no dtype.
OF_DTYPES: Final = {f"burn_remote.{name}" for name in ("can_cast", "finfo", "iinfo", "result_type")}
OF_TENSORS: Final = [
    name
    for name, function in FUNCTIONS.items()
    if any("Tensor" in parameter.annotation for parameter in parameters_of(function))
    and name not in UNTOUCHED | OF_DTYPES
]


@pytest.mark.parametrize("name", OF_TENSORS)
def test_every_function_refuses_an_array_where_a_tensor_belongs(name: str) -> None:
    function = FUNCTIONS[name]
    refused(lambda: function(*with_arrays(function)), br.ArgumentMismatch, "ndarray")


OF_AN_AXIS: Final = [
    name
    for name, function in FUNCTIONS.items()
    if any(parameter.name == "axis" for parameter in parameters_of(function))
]


@pytest.mark.parametrize("name", OF_AN_AXIS)
def test_every_function_with_an_axis_accepts_dim_unless_pytorch_returns_something_else(
    name: str,
) -> None:
    if name.removeprefix("burn_remote.") in AMBIGUOUS:
        refused(lambda: FUNCTIONS[name](f(2), dim=0), br.ArgumentMismatch, "in PyTorch")
    else:
        assert outcome(FUNCTIONS[name], dim=0) == outcome(FUNCTIONS[name], axis=0)


def test_every_ambiguous_name_is_that_of_a_function_with_an_axis() -> None:
    assert {f"burn_remote.{name}" for name in AMBIGUOUS} <= set(OF_AN_AXIS)


def outcome(function: Callable[..., Any], **options: int) -> object:
    """Return the shape of a result, or the type of what the call raises."""
    try:
        result = function(f(2), **options)
    except (br.BurnRemoteError, TypeError) as error:
        return type(error)
    return [one.shape for one in result] if isinstance(result, list | tuple) else result.shape


ACCEPTED: Final[dict[str, Callable[[], Any]]] = {
    "axis": lambda: F.softmax(f(2, 3), axis=0),
    "keepdim": lambda: f(2, 3, 1).sum(-1, keepdim=True)[..., 0],
    "positional-only": lambda: f(2, 3).gather(
        dim=0, index=br.zeros((2, 3), dtype=br.int64, device=DEVICE)
    ),
    "size": lambda: br.zeros(size=(2, 3), device=DEVICE),
    "sizes": lambda: br.zeros(2, 3, device=DEVICE),
    "axes": lambda: f(3, 2).permute_dims(1, 0),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_calls_in_the_form_of_other_libraries_are_accepted(name: str) -> None:
    assert ACCEPTED[name]().shape == (2, 3)


def test_a_keyword_in_two_forms_is_refused() -> None:
    with pytest.raises(TypeError):
        f(2, 3).sum(axis=0, dim=0)


NO_TENSORS: dict[str, Callable[[], object]] = {
    r"read: tensors\[1\] is of type int, not a tensor": lambda: br.read([f(2), 1]),
    r"concat: tensors\[1\] is of type float": lambda: br.concat([f(2), 1.0]),
    "x2 is of type list": lambda: f(2) @ [1, 2],
    "linear: weight is of type numpy.ndarray": lambda: F.linear(f(2), np.ones((3, 2))),
    r"custom: inputs\[1\] is of type numpy.ndarray": lambda: br.custom(
        "name", f(2), np.ones(2), outputs=br.TensorSpec((2,), br.float32)
    ),
    "expected a tensor or a number, not tuple": lambda: f(2) * (1, 2),
}


class Foreign:
    """A tensor of another library, whose class has the name of ours."""

    def __array__(self, dtype: object = None, *, copy: bool | None = None) -> np.ndarray:
        return np.ones(2, np.float32)


Foreign.__module__, Foreign.__qualname__, Foreign.__name__ = "torch", "Tensor", "Tensor"


@pytest.mark.parametrize(
    "call",
    [
        lambda: f(2) + Foreign(),
        lambda: Foreign() + f(2),
        lambda: f(2) * Foreign(),
        lambda: f(2, 2) @ Foreign(),
        lambda: f(2)[Foreign()],
        lambda: F.relu(Foreign()),
        lambda: br.where(Foreign(), f(2), f(2)),
    ],
)
def test_a_tensor_of_another_library_is_named_with_its_library(call: Callable[[], object]) -> None:
    with pytest.raises(br.UsageError, match=r"torch\.Tensor.*; burn_remote\.tensor\(data, device="):
        call()


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "int64", "bool"])
def test_a_dtype_of_another_library_gets_ours(name: str) -> None:
    class Dtype:
        def __repr__(self) -> str:
            return f"torch.{name}"

    with pytest.raises(br.DTypeMismatch, match=rf"; write burn_remote\.{name}\n"):
        f(2).astype(Dtype())
    with pytest.raises(br.DTypeMismatch, match=r"uint8, bool\n"):
        f(2).astype("flaot32")


@pytest.mark.parametrize("text", NO_TENSORS)
def test_the_argument_that_is_not_a_tensor_is_named(text: str) -> None:
    refused(NO_TENSORS[text], br.ArgumentMismatch, text)


@pytest.mark.parametrize(
    ("value", "is_data"),
    [
        ([1.0], True),
        (2.0, True),
        (np.ones(2), True),
        ({"a": 1}, False),
        ("a", False),
        (None, False),
    ],
)
def test_only_for_data_an_error_advises_to_make_a_tensor(value: Any, is_data: bool) -> None:
    with pytest.raises(br.ArgumentMismatch, match="is of type") as caught:
        br.concat([value])
    assert ("makes a tensor of it" in str(caught.value)) == is_data


def test_other_errors_are_not_changed() -> None:
    refused(lambda: f(2, 3).sum(axis=2), br.ShapeMismatch, "axis 2")
    refused(lambda: f(2) & f(2), br.DTypeMismatch, "float32")
    refused(lambda: br.tensordot(f(2), f(2)), br.ShapeMismatch, "do not have 2 axes to contract")


MANY: Final[list[Callable[[list[Any]], object]]] = [
    list,
    tuple,
    iter,
    lambda tensors: dict(enumerate(tensors)).values(),
]


@pytest.mark.parametrize("form", MANY)
def test_incompatible_tensors_in_any_iterable_are_named(
    form: Callable[[list[Any]], Any],
) -> None:
    tensors = [f(2).astype(br.uint64), f(2).astype(br.int64)]
    refused(
        lambda: br.concat(form(tensors)),
        br.DTypeMismatch,
        r"uint64 and int64 have no common dtype; convert one with x\.astype\(dtype\)",
    )


@pytest.mark.parametrize("join", [br.concat, br.stack])
@pytest.mark.parametrize("form", MANY)
def test_an_element_of_any_iterable_that_is_not_a_tensor_is_named(
    form: Callable[[list[Any]], Any], join: Callable[[Any], object]
) -> None:
    refused(lambda: join(form([f(2), 1])), br.ArgumentMismatch, r"tensors\[1\] is of type int, not")
    refused(lambda: join({"a": f(2)}), br.ArgumentMismatch, r"tensors\[0\] is of type str")


@pytest.mark.parametrize("form", MANY)
def test_an_invalid_axis_is_named_for_any_iterable_of_tensors(
    form: Callable[[list[Any]], Any],
) -> None:
    refused(
        lambda: br.concat(form([f(2)]), axis="a"), br.ArgumentMismatch, "an axis must be an integer"
    )


def test_dtypes_and_devices_may_be_keywords() -> None:
    x = f(2)
    assert x.astype(dtype=br.float16).dtype is br.float16
    assert x.to(device=DEVICE) is x


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda x, y: F.mse_loss(x, y.sum()), "mse_loss(input, target, reduction)"),
        (lambda x, y: F.linear(x, y), "linear(input, weight, bias)"),
        (lambda x, y: br.stack([x, y]), "stack(tensors, axis)"),
    ],
)
def test_an_error_of_an_operation_names_the_function_that_the_program_called(
    call: Callable[[br.Tensor, br.Tensor], object], named: str
) -> None:
    device = RecordingDevice()
    x = br.ones((2, 2), dtype=br.uint64, device=device)
    y = br.ones((2, 2), dtype=br.int64, device=device)
    with pytest.raises(br.DTypeMismatch) as caught:
        call(x, y)
    assert caught.value.__notes__ == [f"raised by the call of {named}"]
    assert str(caught.value).count("convert") == 1
