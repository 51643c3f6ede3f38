"""Train on several servers in parallel, move a large tensor between them, and report the traffic.

Each node except the last trains the same network on its part of every batch. The servers exchange
the gradients directly and add them up. The last node evaluates the network. Then a tensor of 256
MiB moves around all nodes. This program only sends operations; the report compares its own traffic
with that of the servers. If a node is lost, the report names it, and the others continue. A server
built with Burn 0.21 can only be the last node: as a trainer, it would hang, because overlapping
moves make it hang.

    python examples/cluster_demo.py ws://a:3000 ws://b:3000 ws://c:3000 --svg timeline.svg

Needs NumPy and burn-remote, and rich only for a progress bar. Exit codes: 0 success, 1 a wrong
result, 2 the demo could not begin, 3 a node was lost (0 with --tolerate-loss if all results are
right).
"""

from __future__ import annotations

import argparse
import ssl
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import numpy as np

import burn_remote as br
from cluster import digits_data, timeline
from cluster.nodes import FAILURES, Cluster, opened
from cluster.report import nodes_table, size
from cluster.ring import MAX_MIB, Ring
from cluster.training import Training, digest
from cluster.watching import Watch

STEPS: Final = 480
ACCURACY: Final = 0.95
DRIFT: Final = 1e-3  # allowed between trainers on different hardware; equal hardware has none
CLIENT_BYTES: Final = 2000  # allowed traffic of this program for one move of any size
EVALUATE_EVERY: Final = 60  # steps
LINES: Final = 8  # of progress, where there is no terminal for a bar

Tell = Callable[[int, str], None]


