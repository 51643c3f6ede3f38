"""Faults of nodes, injected into working containers (``make docker-faults``).

The servers' timeouts are those of ``compose.faults.yaml``: a silent peer is lost after two
heartbeats of 2 s, a session's lease is 15 s, and a fetch may stall for 5 s.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import re
import ssl
import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

import burn_remote as br
import train_data_parallel
from cluster import digits_data

from .conftest import Faulty, Start, docker

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

GIVEN_UP_SECONDS = 5.0  # a little more than two heartbeats
FETCH_SECONDS = 10.0  # how long an operation waits for a tensor: two stall times
LEASE_SECONDS = 15.0
# Margin for a busy machine.
MARGIN_SECONDS = 10.0
# How soon a group reports that a member was killed. A member that is only silent is lost later.
TOLD_SECONDS = 1.0
SILENCE_SECONDS = 60.0
UNDERWAY = "training 60/240"

Batch = tuple[np.ndarray, np.ndarray]


@contextlib.contextmanager
def devices(cluster: Faulty, *nodes: str) -> Iterator[list[br.RemoteDevice]]:
    """Open a session on each node."""
    with contextlib.ExitStack() as stack:
        token, authority = stack.enter_context(cluster.credentials())
        yield [
            stack.enter_context(
                br.RemoteDevice(
                    cluster.address(node), token=token.read_text().strip(), tls=authority
                )
            )
            for node in nodes
        ]


def healthy(cluster: Faulty, node: str, seconds: float) -> bool:
    """Whether a node responds within a number of seconds."""
    with cluster.credentials("c") as (_, authority):
        trust = ssl.create_default_context(cafile=authority)
    host, port = cluster.address(node).removeprefix("wss://").split(":")
    connection = http.client.HTTPSConnection(host, int(port), timeout=seconds, context=trust)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except TimeoutError:
        return False
    finally:
        connection.close()


def test_a_training_step_over_a_link_with_20_ms_takes_one_round_trip(
    cluster: Faulty, outside: Start
) -> None:
    cluster.begin("far", "relaying")
    far = [cluster.address(service) for service in ("far", "b", "c")]
    demo = outside(far)
    assert demo.end() == 0
    assert "round trips per training step: 1" in demo.lines
    pace = re.search(r"steps per second, ([\d.]+) ms each", demo.text)
    assert pace is not None and float(pace[1]) >= 20, "the link was no slower than usual"


def test_a_network_cut_and_healed_within_the_lease_changes_no_bit_of_the_weights(
    cluster: Faulty, inside: Start, undisturbed: str
) -> None:
    node = cluster.container("b")
    networks = [cluster.ring, f"{cluster.project}_edge"]
    demo = inside()
    demo.until(UNDERWAY)
    for network in networks:
        docker("network", "disconnect", network, node)
    try:
        unreached = docker(
            "exec", cluster.container("a"), "python", "-c", REACH, "b", str(GIVEN_UP_SECONDS)
        )
    finally:
        for network in networks:
            docker("network", "connect", "--alias", "b", network, node)
    assert "reached" not in unreached.split()
    assert demo.end() == 0
    assert demo.weights == undisturbed


# A program that tries to reach a node for some seconds.
REACH = """
import socket, sys, time
name, end = sys.argv[1], time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    try:
        socket.create_connection((name, 3000), 1).close()
        sys.exit(print("reached"))
    except OSError as error:
        seen = error
