# SPDX-License-Identifier: Apache-2.0
"""The small model: what must be true of the cloud, in plain sets and words."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cyborg import exception
from cyborg.model.arq import State
from cyborg.model.device import DeviceStatus
from cyborg.model.report import DriverState
from cyborg.tests.oracle.rows import Snapshot

#: From these an ARQ may be bound.
OPEN = frozenset({State.INITIAL, State.UNBOUND})
#: A bind that needs the host's work may be anywhere between its request and its end.
STARTED = frozenset({State.BIND_STARTED, State.BOUND, State.BIND_FAILED})
#: How such a bind ends.
ENDED = frozenset({State.BOUND, State.BIND_FAILED})


@dataclass(frozen=True)
class Card:
    """One card of the cloud: its provider, how many units it has, whether they need preparing.

    Those that need none can be programmed.
    """

    host: str
    address: str
    provider: str
    units: int
    prepare: bool


@dataclass
class Request:
    """An ARQ as it must be: in one of ``states``, for this instance, with a unit from there.

    ``project`` owns it.

    ``since`` is the clock at its bind, ``told`` how many events Nova had got until then.
    ``given_up`` is True once Nova may have stopped to wait for it.
    """

    prepare: bool
    project: str
    states: frozenset[State] = frozenset({State.INITIAL})
    instance: str | None = None
    provider: str | None = None
    since: int = 0
    told: int = 0
    given_up: bool = False


Bindings = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Order:
    """An image that was ordered to be loaded into a card, by an operation."""

    request_key: str
    image: str


@dataclass
class Model:
    """All ARQs there must be, by uuid, and the cards that an operator has taken out of service.

    ``orders`` are the images that were ordered, by provider, the last one last.
    """

    cards: Mapping[str, Card]
    requests: dict[str, Request] = field(default_factory=dict)
    disabled: set[str] = field(default_factory=set)
    orders: dict[str, list[Order]] = field(default_factory=dict)

    def become(self, other: "Model") -> None:
        """Believe what another believes."""
        self.requests, self.disabled = other.requests, other.disabled
        self.orders = other.orders

    def free(self, *, prepare: bool, project: str) -> list[str]:
        """ARQs of one kind and project that may be bound."""
        return [uuid for uuid in self.of_project(project) if self._fits(uuid, prepare=prepare)]

    def of_project(self, project: str | None) -> list[str]:
        """The ARQs of a project; None: of all."""
        return [uuid for uuid, one in self.requests.items() if project in (None, one.project)]

    def _fits(self, uuid: str, *, prepare: bool) -> bool:
        one = self.requests[uuid]
        return one.prepare is prepare and one.states <= OPEN

    @property
    def instances(self) -> list[str]:
        """Those that have ARQs."""
        return list(dict.fromkeys(one.instance for one in self.requests.values() if one.instance))

    def of_instance(self, instance: str) -> list[str]:
        """The ARQs of an instance."""
        return [uuid for uuid, one in self.requests.items() if one.instance == instance]

    def repeats(
        self, bindings: Bindings, instance: str, cloud: Snapshot, *, project: str | None
    ) -> bool:
        """Whether all these ARQs are bound, or being bound, exactly like this already."""
        rows = cloud.arq_by_uuid
        return all(
            uuid in self.of_project(project)
            and rows[uuid].binds
            and (rows[uuid].instance_uuid, rows[uuid].rp_uuid) == (instance, provider)
            for uuid, provider in bindings
        )

    def objections(
        self, bindings: Bindings, instance: str, cloud: Snapshot, *, project: str | None
    ) -> set[type[exception.CyborgError]]:
        """Every reason to refuse a bind; with none it must succeed.

        ``project`` is on whose behalf Nova asks, None when an administrator does.
        """
        found: set[type[exception.CyborgError]] = set()
        if instance in self.instances:
            found.add(exception.InstanceAlreadyBound)
        for uuid, provider in bindings:
            request = self.requests.get(uuid)
            if request is None or project not in (None, request.project):
                found.add(exception.NotFound)
            if request is None:
                continue
            if not request.states <= OPEN:
                found.add(exception.BadState)
            if request.prepare is not self.cards[provider].prepare:
                found.add(exception.Invalid)
        known = {one.rp_uuid: one for one in cloud.deployables}
        for provider, count in Counter(provider for _, provider in bindings).items():
            deployable = known.get(provider)
            if deployable is None:
                found.add(exception.NotFound)
                continue
            device = cloud.device_by_id[deployable.device_id]
            lost = deployable.lost or device.lost_age is not None
            failing = any(
                (driver.host_id, driver.name) == (device.host_id, device.driver)
                and driver.state != DriverState.READY
                for driver in cloud.drivers
            )
            refused = deployable.publish_error is not None
            if lost or failing or refused or provider in self.disabled:
                found.add(exception.DeviceUnavailable)
            if count > self._claimable(provider, lost_units(cloud, provider), cloud):
                found.add(exception.NoFreeHandle)
        return found

    def _claimable(self, provider: str, lost: set[int], cloud: Snapshot) -> int:
        """How many units of a card nobody has; those that are lost nobody gets."""
        taken = {one.handle_id for one in cloud.arqs if one.handle_id is not None}
        claimed = [one for one in self.requests.values() if one.provider == provider]
        return self.cards[provider].units - len(claimed) - len(lost - taken)

    def create(self, uuids: Iterable[str], *, prepare: bool, project: str) -> None:
        """ARQs were made."""
        for uuid in uuids:
            self.requests[uuid] = Request(prepare, project)

    def program(self, provider: str, order: Order) -> None:
        """An image was ordered."""
        self.orders.setdefault(provider, []).append(order)

    def bind(self, bindings: Bindings, instance: str, now: int, told: int) -> None:
        """A bind was accepted."""
        for uuid, provider in bindings:
            request = self.requests[uuid]
            states = {State.BIND_STARTED if self.cards[provider].prepare else State.BOUND}
            if provider in self.orders:
                # The end of an image that is being loaded is waited for.
                states.add(State.BIND_STARTED)
            request.states = frozenset(states)
            request.instance, request.provider = instance, provider
            request.since, request.told, request.given_up = now, told, False

    def unbind(self, uuids: Iterable[str]) -> None:
        """ARQs were taken off their instances."""
        for uuid in uuids:
            request = self.requests[uuid]
            states = frozenset({State.UNBOUND})
            self.requests[uuid] = Request(request.prepare, request.project, states)

    def delete(self, uuids: Iterable[str]) -> None:
        """ARQs were deleted."""
        for uuid in uuids:
            del self.requests[uuid]

    def let_work(self) -> None:
        """A conductor has worked: binds that were started may have ended."""
        for one in self.requests.values():
            if State.BIND_STARTED in one.states:
                one.states = STARTED

    def stop_waiting(self, now: int, patience: int) -> None:
        """Nova was away when somebody wanted to tell it: it may have stopped to wait."""
        for one in self.requests.values():
            one.given_up |= now - one.since >= patience

    def compare_orders(self, ordered: set[str]) -> None:
        """The history must have exactly these orders of images."""
        assert ordered == {one.request_key for several in self.orders.values() for one in several}

    def compare(self, cloud: Snapshot) -> None:
        """The database must show exactly this; what it shows is what must stay."""
        shown = {one.uuid: one for one in cloud.arqs}
        assert shown.keys() == self.requests.keys()
        for uuid, request in self.requests.items():
            arq = shown[uuid]
            state = State(arq.state)
            assert state in request.states, (uuid, state, request.states)
            request.states = frozenset({state})
            assert arq.instance_uuid == request.instance
            if state is State.BIND_FAILED:
                request.provider = None
            holds = request.provider is not None
            assert (arq.handle_id is not None) is holds, (uuid, state, arq.handle_id)
            if arq.handle_id is not None:
                handle = cloud.handle_by_id[arq.handle_id]
                assert cloud.deployable_by_id[handle.deployable_id].rp_uuid == request.provider
        held = [one.handle_id for one in cloud.arqs if one.handle_id is not None]
        assert len(held) == len(set(held))
        named = {one.instance_uuid for one in cloud.arqs if one.instance_uuid is not None}
        assert named == set(self.instances)
        assert self.disabled == {
            one.rp_uuid
            for one in cloud.deployables
            if cloud.device_by_id[one.device_id].status != DeviceStatus.ENABLED
        }


def lost_units(cloud: Snapshot, provider: str) -> set[int]:
    """The ids of a card's attach handles that are known to be lost."""
    return {
        handle.id
        for one in cloud.deployables
        if one.rp_uuid == provider
        for handle in cloud.handles_of.get(one.id, [])
        if handle.lost
    }
