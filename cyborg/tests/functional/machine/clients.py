# SPDX-License-Identifier: Apache-2.0
"""What clients and operators ask for: sent over the bus, done in the model, compared."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from enum import Enum
from itertools import product
from typing import Any
from uuid import UUID, uuid4

import sqlalchemy as sa

from cyborg import exception
from cyborg.db.engine import Database
from cyborg.db.models import Deployable, Event
from cyborg.model.arq import Binding, State, arq_uuids
from cyborg.model.caller import Caller
from cyborg.model.device import DeviceStatus
from cyborg.model.device_profile import DeviceProfile
from cyborg.rpc.verbs import (
    CreateArqs,
    CreateDeviceProfile,
    DeleteArqs,
    DeleteInstanceArqs,
    PatchArqs,
    ProgramDeployable,
    SetDeviceStatus,
    Write,
)
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import ARQS, everything
from cyborg.tests.functional.machine.cloud import Site
from cyborg.tests.functional.machine.hardware import resource_class
from cyborg.tests.functional.machine.model import Bindings, Model, Order, lost_units
from cyborg.tests.oracle import snapshot

PROJECTS = ("machine-project", "other-project")
_NOVA = Caller("service-project", "nova", "req-machine", all_projects=True, service=True)

Refusals = set[type[exception.CyborgError]]


class Outcome(Enum):
    """What happens to a request on the bus: which message is lost, and how often."""

    FINE = ("", 0)
    REQUEST_LOST = ("request", 1)
    ANSWER_LOST = ("answer", 1)
    NEVER_ARRIVED = ("request", 2)
    NEVER_ANSWERED = ("answer", 2)


class Clients:
    """Everybody who asks; ``model`` is what must be true after each answer."""

    def __init__(self, site: Site, model: Model) -> None:
        self.model = model
        self.site = site
        self._client = site.environment.client()
        self._readers: dict[str | None, Client] = {
            None: Client(self.site.app, role="admin", project="admin-project"),
            **{one: Client(self.site.app, role="member", project=one) for one in PROJECTS},
        }
        self._operations = 0

    def make_profiles(self) -> None:
        """What the requests ask for."""
        for prepare, count in product((False, True), (1, 2, 3)):
            group = {f"resources:{resource_class(prepare)}": str(count)}
            made = DeviceProfile(str(uuid4()), _profile(prepare, count), (group,))
            self._client.write(CreateDeviceProfile(_NOVA, self._operation(), made))

    def read(self) -> None:
        """Read all ARQs through the API, as an administrator and as a member of each project.

        A unit is shown of those that are bound only.
        """
        for project, reader in self._readers.items():
            shown = {one["uuid"]: one for one in reader.get(ARQS)["arqs"]}
            assert sorted(shown) == sorted(self.model.of_project(project)), project
            for uuid, one in shown.items():
                request = self.model.requests[uuid]
                assert {State(one["state"])} == request.states
                assert one["instance_uuid"] == request.instance
                assert bool(one["attach_handle_uuid"]) is (request.states == {State.BOUND})

    def close(self) -> None:
        """Ask no more, and leave nothing to others."""
        self._client.close()
        for instance in self.model.instances:
            self.site.placement.free(instance)
            self.site.nova.disown(instance)

    def create(
        self,
        *,
        prepare: bool,
        count: int = 1,
        project: str = PROJECTS[0],
        outcome: Outcome = Outcome.FINE,
    ) -> None:
        """New ARQs of a project, all or none."""
        request_key = self._operation()

        def done(model: Model) -> None:
            model.create(arq_uuids(request_key, count), prepare=prepare, project=project)

        request = CreateArqs(_member(project), request_key, _profile(prepare, count))
        self._request(request, done, outcome=outcome)

    def bind(
        self,
        bindings: Bindings,
        instance: str | None = None,
        *,
        project: str | None = None,
        outcome: Outcome = Outcome.FINE,
        code: int = 200,
    ) -> str:
        """Bind ARQs (uuid, provider) for an instance, a new one by default, as Nova would.

        It asks on behalf of a project's member, or (None) of an administrator. Where there is
        nothing to say against it the scheduler allocates first; when Placement refuses that, no
        host is found and nothing happens. ``code`` is Nova's answer to its events.
        """
        instance = instance or str(uuid4())
        cloud = snapshot.take(self.site.database)
        body = [Binding(uuid, "somewhere", provider, instance) for uuid, provider in bindings]
        request = PatchArqs(_for(project), self._operation(), body, [])
        if self.model.repeats(bindings, instance, cloud, project=project):
            self._request(request, lambda model: None, outcome=outcome)
            return instance
        objections = self.model.objections(bindings, instance, cloud, project=project)
        units = Counter(provider for _, provider in bindings)
        if not objections - {exception.NoFreeHandle, exception.DeviceUnavailable}:
            if not self._allocate(instance, units):
                return instance
            # Placement gave the units away: then they must be there, or have been lost since.
            lost = any(lost_units(cloud, one) for one in units)
            assert lost or exception.NoFreeHandle not in objections, units
        self.site.nova.own(instance, project or PROJECTS[0])
        self.site.nova.answer_instance(instance, code)
        told = len(self.site.nova.events)

        def done(model: Model) -> None:
            model.bind(bindings, instance, self.site.clock.ms, told)

        self._request(request, done, refusals=objections, outcome=outcome)
        if instance not in self.model.instances:
            self.site.placement.free(instance)
        return instance

    def unbind(
        self, uuids: Sequence[str], *, project: str | None = None, outcome: Outcome = Outcome.FINE
    ) -> None:
        """Take ARQs off their instances, all or none."""
        refusals: Refusals = set()
        if set(uuids) - set(self.model.of_project(project)):
            refusals = {exception.NotFound}
        with_units = self._units()
        request = PatchArqs(_for(project), self._operation(), [], list(uuids))
        self._request(
            request, lambda model: model.unbind(uuids), refusals=refusals, outcome=outcome
        )
        self._give_back(with_units)

    def delete(
        self,
        uuids: Sequence[str],
        *,
        service: bool = True,
        project: str = PROJECTS[0],
        outcome: Outcome = Outcome.FINE,
    ) -> None:
        """Delete ARQs by uuid, as Nova (``service``) or a project's member.

        What may go goes, whatever the answer is.
        """
        reached = self.model.of_project(None if service else project)
        known = [one for one in uuids if one in reached]
        kept = [one for one in known if self.model.requests[one].instance and not service]
        refusals: Refusals = set()
        if kept:
            refusals = {exception.BoundArqs}
        elif len(known) < len(uuids):
            refusals = {exception.NotFound}
        going = set(known) - set(kept)
        with_units = self._units()
        caller = _NOVA if service else _member(project)
        request = DeleteArqs(caller, self._operation(), list(uuids))
        self._request(
            request, lambda model: model.delete(going), refusals=refusals, outcome=outcome
        )
        self._give_back(with_units)

    def delete_instance(self, instance: str, *, outcome: Outcome = Outcome.FINE) -> None:
        """Delete a server, as Nova does: its ARQs first, then its allocations."""
        going = self.model.of_instance(instance)
        with_units = self._units()
        request = DeleteInstanceArqs(_NOVA, self._operation(), instance)
        self._request(request, lambda model: model.delete(going), outcome=outcome)
        self._give_back(with_units)
        if instance not in self.model.instances:
            self.site.nova.disown(instance)

    # What operators do.

    def set_enabled(self, provider: str, *, enabled: bool, outcome: Outcome = Outcome.FINE) -> None:
        """Take the device behind a provider out of service, or put it back."""
        cloud = snapshot.take(self.site.database)
        (row,) = [one for one in cloud.deployables if one.rp_uuid == provider]
        device = cloud.device_by_id[row.device_id].uuid
        status = DeviceStatus.ENABLED if enabled else DeviceStatus.MAINTAINING

        def done(model: Model) -> None:
            (model.disabled.discard if enabled else model.disabled.add)(provider)

        request = SetDeviceStatus(_NOVA, self._operation(), device, status)
        self._request(request, done, outcome=outcome)

    def program(self, provider: str, image: str, *, outcome: Outcome = Outcome.FINE) -> None:
        """Have an image loaded into a card; those that cannot take one refuse."""
        query = sa.select(Deployable.uuid).where(Deployable.rp_uuid == provider)
        with self.site.database.reader() as tx:
            uuid = tx.execute(query).scalar_one()
        request_key = self._operation()
        refusals: Refusals = set()
        if self.model.cards[provider].prepare:
            refusals = {exception.CannotProgram}
        elif any(one.provider == provider for one in self.model.requests.values()):
            refusals = {exception.DeviceInUse}

        def done(model: Model) -> None:
            model.program(provider, Order(request_key, image))

        request = ProgramDeployable(_NOVA, request_key, uuid, image)
        self._request(request, done, refusals=refusals, outcome=outcome)

    def _request(
        self,
        request: Write[Any],
        done: Callable[[Model], None],
        *,
        refusals: Refusals | None = None,
        outcome: Outcome = Outcome.FINE,
    ) -> None:
        """Send a request; whatever becomes of it, it is done or not, and the answer says so."""
        is_delete = isinstance(request, DeleteArqs)
        is_patch = isinstance(request, PatchArqs)
        before = everything(self.site.database) if refusals and is_patch else None
        error: exception.CyborgError | None = None
        with self._losing(request.verb, outcome):
            try:
                answer = self._client.write(request)
            except exception.OutcomeUnknown:
                if not refusals or is_delete:
                    self._find_out(done)
                return
            except exception.CyborgError as fault:
                error = fault
        if error is not None:
            assert refusals
            assert type(error) in refusals, repr(error)
        else:
            assert not refusals, refusals
            # The same operation again answers the same, and changes nothing.
            before = everything(self.site.database)
            assert self._client.write(request) == answer
        if before is not None:
            assert everything(self.site.database) == before
        if error is None or is_delete:
            done(self.model)

    @contextmanager
    def _losing(self, verb: str, outcome: Outcome) -> Iterator[None]:
        """Let the bus lose messages of one request, and no others."""
        exchange = self.site.environment.exchange
        what, times = outcome.value
        lose = exchange.lose_request if what == "request" else exchange.lose_answer
        loses = exchange.loses_request if what == "request" else exchange.loses_answer
        lose(verb, times)
        yield
        while loses(verb):
            pass

    def _find_out(self, done: Callable[[Model], None]) -> None:
        """The outcome is unknown: it is done as a whole, or nothing of it."""
        eventually(self._client.reached, step=0.001)
        after = deepcopy(self.model)
        done(after)
        try:
            after.compare(snapshot.take(self.site.database))
            after.compare_orders(ordered(self.site.database))
        except AssertionError:
            return
        self.model.become(after)

    def _units(self) -> dict[str, Counter[str]]:
        """Instance → provider → units, as the model has them."""
        found: dict[str, Counter[str]] = {}
        for one in self.model.requests.values():
            if one.instance is not None:
                found.setdefault(one.instance, Counter())[one.provider or ""] += 1
        return found

    def _give_back(self, before: dict[str, Counter[str]]) -> None:
        """Take back what was allocated for units that have just been let go of."""
        after = self._units()
        for instance, units in before.items():
            if instance not in after:
                self.site.placement.free(instance)
            elif after[instance] != units:
                self._allocate(instance, after[instance])

    def _allocate(self, instance: str, units: Counter[str]) -> bool:
        """Have Placement allocate just these units; False when it does not."""
        wanted = {
            provider: {resource_class(self.model.cards[provider].prepare): count}
            for provider, count in units.items()
            if provider
        }
        return self.site.placement.claim(instance, wanted, PROJECTS[0])

    def _operation(self) -> str:
        self._operations += 1
        return str(UUID(int=self._operations))


def ordered(database: Database) -> set[str]:
    """The operations by which images were ordered, as history has them."""
    query = sa.select(Event.operation_id).where(Event.action == "program")
    with database.reader() as tx:
        return {str(one) for one in tx.execute(query).scalars()}


def _member(project: str) -> Caller:
    return Caller(project, "member", "req-machine")


def _for(project: str | None) -> Caller:
    """Nova, on behalf of a project's member or of an administrator."""
    if project is None:
        return _NOVA
    return Caller(project, "member", "req-machine", service=True)


def _profile(prepare: bool, count: int) -> str:
    """The name of the profile that asks for so many units of one kind."""
    return f"{'prepared' if prepare else 'plain'}-{count}"
