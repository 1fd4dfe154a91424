# SPDX-License-Identifier: Apache-2.0
"""An upgrade by the hooks of grenade, with the services really running."""

from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.functional.devstack.running import Make, ends, started, works

WEB = "CYBORG_API_URL=http://127.0.0.1:{port}/accelerator\n"


def test_grenade_hooks_upgrade_a_running_service(
    make: Make, host: str, port: int, placement: PlacementService
) -> None:
    node = make(WEB.format(port=port))
    node.do("stack")
    assert started(node) == ["cyborg-privileged", "cyborg-cond", "cyborg-api", "cyborg-agent"]
    for hook in (
        ("resources.sh", "create"),
        ("resources.sh", "verify"),
        ("shutdown.sh",),
        ("upgrade.sh",),
        ("resources.sh", "verify"),
        ("resources.sh", "destroy"),
    ):
        ran = node.hook(*hook)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert bool(node.processes()) == (hook != ("shutdown.sh",))
    works(f"http://127.0.0.1:{port}/accelerator", host, placement)
    ends(node)
