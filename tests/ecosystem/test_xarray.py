"""xarray: arrays with names of axes, over tensors on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import burn_remote as br

pytestmark = pytest.mark.ecosystem

DATA = np.random.default_rng(0).normal(size=(4, 6))
DATA[1, 2] = np.nan

CALLS: dict[str, Callable[[Any], Any]] = {
    "sum of an axis": lambda a: a.sum("time"),
    "mean": lambda a: a.mean(),
    "mean, skipping NaN": lambda a: a.mean("place", skipna=True),
    "std": lambda a: a.std("time"),
    "var": lambda a: a.var("time"),
    "max": lambda a: a.max("place"),
    "min": lambda a: a.min("place"),
    "prod": lambda a: a.prod("place"),
    "any": lambda a: (a > 0).any("time"),
    "all": lambda a: (a > -9).all("time"),
    "count": lambda a: a.count("time"),
    "arithmetic": lambda a: (a * 2 + 1) / (a * a + 1),
    "with another": lambda a: a - a.mean("time"),
    "where": lambda a: a.where(a > 0, 0.0),
    "isel": lambda a: a.isel(time=1),
    "isel, slice": lambda a: a.isel(time=slice(1, 3), place=[0, 2]),
    "sel": lambda a: a.sel(place=3),
    "transpose": lambda a: a.transpose("place", "time"),
    "stack": lambda a: a.stack(both=("time", "place")),
    "concat": lambda a: _xarray().concat([a, a], "time"),
    "broadcast": lambda a: a + a.isel(time=0, drop=True),
    "roll": lambda a: a.roll(place=2),
    "expand_dims": lambda a: a.expand_dims("run"),
    "squeeze": lambda a: a.isel(time=[0]).squeeze(),
    "astype": lambda a: a.astype("float32"),
    "clip": lambda a: a.clip(-0.5, 0.5),
    "exp": lambda a: np.exp(a),
    "dot": lambda a: _xarray().dot(a, a, dim="place"),
    "cumsum": lambda a: a.cumsum("time"),
    "diff": lambda a: a.diff("time"),
    "fillna": lambda a: a.fillna(0.0),
    "isnull": lambda a: a.isnull(),
    "abs": lambda a: abs(a),
    "round": lambda a: a.round(),
    "argmax": lambda a: a.argmax("place", skipna=False),
    "notnull": lambda a: a.notnull(),
    "coarsen": lambda a: a.coarsen(place=2).mean(),
    "groupby": lambda a: a.groupby("half").mean(),
    "apply_ufunc": lambda a: _xarray().apply_ufunc(lambda x: x * x, a),
}


def _xarray() -> Any:
    import xarray

    return xarray


@pytest.mark.parametrize("name", CALLS)
def test_xarray_computes_on_the_device_what_it_computes_with_numpy(
    name: str, box: br.Device
) -> None:
    expected = CALLS[name](labelled(DATA))
    result = CALLS[name](labelled(br.tensor(DATA, device=box)))
    assert isinstance(result.data, br.Tensor)
    assert result.dims == expected.dims
    np.testing.assert_allclose(result.data.numpy(), expected.data, rtol=1e-12, atol=1e-15)


def labelled(data: Any) -> Any:
    """Return data of 4 times and 6 places."""
    coordinates = {"place": np.arange(6), "half": ("place", [0, 0, 0, 1, 1, 1])}
    return _xarray().DataArray(data, dims=("time", "place"), coords=coordinates)
