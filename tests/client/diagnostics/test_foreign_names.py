"""Error messages for names of other libraries give our equivalent."""

from __future__ import annotations

import ast
import importlib
import operator
import os
import re
from typing import Any

import numpy as np
import pytest

import burn_remote
from burn_remote import (
    aio,
    distributed,
    functional,
    gradients,
    init,
    linalg,
    nn,
    optim,
    random,
    tree,
)
from burn_remote.diagnostics.foreign_names import (
    DEVICE_ATTRIBUTES,
    DISTRIBUTED,
    FUNCTIONS,
    GROUP_ATTRIBUTES,
    METHODS,
    NAMESPACES,
    NUMPY_FUNCTIONS,
    OPTIM,
    TREE,
)
from support.runners import RecordingDevice


@pytest.mark.parametrize("name", NUMPY_FUNCTIONS)
def test_the_names_of_numpy_exist_there(name: str) -> None:
    assert any(hasattr(module, name) for module in (np, np.linalg, np.fft, np.random))


@pytest.mark.parametrize("module", [burn_remote, functional, linalg, random])
def test_a_foreign_function_name_gives_our_equivalent(module: object) -> None:
    with pytest.raises(
        AttributeError, match=r"'concatenate'; in burn_remote: burn_remote\.concat\(\[x, y\]\)"
    ):
        getattr(module, "concatenate")  # noqa: B009
    with pytest.raises(
        AttributeError, match=r"'cumsum'; in burn_remote: x\.cumulative_sum\(axis=…\)"
    ):
        getattr(module, "cumsum")  # noqa: B009
    with pytest.raises(
        AttributeError, match=r"'tree_map'; in burn_remote: burn_remote\.tree\.map\("
    ):
        getattr(module, "tree_map")  # noqa: B009
    with pytest.raises(AttributeError, match=r"no attribute 'unheard_of'$"):
        getattr(module, "unheard_of")  # noqa: B009


@pytest.mark.parametrize(
    ("module", "typed", "text"),
    [
        (burn_remote, "argmx", r"did you mean 'argmax'\?$"),
        (burn_remote, "sofmax", r"'softmax'\? In burn_remote: burn_remote\.functional\.softmax"),
        (random, "norml", r"did you mean 'normal'\?$"),
        (functional, "rleu", r"did you mean 'relu'\?$"),
        (init, "kaiming_normals", r"did you mean 'kaiming_normal'\?$"),
        (aio, "opn_device", r"did you mean 'open_device'\?$"),
        (optim.schedules, "cosin", r"did you mean 'cosine'\?$"),
        (gradients, "conv_x_bakward", r"did you mean 'conv_x_backward'\?$"),
        (nn, "Linear", r"'linear'\? In burn_remote: burn_remote\.functional\.linear"),
    ],
)
def test_a_misspelled_function_gives_the_similar_name(
    module: object, typed: str, text: str
) -> None:
    with pytest.raises(AttributeError, match=text):
        getattr(module, typed)


@pytest.mark.parametrize(
    ("module", "typed", "written"),
    [
        (burn_remote, "max_pool2d", "burn_remote.functional.max_pool2d"),
        (burn_remote, "svd", "burn_remote.linalg.svd"),
        (burn_remote, "normal", "burn_remote.random.normal"),
        (burn_remote, "Adam", "burn_remote.optim.Adam"),
        (burn_remote, "Group", "burn_remote.distributed.Group"),
        (burn_remote, "leaves", "burn_remote.tree.leaves"),
        (functional, "sum", "burn_remote.sum"),
        (aio, "zeros", "burn_remote.zeros"),
        (distributed, "DataParallel", "burn_remote.DataParallel"),
    ],
)
def test_a_function_of_another_module_of_the_package_is_named(
    module: object, typed: str, written: str
) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(module, typed)
    assert str(raised.value).endswith(f" has no attribute {typed!r}; in burn_remote: {written}")


@pytest.mark.parametrize(
    ("module", "typed", "written"),
    [
        *((tree, typed, written) for typed, written in TREE.items()),
        *((optim, typed, written) for typed, written in OPTIM.items()),
    ],
)
def test_a_name_with_another_meaning_here_is_explained(
    module: object, typed: str, written: str
) -> None:
    with pytest.raises(AttributeError, match=rf"in burn_remote: {re.escape(written)}$"):
        getattr(module, typed)


