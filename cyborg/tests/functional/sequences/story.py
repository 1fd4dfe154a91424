# SPDX-License-Identifier: Apache-2.0
"""A card's life with the generic_driver, from its discovery to its second unit, on one tape."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import webtest
from oslo_config import cfg

from cyborg.drivers.command import Completed
from cyborg.drivers.generic import GenericDriver
from cyborg.model.provider import provider_uuid
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService, fresh_host, suffix
from cyborg.tests.fixtures.sequences import (
    AGENT,
    API,
    CONDUCTOR,
    NOVA,
    NOVA_COMPUTE,
    BoundaryRecorder,
    RecordedAPI,
    Tape,
    draw,
    recorded_driver,
    recorded_host,
)
from cyborg.tests.fixtures.single_step import Environment, OneOfEach
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import ARQS, bind, create, delete_arqs, of_instance
from cyborg.tests.unit.drivers.configured import written

#: Two units, so that the guest of the first can be given the second as well.
OPTIONS = """\
[generic_driver]
backends = cards
[generic_driver:cards]
pci_ids = 10de:*
attach_type = TEST_PCI
units = 2
resource_class = {name}
install_command = /sbin/card setup {{address}}
ready_file = /run/card/{{address}}
prepare_command = /sbin/card give {{handle}}
prepared_file = /run/card/{{handle}}
release_command = /sbin/card take {{handle}}
reset_command = /sbin/card wipe {{handle}}
"""
#: More turns than any chapter takes.
_TURNS = 20


def card(host: FakeHost, argv: tuple[str, ...]) -> Completed:
    """The operator's program."""
    if argv[1] in ("setup", "give"):
        host.add_file(f"/run/card/{argv[2]}", "")
    if argv[1] == "take":
        host.remove(f"/run/card/{argv[2]}")
    return Completed(0, "", "")


@dataclass(frozen=True)
class Site:
    """One API, one conductor and one agent, all of whose steps are on the ``tape``.

    ``name`` is that of a resource class.
    """

    tape: Tape
    machine: FakeHost
    compute: str
    name: str
    processes: OneOfEach

    def client(self, sender: str = NOVA) -> webtest.TestApp:
        """Return the API as somebody meets it."""
        return webtest.TestApp(RecordedAPI(self.processes.api.app, self.tape, nova=sender))

    def begin(self) -> None:
        """Everybody is up, and the conductor knows of everybody; there is no card yet."""
        self.processes.begin()
        for _ in range(2):
            self.run_once()

    def run_once(self) -> None:
        """The agent's round."""
        self.processes.agent.run_once()

    def work(self) -> None:
        """Let the conductor do what is due, and time pass until nothing is left."""
        for _ in self.processes.environment.turns(_TURNS):
            self.processes.conductor.work()


def recorded_site(environment: Environment, conf: cfg.ConfigOpts, files: Path) -> Site:
    """Return a site whose machine has the operator's program, and no card."""
    tape, machine = Tape(), servers.bare()
    machine.programs["/sbin/card"] = card
    compute, name = fresh_host("story"), f"CUSTOM_{uuid4().hex[:12].upper()}"
    # A hint that is lost costs a heartbeat; one that comes costs this story its order.
    environment.exchange.lose_request("desired_changed", 1000)
    conductor = environment.conductor(
        faults=BoundaryRecorder(CONDUCTOR, tape), auto_enable=frozenset()
    )
    options = written(files / "cyborg.conf", OPTIONS.format(name=name), host=compute)
    driver = GenericDriver(recorded_host(machine, tape), options)
    faults = BoundaryRecorder(AGENT, tape)
    agent = environment.agent(compute, recorded_driver(driver, tape), faults=faults, prompt=True)
    api = environment.api(conf, faults=BoundaryRecorder(API, tape))
    return Site(tape, machine, compute, name, OneOfEach(environment, conductor, agent, api))


