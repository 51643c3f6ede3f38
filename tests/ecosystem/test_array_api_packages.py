"""array-api-compat and array-api-extra, through which libraries use the standard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import burn_remote as br

pytestmark = pytest.mark.ecosystem

_random = np.random.default_rng(0)
A = _random.normal(size=(4, 5))
V = np.asarray([3.0, 1.0, 2.0, 1.0, 3.0])
SQUARE = _random.normal(size=(4, 4))
WHOLE = np.asarray([3, 1, 2, 1, 3])

EXTRA: dict[str, Callable[[Any, Any, Callable[[Any], Any]], Any]] = {
    "apply_where": lambda e, xp, to: e.apply_where(
        to(A) > 0, to(A), lambda x: xp.sqrt(x), fill_value=0.0
    ),
    "apply_where, two functions": lambda e, xp, to: e.apply_where(
        to(A) > 0, (to(A), to(A)), lambda x, y: x + y, lambda x, y: x - 2 * y
    ),
    "at, set": lambda e, xp, to: e.at(to(V))[1:3].set(9.0),
    "at, add": lambda e, xp, to: e.at(to(V), 0).add(2.0),
    "at, multiply by a mask": lambda e, xp, to: e.at(to(V), to(V) > 2).multiply(2.0),
    "at, divide": lambda e, xp, to: e.at(to(V))[::2].divide(2.0),
    "at, min and max": lambda e, xp, to: e.at(e.at(to(V))[:2].min(2.0))[2:].max(2.0),
    "atleast_nd": lambda e, xp, to: e.atleast_nd(to(V), ndim=3),
    "cov": lambda e, xp, to: e.cov(to(A)),
    "create_diagonal": lambda e, xp, to: e.create_diagonal(to(V), offset=1),
    "isclose": lambda e, xp, to: e.isclose(to(V), to(V + 1e-9)),
    "kron": lambda e, xp, to: e.kron(to(A), to(SQUARE)),
    "nunique": lambda e, xp, to: e.nunique(to(V)),
    "one_hot": lambda e, xp, to: e.one_hot(to(WHOLE), 5),
    "pad": lambda e, xp, to: e.pad(to(A), 2, constant_values=1.0),
    "partition": lambda e, xp, to: xp.sort(e.partition(to(V), 2)[:3]),
    "argpartition": lambda e, xp, to: xp.sort(to(V)[e.argpartition(to(V), 2)[:3]]),
    "setdiff1d": lambda e, xp, to: e.setdiff1d(to(V), to(np.asarray([1.0]))),
    "sinc": lambda e, xp, to: e.sinc(to(V)),
    "isin": lambda e, xp, to: e.isin(to(V), to(np.asarray([1.0, 2.0]))),
    "union1d": lambda e, xp, to: e.union1d(to(V), to(V + 1)),
    "median": lambda e, xp, to: e.median(to(A), axis=0),
    "quantile": lambda e, xp, to: e.quantile(to(V), 0.3),
    "searchsorted": lambda e, xp, to: e.searchsorted(xp.sort(to(V)), to(np.asarray([1.5, 3.0]))),
    "angle": lambda e, xp, to: e.angle(to(A + 1j)),
    "nan_to_num": lambda e, xp, to: e.nan_to_num(xp.log(to(A))),
    "default_dtype": lambda e, xp, to: e.default_dtype(xp) and to(V),
}


@pytest.mark.parametrize("name", EXTRA)
def test_array_api_extra_computes_on_the_device_what_it_computes_with_numpy(
    name: str, box: br.Device
) -> None:
    import array_api_extra

    if name.partition(",")[0] not in array_api_extra.__all__:
        pytest.skip(f"array-api-extra {array_api_extra.__version__} has no {name}")
    with np.errstate(all="ignore"):
        expected = EXTRA[name](array_api_extra, np, np.array)
    result = EXTRA[name](array_api_extra, br, lambda array: br.tensor(array, device=box))
    assert isinstance(result, br.Tensor)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-12)


def test_array_api_compat_finds_the_namespace_the_device_and_the_size(box: br.Device) -> None:
    import array_api_compat as compat

    x = br.tensor(A, device=box)
    assert compat.is_array_api_obj(x)
    assert not compat.is_numpy_array(x)
    assert compat.array_namespace(x, x) is br
    assert compat.device(x) == box
    assert compat.size(x) == 20
    assert compat.is_writeable_array(x)
    assert not compat.is_lazy_array(x)
    local = compat.to_device(x, br.device("local"))
    np.testing.assert_array_equal(local.numpy(), A)


def test_array_api_compat_refuses_a_mixture_of_libraries(box: br.Device) -> None:
    import array_api_compat as compat

    with pytest.raises(TypeError, match="Multiple namespaces"):
        compat.array_namespace(br.tensor(A, device=box), A)
