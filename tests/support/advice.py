"""Programs that make a mistake, the advice of the error, and programs that take the advice.

A file of them has one block for each, separated by empty lines::

    x + [1, 2, 3]
    ! burn_remote.tensor(data, device=x.device) makes a tensor of a list
    x + br.tensor([1, 2, 3], device=x.device)

The first lines are the program with the mistake, the line after ``!`` is a part of the error's
text, and the last lines are the program that takes the advice.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

import burn_remote as br
from burn_remote import distributed
from burn_remote import functional as F

__all__ = ["Mistake", "error_of", "names_of", "read_mistakes"]

TEXT_MARK: Final = "! "


@dataclass(frozen=True)
class Mistake:
    """A program with a mistake, a part of the error's text, and a program that takes the advice.

    ``subject`` is the name of the file.
    """

    subject: str
    program: str
    text: str
    advised: str


def read_mistakes(path: Path) -> list[Mistake]:
    """Parse a file of programs."""
    blocks = path.read_text("utf-8").strip().split("\n\n")
    return [_parsed(path.stem, block) for block in blocks]


def _parsed(subject: str, block: str) -> Mistake:
    lines = block.splitlines()
    (place,) = [number for number, line in enumerate(lines) if line.startswith(TEXT_MARK)]
    program, advised = "\n".join(lines[:place]), "\n".join(lines[place + 1 :])
    assert program and advised, block
    return Mistake(subject, program, lines[place].removeprefix(TEXT_MARK), advised)


def names_of(device: br.Device, other: br.Device, folder: Path) -> dict[str, Any]:
    """Return the names that the programs use: two devices, a folder, tensors, a trainer."""
    values = {
        "x": br.ones((2, 3), device=device),
        "v": br.tensor([1.0, 2.0, 3.0], device=device),
        "i": br.tensor([0, 1, 1], device=device),
        "m": br.ones((3, 3), device=device),
        "b": br.tensor([True, False, True], device=device),
        "c": br.tensor([1 + 2j, 3j, 1], device=device),
        "n": br.tensor(2.0, device=device),
        "q": br.quantize(br.ones((4, 8), device=device), br.quant_scheme()),
        "w": br.tensor([1.0, 2.0, 3.0], device=device).requires_grad_(),
    }

    def loss(params: Any, rows: Any) -> Any:
        return (params["w"] * rows).sum()

    def trainer(params: Any = None, **options: Any) -> br.DataParallel:
        parameters = {"w": values["v"]} if params is None else params
        return br.DataParallel(loss, parameters, [device, other], **options)

    return {
        **values,
        "br": br,
        "np": np,
        "F": F,
        "device": device,
        "other": other,
        "tmp": folder,
        "xo": values["x"].to(other),
        "g": distributed.Group([device, other]),
        "L": distributed,
        "P": distributed.DistributedParams,
        "loss": loss,
        "D": trainer,
        "A": br.optim.Adam(lr=0.1),
        "B": np.ones((4, 3), "float32"),
    }


def error_of(program: str, names: dict[str, Any]) -> Exception | None:
    """Run a program and wait for its operations; return what it raises, a warning too."""
    device = names["device"]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(compile(program, "<program>", "exec"), names)
            device.sync()
    except (Exception, Warning) as error:
        return error
    finally:
        for name in [*distributed.get_backend_client_map()]:
            distributed.close_distributed_sync_server(name)
    return None
