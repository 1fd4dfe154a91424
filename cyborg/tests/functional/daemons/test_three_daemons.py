# SPDX-License-Identifier: Apache-2.0
"""API, conductor and agent as processes on a real bus: they serve everything."""

from pathlib import Path

from cyborg import service as runner
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.daemons.service import Http, Service, go_through_everything
from cyborg.tests.functional.deployments import TRANSPORT_URL

ESTABLISHED = "01"


def peers(pid: int) -> set[int]:
    """The remote TCP ports to which a process is connected."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        target = str(descriptor.readlink()) if descriptor.is_symlink() else ""
        if target.startswith("socket:["):
            inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes and fields[3] == ESTABLISHED:
                found.add(int(fields[2].rpartition(":")[2], 16))
    return found


def test_every_resource_is_read_and_written(service: Service, placement: PlacementService):
    assert offered(placement, service.provider) == 16
    go_through_everything(service.client(), service.host, service.provider)


def test_disabled_device_is_reserved_in_placement(service: Service, placement: PlacementService):
    http = service.client()
    (device,) = http.get(f"/devices?hostname={service.host}")["devices"]
    http.do("POST", f"/devices/{device['uuid']}/disable", status=204)
    assert runner.wait_until(lambda: offered(placement, service.provider) == 0, timeout=10)
    http.do("POST", f"/devices/{device['uuid']}/enable", status=204)
    assert runner.wait_until(lambda: offered(placement, service.provider) == 16, timeout=10)


def test_nova_receives_event_of_a_bound_arq(service: Service, nova_api: SimulatedNova):
    before = len(nova_api.events)
    go_through_everything(service.client(), service.host, service.provider)
    assert runner.wait_until(lambda: len(nova_api.events) > before, timeout=10)
    assert nova_api.events[-1].status == "completed"


def test_conductor_and_agent_stay_connected_to_the_broker(service: Service):
    port = int(TRANSPORT_URL.rpartition(":")[2].partition("/")[0])
    for program in (service.conductor, service.agent):
        assert port in peers(program.pid)


def test_agent_reexecutes_itself_with_the_same_pid(service: Service):
    before = service.client().get("/devices")
    over = Http(service.url, version="2.4").ended("PATCH", "/drivers/fake_driver", {})
    assert (over["state"], over["steps"][1]["name"]) == ("succeeded", "reloaded"), over
    assert service.agent.running
    assert service.agent.output.count("cyborg-agent is running") == 2
    assert service.client().get("/devices") == before