print("not", seen)
"""


def test_a_frozen_node_that_thaws_within_the_lease_changes_no_bit_of_the_weights(
    cluster: Faulty, outside: Start, undisturbed: str
) -> None:
    demo = outside()
    demo.until(UNDERWAY)
    with frozen(cluster, "b"):
        assert not healthy(cluster, "b", GIVEN_UP_SECONDS)
    assert demo.end() == 0
    assert demo.weights == undisturbed


@contextlib.contextmanager
def frozen(cluster: Faulty, node: str) -> Iterator[None]:
    container = cluster.container(node)
    docker("pause", container)
    try:
        yield
    finally:
        docker("unpause", container)


def test_when_a_training_node_is_killed_the_others_end_the_training(
    cluster: Faulty, inside: Start
) -> None:
    demo = inside((), "--tolerate-loss")
    demo.until(UNDERWAY)
    docker("kill", cluster.container("b"))
    killed = time.monotonic()
    # The node's name disappears from DNS too. That could be a DNS failure, so the node counts as
    # lost only when its lease ends.
    told = demo.until("b:3000 is lost; a:3000, c:3000 can go on", LEASE_SECONDS + MARGIN_SECONDS)
    print(f"told {told - killed:.1f} s after the kill")
    assert demo.end() == 0
    assert "training 240/240" in demo.text


def test_a_node_whose_port_refuses_connections_is_lost_before_its_lease_ends(
    cluster: Faulty, outside: Start
) -> None:
    demo = outside()
    names = [address.removeprefix("wss://") for address in cluster.addresses()]
    demo.until(UNDERWAY)
    docker("kill", cluster.container("b"))
    killed = time.monotonic()
    lost = f"{names[1]} is lost; {names[0]}, {names[2]} can go on"
    told = demo.until(lost, GIVEN_UP_SECONDS + MARGIN_SECONDS)
    print(f"told {told - killed:.1f} s after the kill")
    assert demo.end() == 3, "a lost node is a failure, unless it was said that it is none"


def test_a_node_killed_during_a_transfer_fails_it_in_time_and_the_others_continue(
    cluster: Faulty,
) -> None:
    with devices(cluster, "a", "b", "c") as (a, b, c):
        source = cluster.container("a")
        tensor = br.tensor(np.ones((4096, 4096), np.float32), device=a)
        a.sync()
        docker("pause", source)  # the fetch has begun and cannot end
        pending = tensor.to(b).sum().read()
        docker("kill", source)
        killed = time.monotonic()
        with pytest.raises((br.OperationFailed, br.ConnectionLost)) as failure:
            pending.result(FETCH_SECONDS + MARGIN_SECONDS)
        print(f"after {time.monotonic() - killed:.1f} s {failure.type.__name__}: {failure.value}")
        left = br.tensor(np.ones(8, np.float32), device=b)
        assert float(left.to(c).sum().numpy()) == 8


def test_a_node_killed_while_a_group_trains_is_named_and_the_others_train_on(
    cluster: Faulty,
) -> None:
    coming = train_data_parallel.batches(digits_data.load()[0], epochs=10_000)
    done: list[Batch] = []
    killing = threading.Thread(target=docker, args=("kill", cluster.container("b")))
    with devices(cluster, "a", "b", "c") as (a, b, c):
        group = br.distributed.Group([a, b, c], timeout_seconds=SILENCE_SECONDS)
        assert group.engine == "ring"
        trainer, failure, began = trainer_on(group), None, time.monotonic()
        while failure is None:
            kept, batches = trainer.snapshot(), list(itertools.islice(coming, 20))
            failure = failure_of(trainer, batches)
            if failure is None:
                done += batches
                if len(done) == 60:
                    killing.start()
                    began = time.monotonic()
            assert time.monotonic() - began < SILENCE_SECONDS, "no member is lost"
        told = time.monotonic()
        killing.join()
        assert (failure.member, failure.address) == (1, "wss://b:3000")
        assert failure.address in str(failure)

        trainer.regroup(kept, without=[b])
        assert failure_of(trainer, batches) is None
        print(f"named {told - began:.2f} s after the kill was ordered: {failure}")
        print(f"20 steps on two nodes {time.monotonic() - told:.2f} s later")
        assert told - began < TOLD_SECONDS + MARGIN_SECONDS
        done += batches
        batches = list(itertools.islice(coming, 60))
        assert failure_of(trainer, batches) is None
        done += batches
        assert trainer.group.devices == (a, c)
        replicas = [br.read(br.tree.leaves(one)) for one in trainer.replicas]
    with br.LocalDevice() as device:
        alone = trainer_on([device])
        for batch in done:
            alone.step(*batch)
        expected = br.read(br.tree.leaves(alone.params))
    for one, other, undisturbed in zip(*replicas, expected, strict=True):
        assert one.tobytes() == other.tobytes()
        np.testing.assert_allclose(one, undisturbed, rtol=0, atol=1e-6)


def trainer_on(group: br.distributed.Group | list[br.Device]) -> br.DataParallel:
    """Return a trainer of the example's network."""
    return br.DataParallel(
        train_data_parallel.loss_of,
        train_data_parallel.initial_weights(),
        group,
        optimizer=br.optim.SGD(lr=0.05, momentum=0.9),
    )


def failure_of(trainer: br.DataParallel, batches: Sequence[Batch]) -> br.CollectiveFailed | None:
    """Train on batches, as docs/distributed.md shows; return the failure of a member."""
    raised: br.BurnRemoteError | None = None
    try:
        for batch in batches:
            trainer.step(*batch)
    except br.BurnRemoteError as error:  # such as ClosedDevice, of the lost member's session
        raised = error
    failure = trainer.group.failure()
    if failure is None and raised is not None:
        raise raised
    return failure


def test_a_node_that_exceeds_its_memory_limit_ends_alone(cluster: Faulty) -> None:
    node = cluster.container("a")
    try:
        with devices(cluster, "a", "b") as (a, b):
            # Quotas follow the memory limit at the start, so lower the limit afterwards.
            docker("update", "--memory", "256m", "--memory-swap", "256m", node)
            column, row = np.ones((16384, 1), np.float32), np.ones((1, 16384), np.float32)
            large = br.tensor(column, device=a) + br.tensor(row, device=a)
            with pytest.raises(br.ConnectionLost) as failure:
                large.sum().read().result(LEASE_SECONDS + MARGIN_SECONDS)
            print(f"{type(failure.value).__name__}: {failure.value}")
            assert float(br.tensor(np.ones(8, np.float32), device=b).sum().numpy()) == 8
        assert cluster.inspect("a", "{{.State.OOMKilled}} {{.State.ExitCode}}") == "true 137"
        assert cluster.inspect("b", "{{.State.Running}}") == "true"
    finally:
        docker("update", "--memory", "2g", "--memory-swap", "2g", node)
