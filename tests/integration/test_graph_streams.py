"""Streams of compiled calls survive cuts and interrupts; each call runs exactly once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import burn_remote as br
from support.faults import bytes_to_open, faulty_proxy, random_cuts
from support.servers import RunningServer, server


def counted(device: br.Device, calls: int = 1500) -> list[bytes]:
    """Count calls and add random numbers: another result if a call is lost or repeated."""

    @br.compile
    def step(count: br.Tensor, noise: br.Tensor, rate: float) -> tuple[br.Tensor, br.Tensor]:
        drawn = br.random.normal((8,), device=device)
        return count + 1, noise * 0.5 + drawn * rate

    device.seed(7)
    count, noise = device.tensor([0.0]), device.tensor(np.zeros(8, np.float32))
    for call in range(calls):
        count, noise = step(count, noise, 1 + call % 3)
        if call % 50 == 0:
            assert count.item() == call + 1
    assert count.item() == calls
    return [count.numpy().tobytes(), noise.numpy().tobytes()]


def test_a_stream_of_graphs_through_cuts_runs_each_once(first_server: RunningServer) -> None:
    with br.RemoteDevice(first_server.address) as device:
        undisturbed = counted(device)
    with (
        faulty_proxy(
            first_server.port,
            random_cuts(30, 100, 2_500, after_bytes=bytes_to_open(first_server.port)),
        ) as proxy,
        br.RemoteDevice(proxy.address) as device,
    ):
        assert counted(device) == undisturbed
        assert proxy.cuts >= 5


def test_a_killed_server_ends_compiled_calls_with_an_error_and_a_new_one_continues() -> None:
    fast = br.compile(lambda x, n: (x * n).sum() + x)
    with server() as running:
        device = br.RemoteDevice(running.address, connect_timeout_seconds=2)
        x = device.tensor([1.0, 2.0])
        assert fast(x, 2.0).tolist() == [7, 8]
        running.process.kill()
        running.process.wait()
        with pytest.raises(br.ConnectionLost):
            for _ in range(10_000):
                fast(x, 3.0).numpy()
    with server() as running, br.RemoteDevice(running.address) as device:
        x = device.tensor([1.0, 2.0])
        for number in (2.0, 3.0):
            assert fast(x, number).tolist() == [1 + 3 * number, 2 + 3 * number]


def test_an_interrupt_in_a_local_graph_fails_only_its_outputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with br.LocalDevice() as device:
        fast = br.compile(lambda x, n: (x * n, x + n))
        x = device.tensor([1.0, 2.0])
        fast(x, 2.0)
        device.sync()
        runner: Any = device.session._connection._link._interpreter._graphs
        run, is_interrupted = runner.run, [True]

        def interrupted(*arguments: Any) -> None:
            run(*arguments)
            if is_interrupted and is_interrupted.pop():
                runner._tensors.forget(arguments[1][1])  # between two outputs
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), monkeypatch.context() as patch:
            patch.setattr(type(device.session), "flush_waiting", lambda session: None)
            patch.setattr(runner, "run", interrupted)
            stopped = fast(x, 3.0)
            after = fast(x, 4.0)
            x.numpy()
        for tensor in stopped:
            with pytest.raises(br.OperationFailed, match="interrupted"):
                tensor.numpy()
        assert [tensor.tolist() for tensor in after] == [[4, 8], [5, 6]]
        assert fast(x, 5.0)[0].tolist() == [5, 10]
