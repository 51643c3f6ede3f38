"""Quantized tensors on real sockets: Burn's bytes, invalid bytes, and quotas."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest

import burn_remote as br
from burn_remote_protocol.dtypes import F32, DType
from burn_remote_protocol.errors import OperationFailed, ProtocolViolation
from burn_remote_protocol.messages import Upload
from burn_remote_protocol.operations.wire_values import decode_tensor_data
from burn_remote_protocol.tensors import TensorData, TensorSpec
from support.burn_sockets import BurnSockets
from support.kernels import signature
from support.recorded import golden
from support.servers import RunningServer, server

GOLDEN = {
    line.name.removeprefix("TensorData/QFloat/"): decode_tensor_data(line.tuples)
    for line in golden("TensorData")
    if "QFloat" in line.name
}


def parts(data: TensorData) -> tuple[list[int], list[float]]:
    """Return the integers and scales of a golden vector, which has one byte per value."""
    count = math.prod(data.shape)
    scales = (len(data.bytes) - count) // 4
    values, rest = bytes(data.bytes[:count]), bytes(data.bytes[count:])
    return list(struct.unpack(f"<{count}b", values)), list(struct.unpack(f"<{scales}f", rest))


def stored_by_hand(data: TensorData) -> bytes:
    """Return the bytes that a server stores for a golden vector; packed values take 4 or 2 bits."""
    scheme = data.dtype.scheme
    assert scheme is not None
    bits = int(scheme.value[1])
    if scheme.store == "Native" or bits == 8:
        return bytes(data.bytes)
    values, scales = parts(data)
    whole = sum((value & ((1 << bits) - 1)) << place * bits for place, value in enumerate(values))
    return whole.to_bytes(len(values) * bits // 8, "little") + struct.pack(
        f"<{len(scales)}f", *scales
    )


def numbers_by_hand(data: TensorData) -> list[np.float32]:
    """Return the numbers of a golden vector; its blocks are consecutive elements."""
    values, scales = parts(data)
    run = len(values) // len(scales)
    return [
        np.float32(value) * np.float32(scales[place // run]) for place, value in enumerate(values)
    ]


def test_golden_vectors_cover_every_value_and_level() -> None:
    seen = {(name.split("/")[0], name.split("/")[2]) for name in GOLDEN}
    values = ("Q8S", "Q8F", "Q4S", "Q4F", "Q2S", "Q2F")
    assert seen == {(value, level) for value in values for level in ("Tensor", "Block16")}


@pytest.mark.parametrize("name", GOLDEN)
def test_burns_bytes_survive_a_round_trip(device: br.Device, name: str) -> None:
    data = GOLDEN[name]
    tensor = br.Tensor(device.client.register_tensor_data(data))
    back = device.client.read_tensor_async(tensor.handle).result()
    assert back.spec == data.spec
    assert bytes(back.bytes) == stored_by_hand(data)
    assert br.read_quantized(tensor).values.reshape(-1).tolist() == parts(data)[0]
    assert tensor.dequantize().numpy().reshape(-1).tolist() == numbers_by_hand(data)


@pytest.mark.parametrize("name", GOLDEN)
def test_quantization_for_burns_client_works_where_burns_server_panics(
    first_server: RunningServer, name: str
) -> None:
    data = GOLDEN[name]
    numbers = TensorSpec(data.shape, F32)
    with BurnSockets(first_server.address) as sockets:
        sockets.say(Upload(1, data))
        answer = sockets.read(1, data.spec)
        assert (bytes(answer.bytes), answer.dtype) == (stored_by_hand(data), data.dtype)
        sockets.execute(signature("Float.Dequantize", data.spec, out=numbers), 1, 2)
        there = sockets.array(2, numbers)
        assert there.reshape(-1).tolist() == numbers_by_hand(data)

        scales = parts(data)[1]
        sockets.upload(3, np.array(scales, np.float32), F32)
        quantize = signature(
            "Float.Quantize", numbers, TensorSpec((len(scales),), F32), scheme=data.dtype.scheme
        )
        sockets.execute(quantize, 2, 3, 4)
        again = sockets.read(4, data.spec)
        assert bytes(again.bytes) == stored_by_hand(data)


@pytest.mark.parametrize("count", [6, 3_000_000], ids=["message", "chunks"])
@pytest.mark.parametrize("excess", [-1, 7])
def test_a_wrong_length_is_refused_with_both_lengths_and_other_sessions_continue(
    first_server: RunningServer, count: int, excess: int
) -> None:
    dtype = DType.quantized(br.quant_scheme("Q4S"))
    packed = -(-count // 8) * 4 + 4
    data = TensorData(bytes(count + 4 + excess), (count,), dtype)
    told = rf"QFloat\(Q4S\).*{packed:,}.* {count + 4 + excess:,}"
    either = rf"{packed:,}.*QFloat\(Q4S\).* {count + 4 + excess:,}"
    with br.RemoteDevice(first_server.address) as good:
        kept = br.ones((2,), device=good)
        bad = br.RemoteDevice(first_server.address, dialect="native")
        with pytest.raises(ProtocolViolation, match=f"{told}|{either}"):
            handle = bad.runners.register_tensor_data(data)
            bad.runners.read_tensor_async(handle).result()
        with BurnSockets(first_server.address) as sockets:
            sockets.say(Upload(1, data))
            answer = sockets.read(1, data.spec)
            assert isinstance(answer, OperationFailed)
            assert f"{packed:,}" in answer.reason
            assert f"{count + 4 + excess:,}" in answer.reason
        assert kept.tolist() == [1, 1]


def test_quotas_count_the_bytes_of_quantized_tensors() -> None:
    scheme = br.quant_scheme("Q4S")
    with (
        server("--max-session-bytes", "1000") as running,
        br.RemoteDevice(running.address) as device,
    ):
        values = np.ones(1984, np.int8)
        fits = br.quantized_tensor(values, 1.0, scheme, device=device)  # 992 and 4
        device.sync()
        with pytest.raises(br.QuotaExceeded, match=r"tensor bytes: 7,936 .* 1,000 are allowed"):
            fits.dequantize().numpy()
        with pytest.raises(br.QuotaExceeded, match=r"session bytes: 1,016 .* 1,000 are allowed"):
            br.read_quantized(
                br.quantized_tensor(np.ones(16, np.int8), 1.0, br.quant_scheme(), device=device)
            )
        assert br.read_quantized(fits).values.tolist() == values.tolist()
        del fits
        device.sync()  # the batch that this sends frees dropped tensors
        again = br.quantized_tensor(values, 2.0, scheme, device=device)
        assert br.read_quantized(again).scales == 2


@pytest.mark.parametrize("count", [3000, 3_000_000], ids=["message", "chunks"])
def test_a_quantized_tensor_over_the_quota_is_refused_by_every_way_of_creation(count: int) -> None:
    values = np.ones(count, np.int8)
    with (
        server() as free,
        server("--max-tensor-bytes", "2000") as bounded,
        br.RemoteDevice(free.address) as source,
        br.RemoteDevice(bounded.address) as device,
    ):
        elsewhere = br.quantized_tensor(values, 1.0, br.quant_scheme(), device=source)
        told = rf"tensor bytes: {count + 4:,} .* 2,000 are allowed"
        for refused in (
            br.quantized_tensor(values, 1.0, br.quant_scheme(), device=device),
            elsewhere.to(device),
        ):
            with pytest.raises(br.QuotaExceeded, match=told):
                br.read_quantized(refused)
        small = br.quantized_tensor(values[:3000], 1.0, br.quant_scheme("Q4S"), device=device)
        assert br.read_quantized(small).values.tolist() == [1] * 3000


def test_a_value_outside_its_range_is_accepted_unchanged(device: br.Device) -> None:
    # Q8S starts at -127, but Burn decodes any byte.
    data = TensorData(
        struct.pack("<3bf", -128, 127, 0, 0.5), (3,), DType.quantized(br.quant_scheme())
    )
    tensor = br.Tensor(device.client.register_tensor_data(data))
    assert tensor.dequantize().tolist() == [-64, 63.5, 0]


def test_nan_scales_survive_a_round_trip_bit_for_bit(device: br.Device) -> None:
    bits = struct.pack("<2b2I", 1, -1, 0x7FC00123, 0xFF800000)
    data = TensorData(bits, (2,), DType.quantized(br.quant_scheme(block=1)))
    tensor = br.Tensor(device.client.register_tensor_data(data))
    assert bytes(device.client.read_tensor_async(tensor.handle).result().bytes) == bits
    number, infinity = tensor.dequantize().tolist()
    assert math.isnan(number)
    assert infinity == math.inf
