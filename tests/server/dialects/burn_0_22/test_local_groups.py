"""All-reduces of Burn 0.22 between sessions of one client, on a real server."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.collectives import Reduction
from burn_remote_protocol.dialects.burn_0_22 import AllReduce
from burn_remote_protocol.dtypes import I32
from burn_remote_protocol.errors import OperationFailed, UsageError
from burn_remote_protocol.messages import Collective, JoinGroup
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.dialects.burn_0_22.local_groups import (
    MAX_GROUPS,
    LocalGroups,
    SessionCollectives,
)
from burn_remote_server.dialects.burn_0_22.local_transfers import (
    ClientIdentity,
    LocalClient,
    LocalClients,
)
from support.servers import RunningServer, server
from support.socket_replay_0_22 import STREAM, Socket22
from support.specs import f32

ADDRESSES = ["ws://here:3000/0", "ws://here:3000/1", "ws://here:3000/2"]
BOTH = [[0, 0], [0, 1]]

# -- which sessions form a group --------------------------------------------------------------


def reduced(*devices: tuple[int, int], output: int = 2, size: int = 2) -> AllReduce:
    return AllReduce(1, output, f32(size), f32(size), Reduction.SUM, devices, is_last=False)


class Sessions:
    """The collectives of sessions on three devices."""

    def __init__(self) -> None:
        self.clients, self.groups = LocalClients(), LocalGroups()

    def open(self, device: int, token: str = "alice") -> SessionCollectives:
        self.client = self.clients.join(ClientIdentity(token, "10.0.0.1"), device)
        return SessionCollectives(self.groups, self.client, ADDRESSES)

    def end(self, client: LocalClient) -> None:
        self.clients.leave(client)
        self.groups.leave(client)


@pytest.fixture
def sessions() -> Sessions:
    return Sessions()


def joined(collectives: SessionCollectives, task: AllReduce) -> JoinGroup:
    found = collectives.tasks(task)
    assert isinstance(found[0], JoinGroup)
    assert isinstance(found[1], Collective)
    return found[0]


def test_sessions_that_name_the_same_devices_in_any_order_form_one_group(
    sessions: Sessions,
) -> None:
    first = joined(sessions.open(0), reduced((0, 4), (0, 5))).spec
    second = joined(sessions.open(1), reduced((0, 5), (0, 4))).spec

    assert (first.rank, second.rank) == (0, 1)
    assert first.secret == second.secret
    assert first.addresses == second.addresses == tuple(ADDRESSES[:2])


def test_later_collectives_use_the_group_and_are_counted(sessions: Sessions) -> None:
    collectives = sessions.open(0)
    joined(collectives, reduced((0, 0), (0, 1)))

    (second,) = collectives.tasks(reduced((0, 0), (0, 1), output=3))

    assert isinstance(second, Collective)
    assert (second.group, second.sequence, second.outputs) == (0, 1, (3,))


def test_sessions_of_other_clients_or_with_other_devices_form_other_groups(
    sessions: Sessions,
) -> None:
    opened = [
        joined(sessions.open(0), reduced((0, 0), (0, 1))),
        joined(sessions.open(1, token="bob"), reduced((0, 0), (0, 1))),
        joined(sessions.open(2), reduced((0, 0), (0, 2))),
    ]

    assert len({each.spec.secret for each in opened}) == 3
    assert [each.spec.rank for each in opened] == [0, 0, 0]


def test_no_session_joins_a_group_with_one_that_has_ended(sessions: Sessions) -> None:
    first = joined(sessions.open(0), reduced((0, 0), (0, 1))).spec
    sessions.groups.leave(sessions.client)

    second = joined(sessions.open(1), reduced((0, 0), (0, 1))).spec

    assert second.rank == 0
    assert second.secret != first.secret


def test_a_session_that_is_opened_again_fails_while_the_others_are_in_the_earlier_group(
    sessions: Sessions,
) -> None:
    task = reduced((0, 0), (0, 1), (0, 2))
    clients = []
    for device in range(3):
        joined(sessions.open(device), task)
        clients.append(sessions.client)
    sessions.end(clients[1])
    again = sessions.open(1)

    for remaining in (clients[0], clients[2]):
        with pytest.raises(OperationFailed, match="open the sessions of all the devices again"):
            again.tasks(task)
        sessions.end(remaining)

    specs = [joined(each, task).spec for each in (again, sessions.open(0), sessions.open(2))]
    assert [spec.rank for spec in specs] == [0, 1, 2]
    assert len({spec.secret for spec in specs}) == 1


def test_a_session_that_is_opened_again_may_reduce_with_other_devices(sessions: Sessions) -> None:
    both = reduced((0, 0), (0, 1))
    for device in (0, 1):
        joined(sessions.open(device), both)
    sessions.end(sessions.client)

    assert joined(sessions.open(1), reduced((0, 1), (0, 2))).spec.rank == 0


def test_sessions_of_a_group_are_forgotten_when_they_have_ended(sessions: Sessions) -> None:
    for device in (0, 1):
        joined(sessions.open(device), reduced((0, 0), (0, 1)))
        forgotten = weakref.ref(sessions.client)
    sessions.end(sessions.client)

    del sessions.client

    assert forgotten() is None


@pytest.mark.parametrize(
    "devices", [(), ((0, 0), (0, 0)), ((0, 0), (0, 1), (0, 2), (0, 3))], ids=str
)
def test_devices_that_this_server_cannot_have_are_refused(
    sessions: Sessions, devices: tuple[tuple[int, int], ...]
) -> None:
    with pytest.raises(OperationFailed, match="this server has 3"):
        sessions.open(0).tasks(reduced(*devices))


def test_a_session_is_in_a_bounded_number_of_groups(sessions: Sessions) -> None:
    collectives = sessions.open(0)
    for number in range(MAX_GROUPS):
        joined(collectives, reduced((0, 0), (0, number + 1)))

    with pytest.raises(OperationFailed, match=f"has used {MAX_GROUPS} sets"):
        collectives.tasks(reduced((0, 0), (0, 100)))


def test_an_output_of_another_shape_is_refused(sessions: Sessions) -> None:
    task = reduced((0, 0), (0, 1))._replace(output_spec=f32(3))

    with pytest.raises(OperationFailed, match="must be equal"):
        sessions.open(0).tasks(task)


def test_the_mean_of_integers_is_refused(sessions: Sessions) -> None:
    spec = TensorSpec((2,), I32)
    task = reduced((0, 0), (0, 1))._replace(spec=spec, output_spec=spec, reduction=Reduction.MEAN)

    with pytest.raises(UsageError, match="mean"):
        sessions.open(0).tasks(task)


# -- on a server ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    with server("--device-count", "2") as started:
        yield started


@pytest.fixture
def pair(running: RunningServer) -> Iterator[list[Socket22]]:
    """Return sessions on both devices."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(contextlib.closing(Socket22.opened(running.address, device)))
            for device in (0, 1)
        ]