class Story:
    """What happens on a site; each chapter is a diagram of its name."""

    def __init__(self, site: Site, placement: PlacementService, nova: SimulatedNova) -> None:
        self._site = site
        self._placement = placement
        self._nova = nova
        self._instance = str(uuid4())
        self._operator = Client(site.client(), role="operator", version="2.100")
        self._user = Client(site.client(), role="member").with_service_token()
        # nova-compute acts for the same user.
        self._compute = replace(self._user, app=site.client(NOVA_COMPUTE))
        self._card: dict[str, Any] = {}
        self._arqs: list[dict[str, Any]] = []

    def tell(self) -> dict[str, str]:
        """Live it through; answers the diagrams by name."""
        self._placement.make_compute(self._site.compute)
        self._site.begin()
        told = {"discover": self._chapter(self._discover)}
        (self._card,) = self._operator.get("/devices")["devices"]
        told["enable"] = self._chapter(self._enable)
        self._schedule()
        told["bind"] = self._chapter(self._bind)
        told["attach"] = self._chapter(self._attach)
        told["detach"] = self._chapter(self._detach)
        told["delete"] = self._chapter(self._delete)
        self._schedule_another()
        told["unbind"] = self._chapter(self._unbind)
        return told

    def _chapter(self, happens: Callable[[], object]) -> str:
        with self._site.tape.recording() as arrows:
            happens()
        return draw(arrows)

    def _discover(self) -> None:
        """Somebody has put a card in, and an operator has the host look."""
        servers.add_function(self._site.machine, servers.GPU, "10de:20b5:030200", driver="nvidia")
        self._operator.post("/services/discover", {"hosts": [self._site.compute]}, status=202)
        self._site.work()

    def _enable(self) -> None:
        """An operator wants the card in service; it has to be set up first."""
        self._operator.post(f"/devices/{self._card['uuid']}/enable", status=204)
        self._site.work()
        self._site.run_once()

    def _schedule(self) -> None:
        """What Nova does before a bind: it has requests made, and chooses their provider."""
        name, project = self._site.name, self._user.project
        group = {f"resources:{name}": "1"}
        admin = Client(self._site.client(), role="admin")
        admin.post("/device_profiles", [{"name": name, "groups": [group]}])
        self._arqs = create(self._user, name)
        (found,) = self._placement.candidates({suffix(0): group})
        self._placement.allocate(self._instance, found, project)
        self._nova.own(self._instance, project, self._site.compute, name).lasts = 0
        self._nova.guests.listed = self._listed

    def _bind(self) -> None:
        """Nova binds, is told, and asks what it is to give to the guest."""
        compute = self._site.compute
        provider = provider_uuid(f"{compute}_{servers.GPU}")
        bind(self._user, self._arqs, provider, host=compute, instance=self._instance)
        self._site.work()
        assert len(self._listed(self._instance)) == 1

    def _listed(self, instance: str) -> list[str]:
        """What Nova gives to a guest."""
        return [arq["uuid"] for arq in of_instance(self._compute, instance)]

    def _attach(self) -> None:
        """An operator gives the server one more of what its flavor asks for."""
        self._operator.post(f"/instances/{self._instance}/accelerators", {}, status=202)
        self._site.work()

    def _detach(self) -> None:
        """An operator takes that away again."""
        self._operator.delete(f"/instances/{self._instance}/accelerators", status=202)
        self._site.work()

    def _delete(self) -> None:
        """The user deletes the server: nova-compute deletes the requests of the instance."""
        delete_arqs(self._compute, self._instance)
        self._site.work()

    def _schedule_another(self) -> None:
        """Bind a request for a second instance, whose build then fails."""
        instance = str(uuid4())
        self._arqs = create(self._user, self._site.name)
        provider = provider_uuid(f"{self._site.compute}_{servers.GPU}")
        compute = self._site.compute
        self._nova.own(instance, self._user.project, compute, self._site.name).lasts = 0
        bind(self._user, self._arqs, provider, host=compute, instance=instance)
        self._site.work()

    def _unbind(self) -> None:
        """A client that has bound a request takes the bind back and keeps the request."""
        paths = ("hostname", "device_rp_uuid", "instance_uuid")
        removal = [{"path": f"/{path}", "op": "remove"} for path in paths]
        self._user.patch(ARQS, {self._arqs[0]["uuid"]: removal})
        self._site.work()
