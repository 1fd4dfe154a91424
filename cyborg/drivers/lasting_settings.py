# SPDX-License-Identifier: Apache-2.0
"""What a guest of a whole PCI function can change for good: no reset of the function undoes it.

Sources: Documentation/ABI (sysfs-bus-pci, sysfs-nvme) and Documentation/gpu/amdgpu of Linux, and
``devlink-dev(8)``.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

from cyborg import exception
from cyborg.drivers.files import read_if_exists
from cyborg.drivers.host import Host
from cyborg.drivers.pci_function import PciFunction
from cyborg.model.health import legible

_DEVLINK: Final = "/usr/sbin/devlink"
_TIMEOUT: Final = 5.0
#: The first digits of the class code of network cards, and of InfiniBand cards of class 0c06.
_NETWORK: Final = ("02", "0c06")
_CONTROLLER = re.compile(r"nvme[0-9]{1,4}")
#: The value of a fact that the host shows and the device does not have.
NONE: Final = "none"


def read(host: Host, function: PciFunction) -> dict[str, str]:
    """Return the settings that a driver of the host shows, by a name for operators.

    Nothing is known of a virtual function, and of a function without a driver of the host. A fact
    that the device never shows is left out. Raises exception.HostError for one that cannot be read
    now.
    """
    if function.parent is not None or function.host_driver is None or function.on_vfio:
        return {}
    path = f"/sys/bus/pci/devices/{function.address}"
    settings = {
        name: value
        for name, file in (("SR-IOV functions", "sriov_totalvfs"), ("firmware", "vbios_version"))
        if (value := legible(read_if_exists(host.read_text, f"{path}/{file}") or "")) is not None
    }
    # The device offers SR-IOV, or not, by what is written in its flash memory.
    settings.setdefault("SR-IOV functions", NONE)
    if host.exists(f"{path}/nvme"):
        for name in filter(_CONTROLLER.fullmatch, host.list_dir(f"{path}/nvme")):
            text = read_if_exists(host.read_text, f"{path}/nvme/{name}/firmware_rev")
            settings["firmware"] = legible(text or "") or NONE
    if f"{function.class_code:06x}".startswith(_NETWORK) and host.exists(_DEVLINK):
        settings |= _firmware_of_card(host, f"pci/{function.address}")
    return settings


def _firmware_of_card(host: Host, handle: str) -> dict[str, str]:
    """Return the running and the stored versions of a network card; none without devlink."""
    result = host.run([_DEVLINK, "dev", "info", handle, "-j"], timeout=_TIMEOUT)
    if result.status != 0:
        # A driver without this information answers with an error, too.
        return {}
    try:
        versions = json.loads(result.stdout[result.stdout.find("{") :])["info"][handle]["versions"]
        groups = {"firmware": versions.get("running"), "stored firmware": versions.get("stored")}
        return {name: _joined(group) for name, group in groups.items() if group}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise exception.HostError(
            action="reading the firmware of a network card",
            reason=f"devlink printed no versions ({type(error).__name__})",
        ) from error


def _joined(versions: Mapping[str, object]) -> str:
    return legible(", ".join(f"{name} {value}" for name, value in sorted(versions.items()))) or NONE


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Yield a clause for each setting that has another value now; one that is not known has none.

    Settings that were not known before are left out.
    """
    for name, value in sorted(before.items()):
        if now.get(name, value) != value:
            yield f"its {name} was {value} before the guest and is {now[name]} now"
