"""Print the requirements of burn-remote and of some extras, one per line, for pip.

python3 docker/requirements.py server
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def requirements(extras: list[str]) -> list[str]:
    """Return the requirements for the build, for running, and of the extras."""
    table = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    project = table["project"]
    name, groups = project["name"], project["optional-dependencies"]
    needed = [*table["build-system"]["requires"], *project["dependencies"]]
    waiting = list(extras)
    while waiting:
        for requirement in groups[waiting.pop()]:
            own = requirement.removeprefix(f"{name}[")
            if own == requirement:
                needed.append(requirement)
            else:
                waiting += own.rstrip("]").split(",")
    return needed


if __name__ == "__main__":
    print("\n".join(requirements([extra for one in sys.argv[1:] for extra in one.split(",")])))