class CannotBegin(Exception):
    """The demo cannot begin; one sentence describes the problem and what to do."""


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return an argparse type: an integer from ``least`` to ``most``."""

    def number(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer from {least} to {most}")
        return int(text)

    return number


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    about, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        "cluster_demo", description=about, epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add(
        "addresses",
        nargs="+",
        metavar="ADDRESS",
        help="address of a server, ws://host:port; give two or more",
    )
    add("--token-file", type=Path, help="file with the token; default: $BURN_REMOTE_TOKEN")
    add("--ca", type=Path, help="PEM file with the authority that signed the servers' certificates")
    add("--steps", type=whole(1, 10**6), default=STEPS, help="training steps (%(default)s)")
    add(
        "--accuracy",
        type=float,
        default=ACCURACY,
        help="least accuracy that counts as success (%(default)s)",
    )
    add(
        "--move-mib",
        type=whole(1, MAX_MIB),
        default=256,
        help="size in MiB of the tensor that moves (%(default)s)",
    )
    add(
        "--rounds",
        type=whole(1, 10**6),
        default=2,
        help="how often the tensor moves round the nodes (%(default)s)",
    )
    add("--svg", type=Path, help="draw a timeline of the nodes' work here")
    add("--tolerate-loss", action="store_true", help="exit with 0 if only a node was lost")
    add("--patience", type=float, default=60.0, metavar="SECONDS",
        help="seconds of silence after which a node counts as lost (%(default)s)")  # fmt: skip
    add("--connect-timeout", type=float, default=10.0, metavar="SECONDS",
        help="seconds to connect to each node (%(default)s)")  # fmt: skip
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return its exit code."""
    options = parsed(arguments)
    try:
        with ExitStack() as stack:
            return run(options, connect(options, stack))
    except CannotBegin as error:
        print(f"cluster_demo: {error}", file=sys.stderr)
        return 2
    except FAILURES as error:
        print(f"cluster_demo: cannot continue: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def connect(options: argparse.Namespace, stack: ExitStack) -> Cluster:
    """Open a session on every node. Raises ``CannotBegin``."""
    if len(options.addresses) < 2:
        raise CannotBegin("give at least two addresses; the demo is most useful with three")
    try:
        token = options.token_file.read_text().strip() if options.token_file else None
        tls = ssl.create_default_context(cafile=options.ca) if options.ca else None
    except ssl.SSLError:
        raise CannotBegin(f"--ca {options.ca} has no certificate in PEM text") from None
    except OSError as error:
        named = options.ca if error.filename is None else error.filename
        raise CannotBegin(f"{named} cannot be read: {error.strerror}") from None
    if options.svg:
        try:
            options.svg.touch()
        except OSError as error:
            raise CannotBegin(f"--svg {options.svg} cannot be written: {error.strerror}") from None
    try:
        nodes = opened(
            options.addresses,
            stack,
            token=token,
            tls=tls,
            timeout_seconds=options.connect_timeout,
        )
    except br.BurnRemoteError as error:
        raise CannotBegin(str(error)) from None
    return Cluster(nodes, options.patience, lambda text: print(text, flush=True))


def run(options: argparse.Namespace, cluster: Cluster) -> int:
    """Run all parts of the demo; return the exit code."""
    problems: list[str] = []
    with Watch(cluster) as watch:
        training = Training(cluster, *digits_data.load())
        weights = train(training, options.steps)
        apart = max(float(np.abs(each - weights[0]).max()) for each in weights)
        if apart > DRIFT:
            problems.append(f"the trainers' weights differ by up to {apart:.2g}")
        print("weights of all trainers:", f"within {apart:.2g}" if apart else "the same bits")
        ring = Ring(cluster, options.move_mib * 2**20)
        turn(ring, options.rounds)
        accuracy = cluster.persist(training.accuracy, training.recover)
    print()
    print(nodes_table(cluster, watch))
    print(f"\nreading the nodes' metrics took another {size(watch.nbytes)}")
    print(f"accuracy on {cluster.evaluator.name}: {accuracy:.1%}")
    print(f"weights sha256 {digest(weights[0])}")
    problems += faults(options, accuracy, ring)
    if options.svg:
        picture = timeline.draw(cluster.nodes, watch.samples, ring.moves, cluster.seconds)
        options.svg.write_text(picture, encoding="utf-8")
    lost = [node.name for node in cluster.nodes if node.lost]
    for problem in problems:
        print(f"wrong: {problem}", file=sys.stderr)
    if problems:
        return 1
    if lost and not options.tolerate_loss:
        print(f"lost: {', '.join(lost)}", file=sys.stderr)
        return 3
    return 0


def train(training: Training, steps: int) -> list[np.ndarray]:
    """Train, and return the weights of each trainer."""
    cluster = training.cluster
    names = ", ".join(node.name for node in cluster.trainers)
    print(f"training on {names}; evaluation on {cluster.evaluator.name}", flush=True)
    cluster.persist(training.start, lambda: None)
    text = ""
    with progress("training", steps) as tell:
        while len(training.losses) < steps:
            loss = cluster.persist(training.step, training.recover)
            done = len(training.losses)
            if done % EVALUATE_EVERY == 0:
                accuracy = cluster.persist(training.accuracy, training.recover)
                text = f", accuracy {accuracy:.1%} on {cluster.evaluator.name}"
            tell(done, f"loss {loss:.4f}{text}")
    each = training.seconds / training.taken
    print(f"{1 / each:,.0f} steps per second, {1e3 * each:.2f} ms each")
    print(f"round trips per training step: {training.requests / training.taken:g}", flush=True)
    return cluster.persist(training.weights, training.recover)


def turn(ring: Ring, rounds: int) -> None:
    """Move the tensor around the ring of nodes and print the throughput."""
    cluster = ring.cluster
    cluster.persist(ring.start, lambda: None)
    for _ in range(rounds * len(cluster.alive)):
        move = cluster.persist(ring.hop, ring.start)
        if move is None:
            print("one node is left: nowhere to move to", flush=True)
            return
        print(
            f"{size(move.nbytes)} from {move.source.name} to {move.target.name}: "
            f"{move.rate / 1e9:.2f} GB/s, {move.client_bytes:,} B through this program",
            flush=True,
        )
    rates = sorted(move.rate / 1e9 for move in ring.moves)
    print(
        f"server to server: median {statistics.median(rates):.2f} GB/s, "
        f"slowest {rates[0]:.2f}, fastest {rates[-1]:.2f}",
        flush=True,
    )


def faults(options: argparse.Namespace, accuracy: float, ring: Ring) -> Iterator[str]:
    """Yield a description of each failed check."""
    if accuracy < options.accuracy:
        yield f"the accuracy is {accuracy:.1%}, not {options.accuracy:.0%} or more"
    if ring.wrong:
        yield f"{ring.wrong} moved tensors have a wrong sum"
    most = max((move.client_bytes for move in ring.moves), default=0)
    if most > CLIENT_BYTES:
        yield f"a move took {most:,} bytes through this program, over {CLIENT_BYTES:,}"


@contextmanager
def progress(what: str, total: int) -> Iterator[Tell]:
    """Show progress: a bar on a terminal if rich is installed, otherwise a few lines."""
    try:
        from rich.progress import Progress
    except ImportError:
        bar = None
    else:
        bar = Progress() if sys.stdout.isatty() else None
    if bar is None:
        every = max(1, total // LINES)
        yield (
            lambda done, text: (
                print(f"{what} {done}/{total}: {text}", flush=True) if done % every == 0 else None
            )
        )
        return
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda done, text: bar.update(task, completed=done, description=f"{what} ({text})")


if __name__ == "__main__":
    sys.exit(main())
