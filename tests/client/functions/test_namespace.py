"""``burn_remote`` as an array namespace: dtype information, inspection, copies and exchange."""

from __future__ import annotations

import array_api_strict as strict
import numpy as np
import pytest

import burn_remote as br
from burn_remote.functions import namespace_information

NUMERIC = [
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64",
]  # fmt: skip
KINDS = [
    "bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating",
    "numeric",
]  # fmt: skip


def test_tensors_name_the_package_as_their_namespace(device: br.Device) -> None:
    x = br.ones((2,), device=device)
    assert x.__array_namespace__() is br
    assert x.__array_namespace__(api_version="2024.12") is br
    with pytest.raises(br.UsageError, match=r"2021.12, .*2024.12, not '2030.12'"):
        x.__array_namespace__(api_version="2030.12")


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_limits_of_floats_are_numpys(name: str) -> None:
    ours, theirs = br.finfo(getattr(br, name)), np.finfo(name)
    for limit in ("bits", "eps", "max", "min", "smallest_normal"):
        assert getattr(ours, limit) == float(getattr(theirs, limit))
    assert ours.dtype is getattr(br, name)


def test_limits_of_bfloat16_are_known(device: br.Device) -> None:
    ours = br.finfo(br.ones((1,), dtype=br.bfloat16, device=device))
    assert (ours.bits, ours.dtype) == (16, br.bfloat16)
    assert ours.eps == 2.0**-7


@pytest.mark.parametrize("name", NUMERIC[:8])
def test_limits_of_integers_are_numpys(name: str) -> None:
    ours, theirs = br.iinfo(name), np.iinfo(name)
    assert (ours.bits, ours.max, ours.min) == (theirs.bits, theirs.max, theirs.min)


def test_limits_of_complex_numbers_are_those_of_their_parts() -> None:
    assert br.finfo(br.complex64) == br.finfo(br.float32)
    assert br.finfo(br.complex128) == br.finfo(br.float64)


def test_limits_of_the_wrong_kind_are_refused() -> None:
    with pytest.raises(br.DTypeMismatch, match="for int8, use iinfo"):
        br.finfo(br.int8)
    with pytest.raises(br.DTypeMismatch, match="for float32, use finfo"):
        br.iinfo(br.float32)


def test_no_function_is_suggested_for_the_limits_of_bools() -> None:
    with pytest.raises(br.DTypeMismatch, match=r"floating-point dtypes, not bool$"):
        br.finfo(br.bool)
    with pytest.raises(br.DTypeMismatch, match=r"integer dtypes, not bool$"):
        br.iinfo(br.bool)


@pytest.mark.parametrize("name", ["bool", *NUMERIC, "complex64", "complex128"])
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_dtypes_are_the_standards(name: str, kind: str) -> None:
    assert br.isdtype(getattr(br, name), kind) == strict.isdtype(getattr(strict, name), kind)


def test_a_kind_may_be_a_dtype_or_one_of_several() -> None:
    assert br.isdtype(br.int8, (br.float32, "integral"))
    assert not br.isdtype(br.int8, (br.float32, br.int16))
    with pytest.raises(br.UsageError, match="not 'floating'"):
        br.isdtype(br.int8, "floating")


@pytest.mark.parametrize("source", ["bool", *NUMERIC])
@pytest.mark.parametrize("target", ["bool", *NUMERIC])
def test_casts_that_lose_nothing_are_numpys(source: str, target: str) -> None:
    assert br.can_cast(getattr(br, source), getattr(br, target)) == np.can_cast(source, target)


@pytest.mark.parametrize("first", ["bool", *NUMERIC])
@pytest.mark.parametrize("second", ["bool", *NUMERIC])
def test_result_types_are_the_standards_where_it_defines_them(first: str, second: str) -> None:
    try:
        theirs = strict.result_type(getattr(strict, first), getattr(strict, second))
    except TypeError:
        return
    assert br.result_type(getattr(br, first), getattr(br, second)) == theirs._np_dtype


@pytest.mark.parametrize(
    "operands, common",
    [
        ((br.int64, br.float32), br.float32),
        ((br.bool, br.uint8), br.uint8),
        ((br.float16, br.bfloat16), br.float32),
        ((br.float64, br.bfloat16), br.float64),
        ((br.uint8, 1), br.uint8),
        ((br.int64, 0.5), br.float32),
        ((br.bool, 1), br.int64),
        ((br.bool, 1.0), br.float32),
        ((br.float16, 2), br.float16),
        ((1, br.int8, br.uint8), br.int16),
    ],
)
def test_result_types_beyond_the_standard(operands: tuple[object, ...], common: br.DType) -> None:
    assert br.result_type(*operands) is common  # type: ignore[arg-type]


