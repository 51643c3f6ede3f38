"""Sessions of Burn 0.22 on a real server: handshake, failures, aliases, graphs, local transfers."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

import burn_remote as br
from burn_remote_protocol.errors import ConnectionLost
from burn_remote_server.execution.registered_graphs import CALLS_ONE_BY_ONE
from support.servers import RunningServer, server
from support.socket_replay_0_22 import STREAM, Socket22

TOKEN = "0b5e8d1f7c3a4962b8d0e6f4a2c19375"
TESTS = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    with server("--device-count", "2", "--max-session-bytes", "64MiB") as started:
        yield started


Dial = Callable[..., Socket22]


@pytest.fixture
def dial() -> Iterator[Dial]:
    """Return a function that opens a session, or only a socket; the fixture closes them."""
    with contextlib.ExitStack() as stack:

        def opened(address: str, *arguments: Any, **options: Any) -> Socket22:
            socket = Socket22.opened(address, *arguments, **options)
            stack.callback(socket.close)
            return socket

        yield opened


@pytest.fixture
def bare(running: RunningServer) -> Iterator[Socket22]:
    """Return a socket on which nothing was sent."""
    with contextlib.closing(Socket22(running.address)) as socket:
        yield socket


@pytest.fixture
def opened(running: RunningServer, dial: Dial) -> Socket22:
    return dial(running.address)


def tensor(identifier: int, dims: Any = (2,), status: str = "ReadOnly", dtype: Any = "F32") -> Any:
    return [[identifier], [[*dims]], status, dtype]


def uploaded(socket: Socket22, identifier: int, values: Any) -> None:
    data = np.asarray(values, np.float32)
    socket.task("RegisterTensor", [STREAM, [identifier], [data.tobytes(), [*data.shape], "F32"]])


def added(left: Any, right: Any, out: Any) -> Any:
    return {"NumericFloat": ["F32", {"Add": [left, right, out]}]}


def missing(out: int) -> Any:
    return {"Custom": ["nope", [], [tensor(out, [2], "NotInit")], []]}


def scaled(x: Any, out: Any) -> Any:
    return {"NumericFloat": ["F32", {"MulScalar": [x, {"UInt": 0}, out]}]}


def floats(outcome: Any) -> list[float]:
    return list(np.frombuffer(outcome["Ok"][0], np.float32))


def reason(outcome: Any) -> str:
    (text,) = outcome["Err"]["Generic"]
    return str(text)


# -- handshake --------------------------------------------------------------------------------


def test_a_session_opens_with_the_settings_of_a_device(running: RunningServer, dial: Dial) -> None:
    assert dial(running.address, device=1).opening == {
        "Init": [
            2,
            ["F32", "I32", "Native", [["Q8F", "Native", "Symmetric", None, None], "Inhibit"]],
            2,
            None,
        ]
    }


def test_a_device_that_does_not_exist_is_refused_with_their_number(
    running: RunningServer, dial: Dial
) -> None:
    refused = dial(running.address, device=2)

    assert refused.opening == {"InitRefused": {"NoSuchDevice": [2]}}


@pytest.mark.parametrize("version", [1, 3, 6])
def test_another_version_is_refused_with_ours(bare: Socket22, version: int) -> None:
    bare.send({"Init": [version, [5], 0, b""]})

    assert bare.answer(0) == {"InitRefused": {"IncompatibleProtocol": [2]}}


@pytest.mark.parametrize("frame", [[{"Init": [5]}], [{"Task": {"Seed": 1}}], [], [1, 2]])
def test_a_first_frame_that_is_no_init_is_refused(bare: Socket22, frame: Any) -> None:
    bare.link.send(msgpack.packb(frame))

    assert bare.answer(0) == {"InitRefused": {"IncompatibleProtocol": [2]}}


def test_only_a_known_token_opens_a_session(dial: Dial) -> None:
    with server(BURN_REMOTE_TOKENS=f"alice:{TOKEN}") as private:
        for token in (b"", b"another", b"\xff"):
            refused = dial(private.address, token=token)
            assert refused.opening == {"InitRefused": "Unauthorized"}
        assert "Init" in dial(private.address, token=TOKEN.encode()).opening


def test_native_and_burn_sessions_share_a_port(running: RunningServer, opened: Socket22) -> None:
    with br.RemoteDevice(running.address) as device:
        assert br.ones((2,), device=device).sum().item() == 2
    uploaded(opened, 1, [1, 2])
    assert floats(opened.read(1, [2], 1)) == [1, 2]


def test_a_closed_session_frees_its_tensors_and_its_socket(opened: Socket22) -> None:
    uploaded(opened, 1, [1, 2])

    opened.send({"Close": [5]})

    with pytest.raises(ConnectionLost, match="1000"):
        opened.link.receive(5)


# -- tasks ------------------------------------------------------------------------------------


def test_a_failed_operation_reaches_the_program_and_the_session_lives(opened: Socket22) -> None:
    uploaded(opened, 1, [1, 2])
    uploaded(opened, 2, [1, 2, 3])
    wrong = added(tensor(1), tensor(2, [3]), tensor(3, [2], "NotInit"))
    opened.task("RegisterOperation", [STREAM, wrong])

    assert "cannot be broadcast" in reason(opened.read(3, [2], 1)) or reason(opened.read(3, [2], 2))
    assert floats(opened.read(1, [2], 3)) == [1, 2]


def test_a_failure_that_nobody_reads_is_reported_by_the_next_sync(opened: Socket22) -> None:
    opened.task(
        "RegisterOperation", [STREAM, {"Custom": ["nope", [], [tensor(3, [2], "NotInit")], []]}]
    )
    opened.task("SyncBackend", [7, STREAM])

    assert "no custom operation 'nope'" in reason(opened.answer(7)["SyncBackend"])
    opened.task("SyncBackend", [8, STREAM])
    assert opened.answer(8) == {"SyncBackend": {"Ok": None}}


def test_an_unknown_tensor_fails_its_read_alone(opened: Socket22) -> None:
    assert "99" in reason(opened.read(99, [2], 1))
    opened.task("SyncBackend", [2, STREAM])
    assert "SyncBackend" in opened.answer(2)


def test_after_a_malformed_task_every_request_gets_the_reason(opened: Socket22) -> None:
    opened.task("Nothing", [1])
    opened.task("ProfileStart", [5, STREAM])

    assert "expected a task" in reason(opened.read(1, [2], 1))
    assert opened.answer(5) == {"ProfileStart": {"Ok": None}}
    assert "expected a task" in reason(opened.read(1, [2], 2))


def test_an_alias_outlives_its_source(opened: Socket22) -> None:
    uploaded(opened, 1, [1, 2])
    opened.task("RegisterAlias", [STREAM, [2], [1]])
    opened.task("RegisterOperation", [STREAM, {"Drop": tensor(1, status="ReadWrite")}])

    assert floats(opened.read(2, [2], 1)) == [1, 2]


def test_an_operation_on_an_alias_does_not_change_its_source(opened: Socket22) -> None:
    size = 300_000
    uploaded(opened, 1, np.ones(size))
    opened.task("RegisterAlias", [STREAM, [2], [1]])
    used = added(tensor(2, [size], "ReadWrite"), tensor(1, [size]), tensor(3, [size], "NotInit"))
    opened.task("RegisterOperation", [STREAM, used])

    assert set(floats(opened.read(1, [size], 1))) == {1.0}
    assert set(floats(opened.read(3, [size], 2))) == {2.0}


def test_an_alias_of_a_failed_or_missing_tensor_fails_with_its_reason(opened: Socket22) -> None:
    opened.task(
        "RegisterOperation", [STREAM, {"Custom": ["nope", [], [tensor(3, [2], "NotInit")], []]}]
    )
    opened.task("RegisterAlias", [STREAM, [4], [3]])
    opened.task("RegisterAlias", [STREAM, [5], [99]])

    assert "no custom operation 'nope'" in reason(opened.read(4, [2], 1))
    assert "99" in reason(opened.read(5, [2], 2))


def test_aliases_count_in_the_quota(opened: Socket22) -> None:
    uploaded(opened, 1, np.ones(4_000_000))  # 16 MB of the 64 MiB
    for identifier in range(2, 7):
        opened.task("RegisterAlias", [STREAM, [identifier], [1]])

    assert "67,108,864 are allowed" in reason(opened.read(6, [4_000_000], 1))
    assert floats(opened.read(2, [4_000_000], 2))[0] == 1


# -- graphs -----------------------------------------------------------------------------------

# y = (x + x) * scalar, then a slice of it; dims and slices are places in the lists of a call.
GRAPH = [
    added(tensor(0, [0]), tensor(0, [0], "ReadWrite"), tensor(1, [0], "NotInit")),
    scaled(tensor(1, [0], "ReadWrite"), tensor(2, [0], "NotInit")),
    {"BaseFloat": {"Slice": [tensor(2, [0]), [[0, None, 1]], tensor(3, [1], "NotInit")]}},
]


def bindings(x: int, y: int, part: int, size: int, factor: float, start: int) -> Any:
    tensors = [[[0], [x]], [[2], [y]], [[3], [part]]]
    return [tensors, [size, size - start], [{"Float": factor}], [[start, None, 1]]]


def test_a_graph_gives_the_results_of_its_operations_in_every_call(opened: Socket22) -> None:
    for call in range(CALLS_ONE_BY_ONE + 5):
        size = 4 if call < CALLS_ONE_BY_ONE + 3 else 7
        x, y, part = 10 * call, 10 * call + 1, 10 * call + 2
        values = np.arange(size, dtype=np.float32) + call
        uploaded(opened, x, values)
        values_of_call = bindings(x, y, part, size, call + 0.5, 1)
        if call == 0:
            opened.task("RegisterAndExecuteGraph", [STREAM, 3, GRAPH, values_of_call])
        else:
            opened.task("ExecuteGraph", [STREAM, 3, values_of_call])

        expected = (values + values) * np.float32(call + 0.5)
        assert floats(opened.read(y, [size], 2 * call)) == expected.tolist()
        assert floats(opened.read(part, [size - 1], 2 * call + 1)) == expected[1:].tolist()
        assert "Err" in opened.read(x, [size], 100 + call)  # the call was its last use


def test_later_calls_with_equal_shapes_run_as_one_program(
    running: RunningServer, opened: Socket22
) -> None:
    socket = opened
    before = running.metric("burn_remote_graph_calls_total")
    for call in range(CALLS_ONE_BY_ONE + 3):
        x, y, part = 10 * call, 10 * call + 1, 10 * call + 2
        uploaded(socket, x, [1, 2, 3])
        values = bindings(x, y, part, 3, 2.0, 0)
        if call == 0:
            socket.task("RegisterAndExecuteGraph", [STREAM, 3, GRAPH, values])
        else:
            socket.task("ExecuteGraph", [STREAM, 3, values])
    assert floats(socket.read(y, [3], 1)) == [4, 8, 12]

    assert running.metric("burn_remote_graph_calls_total") - before == 3


def test_a_failure_inside_a_graph_reaches_its_outputs_and_the_session_lives(
    opened: Socket22,
) -> None:
    graph = [added(tensor(0, [0]), tensor(1, [1]), tensor(2, [0], "NotInit"))]
    uploaded(opened, 1, [1, 2])
    uploaded(opened, 2, [1, 2, 3])
    for call in range(CALLS_ONE_BY_ONE + 2):
        values = [[[[0], [1]], [[1], [2]], [[2], [10 + call]]], [2, 3], [], []]
        task = [STREAM, 0, graph, values] if call == 0 else [STREAM, 0, values]
        opened.task("ExecuteGraph" if call else "RegisterAndExecuteGraph", task)
        assert "Err" in opened.read(10 + call, [2], call)
    assert floats(opened.read(1, [2], 99)) == [1, 2]


def test_an_unknown_graph_fails_what_it_would_have_made(opened: Socket22) -> None:
    uploaded(opened, 1, [1, 2])
    opened.task("ExecuteGraph", [STREAM, 9, [[[[0], [1]], [[1], [5]]], [2], [], []]])

    assert "graph 9 is not registered" in reason(opened.read(5, [2], 1))
    assert floats(opened.read(1, [2], 2)) == [1, 2]


def test_graphs_beyond_the_quota_are_refused_and_the_earlier_ones_stay(dial: Dial) -> None:
    with server("--max-session-bytes", "1MiB") as small:
        socket = dial(small.address)
        step = added(tensor(0, [0]), tensor(0, [0]), tensor(1, [0], "NotInit"))
        uploaded(socket, 1, [1, 2])
        values: Any = [[[[0], [1]], [[1], [2]]], [2], [], []]
        socket.task("RegisterAndExecuteGraph", [STREAM, 0, [step], values])
        for graph in range(1, 12):
            long = [
                added(tensor(0, [0]), tensor(0, [0]), tensor(each, [0], "NotInit"))
                for each in range(1, 400 + graph)
            ]
            socket.task("RegisterAndExecuteGraph", [STREAM, graph, long, values])
            assert floats(socket.read(2, [2], graph)) == [2, 4]

        socket.task("ExecuteGraph", [STREAM, 11, [[[[0], [1]], [[1], [3]]], [2], [], []]])
        assert "was not registered" in reason(socket.read(3, [2], 100))
        socket.task("ExecuteGraph", [STREAM, 0, [[[[0], [1]], [[1], [4]]], [2], [], []]])
        assert floats(socket.read(4, [2], 101)) == [2, 4]


# -- transfers --------------------------------------------------------------------------------


def test_a_tensor_moves_between_devices_whoever_comes_first(
    running: RunningServer, dial: Dial
) -> None:
    first, second = (dial(running.address, device) for device in (0, 1))
    uploaded(first, 1, [1, 2])
    first.task("ExposeTensorLocal", [STREAM, tensor(1), 0])
    second.task("RegisterTensorLocal", [STREAM, 0, [2]])
    assert floats(second.read(2, [2], 1)) == [1, 2]

    second.task("RegisterTensorLocal", [STREAM, 1, [3]])
    second.task("SyncBackend", [2, STREAM])
    first.task("ExposeTensorLocal", [STREAM, tensor(1, status="ReadWrite"), 1])
    assert floats(second.read(3, [2], 3)) == [1, 2]
    assert "Err" in first.read(1, [2], 4)


CLIENT = """
import sys
from support.socket_replay_0_22 import STREAM, Socket22
address, value = sys.argv[1], float(sys.argv[2])
import numpy as np
first, second = (Socket22.opened(address, device) for device in (0, 1))
data = np.full(2, value, np.float32).tobytes()
print("open", flush=True)
sys.stdin.readline()
for step in range(20):
    made, moved = 2 * step, 2 * step + 1
    second.task("RegisterTensorLocal", [STREAM, step, [moved]])
    first.task("RegisterTensor", [STREAM, [made], [data, [2], "F32"]])
    first.task("ExposeTensorLocal", [STREAM, [[made], [[2]], "ReadWrite", "F32"], step])
    seen = np.frombuffer(second.read(moved, [2], step)["Ok"][0], np.float32)
    assert (seen == value).all(), (step, seen)
