# SPDX-License-Identifier: Apache-2.0
"""The accounts at RabbitMQ that the installation guide creates, at a real broker.

The commands are taken from the guide.
"""

from collections.abc import Iterator
from operator import methodcaller
from typing import Any

import pytest
from amqp import Message
from amqp.exceptions import AccessRefused
from kombu.connection import Connection
from oslo_config import cfg

from cyborg.db.engine import Database
from cyborg.model.report import Report
from cyborg.model.work import Discovered, DiscoveryTask
from cyborg.rpc.agent import AgentClient
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.endpoint import Endpoint
from cyborg.rpc.transport import (
    AGENT_TOPIC,
    CONDUCTOR_AGENTS_TOPIC,
    CONDUCTOR_TOPIC,
    EXCHANGE,
)
from cyborg.rpc.verbs import AGENT, Discover, Heartbeat, SendReport
from cyborg.tests.fixtures.broker import Tenant, connection
from cyborg.tests.fixtures.stack import Stack, reach
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.functional.bus.guide import GUIDE, commands
from cyborg.tests.functional.bus.test_attacks import heartbeat, profile
from cyborg.tests.functional.deployments import TRANSPORT_URL

ROLES = ("api", "conductor", "agent")
HOST, OTHER = "compute-1", "compute-2"


@pytest.fixture(scope="module")
def tenant() -> Iterator[Tenant]:
    """A virtual host of its own."""
    with Tenant(TRANSPORT_URL) as tenant:
        tenant.add_vhost()
        yield tenant


@pytest.fixture(scope="module")
def urls(tenant: Tenant) -> dict[str, str]:
    """The URL of each role."""
    found = {role: tenant.add_role(role) for role in ROLES}
    for command, role, patterns in commands():
        tenant.grant(command, role, *patterns)
    return found


def is_refused(connection: Connection, attempt: Any) -> bool:
    """Whether the broker refuses what is done on a channel; publications are confirmed."""
    with connection as one:
        channel = one.channel()
        try:
            attempt(channel)
        except AccessRefused:
            return True
    return False


@pytest.fixture
def service(
    urls: dict[str, str],
    conf: cfg.ConfigOpts,
    own_database: Database,
    stack: Stack,
) -> Iterator[dict[str, Stack]]:
    """The processes of each role, with its account."""
    made: dict[str, Stack] = {}
    for role in ROLES:
        made[role] = Stack(
            conf=conf,
            database_url=own_database.engine.url.render_as_string(hide_password=False),
            transport_url=urls[role],
            peers=stack.peers,
            exchange=EXCHANGE,
            role=role,
        )
    made["conductor"].start_conductor("control-1")
    yield made
    for one in reversed(made.values()):
        one.stop()


class Agent:
    """What an agent answers."""

    def __init__(self, stack: Stack, host: str) -> None:
        handler = Discover.handled(lambda command: Discovered(command.task.request_key, done=True))
        bus = stack.bus()
        self._server = bus.server(AGENT_TOPIC, host, Endpoint("agent", AGENT, handler))
        self._server.start()

    def stop(self) -> None:
        self._server.stop()
        self._server.wait()


def test_every_role_can_do_its_work(service: dict[str, Stack]) -> None:
    api = reach(ConductorClient(service["api"].bus(), timeout=PATIENCE))
    assert api.write(profile()).name.startswith("p-")
    sender = f"{AGENT_TOPIC}@{HOST}"
    agent = reach(ConductorClient(service["agent"].bus(), timeout=PATIENCE, sender=sender))
    epoch = agent.request(Heartbeat(heartbeat(HOST))).epoch
    agent.request(SendReport(HOST, epoch, Report(())))
    machine = Agent(service["agent"], HOST)
    conductor = AgentClient(service["conductor"].bus(), timeout=PATIENCE)
    task = DiscoveryTask("00000000-0000-0000-0000-000000000001", "fake_driver")
    assert conductor.request(HOST, Discover(task)).request_key == task.request_key
    for closing in (machine.stop, api.close, agent.close, conductor.close):
        closing()


READS = ("basic_consume", "basic_get", "queue_declare", "queue_delete", "queue_purge")


def of_replies(tenant: Tenant, role: str) -> str:
    """The queue in which the process of a role receives replies."""
    return next(name for name in tenant.queues() if name.startswith(f"reply_{role}."))


