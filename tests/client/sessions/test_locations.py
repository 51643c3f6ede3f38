"""An operation's line is in the user's program, whichever package the call passed through."""

from __future__ import annotations

import pkgutil

import burn_remote
from burn_remote.sessions import locations


def test_the_list_of_our_packages_has_every_package_of_the_client() -> None:
    packages = {
        module.name
        for module in pkgutil.walk_packages(burn_remote.__path__, "burn_remote.")
        if module.ispkg
    }
    assert packages | {"burn_remote"} == locations._PACKAGES
