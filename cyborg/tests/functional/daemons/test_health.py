# SPDX-License-Identifier: Apache-2.0
"""``cyborg-status check`` on a running service, and while each thing that it needs is away."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from cyborg import service as runner
from cyborg.db import schema, services
from cyborg.db.engine import Reader
from cyborg.model.process import CONDUCTOR
from cyborg.tests.fixtures import broker
from cyborg.tests.fixtures.processes import Deployment, Options
from cyborg.tests.functional.daemons.service import Service
from cyborg.tests.functional.deployments import TRANSPORT_URL
from cyborg.tests.functional.schema.databases import empty_database

CLOSED = "http://127.0.0.1:9"


def checked(deployment: Deployment) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit status of the command, and the components by name."""
    done = deployment.run("cyborg-status", "check", "--format", "json")
    assert done.stdout.startswith("{"), done.stderr
    document = json.loads(done.stdout)
    assert document["level"] == ("ok", "warning", "failure")[done.returncode]
    return done.returncode, {one["name"]: one for one in document["components"]}


def states(components: dict[str, dict[str, Any]]) -> dict[str, str]:
    peers = ("Database", "Keystone", "Placement", "Nova", "Message bus")
    return {name: components[name]["state"] for name in peers}


def conductors(database: str) -> list[Any]:
    with closing(Reader(database)) as reader, reader.reader() as tx:
        return list(services.processes(tx, binary=CONDUCTOR))


def test_health_of_a_running_service_is_up(service: Service, deploy: Callable[..., Deployment]):
    here = deploy()
    status, components = checked(here)
    assert (status, set(states(components).values()) - {"not checked"}) == (0, {"up"})
    assert components[f"cyborg-agent on {service.host}"]["state"] == "up"
    shown = here.run("cyborg-status", "check")
    assert shown.returncode == 0
    assert shown.stdout.splitlines()[0].split() == ["Database", "up"]
    assert shown.stdout.splitlines()[-1] == "All well."


def test_unreachable_peers_are_named(service: Service, deploy: Callable[..., Deployment]):
    account: Options = {
        "placement": {"auth_type": "none", "endpoint": CLOSED},
        "nova": {
            "auth_type": "password",
            "auth_url": f"{CLOSED}/v3",
            "username": "cyborg",
            "password": "secret-4711",
        },
    }
    status, components = checked(deploy(account))
    assert status == 2
    assert states(components) == {
        "Database": "up",
        "Keystone": "down",
        "Placement": "down",
        "Nova": "not checked",
        "Message bus": "up",
    }
    assert f"{CLOSED}/v3" in components["Keystone"]["cause"]
    assert "Connection refused" in components["Placement"]["cause"]
    assert "secret-4711" not in json.dumps(components)


def test_unreachable_database_is_named(
    service: Service, deploy: Callable[..., Deployment], database: str
):
    url = sa.make_url(database).set(host="127.0.0.1", port=1)
    closed = url.render_as_string(hide_password=False)
    status, components = checked(deploy({"database": {"connection": closed}}))
    assert status == 2
    assert "connection refused at 127.0.0.1:1" in components["Database"]["cause"]
    assert components["Message bus"]["state"] == "up"


def test_refused_virtual_host_is_named_as_cause(
    deploy: Callable[..., Deployment], host: str, tmp_path: Path
):
    """A conductor and an agent live; the virtual host of the conductor does not exist."""
    url = sa.make_url(TRANSPORT_URL).set(database="cyborg-no-such-vhost", query={})
    refused = url.render_as_string(hide_password=False)
    # The service of the other tests uses their exchange.
    with empty_database(tmp_path) as db, broker.exchange(TRANSPORT_URL, host) as exchange:
        schema.upgrade(db)
        database = db.engine.url.render_as_string(hide_password=False)
        own: Options = {"database": {"connection": database}}
        here = deploy(own, {"DEFAULT": {"control_exchange": exchange}})
        well, agent = here.conductor(), here.agent()
        agent.wait_for(r"Reported \d+ device")
        well.stop()
        deaf = here.conductor({"DEFAULT": {"transport_url": refused}})

        def is_deaf() -> bool:
            return any(row.bus_error for row in conductors(database))

        assert runner.wait_until(is_deaf, timeout=60.0), deaf.output
        status, components = checked(here)
        assert status == 2
        cause = components["Message bus"]["cause"]
        assert cause.startswith("No conductor answers since ")
        assert "530" in cause
        assert "virtual host" in components["Message bus"]["remedy"]
        assert components[f"cyborg-conductor on {host}"]["state"] == "not receiving"
        silent = components[f"cyborg-agent on {host}"]
        assert silent["state"] == "not heard"
        assert "530" in silent["cause"]
        assert "Start" not in silent["remedy"]
        audit = here.run("cyborg-audit", "--format", "json")
        findings = {one["kind"]: one for one in json.loads(audit.stdout)["findings"]}
        assert {"no-conductor", "not-receiving", "silent-agent"} <= findings.keys()
        assert findings["no-conductor"]["cause"] == cause
        assert "virtual host" in findings["silent-agent"]["remedy"]
        here.stop()


def test_only_a_failed_conductor_keeps_its_row(deploy: Callable[..., Deployment], database: str):
    here = deploy({"DEFAULT": {"host": "control-4"}})

    def rows() -> list[Any]:
        return [row for row in conductors(database) if row.host == "control-4"]

    told = here.conductor()
    assert runner.wait_until(lambda: len(rows()) == 1, timeout=30.0), told.output
    assert told.stop() == 0
    assert rows() == []
    killed = here.conductor()
    assert runner.wait_until(lambda: len(rows()) == 1, timeout=30.0), killed.output
    killed.kill()
    assert len(rows()) == 1
