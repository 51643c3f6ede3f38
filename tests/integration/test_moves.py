"""Moves between devices; between servers they bypass the client."""

from __future__ import annotations

import contextlib
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import burn_remote as br
from support.faults import faulty_proxy
from support.faulty_network import Fault, faulty_network
from support.ports import reserved_port
from support.servers import UNFORKED, RunningServer, server
from support.waiting import PATIENCE_SECONDS

Pair = tuple[br.RemoteDevice, br.RemoteDevice]


def test_a_moved_tensor_has_the_same_elements(remote_pair: Pair) -> None:
    a, b = remote_pair
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    moved = (br.tensor(array, device=a) * 2).to(b)
    assert moved.device == b
    np.testing.assert_array_equal((moved + 1).numpy(), array * 2 + 1)


def test_a_move_takes_a_few_hundred_bytes_of_client_traffic(remote_pair: Pair) -> None:
    a, b = remote_pair
    tensor = br.ones((1024, 1024), device=a)
    a.sync()
    b.sync()
    before = a.traffic, b.traffic
    moved = tensor.to(b)
    b.sync()
    traffic = [a.traffic - before[0], b.traffic - before[1]]
    assert sum(t.bytes_sent + t.bytes_received for t in traffic) < 1000
    assert float(moved.sum().item()) == 1024 * 1024


def test_a_thousand_concurrent_moves_arrive(remote_pair: Pair) -> None:
    a, b = remote_pair
    there = [br.full((4,), i, dtype=br.float32, device=a).to(b) for i in range(500)]
    back = [br.full((4,), i, dtype=br.float32, device=b).to(a) for i in range(500)]
    for tensors in (there, back):
        for i, array in enumerate(br.read(tensors)):
            np.testing.assert_array_equal(array, np.full(4, i, np.float32))


def test_sessions_that_wait_for_each_other_do_not_deadlock(remote_pair: Pair) -> None:
    a, b = remote_pair
    x, y = br.ones((8, 8), device=a), br.ones((8, 8), device=b)
    for _ in range(50):
        x, y = x + y.to(a), y + x.to(b)
    expected = 2.0**50
    assert x.numpy()[0, 0] == pytest.approx(expected)
    assert y.numpy()[0, 0] == pytest.approx(expected)


def test_concurrent_moves_in_both_directions_do_not_deadlock(remote_pair: Pair) -> None:
    together = threading.Barrier(4)

    def swap(first: br.Device, second: br.Device) -> list[float]:
        x = br.ones((8,), device=first)
        together.wait(PATIENCE_SECONDS)
        for _ in range(100):
            x = ((x.to(second) + 1).to(first)) + 1
        return [float(element) for element in x.numpy()]

    a, b = remote_pair
    with ThreadPoolExecutor(4) as pool:
        swaps = [pool.submit(swap, *pair) for pair in 2 * [(a, b), (b, a)]]
        assert [done.result(4 * PATIENCE_SECONDS) for done in swaps] == 4 * [8 * [201]]


@pytest.mark.parametrize("dialect", ["native", "burn-0.21"])
def test_a_moved_tensor_survives_the_immediate_close_of_its_source(
    dialect: str, first_server: RunningServer, second_server: RunningServer
) -> None:
    with br.RemoteDevice(second_server.address, dialect=dialect) as target:
        source = br.RemoteDevice(first_server.address, dialect=dialect)
        moved = br.ones((1000,), device=source).to(target)
        source.close()
        assert moved.sum().item() == 1000


@pytest.mark.parametrize("dialect", ["native", "burn-0.21"])
def test_closing_a_source_does_not_raise_failures_of_the_target(
    dialect: str, first_server: RunningServer, second_server: RunningServer
) -> None:
    with br.RemoteDevice(second_server.address, dialect=dialect) as target:
        source = br.RemoteDevice(first_server.address, dialect=dialect)
        moved = br.ones((4,), device=source).to(target)
        failed = moved.take(br.tensor(np.array([9]), device=target), axis=0)
        source.close()
        with pytest.raises(br.OperationFailed, match="index 9"):
            target.sync()
        del failed


