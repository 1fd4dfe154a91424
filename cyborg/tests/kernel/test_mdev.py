# SPDX-License-Identifier: Apache-2.0
"""Mediated devices and vendor-specific VFIO: types of one card share its capacity."""

import errno
import json
import uuid
from collections.abc import Callable

from cyborg.drivers.host import LocalHost
from cyborg.tests.kernel.functions import CARD, Functions, refused

#: The types of simaccel: one needs one of four slices, the other needs all four.
SMALL, LARGE = "simaccel-1", "simaccel-4"


def available(functions: Functions, card: str) -> list[int]:
    """Return how many devices of the small and of the large type can be created."""
    texts = (
        functions.read(card, f"mdev_supported_types/{kind}/available_instances")
        for kind in (SMALL, LARGE)
    )
    return [int(text) for text in texts]


def test_device_of_one_type_takes_instances_of_the_others(functions: Functions) -> None:
    """A unit of an MDEV deployable may be gone although its own type was never used."""
    card, other = functions.matching(CARD)
    assert available(functions, card) == [4, 1]
    functions.create_mdev(card, SMALL)
    assert available(functions, card) == [3, 0]
    assert available(functions, other) == [4, 1]


def test_card_without_capacity_refuses_a_further_device(functions: Functions) -> None:
    """Preparing a unit that was offered can fail: siblings may have used the capacity."""
    card, _ = functions.matching(CARD)
    functions.create_mdev(card, LARGE)
    with refused(errno.ENOSPC):
        functions.write(card, f"mdev_supported_types/{SMALL}/create", uuid.uuid4())
    assert available(functions, card) == [0, 0]


def test_uuid_is_refused_twice(functions: Functions) -> None:
    """UUIDs are unique on a host: a repeated preparation must look for the device first."""
    card, other = functions.matching(CARD)
    name = functions.create_mdev(card, SMALL)
    with refused(errno.EEXIST):
        functions.write(other, f"mdev_supported_types/{SMALL}/create", name)


def test_device_is_a_child_of_its_card(functions: Functions, host: LocalHost) -> None:
    """A card with a child of the bus mdev is carved: it is not offered as a whole."""
    card, _ = functions.matching(CARD)
    name = functions.create_mdev(card, SMALL)
    path = host.realpath(f"/sys/bus/mdev/devices/{name}")
    assert path == host.realpath(functions.path(card, name))
    assert functions.link(card, f"{name}/iommu_group")


def test_mdevctl_shows_the_types_and_devices(
    functions: Functions, command: Callable[..., str]
) -> None:
    """Operators read the same numbers with mdevctl as drivers do in sysfs."""
    card, _ = functions.matching(CARD)
    name = functions.create_mdev(card, SMALL)
    [types] = json.loads(command("mdevctl", "types", "--parent", card, "--dumpjson"))
    [kinds] = types.values()
    shown = {
        kind: fields["available_instances"] for entry in kinds for kind, fields in entry.items()
    }
    assert shown == {SMALL: 3, LARGE: 0}
    [devices] = json.loads(command("mdevctl", "list", "--dumpjson"))
    [[entry]] = devices.values()
    assert entry[name]["mdev_type"] == SMALL


def creatable(functions: Functions, vf: str) -> list[str]:
    """Return the ids of the vGPU types that a VF can have; the first line is a heading."""
    lines = functions.read(vf, "nvidia/creatable_vgpu_types").splitlines()[1:]
    return [line.partition(":")[0].strip() for line in lines]


def test_vgpu_type_of_one_vf_shrinks_the_lists_of_the_others(functions: Functions) -> None:
    """The lists are read each time; that a type was there in the last scan tells nothing."""
    first, second = functions.create_vfs(functions.nvme("SRIOV0001"), 2)
    for vf in (first, second):
        functions.bind(vf, "simaccel")
    assert creatable(functions, second) == ["1430", "1429", "1428"]
    functions.write(first, "nvidia/current_vgpu_type", 1429)
    assert creatable(functions, first) == []
    assert creatable(functions, second) == ["1429", "1428"]
    with refused(errno.ENOSPC):
        functions.write(second, "nvidia/current_vgpu_type", 1430)
    with refused(errno.EEXIST):
        functions.write(first, "nvidia/current_vgpu_type", 1428)
    functions.write(first, "nvidia/current_vgpu_type", 0)
    assert creatable(functions, second) == ["1430", "1429", "1428"]