def test_dtypes_without_a_common_one_are_refused() -> None:
    with pytest.raises(br.DTypeMismatch, match=r"int64 and uint64 have no common dtype; convert"):
        br.result_type(br.int64, br.uint64)
    with pytest.raises(br.ArgumentMismatch, match="beside Python numbers"):
        br.result_type(1, 2.0)


def test_the_inspection_gives_devices_and_dtypes(
    device: br.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = br.__array_namespace_info__()
    monkeypatch.setattr(namespace_information, "default_device", lambda: device)
    assert info.default_device() is device
    assert info.devices() == [device]
    assert info.default_dtypes()["real floating"] is br.float32
    assert info.default_dtypes(device=device)["indexing"] is br.int64
    assert set(info.dtypes(kind="unsigned integer")) == {"uint8", "uint16", "uint32", "uint64"}
    assert info.dtypes(kind=("bool", "real floating"))["float64"] is br.float64
    assert {*NUMERIC, "complex64", "complex128"} < set(info.dtypes())
    assert info.default_dtypes()["complex floating"] is br.complex64
    assert info.capabilities()["boolean indexing"]
    assert info.capabilities()["max dimensions"] == 32


def test_constants_are_those_of_mathematics() -> None:
    assert (br.e, br.inf, br.pi, br.newaxis) == (np.e, np.inf, np.pi, None)
    assert np.isnan(br.nan)


@pytest.mark.parametrize("name", ["bool", "float16", "bfloat16", *NUMERIC])
def test_dtypes_convert_to_numpys(name: str) -> None:
    assert np.dtype(getattr(br, name)) == np.dtype(name)


def test_quantized_dtypes_do_not_convert_to_numpys() -> None:
    scheme = br.QuantScheme("Q8S", "F32", "Native", None, "Symmetric")
    with pytest.raises(br.DTypeMismatch, match="NumPy has no dtype"):
        np.dtype(br.DType.quantized(scheme))


def test_copies_are_other_objects_with_the_same_elements(device: br.Device) -> None:
    x = br.ones((2,), device=device)
    for copied in (x.astype(br.float32), br.asarray(x, copy=True), br.from_dlpack(x)):
        assert copied is not x
        assert copied.handle is x.handle
    for same in (x.astype(br.float32, copy=False), br.asarray(x), br.asarray(x, copy=False)):
        assert same is x


def test_impossible_promises_not_to_copy_are_refused(device: br.Device) -> None:
    x = br.ones((2,), device=device)
    with pytest.raises(ValueError, match=r"float32\[2\] would be converted or moved"):
        br.asarray(x, dtype=br.int8, copy=False)
    with pytest.raises(ValueError, match="must be sent to the device"):
        br.asarray([1, 2], device=device, copy=False)
    with pytest.raises(ValueError, match="copied to the device"):
        br.from_dlpack(np.ones(2), device=device, copy=False)
    with pytest.raises(BufferError, match="copied from the server"):
        np.from_dlpack(x, copy=False)


def test_lists_of_tensors_are_stacked_without_reading_them() -> None:
    with br.LocalDevice() as device:
        x = br.tensor([1.0, 2.0], device=device)
        requests = device.traffic.requests
        made = br.asarray([[x[0], x[1]], [3.0, x[0]]])
        assert device.traffic.requests == requests
        assert made.numpy().tolist() == [[1.0, 2.0], [3.0, 1.0]]


@pytest.mark.parametrize("name", ["bool", "float16", *NUMERIC])
def test_dlpack_exchanges_elements_in_both_directions(name: str) -> None:
    elements = np.array([[0, 1, 2], [3, 4, 5]]).astype(name)
    with br.LocalDevice() as device:
        x = br.from_dlpack(elements, device=device)
        assert x.dtype == name
        assert x.__dlpack_device__() == (1, 0)
        back = np.from_dlpack(x)
        assert back.dtype == elements.dtype
        assert np.array_equal(back, elements)


def test_dlpack_refuses_other_memory_and_other_objects(device: br.Device) -> None:
    x = br.ones((2,), device=device)
    with pytest.raises(BufferError, match=r"not \(2, 0\)"):
        x.__dlpack__(dl_device=(2, 0))
    with pytest.raises(br.ArgumentMismatch, match="list has no __dlpack__"):
        br.from_dlpack([1.0], device=device)
