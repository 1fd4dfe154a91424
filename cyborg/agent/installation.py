# SPDX-License-Identifier: Apache-2.0
"""Whether a device that was set up is ready: what its driver finds counts, not what it said."""

from cyborg import exception
from cyborg.agent.guard import Guard
from cyborg.drivers.base import Driver

_VERB = "install"


def set_up(driver: Driver, device_key: str, guard: Guard) -> str | None:
    """Look at a device after its set-up; answers what the operator should know, if anything.

    Raises DriverFailed when it is not there, or still not ready.
    """
    found = guard(driver.name, "hardware", driver.hardware)
    entry = next((one for one in found if one.key == device_key), None)
    if entry is None:
        raise _failed(driver, "the device is not there any more")
    if entry.setup_required:
        reason = entry.reason or "it still has to be set up"
        if entry.reboot_required:
            reason = f"the host has to be rebooted before it is ready ({reason})"
        raise _failed(driver, reason)
    if entry.reboot_required:
        return "Its host has to be rebooted" + (f": {entry.reason}" if entry.reason else ".")
    return None


def _failed(driver: Driver, reason: str) -> exception.DriverFailed:
    return exception.DriverFailed(driver=driver.name, verb=_VERB, reason=reason)