def tensor(identifier: int, status: str = "ReadOnly", size: int = 2) -> Any:
    return [[identifier], [[size]], status, "F32"]


def upload(socket: Socket22, identifier: int, values: Any) -> None:
    data = np.asarray(values, np.float32)
    socket.task("RegisterTensor", [STREAM, [identifier], [data.tobytes(), [data.size], "F32"]])


def reduce(
    socket: Socket22, source: int, out: int, how: str = "Sum", devices: Any = BOTH, size: int = 2
) -> None:
    body = [tensor(source, "ReadWrite", size), tensor(out, "NotInit", size), how, devices]
    socket.task("RegisterOperation", [STREAM, {"Distributed": {"AllReduce": body}}])
    socket.task("RegisterOperation", [STREAM, {"Distributed": "SyncCollective"}])


def read(socket: Socket22, identifier: int, request: int, size: int = 2) -> list[float]:
    answer = socket.read(identifier, [size], request)
    assert "Ok" in answer, answer
    elements = answer["Ok"][0]
    return [*np.frombuffer(elements, np.float32).tolist()]


@pytest.mark.parametrize(("how", "expected"), [("Sum", [11.0, 22.0]), ("Mean", [5.5, 11.0])])
def test_an_all_reduce_combines_the_tensors_of_both_devices(
    pair: list[Socket22], how: str, expected: list[float]
) -> None:
    for number, socket in enumerate(pair):
        upload(socket, number, [[1, 2], [10, 20]][number])
        reduce(socket, number, number + 2, how)

    for number, socket in enumerate(pair):
        assert read(socket, number + 2, 0) == expected


