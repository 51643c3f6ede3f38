"""Training on several servers: data-parallel, and with layers on different servers."""

from __future__ import annotations

import re

import pytest

import pipeline_two_servers
import train_data_parallel
from support.example_runs import printed_by
from support.servers import server


@pytest.mark.parametrize("flags", [[], ["--shards"]])
def test_data_parallel_training_equals_one_device_without_requests(flags: list[str]) -> None:
    with server() as first, server() as second:
        printed = printed_by(
            train_data_parallel.main,
            *["--address", first.address, "--address", second.address, "--epochs", "6", *flags],
        )
    assert "on 2 devices" in printed
    assert "requests while training: 0 replicas are bit-identical: True" in printed
    (difference,) = re.findall(r"one device: (\S+)", printed)
    assert float(difference) <= 1e-6
    (accuracy,) = re.findall(r"test accuracy (\S+)%", printed)
    assert float(accuracy) > 90


def test_data_parallel_training_fails_if_it_differs_by_more_than_is_permitted() -> None:
    with server() as first, server() as second, pytest.raises(AssertionError, match="one device"):
        printed_by(
            train_data_parallel.main,
            *["--address", first.address, "--address", second.address, "--within", "1e-12"],
        )


def test_data_parallel_training_starts_servers() -> None:
    printed = printed_by(train_data_parallel.main, "--servers", "1", "--epochs", "1")
    assert "on 1 device" in printed
    assert "replicas are bit-identical: True" in printed


def test_a_network_over_two_servers_learns_without_requests() -> None:
    with server() as first, server() as second:
        printed = printed_by(
            pipeline_two_servers.main,
            *["--address", first.address, "--address", second.address, "--epochs", "4"],
        )
    assert "after 60 steps, 0 requests before it" in printed
    (accuracy,) = re.findall(r"test accuracy (\S+)%", printed)
    assert float(accuracy) > 85
