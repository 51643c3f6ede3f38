"""Compare checkouts of the server by frames of a Burn 0.22 client, in alternating blocks.

    python benchmarks/burn_frames.py /path/to/one/checkout /path/to/another

A plain socket sends frames that are made and masked beforehand: an addition with its read, and the
steps of the recorded training session `train`, with larger tensors and the loss read in each step,
or in each fifteenth. Each checkout has its own server, and blocks take turns, so load by other
programs affects all of them. Prints the fastest tenth, the lower quartile and the median of the
blocks, in µs: of the time, and of the server's processor time, which depends less on other programs
(Linux only).
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgpack
import numpy as np
import typer
from burn_uploads import STREAM, framed, opened

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from graphs import server_seconds

from support.recorded import recordings_0_22, sessions
from support.servers import RunningServer, server

BLOCKS = 45
ROUND_TRIPS = 150
STEPS = 15
WARM_STEPS = 80
# Burn's client takes about as long to make a frame.
PAUSE_SECONDS = 15e-6

# Sizes of the recorded program, and those that take their place.
SIZES = {20: 64, 16: 784, 8: 128}
STATUSES = {"ReadOnly", "ReadWrite", "NotInit"}
# The recorded ids of one step follow those of the step before; the batch has 0 and 1.
IDS_PER_STEP = 54
OWN_IDS = 2


def changed(value: Any, shift: int) -> Any:
    """Return a message with larger tensors, whose ids are shifted."""
    if isinstance(value, dict):
        return {name: changed(item, shift) for name, item in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) == 4 and isinstance(value[2], str) and value[2] in STATUSES:
        (number,), (shape,), status, dtype = value
        number += shift if number >= OWN_IDS else 0
        return [[number], [[SIZES.get(size, size) for size in shape]], status, dtype]
    return [changed(item, shift) for item in value]


def uploaded(message: Any) -> Any:
    """Return an upload with elements for its larger shape; any other message unchanged."""
    if "RegisterTensor" not in message["Task"]:
        return changed(message, 0)
    stream, number, (_, shape, dtype) = message["Task"]["RegisterTensor"]
    shape = [SIZES.get(size, size) for size in shape]
    if dtype == "F32":
        random = np.random.default_rng(number[0])
        elements = (0.2 * random.random(shape) - 0.1).astype(np.float32).tobytes()
    else:
        elements = (np.arange(np.prod(shape)) % 10).astype(np.int32).tobytes()
    return {"Task": {"RegisterTensor": [stream, number, [elements, shape, dtype]]}}


def recorded_messages() -> list[Any]:
    """Return the messages of the recorded training session after its opening."""
    recordings = (each for name in recordings_0_22() for each in sessions(name))
    session = next(each for each in recordings if each["name"] == "train")
    frames = [each["payload"] for each in session["frames"] if each["dir"] == "c2s"]
    return [one for frame in frames[1:] for one in msgpack.unpackb(frame, strict_map_key=False)]


def is_beginning(message: Any) -> bool:
    """Return whether a message multiplies the batch by the first weights."""
    operation = message["Task"].get("RegisterOperation", [None, {}])[1]
    product = operation.get("Float", [None, {}])
    product = product[1].get("Matmul") if isinstance(product[1], dict) else None
    return product is not None and product[0][0] == [0]


def training_steps(count: int) -> Iterator[list[Any]]:
    """Yield the messages before the first step, and those of each step, its read last."""
    messages = recorded_messages()
    first, second, third, *_ = [
        place for place, message in enumerate(messages) if is_beginning(message)
    ]
    yield [uploaded(message) for message in messages[:first]]
    yield ordered(messages[first:second], 0, 0)
    for step in range(count):
        yield ordered(messages[second:third], IDS_PER_STEP * step, step + 1)


def ordered(messages: list[Any], shift: int, request: int) -> list[Any]:
    """Return a step's messages with the read of its loss at the end."""
    reads = [one for one in messages if "ReadTensor" in one["Task"]]
    step = [changed(one, shift) for one in messages if one not in reads]
    for one in reads:
        _, stream, tensor = changed(one, shift)["Task"]["ReadTensor"]
        number, shape, _, dtype = tensor
        # The recorded program keeps its losses. One that does not use them again frees them so.
        step = [message for message in step if not is_drop(message, number)]
        tensor = [number, shape, "ReadWrite", dtype]
        step.append({"Task": {"ReadTensor": [request, stream, tensor]}})
    return step


