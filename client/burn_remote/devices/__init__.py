"""Remote and local devices: how a program opens, shares and names them."""

import sys
from types import ModuleType
from typing import NoReturn

from burn_remote_protocol.errors import ArgumentMismatch


class _DevicesModule(ModuleType):
    """This module, with advice for programs that call it like ``jax.devices()``."""

    def __call__(self, *_: object) -> NoReturn:
        raise ArgumentMismatch(
            "burn_remote.devices is a module, not a function: a program opens the devices that it "
            "uses, with burn_remote.RemoteDevice('ws://host:3000') or burn_remote.LocalDevice()"
        )


sys.modules[__name__].__class__ = _DevicesModule