print("right", flush=True)
"""


def test_two_client_processes_that_move_at_once_never_swap_tensors(running: RunningServer) -> None:
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", CLIENT, running.address, str(value)],
            env=os.environ | {"PYTHONPATH": str(TESTS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for value in (1, 2)
    ]
    try:
        for client in clients:
            assert client.stdout is not None
            assert client.stdout.readline() == "open\n"
        for client in clients:
            assert client.stdin is not None
            client.stdin.write("go\n")
            client.stdin.flush()
        for client in clients:
            assert client.stdout is not None
            assert client.stdout.readline() == "right\n"
    finally:
        for client in clients:
            client.kill()
            client.communicate()


def test_a_tensor_moves_between_two_servers(running: RunningServer, dial: Dial) -> None:
    with server() as other:
        first, second = dial(running.address), dial(other.address)
        capability = [*secrets.token_bytes(7), 0, *secrets.token_bytes(24)]  # below 2**63
        here = {"WebSocket": ["ws", "127.0.0.1", running.port]}
        there = {"WebSocket": ["ws", "127.0.0.1", other.port]}
        uploaded(first, 1, [1, 2])
        second.task("RegisterTensorRemote", [STREAM, [capability, here], [5]])
        first.task("ExposeTensorRemote", [STREAM, tensor(1), 1, capability, there])

        assert floats(second.read(5, [2], 1)) == [1, 2]


def test_a_fetch_over_another_transport_fails_with_its_name(opened: Socket22) -> None:
    remote = [[*range(32)], {"Pigeon": ["node"]}]
    opened.task("RegisterTensorRemote", [STREAM, remote, [5]])

    assert "not over 'Pigeon'" in reason(opened.read(5, [2], 1))


def test_a_fetch_over_iroh_needs_a_server_that_listens_there(opened: Socket22) -> None:
    peer = {"Iroh": [[*range(32)], [{"Ip": {"V4": [[127, 0, 0, 1], 9]}}]]}
    opened.task("RegisterTensorRemote", [STREAM, [[*range(32)], peer], [5]])

    assert "start it with --iroh-port" in reason(opened.read(5, [2], 1))


def test_a_frame_that_a_program_repeats_is_answered_each_time(opened: Socket22) -> None:
    uploaded(opened, 1, [1, 2])
    for request in range(12):
        other, out = (1 if request != 8 else 99), 10 + request  # there is no tensor 99
        add = added(tensor(1), tensor(other), tensor(out, status="NotInit"))
        read = [request, STREAM, tensor(out, status="ReadWrite")]
        opened.send({"Task": {"RegisterOperation": [STREAM, add]}}, {"Task": {"ReadTensor": read}})
        answer = opened.answer(request)["ReadTensor"]
        if request == 8:
            assert "99" in reason(answer)
        else:
            assert floats(answer) == [2, 4]
    opened.task("SyncBackend", [50, STREAM])
    assert "SyncBackend" in opened.answer(50)


def test_long_and_short_frames_are_executed_in_the_order_of_their_arrival(
    opened: Socket22,
) -> None:
    # Short frames are taken as soon as they arrive, long ones by the task that receives.
    size = 2**14
    for round_ in range(8):
        uploaded(opened, 1, np.full(size, round_))
        for number in (1, 2, 3):
            x, doubled = tensor(number, [size]), tensor(number + 1, [size], "NotInit")
            opened.task("RegisterOperation", [STREAM, added(x, x, doubled)])
        assert floats(opened.read(4, [size], round_))[-1] == 8 * round_
