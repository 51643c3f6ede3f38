"""Complex tensors and Fourier transforms over every kind of native link, and what refuses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from support.servers import RunningServer

RANDOM = np.random.default_rng(17)
Z = (RANDOM.normal(size=(4, 6)) + 1j * RANDOM.normal(size=(4, 6))).astype(np.complex64)


def test_complex_elements_are_uploaded_computed_and_read(native_device: br.Device) -> None:
    z = br.tensor(Z, device=native_device)

    assert z.dtype is br.complex64
    np.testing.assert_array_equal(z.numpy(), Z)
    np.testing.assert_allclose(
        ((z * z.conj()).real + z.imag).numpy(), abs(Z) ** 2 + Z.imag, rtol=1e-5
    )
    np.testing.assert_allclose((z @ z.mH).numpy(), Z @ Z.conj().T, rtol=1e-5)
    assert br.sum(br.tensor([1j, 2], device=native_device)).item() == 2 + 1j


def test_a_large_complex_tensor_arrives_in_chunks(native_device: br.Device) -> None:
    large = np.arange(300_000) * (1 - 2j)
    np.testing.assert_array_equal(br.tensor(large, device=native_device).numpy(), large)


def test_complex_tensors_move_between_servers(
    first_server: RunningServer, second_server: RunningServer
) -> None:
    with (
        br.RemoteDevice(first_server.address) as source,
        br.RemoteDevice(second_server.address) as target,
    ):
        moved = (br.tensor(Z, device=source) * 2).to(target)
        np.testing.assert_array_equal(moved.numpy(), Z * 2)


def test_transforms_agree_with_numpy_and_keep_the_precision(native_device: br.Device) -> None:
    z, x = br.tensor(Z, device=native_device), br.tensor(Z.real, device=native_device)
    pairs: list[tuple[br.Tensor, Any]] = [
        (br.fft.fft(z), np.fft.fft(Z)),
        (br.fft.ifft(z, n=9, axis=0, norm="ortho"), np.fft.ifft(Z, n=9, axis=0, norm="ortho")),
        (br.fft.fftn(z, s=(3, 8)), np.fft.fftn(Z, s=(3, 8), axes=(0, 1))),
        (br.fft.ifftn(z, axes=(0,)), np.fft.ifftn(Z, axes=(0,))),
        (br.fft.rfft(x, n=5), np.fft.rfft(Z.real, n=5)),
        (br.fft.irfft(z, n=7), np.fft.irfft(Z, n=7)),
        (br.fft.irfft(z), np.fft.irfft(Z)),
        (br.fft.rfftn(x, norm="forward"), np.fft.rfftn(Z.real, norm="forward")),
        (br.fft.irfftn(z), np.fft.irfftn(Z)),
        (br.fft.irfftn(z, s=(4, -1), axes=(0, 1)), np.fft.irfftn(Z)),
        (br.fft.fftn(z, axes=(0, 1, 0)), np.fft.fftn(Z, axes=(0, 1, 0))),
        (br.fft.rfftn(x, (5, 4, 3), (1, -1, 0)), np.fft.rfftn(Z.real, (5, 4, 3), (1, -1, 0))),
        (br.fft.irfftn(z, (5, 4), (1, 1)), np.fft.irfftn(Z, (5, 4), (1, 1))),
        (br.fft.hfft(z, norm="ortho"), np.fft.hfft(Z, norm="ortho")),
        (br.fft.ihfft(x, n=4), np.fft.ihfft(Z.real, n=4)),
        (br.fft.fftshift(z), np.fft.fftshift(Z)),
        (br.fft.ifftshift(z, axes=1), np.fft.ifftshift(Z, axes=1)),
        (br.fft.fftfreq(7, d=0.5, device=native_device), np.fft.fftfreq(7, d=0.5)),
        (br.fft.rfftfreq(8, d=0.1, device=native_device), np.fft.rfftfreq(8, d=0.1)),
    ]
    for found, expected in pairs:
        seen = found.numpy()
        assert seen.shape == expected.shape
        assert seen.dtype.itemsize * (1 + (seen.dtype.kind == "f")) == 8
        np.testing.assert_allclose(seen, expected, rtol=1e-5, atol=1e-5)


REFUSED: dict[str, Callable[[br.Tensor], object]] = {
    "Lower": lambda z: z < z,
    "GreaterElem": lambda z: z > 1,
    "Max": lambda z: z.max(),
    "ArgMax": lambda z: z.argmax(axis=0),
    "Rem": lambda z: z % z,
    "Floor": lambda z: z.floor(),
    "Erf": lambda z: z.erf(),
    "Clamp": lambda z: z.clip(0, 1),
    "real": lambda z: z.astype(br.float32),
    "the update Max": lambda z: z.set(br.tensor([0], device=z.device), 1, update="max"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_complex_numbers_do_not_have_is_refused_by_name_and_not_sent(name: str) -> None:
    with br.LocalDevice() as device:
        z = br.tensor(Z, device=device)
        with pytest.raises(br.DTypeMismatch, match=name):
            REFUSED[name](z)
        np.testing.assert_array_equal(z.numpy(), Z)


UNSUPPORTED: dict[str, Callable[[br.Device], object]] = {
    "upload": lambda device: br.tensor(Z, device=device),
    "zeros": lambda device: br.zeros(3, dtype=br.complex64, device=device),
    "conversion": lambda device: br.ones(3, device=device).astype(br.complex64),
    "number": lambda device: br.ones(3, device=device) * 1j,
    "transform": lambda device: br.fft.fft(br.ones(3, device=device)),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_burns_dialect_refuses_complex_tensors_by_name(
    name: str, first_server: RunningServer
) -> None:
    with br.RemoteDevice(first_server.address, dialect="burn-0.21") as device:
        with pytest.raises(br.Unsupported, match=r"Burn 0\.21"):
            UNSUPPORTED[name](device)
        assert not device.supports_dtype(br.complex64)
        assert (br.ones(2, device=device) + 1).numpy().tolist() == [2, 2]


def test_moving_a_complex_tensor_to_burns_dialect_is_refused(
    first_server: RunningServer, second_server: RunningServer
) -> None:
    with (
        br.RemoteDevice(first_server.address) as source,
        br.RemoteDevice(second_server.address, dialect="burn-0.21") as target,
        pytest.raises(br.BurnRemoteError, match="complex64"),
    ):
        br.tensor(Z, device=source).to(target)


def test_a_compiled_function_of_complex_numbers_gives_the_same_results(
    native_device: br.Device,
) -> None:
    @br.compile
    def filtered(z: br.Tensor, gain: float) -> br.Tensor:
        return br.fft.ifft(br.fft.fft(z) * gain * 1j) + br.exp(z)

    z = br.tensor(Z, device=native_device)
    for gain in (1.0, 2.0, 3.0):
        expected = np.fft.ifft(np.fft.fft(Z) * gain * 1j) + np.exp(Z)
        np.testing.assert_allclose(filtered(z, gain).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_checkpoints_keep_complex64_and_refuse_complex128(
    native_device: br.Device, tmp_path: Path
) -> None:
    path = tmp_path / "z.safetensors"
    br.save_safetensors(path, {"z": br.tensor(Z, device=native_device)})
    np.testing.assert_array_equal(br.load_safetensors(path, device=native_device)["z"].numpy(), Z)
    with pytest.raises(br.BurnRemoteError, match="complex128"):
        br.save_safetensors(path, {"z": br.tensor(Z, dtype=br.complex128, device=native_device)})


def test_a_complex_loss_is_refused_and_its_real_part_is_not(native_device: br.Device) -> None:
    z = br.tensor(Z, device=native_device).requires_grad_()
    loss = (z * z).sum()
    with pytest.raises(br.UsageError, match="complex"):
        loss.backward()
    (z * z).sum().real.backward()
    found: Any = z.grad
    np.testing.assert_allclose(found.numpy(), 2 * Z.conj(), rtol=1e-6)