def test_a_tensor_moves_between_devices_of_one_server() -> None:
    with (
        server("--device-count", "2") as running,
        br.RemoteDevice(running.address) as first,
        br.RemoteDevice(f"{running.address}/1") as second,
    ):
        moved = br.arange(10, device=first).to(second)
        assert moved.tolist() == list(range(10))


@pytest.mark.parametrize("nbytes", [4, 20_000, 3_000_001])
def test_moves_between_local_and_remote_devices_keep_the_elements(
    first_server: RunningServer, nbytes: int
) -> None:
    array = np.random.default_rng(0).integers(0, 255, nbytes, dtype=np.uint8)
    with br.RemoteDevice(first_server.address) as remote, br.LocalDevice() as local:
        up = br.tensor(array, device=local).to(remote)
        down = up.to(local)
        np.testing.assert_array_equal(up.numpy(), array)
        np.testing.assert_array_equal(down.numpy(), array)
        with br.LocalDevice() as other:
            np.testing.assert_array_equal(down.to(other).numpy(), array)


def test_a_large_tensor_is_uploaded_moved_and_read_without_extra_memory() -> None:
    array = np.arange(2**25, dtype=np.float64)  # 256 MiB
    with (
        server(module=UNFORKED) as first,
        server(module=UNFORKED) as second,
        br.RemoteDevice(first.address) as a,
        br.RemoteDevice(second.address) as b,
    ):
        before = first.peak_bytes, second.peak_bytes
        tensor = br.tensor(array, device=a)
        a.sync()
        assert first.peak_bytes - before[0] < 1.15 * array.nbytes
        moved = tensor.to(b)
        del tensor
        np.testing.assert_array_equal(moved.numpy(), array)
        assert second.peak_bytes - before[1] < 1.15 * array.nbytes


def test_moving_a_failed_tensor_delivers_its_failure(remote_pair: Pair) -> None:
    a, b = remote_pair
    failed = br.arange(4, device=a).take(br.tensor([99], device=a), axis=0)
    with pytest.raises(br.OperationFailed, match=r"Base\.Select"):
        failed.to(b).numpy()
    with pytest.raises(br.OperationFailed, match=r"Base\.Select"):
        a.sync()  # nobody has read it there


# An operation that takes several times the timeout of a fetch, and no processor time.
SLOW = """
import time
from burn_remote_server.custom import custom_operation

@custom_operation("slowly_doubled", inputs={"x": "any"}, shapes=lambda x: x)
def slowly_doubled(xp, x):
    time.sleep(2.5)
    return 2 * x
"""


@pytest.mark.parametrize("is_within_a_server", [False, True])
def test_a_fetch_waits_while_its_source_still_computes(
    is_within_a_server: bool, tmp_path: Path
) -> None:
    (tmp_path / "slow_operation.py").write_text(SLOW)
    search = ":".join([*sys.path, str(tmp_path)])
    flags = ("--fetch-timeout-seconds", "1", "--device-count", "2")
    with contextlib.ExitStack() as stack:
        first, second = (
            stack.enter_context(
                server(*flags, "--custom-operations", "slow_operation", PYTHONPATH=search)
            )
            for _ in range(2)
        )
        target = f"{first.address}/1" if is_within_a_server else second.address
        a = stack.enter_context(br.RemoteDevice(first.address))
        b = stack.enter_context(br.RemoteDevice(target))
        x = br.ones((1000, 1000), device=a)
        slow = br.custom("slowly_doubled", x, outputs=x.handle.spec)
        np.testing.assert_array_equal(slow.to(b).numpy(), np.full((1000, 1000), 2, np.float32))


def test_a_fetch_of_what_nobody_exposes_fails_although_others_work() -> None:
    with (
        server("--fetch-timeout-seconds", "0.1") as running,
        br.RemoteDevice(running.address) as a,
        br.RemoteDevice(running.address, dialect="burn-0.21") as b,
    ):
        spec = br.TensorSpec((4,), br.float32)
        tensors = [
            br.Tensor(each.client.fetch(id_, a.session.peer_address, spec))
            for each, id_ in ((a, b"x" * 32), (b, 2**61))
        ]
        for tensor in tensors:
            with pytest.raises(br.OperationFailed):
                tensor.numpy()


