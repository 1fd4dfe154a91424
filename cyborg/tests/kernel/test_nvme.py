# SPDX-License-Identifier: Apache-2.0
"""NVMe: a virtual function becomes a controller when its physical function gives it resources."""

import json
from collections.abc import Callable

from cyborg.drivers.host import LocalHost
from cyborg.drivers.scan import Scan
from cyborg.model.pci import PciAddress
from cyborg.tests.kernel.functions import Functions, eventually

#: NVMe base specification 2.0, "Virtualization Management": the actions and the kinds of resource.
_PRIMARY, _SECONDARY, _ONLINE = 1, 8, 9
_QUEUES, _INTERRUPTS = 0, 1


def test_a_virtual_function_gets_a_controller_after_virtualization_management(
    functions: Functions, host: LocalHost, command: Callable[..., str]
) -> None:
    """An NVMe VF has no queues until its PF gives it some; only then its driver can use it."""
    parent = functions.nvme("SRIOV0001")
    [primary] = functions.names(parent, "nvme")

    def manage(controller: int, action: int, kind: int = _QUEUES, count: int = 0) -> None:
        words = ("-c", str(controller), "-a", str(action), "-r", str(kind), "-n", str(count))
        command("nvme", "virt-mgmt", f"/dev/{primary}", *words)

    virtual, other = functions.create_vfs(parent, 2)
    listed = json.loads(command("nvme", "list-secondary", f"/dev/{primary}", "-o", "json"))
    numbers = {
        entry["virtual-function-number"]: entry["secondary-controller-identifier"]
        for entry in next(value for value in listed.values() if isinstance(value, list))
    }
    # The PF has all flexible resources first, and gives them up at its next reset.
    for kind in (_QUEUES, _INTERRUPTS):
        manage(0, _PRIMARY, kind)
    functions.write(parent, "reset", 1)
    manage(numbers[1], _SECONDARY, _QUEUES, 2)
    manage(numbers[1], _SECONDARY, _INTERRUPTS, 1)
    manage(numbers[1], _ONLINE)
    functions.bind(virtual, "nvme")
    eventually(lambda: functions.names(virtual, "nvme") != [])
    [controller] = functions.names(virtual, "nvme")
    eventually(lambda: functions.read(virtual, f"nvme/{controller}/state") == "live")
    assert functions.read(virtual, f"nvme/{controller}/cntlid") == str(numbers[1])
    scan = Scan(host)
    reasons = {
        address: scan.refusal(scan.functions[PciAddress.parse(address)], managed=False)
        for address in (parent, virtual, other)
    }
    assert "2 virtual functions" in str(reasons.pop(parent))
    assert reasons == {virtual: None, other: None}
