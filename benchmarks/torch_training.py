"""Compare a PyTorch training step on a burn device with PyTorch itself, on one CPU or one GPU.

    PYTHONPATH=tests python benchmarks/torch_training.py [--backend cupy] [--rounds 7]

The model is a causal transformer of two layers, 64 channels wide, on 16 sequences of 32 tokens;
the optimizer is AdamW. The burn device is a server on this machine, in a process of its own.
PyTorch and the server use one thread each on a CPU. PyTorch's own variant runs in another process,
because no CUDA tensor can run a backward pass in a process with burn devices. ``--rival-python``
names the Python of that process, which then runs without PYTHONPATH: it may have another version
of PyTorch, for example one with CUDA where this one has none. ``--compiled-rival`` also measures
PyTorch's own ``torch.compile``. The variants take turns, so each round measures all of them under
the same load; the ratios are of medians. The losses of the first steps must agree. Processor times
are the program's, and beside them those of the server, which works at the same time. Needs PyTorch;
``--backend cupy`` needs a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Final

import psutil
import torch
from torch_transformer import Training

import burn_remote as br
import burn_remote.torch as brt
from support.servers import server

STEPS: Final = 10
# A server compiles the functions of a graph at its 32nd call, beside the calls.
WARM_UP: Final = 40
RIVAL: Final = "PyTorch"
COMPILED_RIVAL: Final = "PyTorch, torch.compile"


class RivalFailed(Exception):
    """A variant of PyTorch's own failed, with the text of its error."""


class Rival:
    """PyTorch's own variants, in a process that measures when it is asked."""

    def __init__(self, python: str | None, device: str) -> None:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if python is None or name != "PYTHONPATH"
        }
        self._process = subprocess.Popen(
            [
                python or sys.executable,
                str(Path(__file__).with_name("torch_transformer.py")),
                device,
            ],
            env=inherited,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.description: Final = self._answer()

    def measure(self, backend: str, steps: int) -> tuple[float, float, float]:
        """Return what ``Training.run`` returns. Raises ``RivalFailed``."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{backend} {steps}\n")
        self._process.stdin.flush()
        answer = json.loads(self._answer())
        if isinstance(answer, str):
            raise RivalFailed(answer)
        wall, processor, loss = answer
        return wall, processor, loss

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RivalFailed(f"PyTorch's process ended with code {self._process.wait()}")
        return line.strip()


def measure(
    variants: Mapping[str, Callable[[int], tuple[float, float, float]]],
    rounds: int,
    server_seconds: Callable[[], float],
) -> dict[str, list[tuple[float, ...]]]:
    """Return what each variant returned in each round, and the server's processor milliseconds.

    Leaves out PyTorch's own ``torch.compile`` if it fails, with its error printed. Raises
    ``ValueError`` if the losses of the first steps differ.
    """
    variants, losses = dict(variants), {}
    for name in tuple(variants):
        try:
            losses[name] = variants[name](1)[2]
        except RivalFailed as error:
            if name != COMPILED_RIVAL:
                raise
            print(f"{name} fails: {str(error)[:300]}")
            del variants[name]
    if not all(math.isclose(loss, losses[RIVAL], rel_tol=1e-3) for loss in losses.values()):
        raise ValueError(f"the losses of the first steps differ: {losses}")
    for run in variants.values():
        run(WARM_UP)
    measured: dict[str, list[tuple[float, ...]]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run in variants.items():
            before = server_seconds()
            found = run(STEPS)
            measured[name].append((*found, (server_seconds() - before) / STEPS * 1e3))
    return measured


def main() -> None:
    """Measure all variants and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("numpy", "cupy"), default="numpy")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rival-python", metavar="PATH")
    parser.add_argument("--rival-device", choices=("cpu", "cuda"), help="default: the server's")
    parser.add_argument("--compiled-rival", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # PyTorch's, of the functions that it compiles
    own = arguments.rival_device or ("cuda" if arguments.backend == "cupy" else "cpu")
    rival = Rival(arguments.rival_python, own)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # for the server
    with server("--backend", arguments.backend) as running:
        device = br.RemoteDevice(running.address)
        burn = brt.add(device)
        variants: dict[str, Callable[[int], tuple[float, float, float]]] = {
            RIVAL: lambda steps: rival.measure("-", steps),
            "burn device": Training(burn, device.sync, None).run,
            "burn device, torch.compile": Training(burn, device.sync, "burn_remote").run,
        }
        if arguments.compiled_rival:
            variants[COMPILED_RIVAL] = lambda steps: rival.measure("inductor", steps)
        process = psutil.Process(running.process.pid)
        measured = measure(variants, arguments.rounds, lambda: sum(process.cpu_times()[:2]))
    rival.close()

    print(f"{rival.description}; burn devices with PyTorch {torch.__version__}")
    print(f"medians of {arguments.rounds} rounds of {STEPS} steps")
    base = [median(each[index] for each in measured[RIVAL]) for index in (0, 1)]
    for name, rounds in measured.items():
        wall, processor, served = (median(each[index] for each in rounds) for index in (0, 1, 3))
        print(
            f"{name:<28}{wall:8.2f} ms a step, ÷ PyTorch {wall / base[0]:.2f};"
            f" processor {processor:8.2f} ms, ÷ PyTorch {processor / base[1]:.2f},"
            f" server {served:8.2f} ms, ÷ PyTorch {served / base[1]:.2f};"
            f" loss {rounds[-1][2]:.6f}"
        )


if __name__ == "__main__":
    main()
