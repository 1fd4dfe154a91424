# SPDX-License-Identifier: Apache-2.0
"""What holds for nodes whose services really run."""

from collections.abc import Callable

from cyborg.model.provider import provider_uuid
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.daemons.service import Http, go_through_everything
from cyborg.tests.functional.devstack.node import Node

#: Makes a node from more lines of its local.conf.
Make = Callable[..., Node]


def works(url: str, host: str, placement: PlacementService) -> None:
    """The service does what it is for."""
    http = Http(url)
    # Whichever worker answers.
    assert all(http.healthy() for _ in range(4))
    provider = provider_uuid(f"{host.replace('.', '_')}_FakeDevice")
    # Devices are in service by themselves, as devstack's users are used to.
    eventually(lambda: offered(placement, provider) == 16, "Placement offers the devices")
    go_through_everything(http, host, provider)


def started(node: Node) -> list[str]:
    return [call.split()[0] for call in node.called("run_process")]


def ends(node: Node) -> None:
    """Unstack and clean, and check that no file or process of this service is left."""
    node.do("unstack")
    assert node.processes() == []
    # What runs again finds its files: unstack takes nothing away.
    assert (node.etc / "cyborg.conf").exists()
    node.do("clean")
    assert not node.etc.exists()
    left = {path.name for path in node.home.iterdir()}
    # The rest is devstack's (the client's sources, logs, Tempest's options), grenade's (what it
    # has saved of the resources) and Python's.
    assert left <= {
        *(".cache", "calls", "local.conf", "opt", "tempest.conf"),
        *("resource-cyborg-devices", "resource-cyborg-profile_uuid"),
        *(f"{name}.log" for name in started(node)),
    }
