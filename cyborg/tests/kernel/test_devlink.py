# SPDX-License-Identifier: Apache-2.0
"""devlink, as a network card with a health reporter has it: netdevsim."""

import json
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from cyborg.drivers.host import LocalHost

DEVICE = "netdevsim/netdevsim7"


@pytest.fixture
def devlink(
    host: LocalHost, command: Callable[..., str], undo: ExitStack
) -> Callable[..., dict[str, object]]:
    """Return a function that asks devlink about a simulated card with two ports."""
    host.write_text("/sys/bus/netdevsim/new_device", "7 2")
    undo.callback(host.write_text, "/sys/bus/netdevsim/del_device", "7")

    def devlink(*words: str) -> dict[str, object]:
        return dict(json.loads(command("devlink", "-j", *words)))

    return devlink


def test_devlink_shows_driver_and_ports(devlink: Callable[..., dict[str, object]]) -> None:
    """Drivers of network cards learn versions and ports from this command, as JSON."""
    [fields] = devlink("dev", "info", DEVICE)["info"].values()  # type: ignore[attr-defined]
    assert fields["driver"] == "netdevsim"
    ports = devlink("port", "show")["port"]
    assert sorted(ports) == [f"{DEVICE}/0", f"{DEVICE}/1"]  # type: ignore[call-overload]


def test_devlink_counts_errors_of_a_health_reporter(
    devlink: Callable[..., dict[str, object]], host: LocalHost
) -> None:
    """A health reporter is a source for the health of a device; it counts errors."""

    def reporter() -> dict[str, object]:
        shown = devlink("health", "show", DEVICE, "reporter", "dummy")["health"]
        return dict(shown[DEVICE][0])  # type: ignore[index]

    assert (reporter()["state"], reporter()["error"]) == ("healthy", 0)
    host.write_text("/sys/kernel/debug/netdevsim/netdevsim7/health/break_health", "worn out")
    assert reporter()["error"] == 1


def test_devlink_changes_the_eswitch_mode_and_shows_a_port_for_each_virtual_function(
    devlink: Callable[..., dict[str, object]], command: Callable[..., str], host: LocalHost
) -> None:
    """Hardware offload needs ``switchdev``: each VF then has a representor on the host."""

    def mode() -> object:
        [fields] = devlink("dev", "eswitch", "show", DEVICE)["dev"].values()  # type: ignore[attr-defined]
        return fields["mode"]

    def flavours() -> list[str]:
        ports = devlink("port", "show")["port"].values()  # type: ignore[attr-defined]
        return sorted(port["flavour"] for port in ports)

    host.write_text("/sys/bus/netdevsim/devices/netdevsim7/sriov_numvfs", "2")
    assert (mode(), flavours()) == ("legacy", ["physical", "physical"])
    command("devlink", "dev", "eswitch", "set", DEVICE, "mode", "switchdev")
    assert (mode(), flavours()) == ("switchdev", ["pcivf", "pcivf", "physical", "physical"])
    command("devlink", "dev", "eswitch", "set", DEVICE, "mode", "legacy")
    assert (mode(), flavours()) == ("legacy", ["physical", "physical"])
