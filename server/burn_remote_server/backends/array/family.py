"""What do the kernels of one family of operations have in common?"""

from __future__ import annotations

from typing import Any

from burn_remote_server.backends.interface import Kernel

__all__ = ["KernelFamily"]


class KernelFamily:
    """The kernels of one family over the array module ``xp``; they never write into their inputs."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def table(self) -> dict[str, Kernel]:
        """Return the kernel of each variant, by its name on the wire."""
        raise NotImplementedError  # a family without kernels is none
