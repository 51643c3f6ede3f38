"""The largest share of an exchange of gradients that a backward pass can hide on this machine.

    OPENBLAS_NUM_THREADS=1 python benchmarks/overlap_bound.py [--rows 2048] [--link-mbit 1000]

This is ``data_parallel.py`` without servers: each of two processes computes the same network in
NumPy, while a thread of it exchanges finished gradients over the bare ring of ``collectives.py``,
which has no checksums, messages or tensors. So the share that is hidden here is an upper bound for
servers that need the same cores. ``--link-mbit`` bounds the rate of the links, as there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import socket
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
from collectives import BareRing
from shaped_links import shaped_namespaces

MEMBERS = 2
WIDTH = 512
LAYERS = 8
# Layers whose gradients are exchanged together. 0: none are exchanged. A layer has 1 MiB.
WAYS = {"no exchange": 0, "one bucket": LAYERS, "buckets of 4 MiB": 4, "of 1 MiB": 1}
WARM_UP = 3


class Trainer:
    """One member: its weights, its rows, and the thread that exchanges its gradients."""

    def __init__(self, rows: int, ring: BareRing) -> None:
        random = np.random.default_rng(0)
        self._weights = random.normal(0, 0.05, (LAYERS, WIDTH, WIDTH)).astype(np.float32)
        self._inputs = random.normal(size=(rows, WIDTH)).astype(np.float32)
        self._grads = np.zeros_like(self._weights)
        self._sums = np.zeros_like(self._weights)
        self._ring = ring
        self._finished: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._exchanged = threading.Semaphore(0)
        threading.Thread(target=self._exchange, daemon=True).start()

    def _exchange(self) -> None:
        while True:
            first, last = self._finished.get()
            self._ring.all_reduce(
                self._grads[first:last].reshape(-1), self._sums[first:last].reshape(-1)
            )
            self._exchanged.release()

    def backward(self, layers: int) -> None:
        """Compute all gradients; exchange those of ``layers`` layers at a time, the last first."""
        activations = [self._inputs]
        for weight in self._weights:
            activations.append(np.maximum(activations[-1] @ weight, 0))
        gradient = activations[-1] * np.float32(2 / activations[-1].size)
        sent = 0
        for layer in reversed(range(LAYERS)):
            gradient = gradient * (activations[layer + 1] > 0)
            np.matmul(activations[layer].T, gradient, out=self._grads[layer])
            if layer:
                gradient = gradient @ self._weights[layer].T
            if layers and layer % layers == 0:
                self._finished.put((layer, layer + layers))
                sent += 1
        for _ in range(sent):
            self._exchanged.acquire()


def serve(rank: int, host: str, rows: int) -> None:
    """Be a member: connect to the address of the first line, then follow one way per line."""
    listener = socket.create_server((host, 0))
    print(listener.getsockname()[1], flush=True)
    other, port = sys.stdin.readline().split()
    following = socket.create_connection((other, int(port)))
    before, _ = listener.accept()
    for each in (before, following):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    trainer = Trainer(rows, BareRing(before, following, rank, MEMBERS))
    for line in sys.stdin:
        trainer.backward(int(line))
        print("done", flush=True)


def command(rank: int, host: str, rows: int) -> list[str]:
    """Return the command line of a member."""
    arguments = ["--serve", str(rank), "--host", host, "--rows", str(rows)]
    return [sys.executable, __file__, *arguments]


def measure(options: argparse.Namespace) -> None:
    """Print the median time of each way, and the shares that are hidden."""
    with contextlib.ExitStack() as stack:
        hosts = ["127.0.0.1"] * MEMBERS
        prefixes: list[list[str]] = [[] for _ in hosts]
        if options.link_mbit is not None:
            made = stack.enter_context(shaped_namespaces(MEMBERS, options.link_mbit))
            hosts = [host for _, host in made]
            prefixes = [["ip", "netns", "exec", name] for name, _ in made]
        members: list[Any] = []
        for rank, host in enumerate(hosts):
            arguments = [*prefixes[rank], *command(rank, host, options.rows // MEMBERS)]
            process = subprocess.Popen(
                arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            members.append(process)
        ports = [int(each.stdout.readline()) for each in members]

        def tell(texts: list[str]) -> None:
            for each, text in zip(members, texts, strict=True):
                each.stdin.write(f"{text}\n")
                each.stdin.flush()

        tell([f"{hosts[1 - rank]} {ports[1 - rank]}" for rank in range(MEMBERS)])
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(WARM_UP + options.rounds):
            for way, layers in WAYS.items():
                start = time.perf_counter()
                tell([str(layers)] * MEMBERS)
                for each in members:
                    assert each.stdout.readline() == "done\n"
                times[way].append(time.perf_counter() - start)
    medians = {way: statistics.median(found[WARM_UP:]) for way, found in times.items()}
    alone, last, *early = medians.values()
    shown = {way: round(1e3 * seconds, 1) for way, seconds in medians.items()}
    hidden = [round((last - each) / (last - alone), 2) for each in early]
    print(json.dumps({"rows": options.rows, "ms": shown, "hidden by 4 MiB, by 1 MiB": hidden}))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


def main() -> None:
    """Measure, or be one of the members."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=512, help="rows of a batch, of both members")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--link-mbit", type=float, help="the rate of the links, as root")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--host", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is None:
        measure(options)
    else:
        serve(options.serve, options.host, options.rows)


if __name__ == "__main__":
    main()