def test_many_all_reduces_in_a_row_agree_with_numpy(pair: list[Socket22]) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((10, 2, 1000)).astype(np.float32)
    for step in range(10):
        for number, socket in enumerate(pair):
            upload(socket, step, values[step, number])
            reduce(socket, step, 100 + step, size=1000)

    for step in range(10):
        for socket in pair:
            found = read(socket, 100 + step, step, size=1000)
            np.testing.assert_allclose(found, values[step].sum(0), rtol=1e-6)


def test_an_all_reduce_with_devices_of_another_server_fails_and_the_session_lives(
    pair: list[Socket22],
) -> None:
    upload(pair[0], 1, [1, 2])
    reduce(pair[0], 1, 2, devices=[[0, 0], [0, 1], [0, 2]])

    error = pair[0].read(2, [2], 0)
    assert "this server has 2" in str(error["Err"])
    upload(pair[0], 3, [1, 2])
    assert read(pair[0], 3, 1) == [1, 2]


def test_if_one_session_ends_the_other_reads_an_error(pair: list[Socket22]) -> None:
    for number, socket in enumerate(pair):
        upload(socket, number, [1, 2])
        reduce(socket, number, number + 2)
    for number, socket in enumerate(pair):
        read(socket, number + 2, 0)
    pair[1].close()

    upload(pair[0], 5, [1, 2])
    reduce(pair[0], 5, 6)

    assert "Err" in pair[0].read(6, [2], 1)


def test_a_session_that_is_opened_again_reads_an_error_at_once(
    running: RunningServer, pair: list[Socket22]
) -> None:
    for number, socket in enumerate(pair):
        upload(socket, number, [1, 2])
        reduce(socket, number, number + 2)
    for number, socket in enumerate(pair):
        read(socket, number + 2, 0)
    pair[1].close()
    upload(pair[0], 5, [1, 2])
    reduce(pair[0], 5, 6)
    assert "Err" in pair[0].read(6, [2], 1)  # the server has noticed the end

    with contextlib.closing(Socket22.opened(running.address, 1)) as again:
        upload(again, 1, [1, 2])
        reduce(again, 1, 2)
        error = again.read(2, [2], 0)

    assert "a new session cannot take part" in str(error["Err"])


def test_an_input_that_failed_is_the_reason_on_both_devices(pair: list[Socket22]) -> None:
    missing = {"Custom": ["nope", [], [tensor(0, "NotInit")], []]}
    pair[0].task("RegisterOperation", [STREAM, missing])
    upload(pair[1], 0, [1, 2])
    for socket in pair:
        reduce(socket, 0, 2)

    for socket in pair:
        assert "Err" in socket.read(2, [2], 0)


def test_a_member_hears_of_a_failure_from_before_it_joined(pair: list[Socket22]) -> None:
    missing = {"Custom": ["nope", [], [tensor(0, "NotInit")], []]}
    pair[0].task("RegisterOperation", [STREAM, missing])
    reduce(pair[0], 0, 2)
    assert "Err" in pair[0].read(2, [2], 0)
    upload(pair[1], 0, [1, 2])
    reduce(pair[1], 0, 2)

    assert "nope" in str(pair[1].read(2, [2], 0)["Err"])
