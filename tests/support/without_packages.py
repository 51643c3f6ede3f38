"""Run a program as if packages were not installed.

``python -m support.without_packages torch,transformers examples/torch_gpt.py -h``
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any


class Hiding:
    """A finder of modules that does not find some packages."""

    def __init__(self, finder: Any, packages: frozenset[str]) -> None:
        self._finder = finder
        self._packages = packages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in self._packages:
            return None
        return self._finder.find_spec(name, path, target)


if __name__ == "__main__":
    _, packages, program, *flags = sys.argv
    hidden = frozenset(packages.split(","))
    sys.meta_path[:] = [Hiding(finder, hidden) for finder in sys.meta_path]
    sys.path.insert(0, str(Path(program).parent))
    sys.argv = [program, *flags]
    runpy.run_path(program, run_name="__main__")
