# SPDX-License-Identifier: Apache-2.0
"""The plugin's phases on a controller and a compute node, with the services really running."""

from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.functional.devstack.running import Make, ends, started, works

ALONE = "CYBORG_USE_UWSGI=False\n"
CONTROLLER = "disable_service cyborg-agent\n"
COMPUTE = "DATABASE_HOST=192.0.2.1\ndisable_service cyborg-api cyborg-cond\n"


def test_controller_and_compute_node_work_together(
    make: Make, host: str, port: int, placement: PlacementService
) -> None:
    url = f"http://127.0.0.1:{port}"
    controller, compute = make(ALONE, CONTROLLER), make(ALONE, COMPUTE)
    controller.do("stack")
    assert started(controller) == ["cyborg-cond", "cyborg-api"]
    # The endpoint that is registered is where the API answers.
    assert controller.called("get_or_create_endpoint") == [
        " ".join(["accelerator RegionOne", *[f"{url}/v2"] * 3])
    ]
    # The nodes sign their messages: this one needs the keys of its host.
    compute.etc.mkdir()
    keys = "signing-keys.json"
    derive = f"cyborg-signing-key derive {controller.etc / keys} --host {host}"
    ran = controller.bash(f"{derive} --output {compute.etc / keys}")
    assert ran.returncode == 0, ran.stderr
    compute.do("stack")
    assert started(compute) == ["cyborg-privileged", "cyborg-agent"]
    works(url, host, placement)
    ends(compute)
    ends(controller)