@pytest.mark.parametrize("role", ["api", "agent"])
@pytest.mark.parametrize("other", ROLES)
def test_account_reaches_the_reply_queues_of_its_role_only(
    service: dict[str, Stack],
    urls: dict[str, str],
    tenant: Tenant,
    conf: cfg.ConfigOpts,
    role: str,
    other: str,
) -> None:
    if role == other:
        return
    lines = (
        reach(ConductorClient(service["api"].bus(), timeout=PATIENCE)),
        reach(
            ConductorClient(
                service["agent"].bus(), timeout=PATIENCE, sender=f"{AGENT_TOPIC}@{HOST}"
            )
        ),
    )
    machine = Agent(service["agent"], HOST)
    conductor = AgentClient(service["conductor"].bus(), timeout=PATIENCE)
    task = DiscoveryTask("00000000-0000-0000-0000-000000000001", "fake_driver")
    conductor.request(HOST, Discover(task))
    queue = of_replies(tenant, other)
    assert queue.startswith(f"reply_{other}.{conf.host}.")
    for verb in READS:
        assert is_refused(connection(urls[role]), methodcaller(verb, queue)), verb
    for closing in (machine.stop, conductor.close, *(line.close for line in lines)):
        closing()


#: What the page on security replaces in the expressions for agents, and by what.
PER_HOST = (
    ("cyborg-agent.*", r"cyborg-agent|cyborg-agent\.HOST|cyborg-agent_fanout.*"),
    (r"reply_agent\..*", r"reply_agent\.HOST\.[0-9a-f]+"),
)


def test_account_of_a_host_reaches_the_queues_of_this_host_only(
    service: dict[str, Stack],
    urls: dict[str, str],
    tenant: Tenant,
    conf: cfg.ConfigOpts,
) -> None:
    page = (GUIDE.parents[1] / "admin" / "security.rst").read_text()
    account = f"agent-{HOST}"
    url = tenant.add_role(account)
    for old, new in PER_HOST:
        assert f"``{old}`` by ``{new}``" in page
    for command, role, patterns in commands():
        if role == "agent":
            for old, new in PER_HOST:
                patterns = [one.replace(old, new.replace("HOST", HOST)) for one in patterns]
            tenant.grant(command, account, *patterns)
    other = reach(
        ConductorClient(service["agent"].bus(), timeout=PATIENCE, sender=f"{AGENT_TOPIC}@{OTHER}")
    )
    conf.set_override("host", HOST)
    with Stack(
        conf=conf,
        database_url=service["api"].database_url,
        transport_url=url,
        peers=service["api"].peers,
        exchange=EXCHANGE,
        role="agent",
    ).beside() as own:
        sender = f"{AGENT_TOPIC}@{HOST}"
        agent = reach(ConductorClient(own.bus(), timeout=PATIENCE, sender=sender))
        agent.request(Heartbeat(heartbeat(HOST)))
        queues = {name for name in tenant.queues() if name.startswith("reply_agent.")}
        mine = {name for name in queues if name.startswith(f"reply_agent.{HOST}.")}
        assert mine
        assert queues - mine
        for queue in (*(queues - mine), f"{AGENT_TOPIC}.{OTHER}"):
            for verb in READS:
                assert is_refused(connection(url), methodcaller(verb, queue)), f"{verb} {queue}"
        agent.close()
    conf.clear_override("host")
    other.close()


@pytest.mark.parametrize("role", ["api", "agent"])
@pytest.mark.parametrize("topic", [CONDUCTOR_TOPIC, CONDUCTOR_AGENTS_TOPIC])
def test_nobody_but_conductors_can_listen_on_their_topics(
    service: dict[str, Stack], urls: dict[str, str], role: str, topic: str
) -> None:
    for queue in (topic, f"{topic}.control-1", f"{topic}.thief", f"{topic}_fanout_thief"):
        for verb in READS:
            attempt = methodcaller(verb, queue)
            assert is_refused(connection(urls[role]), attempt), f"{verb} {queue}"
    mine = f"reply_{role}.{HOST}.0"
    with connection(urls[role]) as one:
        one.channel().queue_declare(mine, auto_delete=True)
        # A copy of the messages of a topic, in a queue that the account may read.
        assert is_refused(
            connection(urls[role]),
            methodcaller("queue_bind", mine, EXCHANGE, routing_key=topic),
        )
        one.channel().queue_delete(mine)


@pytest.mark.parametrize(
    ("role", "key", "refused"),
    [
        ("agent", CONDUCTOR_AGENTS_TOPIC, False),
        ("agent", CONDUCTOR_TOPIC, True),
        ("agent", f"{AGENT_TOPIC}.{OTHER}", True),
        ("agent", AGENT_TOPIC, True),
        ("agent", f"{CONDUCTOR_AGENTS_TOPIC}.x", True),
        ("api", CONDUCTOR_TOPIC, False),
        ("api", CONDUCTOR_AGENTS_TOPIC, True),
        ("api", f"{AGENT_TOPIC}.{HOST}", True),
        ("conductor", f"{AGENT_TOPIC}.{HOST}", False),
    ],
)
def test_account_publishes_only_to_the_topics_of_its_role(
    service: dict[str, Stack], urls: dict[str, str], role: str, key: str, *, refused: bool
) -> None:
    def publish(channel: Any) -> None:
        channel.basic_publish_confirm(Message("{}"), exchange=EXCHANGE, routing_key=key)

    assert is_refused(connection(urls[role]), publish) is refused
