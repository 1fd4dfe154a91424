# SPDX-License-Identifier: Apache-2.0
"""Start the service in one process, with the real Placement and a simulated Nova."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial

import sqlalchemy as sa
from oslo_config import cfg

from cyborg import exception
from cyborg.api.server import HttpServer
from cyborg.db import revisions, schema
from cyborg.db.engine import Database, Reader
from cyborg.db.models import AttachHandle, Deployable
from cyborg.drivers import loader
from cyborg.drivers.host import Host
from cyborg.drivers.pci import PciDriver
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.stack import Peers, Stack, Times
from cyborg.tests.fixtures.unit_states import UNIT
from cyborg_tools.quickstart.clients import Scenario
from cyborg_tools.quickstart.dashboard import Identity
from cyborg_tools.quickstart.machine import Findings, look
from cyborg_tools.quickstart.screen import Screen
from cyborg_tools.quickstart.state import ADVICE, State, shown

#: Longer intervals than in a test: quickstart can run for hours.
_TIMES = Times(conductor_heartbeat=1.0, lease=10.0, agent_heartbeat=1.0, scan=10.0)


def units(reader: Reader, provider: str) -> dict[str, int]:
    """Return the number of attach handles of a provider by state."""
    query = (
        sa.select(UNIT, sa.func.count())
        .join(Deployable, Deployable.id == AttachHandle.deployable_id)
        .where(Deployable.rp_uuid == provider)
        .group_by(UNIT)
    )
    with reader.reader() as tx:
        return dict(tx.execute(query).all())


@contextmanager
def opened(
    conf: cfg.ConfigOpts,
    state: State,
    screen: Screen,
    whitelist: Sequence[str],
    *,
    machine: Host,
    identity: Identity | None = None,
) -> Iterator[tuple[Scenario, Findings]]:
    """Start everything, and stop it at the end in reverse order.

    ``conf`` is the global configuration, read from the state's file; ``whitelist`` has the entries
    of the command line, ``machine`` is the host of the agent. ``identity`` is the Keystone that the
    configuration names; None: it names none. Raises an error of Cyborg with one sentence when
    something cannot be started.
    """
    drivers = loader.load(conf.agent.enabled_drivers, machine, conf)
    for result in drivers:
        if result.driver is None:
            raise exception.ConfigError(reason=f"Driver {result.name}: {result.error}")
    with ExitStack() as endings:
        placement = endings.enter_context(PlacementService(state.directory, wide_trees=True))
        screen.fact("Placement", f"{placement.url}, the real one")
        nova = endings.enter_context(SimulatedNova())
        screen.fact("Nova", f"{nova.url}, simulated: it takes the events that Cyborg sends")
        stack = Stack(
            conf=conf,
            database_url=state.database_url,
            transport_url="fake://",
            peers=Peers(placement=placement.adapter, nova=nova.adapter),
            times=_TIMES,
        )
        endings.callback(stack.stop)
        with closing(Database(state.database_url)) as db:
            try:
                schema.upgrade(db)
            except exception.SchemaError as error:
                raise exception.ConfigError(reason=f"{error} {ADVICE}") from error
        screen.fact("Database", f"{shown(state.database)}, at revision {revisions.HEAD}")
        reader = endings.enter_context(closing(Reader(state.database_url)))
        url = _start_api(stack, conf, endings)
        if identity is None:
            screen.fact(
                "REST API", f"{url}/v2, without Keystone: everybody who connects may do all"
            )
        else:
            identity.keystone.register("accelerator", f"{url}/v2")
            screen.fact("REST API", f"{url}/v2, for users of Keystone")
        stack.start_conductor(conf.host)
        screen.fact("Conductor", "running; messages stay within the process")
        pci = PciDriver(machine, conf)
        unmatched = [entry for entry in whitelist if not pci.lists(entry)]
        findings = look(drivers, machine, unmatched)
        stack.start_agent(conf.host, machine=machine, drivers=drivers, state_path=state.directory)
        screen.fact("Agent", f"running for this host, {conf.host}")
        screen.fact("Log", shown(state.log))
        scenario = Scenario(
            url=url,
            placement_url=placement.url,
            nova=nova,
            host=conf.host,
            deployable=findings.deployable,
            units=partial(units, reader),
            tokens=None if identity is None else identity.tokens(),
        )
        yield scenario, findings


def _start_api(stack: Stack, conf: cfg.ConfigOpts, endings: ExitStack) -> str:
    """Serve the REST API; answers its URL."""
    try:
        server = HttpServer(stack.make_api(), conf)
    except exception.ConfigError as error:
        # The system's error without its number.
        reason = str(error).rpartition("] ")[2]
        raise exception.ConfigError(
            reason=f"port {conf.api.port} of {conf.api.host_ip} cannot be listened on "
            f"({reason}); choose another with --port."
        ) from error
    server.start()
    endings.callback(server.wait)
    endings.callback(server.stop)
    host, port = server.address
    return f"http://{host}:{port}"