@pytest.mark.parametrize("typed", ["sync", "wait", "close", "shutdown", "flush"])
def test_a_name_like_that_of_another_library_does_not_suggest_an_unrelated_function(
    typed: str,
) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(burn_remote, typed)
    assert "did you mean" not in str(raised.value)


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("average", "mean"),
        ("cholesky_solve", "linalg.solve"),
        ("clip_by_global_norm", "grads, norm ="),
        ("lstm_cell", "a loop over the steps"),
        ("scan", "a loop over the steps"),
        ("inner", "vecdot"),
        ("nan_to_num", "where"),
        ("norm", "vector_norm"),
        ("poisson", "numpy"),
        ("set_default_dtype", "dtype="),
    ],
)
def test_functions_of_numpy_and_pytorch_give_our_equivalent(typed: str, text: str) -> None:
    with pytest.raises(AttributeError, match=rf"'{typed}'; in burn_remote: .*{text}"):
        getattr(random if typed == "poisson" else burn_remote, typed)


@pytest.mark.parametrize(
    ("typed", "arrays"),
    [
        ("convolve", (np.array([1.0, 2.0, 4.0, 7.0]), np.array([1.0, -2.0, 5.0]))),
        ("fft.fft2", (np.arange(24.0).reshape(2, 3, 4) ** 2,)),
        ("fft.ifft2", (np.arange(24.0).reshape(2, 3, 4) ** 2,)),
        ("fft.rfft2", (np.arange(24.0).reshape(2, 3, 4) ** 2,)),
        ("flatnonzero", (np.array([[0, 3], [1, 0]]),)),
    ],
)
def test_the_equivalents_of_functions_of_arrays_compute_what_numpy_does(
    typed: str, arrays: tuple[np.ndarray, ...]
) -> None:
    expected = operator.attrgetter(typed)(np)(*arrays)
    with burn_remote.LocalDevice() as device:
        tensors = zip("xy", map(device.tensor, arrays), strict=False)
        names = {"burn_remote": burn_remote, **dict(tensors)}
        found = eval(FUNCTIONS[typed.rpartition(".")[2]], names)
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


def test_the_equivalent_of_digitize_computes_what_numpy_does() -> None:
    x, bins = np.array([-1.0, 0.0, 0.5, 1.0, 3.0]), np.array([0.0, 1.0, 2.0])
    with burn_remote.LocalDevice() as device:
        names = {"burn_remote": burn_remote, "x": device.tensor(x), "bins": device.tensor(bins)}
        found = eval(FUNCTIONS["digitize"], names)
        np.testing.assert_array_equal(found.numpy(), np.digitize(x, bins))


@pytest.mark.parametrize(
    ("typed", "written"),
    [
        ("logical_and", "burn_remote.logical_and(x, …)"),
        ("kron", "burn_remote.kron(x, …)"),
        ("nansum", "burn_remote.nansum(x, …)"),
        ("slogdet", "burn_remote.linalg.slogdet(x)"),
        ("selu", "burn_remote.functional.selu(x)"),
        ("arctan2", "burn_remote.atan2(x, y)"),
        ("nan_to_num", "burn_remote.where(burn_remote.isnan(x), 0, x)"),
        ("scatter_add", "x.scatter(axis, indices, value, update='add')"),
        ("unsqueeze_", "x = x.unsqueeze(…)"),
        ("tanh_", "x = x.tanh()"),
        ("logical_not_", "x = burn_remote.logical_not(x)"),
        ("arcsin_", "x = burn_remote.asin(x)"),
        ("cumsum_", "x = x.cumulative_sum(axis=…)"),
    ],
)
def test_a_method_that_is_a_function_here_or_has_an_in_place_form_gives_our_form(
    typed: str, written: str
) -> None:
    x = burn_remote.ones(2, device=RecordingDevice())
    with pytest.raises(AttributeError, match=rf"; in burn_remote: {re.escape(written)}$"):
        getattr(x, typed)


@pytest.mark.parametrize(
    ("module", "typed", "written"),
    [
        (burn_remote, "clone", "x.clone()"),
        (burn_remote, "detach", "x.detach()"),
        (burn_remote, "masked_fill", "x.masked_fill(…)"),
        (burn_remote, "sin_", "x = x.sin()"),
        (burn_remote, "scatter_add", "x.scatter(axis, indices, value, update='add')"),
        (functional, "leaky_relu_", "x = x.leaky_relu(…)"),
        (functional, "threshold_", "x = burn_remote.functional.threshold(x, …)"),
    ],
)
def test_a_function_that_is_a_method_here_or_has_an_in_place_form_gives_our_form(
    module: object, typed: str, written: str
) -> None:
    with pytest.raises(AttributeError, match=rf"; in burn_remote: {re.escape(written)}$"):
        getattr(module, typed)


