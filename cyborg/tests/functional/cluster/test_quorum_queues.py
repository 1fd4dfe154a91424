# SPDX-License-Identifier: Apache-2.0
"""The service on quorum queues of RabbitMQ, and the change from classic queues to them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from cyborg.db.engine import Database
from cyborg.tests.fixtures import broker, ports, waiting
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.processes import Deployment, Options
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional import deployments
from cyborg.tests.functional.daemons.service import go_through_everything, start_service
from cyborg.tests.functional.deployed.page import block
from cyborg.tests.functional.deployments import merged
from cyborg_tools.chaos.servers import RabbitMq

_QUORUM: Final[Options] = {"oslo_messaging_rabbit": {"rabbit_quorum_queue": True}}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RabbitMq]:
    """A RabbitMQ of the test's own, with the management plugin."""
    server = RabbitMq(tmp_path / "rabbitmq", management_port=ports.reserved())
    try:
        server.begin()
        server.wait()
        yield server
    finally:
        server.close()


@pytest.fixture
def tenant(server: RabbitMq) -> Iterator[broker.Tenant]:
    """A virtual host without queues, which is removed with all of them."""
    with broker.Tenant(server.url, server.control) as tenant:
        tenant.add_user(tenant.password)
        tenant.add_vhost()
        tenant.permit()
        yield tenant


@pytest.fixture
def options(
    own_database: Database,
    tenant: broker.Tenant,
    host: str,
    placement: PlacementService,
    nova_api: SimulatedNova,
    tmp_path: Path,
) -> Options:
    return deployments.options(
        tmp_path / "state",
        database=own_database.engine.url.render_as_string(hide_password=False),
        exchange="cyborg",
        host=host,
        placement=placement,
        nova=nova_api.url,
        transport=tenant.url,
    )


def test_service_works_after_each_change_of_the_type_of_queues(
    options: Options, server: RabbitMq, tenant: broker.Tenant, host: str, tmp_path: Path
) -> None:
    for name in ("state", "classic", "quorum", "back"):
        (tmp_path / name).mkdir()
    with Deployment(tmp_path / "classic", options) as deployment:
        deployment.conductor()
        eventually(lambda: len(tenant.queues()) > 2, "the conductor listens")
    with Deployment(tmp_path / "quorum", merged(options, _QUORUM)) as deployment:
        _is_refused(deployment)
        _run("remove-queues", server, tenant)
        _works(deployment, host)
        assert _kinds(server, tenant) == {"quorum"}
    with Deployment(tmp_path / "back", options) as deployment:
        _is_refused(deployment)
        _run("remove-vhost", server, tenant)
        _works(deployment, host)
        assert _kinds(server, tenant) == {"classic"}


def _is_refused(deployment: Deployment) -> None:
    refused = deployment.begin("cyborg-conductor")
    refused.wait_for(
        "WARNING.* 406 PRECONDITION_FAILED.* The exchange "
        r"cyborg or the queue cyborg-conductor\S* was declared with another"
    )
    refused.stop()


def _run(name: str, server: RabbitMq, tenant: broker.Tenant) -> None:
    """Run a block of the page on this change, as an administrator of the broker copies it."""
    values = {"VHOST": tenant.name, "USER": tenant.name, "PASSWORD": tenant.password}
    text = block("../admin/message-bus", name)
    text = re.sub("|".join(values), lambda match: values[match[0]], text)
    ran = waiting.ran(["bash", "-euo", "pipefail", "-c", text], env=server.environment)
    assert ran.returncode == 0, f"{ran.stdout}{ran.stderr}"


def _works(deployment: Deployment, host: str) -> None:
    service = start_service(deployment, host)
    go_through_everything(service.client(), host, service.provider)
    for program in service.programs:
        assert "Traceback" not in program.output
    # The next processes begin without devices of these.
    deployment.stop()


def _kinds(server: RabbitMq, tenant: broker.Tenant) -> set[str]:
    """Return the types of the queues that do not end with their process."""
    listed = server.control("list_queues", "-p", tenant.name, "name", "type", "--silent")
    rows = [line.split("\t") for line in listed.splitlines()]
    return {kind for name, kind in rows if not name.startswith("reply_") and "_fanout_" not in name}
