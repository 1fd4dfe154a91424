# SPDX-License-Identifier: Apache-2.0
"""QuickAssist: the directory ``qat`` of a PF, with its state and its services.

There is no emulated QuickAssist device, so no real kernel confirms these rules. They follow the
documentation of the kernel (Documentation/ABI/testing/sysfs-driver-qat) and the driver's handler
of ``state``. Not simulated: EBUSY while the device is in use.
"""

import errno

from cyborg.testing.kernel.sysfs import Sysfs, error

_SERVICES = frozenset({"sym", "asym", "dc", "dcc", "decomp"})
#: The files of a PF as its driver makes them.
_FILES = {
    "state": "up",
    "cfg_services": "sym;asym",
    "num_rps": "64",
    "rp2srv": "sym",
    "pm_idle_enabled": "0",
    "auto_reset": "off",
}


class QatDevices:
    """The QuickAssist PFs of a host; ``most`` is how many services one can combine."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self._most: dict[str, int] = {}

    def attach(self, path: str, most: int) -> None:
        """Give a PF its files, unless the tree has them already."""
        self._most[path] = most
        for name, text in _FILES.items():
            if not self._sysfs.exists(f"{path}/qat/{name}"):
                self._sysfs.put(f"{path}/qat/{name}", text)

    def detach(self, path: str) -> None:
        """Take the files of a PF away."""
        if self._most.pop(path, None) is not None:
            self._sysfs.remove(f"{path}/qat")

    def set_state(self, path: str, text: str) -> None:
        """Obey a write to ``state``. Raises OSError (EINVAL) for another word than up and down."""
        state = text.removesuffix("\n")
        if state not in ("up", "down"):
            raise error(errno.EINVAL)
        self._sysfs.put(f"{path}/qat/state", state)

    def set_services(self, path: str, text: str) -> None:
        """Obey a write to ``cfg_services``.

        Raises OSError (EINVAL) for a combination that does not exist, and while the state is up.
        """
        services = text.removesuffix("\n").split(";")
        chosen = set(services)
        valid = chosen <= _SERVICES and len(chosen) == len(services) <= self._most[path]
        alone = "dcc" not in chosen or len(chosen) == 1
        if not valid or not alone or self._sysfs.text(f"{path}/qat/state") != "down":
            raise error(errno.EINVAL)
        self._sysfs.put(f"{path}/qat/cfg_services", ";".join(services))
