"""An operation's line is the program's, whichever of our packages the call passed through."""

from __future__ import annotations

import pkgutil

import burn_remote
from burn_remote.sessions import locations


def test_every_package_of_the_client_is_known_as_ours() -> None:
    packages = {
        module.name
        for module in pkgutil.walk_packages(burn_remote.__path__, "burn_remote.")
        if module.ispkg
    }
    assert packages | {"burn_remote"} == locations._PACKAGES
