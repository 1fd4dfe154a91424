# SPDX-License-Identifier: Apache-2.0
"""Daemons that RabbitMQ refuses, at their start and while they run, listen once it lets them."""

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import sqlalchemy as sa

from cyborg.db.models import Service as ServiceRow
from cyborg.model.process import AGENT, CONDUCTOR
from cyborg.tests.fixtures.broker import Tenant
from cyborg.tests.fixtures.choice import chosen
from cyborg.tests.fixtures.processes import Deployment, Options, Program
from cyborg.tests.fixtures.service_manager import SimulatedManager
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional import programs
from cyborg.tests.functional.daemons.service import Http, few_lines
from cyborg.tests.functional.deployments import TRANSPORT_URL, merged

#: Seconds for which a refusal lasts while log lines are counted.
OUTAGE = 15.0


@dataclass
class Refused:
    """Three daemons of one host on a virtual host of their own; ``elsewhere`` nobody is refused."""

    tenant: Tenant
    database: str
    host: str
    programs: tuple[Program, Program, Program]
    manager: SimulatedManager
    url: str
    elsewhere: Deployment
    missing: str = ""

    def bus_errors(self) -> dict[str, tuple[str | None, int | None]]:
        """What the rows of the processes say about the bus, by binary."""
        engine = sa.create_engine(self.database)
        with engine.connect() as tx:
            columns = (ServiceRow.binary, ServiceRow.bus_error, ServiceRow.bus_error_ms)
            rows = tx.execute(sa.select(*columns))
            found = {row[0]: (row[1], row[2]) for row in rows}
        engine.dispose()
        return found

    def works(self) -> bool:
        """Whether a write and an agent are answered, and no process has an error of the bus."""
        self.missing = self._missing()
        return not self.missing

    def _missing(self) -> str:
        """What does not work yet; empty when everything does."""
        http = Http(self.url, version="2.100")
        if not http.healthy():
            return http.ask("GET", "/healthcheck").text
        if (status := http.write()) != 201:
            return f"a write is answered with {status}"
        if not http.get(f"/devices?hostname={self.host}")["devices"]:
            return "the agent has reported no device"
        if any(reason for reason, _ in self.bus_errors().values()):
            return str(self.bus_errors())
        services = http.get("/services?kind=process")["services"]
        if any(one["state"] != "up" for one in services):
            return str(services)
        answer = http.ask("POST", "/v2/services/discover", {"hosts": [self.host]})
        if answer.status_code != 202:
            return answer.text
        over = http.over(answer.json())
        return "" if over["state"] == "succeeded" else str(over)


@pytest.fixture(scope="module")
def tenant() -> Iterator[Tenant]:
    with Tenant(TRANSPORT_URL) as made:
        yield made


@pytest.fixture(scope="module")
def refused(
    tenant: Tenant,
    options: Options,
    database: str,
    host: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Refused]:
    """Daemons that were started with a password that the broker does not take."""
    tenant.add_user("another password")
    own: Options = {"DEFAULT": {"transport_url": tenant.url, "rpc_response_timeout": 2}}
    directory = tmp_path_factory.mktemp("refused")
    elsewhere = Deployment(tmp_path_factory.mktemp("elsewhere"), options)
    with Deployment(directory, merged(options, own)) as deployment, SimulatedManager() as manager:
        conductor = deployment.begin(CONDUCTOR, **manager.environment)
        agent = deployment.begin(AGENT)
        api, url = deployment.api()
        yield Refused(tenant, database, host, (conductor, agent, api), manager, url, elsewhere)
        # Daemons that cannot reach the broker take their time to end.
        tenant.permit()