def test_a_move_from_a_dead_server_fails_with_its_address() -> None:
    with server() as source, server() as target:
        a, b = br.RemoteDevice(source.address), br.RemoteDevice(target.address)
        with a, b:
            tensor = br.ones((4,), device=a)
            a.sync()
            source.kill()
            with pytest.raises((br.OperationFailed, br.ConnectionLost)):
                tensor.to(b).numpy()


def test_a_move_resumes_where_its_connection_broke() -> None:
    size = 6_000_000
    cuts = iter([2_500_000, 2_500_000, 600_000])
    with contextlib.ExitStack() as stack:
        # The source advertises the proxy's address, so the target connects through the proxy.
        port = stack.enter_context(reserved_port())
        proxy = stack.enter_context(faulty_proxy(port, lambda: next(cuts, None)))
        flags = ("--port", str(port), "--advertise-address", proxy.address)
        source = stack.enter_context(server(*flags))
        target = stack.enter_context(server())
        a = stack.enter_context(br.RemoteDevice(source.address))
        b = stack.enter_context(br.RemoteDevice(target.address))
        array = np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)
        moved = br.tensor(array, device=a).to(b)
        np.testing.assert_array_equal(moved.numpy(), array)
        assert proxy.cuts == 3
        # A transfer restarted from the beginning would be cut again after 2.5 MB and never end.
        np.testing.assert_array_equal((br.tensor(array[:9], device=a).to(b)).numpy(), array[:9])


# The handshake has about 700 bytes, then the request and the reply about 50 each. The last place is
# in the chunk of the elements.
@pytest.mark.parametrize("place", [*range(250, 850, 50), *range(850, 900, 7), 3000])
def test_a_move_survives_a_flipped_bit_anywhere(place: int) -> None:
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        fault = Fault("flip", place, place % 8)
        network = stack.enter_context(faulty_network(port, [fault]))
        flags = ("--port", str(port), "--advertise-address", network.address)
        source = stack.enter_context(server(*flags, "--fetch-timeout-seconds", "3"))
        target = stack.enter_context(server("--fetch-timeout-seconds", "3"))
        a = stack.enter_context(br.RemoteDevice(source.address))
        b = stack.enter_context(br.RemoteDevice(target.address))
        array = np.arange(5000, dtype=np.float32)
        np.testing.assert_array_equal(br.tensor(array, device=a).to(b).numpy(), array)
        assert network.faults["flip"] == 1


# The first place is in the request for the WebSocket, the others in the handshake of the servers.
@pytest.mark.parametrize("place", [1, 300, 500])
def test_a_move_survives_a_connection_that_falls_silent_while_it_opens(place: int) -> None:
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        network = stack.enter_context(faulty_network(port, [Fault("silence", place)]))
        flags = ("--port", str(port), "--advertise-address", network.address)
        source = stack.enter_context(server(*flags))
        target = stack.enter_context(server("--handshake-timeout-seconds", "2"))
        a = stack.enter_context(br.RemoteDevice(source.address))
        b = stack.enter_context(br.RemoteDevice(target.address))
        assert br.ones((4,), device=a).to(b).tolist() == [1] * 4
        assert network.faults["silence"] == 1


def test_a_move_whose_connections_all_break_fails() -> None:
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        proxy = stack.enter_context(faulty_proxy(port, lambda: 2000))
        flags = ("--port", str(port), "--advertise-address", proxy.address)
        source = stack.enter_context(server(*flags))
        target = stack.enter_context(server("--fetch-timeout-seconds", "2"))
        a = stack.enter_context(br.RemoteDevice(source.address))
        b = stack.enter_context(br.RemoteDevice(target.address))
        moved = br.ones((1_000_000,), device=a).to(b)
        with pytest.raises(br.TransferFailed, match=proxy.address.removeprefix("ws://")):
            moved.numpy()
        assert br.ones((2,), device=b).tolist() == [1, 1]