def unread(message: Any) -> Any:
    """Return the drop of a tensor in place of its last read; any other message unchanged."""
    if "ReadTensor" not in message["Task"]:
        return message
    return {"Task": {"RegisterOperation": [STREAM, {"Drop": message["Task"]["ReadTensor"][2]}]}}


def is_drop(message: Any, tensor: Any) -> bool:
    """Return whether a message frees a tensor."""
    operation = message["Task"].get("RegisterOperation", [None, {}])[1]
    return "Drop" in operation and operation["Drop"][0] == tensor


def round_trips(running: RunningServer) -> Iterator[float]:
    """Yield the median time of an addition and its read, of one block after another."""
    client = opened(running)
    one = np.ones((16, 16), np.float32).tobytes()
    upload = {"Task": {"RegisterTensor": [STREAM, [1], [one, [16, 16], "F32"]]}}
    client.sendall(framed(upload))
    first = 100_000
    while True:
        frames = []
        for number in range(first, first + ROUND_TRIPS):
            use, out, last = (
                [[tensor], [[16, 16]], status, "F32"]
                for tensor, status in ((1, "ReadOnly"), (number, "NotInit"), (number, "ReadWrite"))
            )
            add = {"NumericFloat": ["F32", {"AddScalar": [use, {"Float": 1.0}, out]}]}
            operation = {"Task": {"RegisterOperation": [STREAM, add]}}
            frames.append(framed(operation, {"Task": {"ReadTensor": [number, STREAM, last]}}))
        first += ROUND_TRIPS
        seconds = []
        for frame in frames:
            start = time.perf_counter()
            client.sendall(frame)
            client.recv(65536)
            seconds.append(time.perf_counter() - start)
        yield sorted(seconds)[len(seconds) // 2]


def training(running: RunningServer, *, reads_each: bool = True) -> Iterator[float]:
    """Yield the time of a training step, of one block after another.

    The last step of a block reads its loss, and the others do if ``reads_each``.
    """
    client = opened(running)
    steps = []
    for number, messages in enumerate(training_steps(WARM_STEPS + BLOCKS * STEPS)):
        if number % STEPS and not reads_each:
            messages = [unread(one) for one in messages]
        frames = [framed(*messages[place : place + 4]) for place in range(0, len(messages), 4)]
        steps.append(frames)
    for frame in steps[0]:
        client.sendall(frame)
    for first in range(1, len(steps) - STEPS, STEPS):
        start = time.perf_counter()
        for number, step in enumerate(steps[first : first + STEPS], 1):
            for frame in step:
                until = time.perf_counter() + PAUSE_SECONDS
                while time.perf_counter() < until:
                    pass
                client.sendall(frame)
            if reads_each or number == STEPS:
                client.recv(65536)
        seconds = (time.perf_counter() - start) / STEPS
        if first > WARM_STEPS:
            yield seconds


# Name of a measure -> the function that measures blocks, and the repetitions in a block.
MEASURES: dict[str, tuple[Callable[[RunningServer], Iterator[float]], int]] = {
    "addition and its read": (round_trips, ROUND_TRIPS),
    "training step with its loss read": (training, STEPS),
    "training step": (partial(training, reads_each=False), STEPS),
}


def shown(times: list[float]) -> str:
    """Return the fastest tenth, the lower quartile and the median."""
    times.sort()
    return " / ".join(f"{times[len(times) // part] * 1e6:,.0f}" for part in (10, 4, 2))


def main(
    checkouts: Annotated[
        list[Path], typer.Argument(help="Checkouts of this project, whose servers are compared.")
    ],
) -> None:
    """Measure all checkouts in turns."""
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    with contextlib.ExitStack() as stack:
        servers = {}
        for checkout in checkouts:
            parts = (checkout.resolve() / part for part in ("protocol", "server", "client"))
            path = os.pathsep.join(map(str, parts))
            servers[checkout] = stack.enter_context(server(PYTHONPATH=path))
        for name, (measure, count) in MEASURES.items():
            runs = {checkout: measure(running) for checkout, running in servers.items()}
            found: dict[Path, list[float]] = {checkout: [] for checkout in runs}
            processor: dict[Path, list[float]] = {checkout: [] for checkout in runs}
            for run in runs.values():
                next(run)  # warms up
            for _ in range(BLOCKS - 2):
                for checkout, run in runs.items():
                    before = server_seconds(servers[checkout])
                    found[checkout].append(next(run))
                    used = server_seconds(servers[checkout]) - before
                    processor[checkout].append(used / count)
            for checkout, times in found.items():
                print(f"{name:34} {checkout}: {shown(times)}", end="")
                print(f"; processor time {shown(processor[checkout])}", flush=True)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(main)
    app()