def test_daemons_start_when_broker_grants_access(refused: Refused) -> None:
    tenant = refused.tenant
    Http(refused.url).write()
    for program in refused.programs:
        program.wait_for(r"WARNING.* refuses the connection: 403 ACCESS_REFUSED")
    assert refused.manager.hears("STATUS=Receives no requests: the message bus at")
    eventually(lambda: (refused.bus_errors().get(CONDUCTOR) or ("",))[0], "the row has an error")
    reason, since = refused.bus_errors()[CONDUCTOR]
    assert reason is not None
    assert "403 ACCESS_REFUSED" in reason
    assert since is not None
    tenant.mend_password()
    for program in refused.programs:
        program.wait_for(r"WARNING.* refuses the connection: 530 NOT_ALLOWED - vhost")
    assert (refused.bus_errors()[CONDUCTOR])[1] == since
    tenant.add_vhost()
    tenant.permit()
    eventually(refused.works, lambda: refused.missing)
    queues = {one.rpartition(".")[2] for one in tenant.queues()}
    assert refused.host.rpartition(".")[2] in queues
    eventually(
        lambda: refused.bus_errors()[CONDUCTOR] == refused.bus_errors()[AGENT] == (None, None),
        "the rows have no error",
    )
    for program in refused.programs:
        assert tenant.password not in program.output
        assert "Traceback" not in program.output
        assert len(re.findall("WARNING cyborg.rpc.* 403 ACCESS_REFUSED", program.output)) == 1
        program.wait_for(r"INFO.* The message bus works again")


@pytest.mark.parametrize("how", chosen(["permission", "vhost", "limit"], "refusals"))
def test_daemons_recover_from_lost_access_with_few_log_lines(refused: Refused, how: str) -> None:
    withdraw, grant = ways(refused.tenant)[how]
    eventually(refused.works, lambda: refused.missing)
    http, end = Http(refused.url), time.monotonic() + OUTAGE
    statuses: set[int] = set()

    def over() -> bool:
        statuses.add(http.write())
        return time.monotonic() > end and 503 in statuses

    with few_lines(*refused.programs):
        withdraw()
        eventually(over, "the end of an outage", step=0.1)
    reason = eventually(lambda: refused.bus_errors()[CONDUCTOR][0], "the row has an error")
    assert reason is not None
    assert "refuses" in reason
    if how == "vhost":
        commands_name_the_cause(refused)
    grant()
    eventually(refused.works, lambda: refused.missing)
    assert all(one.running for one in refused.programs)


def commands_name_the_cause(refused: Refused) -> None:
    """What an operator is shown while the virtual host of the daemons does not exist."""
    shown = programs.run_on(refused.elsewhere, "cyborg-status", "check", "--format", "json")
    components = {one["name"]: one for one in json.loads(shown.stdout)["components"]}
    assert shown.returncode == 2
    cause = components["Message bus"]["cause"]
    assert cause.startswith("No conductor answers since ")
    assert "530" in cause
    assert "virtual host" in components["Message bus"]["remedy"]
    assert components[f"cyborg-conductor on {refused.host}"]["state"] == "not receiving"
    silent = components[f"cyborg-agent on {refused.host}"]
    assert silent["state"] == "not heard"
    assert "530" in silent["cause"]
    assert "Start" not in silent["remedy"]
    audit = programs.run_on(refused.elsewhere, "cyborg-audit", "--format", "json")
    findings = {one["kind"]: one for one in json.loads(audit.stdout)["findings"]}
    assert {"no-conductor", "not-receiving", "silent-agent"} <= findings.keys()
    assert findings["no-conductor"]["cause"] == cause
    assert "virtual host" in findings["silent-agent"]["remedy"]


def ways(tenant: Tenant) -> dict[str, tuple[Callable[[], None], Callable[[], None]]]:
    """How a broker begins to refuse what it has let in, and how that ends."""

    def remake() -> None:
        tenant.add_vhost()
        tenant.permit()

    def limit() -> None:
        tenant.limit_connections(0)
        tenant.disconnect()

    return {
        "permission": (tenant.forbid, tenant.permit),
        "vhost": (tenant.delete_vhost, remake),
        "limit": (limit, lambda: tenant.limit_connections(-1)),
    }
