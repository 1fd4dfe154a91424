# SPDX-License-Identifier: Apache-2.0
"""The programs that watch accelerators and keep their device files open for as long as they run.

They are no users of a card, but the kernel makes no difference: the driver of a card cannot be
unbound before the last file is closed. So a card that only a monitor has open is in use as well,
and the reason says how to make the monitor close it.
"""

import re
from typing import Final

from cyborg.model.pci import PciAddress

#: The name of a process has 15 characters (proc(5), comm).
_LENGTH: Final = 15
_PROCESS: Final = re.compile(r"(.*) \(process [0-9]+\)")
#: What makes each monitor close a card, with a placeholder for the address. Sources: man page of
#: nvidia-persistenced, NVIDIA's documents of DCGM and of the DCGM exporter.
_REMEDIES: Final = {
    name[:_LENGTH]: remedy
    for name, remedy in {
        "nvidia-persistenced": "turn off the persistence mode with nvidia-smi -i {address} -pm 0",
        "nv-hostengine": "stop it (systemctl stop nvidia-dcgm)",
        "dcgm-exporter": "stop it on this host",
    }.items()
}


def remedy(process: str, address: PciAddress) -> str | None:
    """Return what makes a monitor close a card, None for a process that is not on the list.

    ``process`` is a name as ``OpenFiles`` has it.
    """
    match = _PROCESS.fullmatch(process)
    if match is None or match[1] not in _REMEDIES:
        return None
    return _REMEDIES[match[1]].format(address=address)
