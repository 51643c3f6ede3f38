"""A pytest plugin that makes a device the default one, for the array API standard's own tests.

``BURN_REMOTE_DEVICE`` names the device, for example ``ws://localhost:3000``; else it is local.
"""

from __future__ import annotations

import os

import burn_remote as br

_name = os.environ.get("BURN_REMOTE_DEVICE")
br.set_default_device(br.LocalDevice() if _name is None else br.device(_name))
