"""The demo's results as plain text, which is readable in a log too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cluster.nodes import Cluster
from cluster.watching import Watch

__all__ = ["nodes_table", "table"]

HEADER: Final = (
    "",
    "operations",
    "clients in",
    "clients out",
    "peers in",
    "peers out",
    "most memory",
    "CPU time",
)


def nodes_table(cluster: Cluster, watch: Watch) -> str:
    """Return each node's counters while it was watched, and this program's own traffic."""
    rows: list[tuple[str, ...]] = [HEADER]
    for node in cluster.nodes:
        total = watch.total(node)
        name = f"{node.name} (lost)" if node.lost else node.name
        if total is None:
            rows.append((name, "no metrics", *[""] * (len(HEADER) - 2)))
            continue
        rows.append(
            (
                name,
                f"{total.operations:,.0f}",
                *map(size, (total.clients_in, total.clients_out, total.peers_in, total.peers_out)),
                size(total.memory_bytes),
                f"{total.cpu_seconds:.1f} s",
            )
        )
    traffic = [node.device.traffic for node in cluster.nodes]
    rows.append(
        (
            "this program",
            f"{sum(t.operations for t in traffic):,} sent",
            f"{size(sum(t.bytes_sent for t in traffic))} out",
            f"{size(sum(t.bytes_received for t in traffic))} in",
            "",
            "",
            "",
            "",
        )
    )
    return table(rows)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as columns, the first aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def size(nbytes: float) -> str:
    """Format a number of bytes in decimal units."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:,.1f} {unit}"
    return f"{nbytes:,.0f} B"