def test_a_method_like_a_function_that_takes_no_tensor_first_gives_no_call_of_it() -> None:
    x = burn_remote.ones(2, device=RecordingDevice())
    for typed in ("linspace", "zeros", "Adam", "mro"):
        with pytest.raises(AttributeError) as raised:
            getattr(x, typed)
        assert "in burn_remote" not in str(raised.value)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("addcdiv", [7.0, 8.0, 10.0]),
        ("addcmul", [7.0, 26.0, 100.0]),
        ("addmv", [22.0, 23.0, 25.0]),
        ("addr", [[2.0, 4.0, 8.0], [3.0, 6.0, 12.0], [5.0, 10.0, 20.0]]),
        ("aminmax", [1.0, 4.0]),
        ("bucketize", [1, 2, 3]),
        ("cartesian_prod", [[a, b] for a in (1.0, 2.0, 4.0) for b in (1.0, 2.0, 4.0)]),
        ("cdist", [[0.0, 1.0, 3.0], [1.0, 0.0, 2.0], [3.0, 2.0, 0.0]]),
        ("dist", 0.0),
        ("erfc", [0.15729920705, 0.00467773498, 0.0000000154]),
        ("fix", [1, 2, 4]),
        ("fmax", [1.0, 2.0, 4.0]),
        ("frac", [0.0, 0.0, 0.0]),
        ("ger", [[1.0, 2.0, 4.0], [2.0, 4.0, 8.0], [4.0, 8.0, 16.0]]),
        ("hamming_window", [0.08, 0.54, 1.0, 0.54]),
        ("hann_window", [0.0, 0.5, 1.0, 0.5]),
        ("hanning", [0.0, 0.75, 0.75, 0.0]),
        ("index_add", [7.0, 2.0, 4.0]),
        ("index_copy", [6.0, 2.0, 4.0]),
        ("iscomplexobj", False),
        ("is_floating_point", True),
        ("is_tensor", True),
        ("logit", [-0.40546511, 0.0, 0.40546511]),
        ("msort", [1.0, 2.0, 4.0]),
        ("rint", [1.0, 2.0, 4.0]),
        ("scatter_reduce", [6.0, 2.0, 4.0]),
        ("segment_sum", [5.0, 2.0, 0.0, 0.0]),
        ("sgn", [1.0, 1.0, 1.0]),
        ("take_along_dim", [1.0, 1.0, 2.0]),
        ("trapz", 4.5),
        ("xlogy", [0.0, 1.38629436, 5.54517744]),
    ],
)
def test_the_equivalents_of_functions_compute_what_the_libraries_do(
    typed: str, expected: Any
) -> None:
    written = FUNCTIONS[typed].replace("axis=…", "axis=0").replace("…", "")
    with burn_remote.LocalDevice() as device:
        burn_remote.set_default_device(device)
        try:
            names: dict[str, Any] = {
                "burn_remote": burn_remote, "numpy": np, "axis": 0, "count": 4,
            }  # fmt: skip
            names["x"] = names["y"] = names["z"] = device.tensor([1.0, 2.0, 4.0], dtype="float64")
            if typed == "cdist":
                names["x"] = names["y"] = names["x"][:, None]
            if typed == "logit":
                names["x"] = device.tensor([0.4, 0.5, 0.6], dtype="float64")
            if typed == "fmax":
                names["x"] = device.tensor([np.nan, 2.0, 4.0], dtype="float64")
            names["boundaries"] = device.tensor([0.5, 1.5, 3.0], dtype="float64")
            names["indices"] = device.tensor([0, 0, 1] if "axis=0" in written else [0])
            names["values"] = names["value"] = device.tensor([6.0], dtype="float64")
            if typed == "segment_sum":
                names["x"] = device.tensor([1.0, 4.0, 2.0])
                names["indices"] = device.tensor([0, 0, 1])
            found = eval(written, names)
            if isinstance(found, tuple):
                found = burn_remote.stack(found)
            np.testing.assert_allclose(np.asarray(found), expected, atol=1e-8)
        finally:
            burn_remote.set_default_device(None)


@pytest.mark.parametrize(
    ("typed", "text"),
    [("device_put", "tensor"), ("device_get", "read"), ("put", "tensor"), ("synchronize", "sync")],
)
def test_names_for_moves_and_waits_give_our_equivalent(typed: str, text: str) -> None:
    with pytest.raises(AttributeError, match=rf"'{typed}'; in burn_remote: .*\b{text}\("):
        getattr(burn_remote, typed)


@pytest.mark.parametrize(("typed", "written"), DISTRIBUTED.items())
def test_the_equivalents_of_collectives_exist(typed: str, written: str) -> None:
    assert typed not in burn_remote.distributed.__all__
    for name in re.findall(r"\bgroup\.(\w+)", written):
        assert hasattr(burn_remote.distributed.Group, name) or name == "devices"
    for name in re.findall(r"\bburn_remote\.distributed\.(\w+)", written):
        assert name in burn_remote.distributed.__all__


