# SPDX-License-Identifier: Apache-2.0
"""The plugin's phases with the services really running, and an upgrade by the hooks of grenade.

The processes talk to each other over a broker: these tests run where there is one.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cyborg.model.provider import provider_uuid
from cyborg.tests.fixtures import broker, ports
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import TOKEN, PlacementService, fresh_host
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional import deployments
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.daemons.service import Http, go_through_everything
from cyborg.tests.functional.devstack.node import MINIMAL, Node
from cyborg.tests.functional.schema.databases import empty_database

#: What an operator would write where there is no Keystone, and what keeps runs apart.
OVERRIDES = """\
[[post-config|$CYBORG_CONF]]
[DEFAULT]
host = {host}
control_exchange = {exchange}
rpc_response_timeout = 10
[agent]
resource_provider_name = {host}
heartbeat_interval = 1
[audit]
interval = 86400
[placement]
auth_type = admin_token
endpoint = {placement}
token = {token}
[nova]
auth_type = none
endpoint = {nova}
"""
LOCALRC = """\
CYBORG_AUTH_STRATEGY=noauth
CYBORG_SECURE_BUS=False
CYBORG_SERVICE_PORT={port}
"""
WEB = "CYBORG_API_URL=http://127.0.0.1:{port}/accelerator\n"
ALONE = "CYBORG_USE_UWSGI=False\n"
CONTROLLER = "disable_service cyborg-agent\n"
COMPUTE = "DATABASE_HOST=192.0.2.1\ndisable_service cyborg-api cyborg-cond\n"

#: Makes a node from more lines of its local.conf.
Make = Callable[..., Node]


@pytest.fixture
def host(placement: PlacementService) -> str:
    """A compute that Placement knows."""
    name = fresh_host()
    placement.make_compute(name)
    return name


@pytest.fixture
def port() -> int:
    return ports.reserved()


@pytest.fixture
def make(
    host: str, port: int, placement: PlacementService, nova_api: SimulatedNova, tmp_path: Path
) -> Iterator[Make]:
    """Make nodes of one deployment; whatever still runs on them is stopped at the end."""
    made: list[Node] = []
    with (
        broker.exchange(deployments.TRANSPORT_URL, host) as exchange,
        empty_database(tmp_path) as database,
    ):
        overrides = OVERRIDES.format(
            host=host,
            exchange=exchange,
            placement=placement.url,
            token=TOKEN,
            nova=nova_api.url,
        )
        variables = {
            "STANDIN_DATABASE_URL": database.engine.url.render_as_string(hide_password=False),
            "STANDIN_TRANSPORT_URL": deployments.TRANSPORT_URL,
            "STANDIN_WEB_PORT": str(port),
            "STANDIN_ENDPOINT": f"http://127.0.0.1:{port}/accelerator/v2",
        }

        def node(*lines: str) -> Node:
            home = tmp_path / f"node-{len(made)}"
            home.mkdir()
            text = MINIMAL + LOCALRC.format(port=port) + "".join(lines) + overrides
            made.append(Node(home, text, start=True, variables=variables))
            return made[-1]

        yield node
        for one in made:
            one.run("unstack")


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
    """Unstack and clean leave nothing of ours."""
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