@pytest.mark.parametrize(("typed", "written"), GROUP_ATTRIBUTES.items())
def test_the_equivalents_of_attributes_of_groups_exist(typed: str, written: str) -> None:
    assert not hasattr(burn_remote.distributed.Group, typed)
    for name in re.findall(r"\bgroup\.(\w+)", written):
        assert hasattr(burn_remote.distributed.Group, name) or name == "devices"


@pytest.mark.parametrize(("typed", "written"), FUNCTIONS.items())
def test_the_equivalents_of_functions_exist(typed: str, written: str) -> None:
    assert typed not in burn_remote.__all__
    for path in re.findall(r"(?<!import )\bburn_remote((?:\.[a-zA-Z]\w*)+)", written):
        found: object = burn_remote
        for name in path.split(".")[1:]:
            found = getattr(found, name)
    for name in re.findall(r"\bx\.(\w+)", written):
        assert hasattr(burn_remote.Tensor, name)


def test_a_foreign_attribute_of_a_device_gives_our_equivalent() -> None:
    device: object = RecordingDevice()
    with pytest.raises(
        AttributeError, match=r"'zeros'; in burn_remote: burn_remote\.zeros\(shape, device="
    ):
        getattr(device, "zeros")  # noqa: B009
    with pytest.raises(AttributeError, match=r"did you mean 'seed'\?$"):
        getattr(device, "sed")  # noqa: B009
    with pytest.raises(AttributeError, match=r"no attribute 'unheard_of'$"):
        getattr(device, "unheard_of")  # noqa: B009


@pytest.mark.parametrize(("typed", "written"), DEVICE_ATTRIBUTES.items())
def test_the_equivalents_of_device_attributes_exist(typed: str, written: str) -> None:
    assert not hasattr(burn_remote.RemoteDevice, typed)
    for path in re.findall(r"\bburn_remote((?:\.[a-zA-Z]\w*)+)", written):
        found: object = burn_remote
        for name in path.split(".")[1:]:
            found = getattr(found, name)
    for name in re.findall(r"\bdevice\.(\w+)", written):
        assert hasattr(burn_remote.RemoteDevice, name)


@pytest.mark.parametrize("name", NAMESPACES)
def test_the_namespaces_of_torch_nn_give_ours(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"in burn_remote: burn_remote\.{name}$"):
        getattr(nn, name)
    assert importlib.import_module(f"burn_remote.{name}") is getattr(burn_remote, name)


def test_submodules_remain_importable() -> None:
    assert (
        importlib.import_module("burn_remote.functions.device_class").Device is burn_remote.Device
    )
    with pytest.raises(ImportError, match="unheard_of"):
        exec("from burn_remote import unheard_of")


def programs(written: str) -> list[str]:
    """Return the statements that an equivalent consists of, if it is written as code."""
    code = written.replace("axis=…", "axis=0").replace("max=…", "max=2").replace("min=…", "min=1")
    found = [part.split(" with ", 1) for part in code.split(", for a parameter ")]
    try:
        return [ast.unparse(ast.parse("\n".join(reversed(parts)))) for parts in found]
    except SyntaxError:
        return []


# For vectors, then for matrices of numbers, and for integers: each equivalent has to compute for
# one of them.
FORMS: tuple[np.ndarray, ...] = (
    np.array([1.0, 2.0, 3.0], "float32"),
    np.array([[1.0, 2.0], [0.0, 1.0]], "float32"),
    np.array([0, 1, 1]),
)


@pytest.mark.parametrize(
    ("typed", "program"),
    [(typed, program) for typed, written in METHODS.items() for program in programs(written)],
)
def test_the_equivalents_of_methods_compute(typed: str, program: str) -> None:
    assert typed not in vars(burn_remote.Tensor)
    failures: list[Exception] = []
    for array in FORMS:
        with burn_remote.LocalDevice() as device:
            x = device.tensor(array)
            y = x.clone()
            if program.startswith("x.data = ") and x.dtype.is_floating:
                x.requires_grad_()
            names = {
                "burn_remote": burn_remote, "numpy": np, "device": device, "dtype": "float64",
                "x": x, "y": y, "z": y, "mask": y > 1, "condition": y > 1, "shape": y.shape,
                "value": y if ".scatter(" in program else 2.0, "values": y[:1], "data": [1, 2],
                "indices": y.astype(burn_remote.int64) % 2, "file": os.devnull, "bins": 3,
                "axis": 0, "place": 0, "start": 0, "end": 1, "n": len(array), "q": 0.5, "low": 0,
                "high": 1, "count": 1, "share": 0.5, "index": 0, "p": 0.5,
            }  # fmt: skip
            try:
                exec(program, names)
                device.sync()
                return
            except Exception as error:
                failures.append(error)
    raise failures[0]
