# SPDX-License-Identifier: Apache-2.0
"""What happens in a cloud while somebody dies, and how it must have ended."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import sqlalchemy as sa

from cyborg.clients.placement import Placement
from cyborg.db.models import AttachHandle, Deployable, Device, Operation
from cyborg.model.arq import State
from cyborg.model.device import DeviceStatus
from cyborg.model.names import AGENT, CONDUCTOR
from cyborg.rpc.conductor import ConductorClient
from cyborg.tests.functional.crash.lives import Life
from cyborg.tests.functional.crash.stage import NOVA, UNITS
from cyborg.tests.functional.life.cards import CARD, OTHER


def _nothing(_life: Life) -> None:
    """Nobody has to do anything before."""


@dataclass(frozen=True)
class Scenario:
    """``play`` on a ``stage``, after ``warm``, counted; ``check`` looks at what is its own.

    ``reshapes``: Placement is another one afterwards. ``given_up`` looks instead of ``check`` when
    Nova, not knowing the outcome, deleted what it had asked for. ``long``: it has so many
    boundaries that SQLite leaves it to MariaDB.
    """

    name: str
    stage: str
    play: Callable[[Life], None]
    check: Callable[[Life], None]
    victims: tuple[str, ...] = (CONDUCTOR, AGENT)
    warm: Callable[[Life], object] = _nothing
    reshapes: bool = False
    given_up: Callable[[Life], None] | None = None
    long: bool = False


def _bind(life: Life) -> None:
    def request(client: ConductorClient, request_key: str) -> None:
        client.patch_arqs(NOVA, request_key, life.stage.bindings, [])

    life.ask(request)
    life.work()
    life.work()


def _is_bound(life: Life) -> None:
    assert life.arqs() == dict.fromkeys(life.stage.arqs, State.BOUND)
    assert life.told() == dict.fromkeys(life.stage.arqs, "completed")


def _is_given_up(life: Life) -> None:
    """An ARQ that was not bound is none of the instance's: it waits to be deleted by its uuid."""
    assert set(life.arqs().values()) <= {State.INITIAL}
    assert _handles(life) == ["free"] * UNITS


def _unbind(life: Life) -> None:
    def request(client: ConductorClient, request_key: str) -> None:
        client.patch_arqs(NOVA, request_key, [], list(life.stage.arqs))

    life.ask(request)
    life.work()


def _is_unbound(life: Life) -> None:
    assert life.arqs() == dict.fromkeys(life.stage.arqs, State.UNBOUND)
    assert _handles(life) == ["free"] * UNITS


def _delete(life: Life) -> None:
    def request(client: ConductorClient, request_key: str) -> None:
        client.delete_instance_arqs(NOVA, request_key, life.stage.instance)

    life.ask(request)
    life.work()


def _is_gone(life: Life) -> None:
    assert life.arqs() == {}
    assert _handles(life) == ["free"] * UNITS


def attach(life: Life) -> None:
    """One unit more, of the flavor's profile."""

    def request(client: ConductorClient, request_key: str) -> None:
        client.attach(NOVA, request_key, life.stage.instance, None)

    life.ask(request)
    _work_on(life)


def _is_attached(life: Life) -> None:
    stage = life.stage
    assert list(life.arqs().values()) == [State.BOUND] * 2
    assert sorted(stage.guest.has) == sorted(stage.listed(stage.instance)) == sorted(life.arqs())
    assert stage.allocated() == 2
    assert _ended(life) == {"succeeded"}
    assert life.told() == {}


def _fail_to_attach(life: Life) -> None:
    life.stage.guest.fails = 1
    attach(life)


def _detach(life: Life) -> None:
    def request(client: ConductorClient, request_key: str) -> None:
        client.detach(NOVA, request_key, life.stage.instance, None)

    life.ask(request)
    _work_on(life)


def _is_detached(life: Life) -> None:
    _has_the_flavors_only(life)
    assert _ended(life) == {"succeeded"}


def _is_taken_back(life: Life) -> None:
    _has_the_flavors_only(life)
    assert _ended(life) == {"failed"}


def _ended(life: Life) -> set[str]:
    """How the operations stand."""
    with life.stage.ground.watch.reader() as tx:
        return set(tx.execute(sa.select(Operation.state)).scalars())


def _has_the_flavors_only(life: Life) -> None:
    stage = life.stage
    assert life.arqs() == dict.fromkeys(stage.arqs, State.BOUND)
    assert stage.guest.has == stage.listed(stage.instance) == list(stage.arqs)
    assert stage.guest.status == "ACTIVE"
    assert sorted(_handles(life)) == ["free", "free", "held"]
    assert stage.allocated() == 1


def _work_on(life: Life) -> None:
    """So many turns as a reboot or two and a host's clean-up take, with time between them."""
    for _ in range(5):
        life.work()
        life.stage.ground.clock.ms += 2000


def _report(life: Life) -> None:
    life.beat()
    life.beat()


def _is_known(life: Life) -> None:
    assert _devices(life) == [(CARD, DeviceStatus.ENABLED, False)]
    assert _handles(life) == ["free"] * UNITS
    assert _offered(life) == UNITS


def _change(life: Life) -> None:
    life.stage.rack.plug(CARD, UNITS + 1)
    life.stage.rack.plug(OTHER, 1)
    life.beat()


def _is_changed(life: Life) -> None:
    both = [(CARD, DeviceStatus.ENABLED, False), (OTHER, DeviceStatus.ENABLED, False)]
    assert _devices(life) == both
    assert _handles(life) == ["free"] * (UNITS + 2)
    assert (_offered(life), _offered(life, OTHER)) == (UNITS + 1, 1)


def _lose(life: Life) -> None:
    life.stage.rack.pull(CARD)
    life.beat()


def _is_lost(life: Life) -> None:
    assert _devices(life) == [(CARD, DeviceStatus.ENABLED, True)]
    assert _offered(life) == 0


def _program(life: Life) -> None:
    def request(client: ConductorClient, request_key: str) -> None:
        client.program_deployable(NOVA, request_key, _deployable(life)[0], life.stage.image)

    life.ask(request)
    life.work()


def _is_programmed(life: Life) -> None:
    assert _deployable(life)[1] == life.stage.image
    assert set(life.stage.rack.driver.loaded.values()) == {b"bitstream"}


def _is_bound_with_image(life: Life) -> None:
    _is_bound(life)
    _is_programmed(life)


def _toggle(life: Life) -> None:
    for status in (DeviceStatus.MAINTAINING, DeviceStatus.ENABLED):
        life.ask(partial(_set_status, life, status))
        life.beat()


def _disable(life: Life) -> None:
    life.ask(partial(_set_status, life, DeviceStatus.MAINTAINING))
    life.beat()


def _is_disabled(life: Life) -> None:
    assert _devices(life) == [(CARD, DeviceStatus.MAINTAINING, False)]
    assert _offered(life) == 0


def _undo_set_up(life: Life) -> None:
    """The card is out of service, and its host has reported that it has to be set up."""
    life.ask(partial(_set_status, life, DeviceStatus.MAINTAINING))
    life.stage.boot()
    life.beat()


def _set_up(life: Life) -> None:
    life.ask(partial(_set_status, life, DeviceStatus.ENABLED))
    life.work()
    life.beat()


def _boot(life: Life) -> None:
    life.stage.boot()
    life.beat()
    life.work()
    life.work()
    life.beat()


def _is_set_up(life: Life) -> None:
    _is_known(life)
    assert life.stage.is_set_up()


def _set_status(
    life: Life, status: DeviceStatus, client: ConductorClient, request_key: str
) -> None:
    with life.stage.ground.watch.reader() as tx:
        uuid = tx.execute(sa.select(Device.uuid)).scalar_one()
    client.set_device_status(NOVA, request_key, uuid, status)


def _devices(life: Life) -> list[tuple[str, str, bool]]:
    with life.stage.ground.watch.reader() as tx:
        rows = tx.execute(
            sa.select(Device.device_key, Device.status, Device.lost_ms).order_by(Device.device_key)
        )
        return [(row.device_key, row.status, row.lost_ms is not None) for row in rows]


def _deployable(life: Life) -> tuple[str, str | None]:
    """The only one that there is, and its image."""
    with life.stage.ground.watch.reader() as tx:
        row = tx.execute(sa.select(Deployable.uuid, Deployable.bitstream_id)).one()
    return row.uuid, row.bitstream_id


def _handles(life: Life) -> list[str]:
    with life.stage.ground.watch.reader() as tx:
        return list(tx.execute(sa.select(AttachHandle.state)).scalars())


def _offered(life: Life, card: str = CARD) -> int:
    placement = Placement(life.stage.ground.placement)
    _, inventories = placement.inventories(life.stage.rack.provider(card))
    return sum(int(one["total"]) - int(one["reserved"]) for one in inventories.values())


SCENARIOS = (
    Scenario("bind", "requested", _bind, _is_bound, (CONDUCTOR,), given_up=_is_given_up),
    Scenario("asynchronous bind", "requested, prepared", _bind, _is_bound, given_up=_is_given_up),
    Scenario(
        "bind with an image",
        "requested, programmable, imaged",
        _bind,
        _is_bound_with_image,
        given_up=_is_given_up,
    ),
    Scenario("unbind", "bound, prepared", _unbind, _is_unbound),
    Scenario("delete by instance", "bound, prepared", _delete, _is_gone),
    Scenario("attach", "bound, attachable, prepared", attach, _is_attached, long=True),
    Scenario(
        "attach taken back",
        "bound, attachable",
        _fail_to_attach,
        _is_taken_back,
        (CONDUCTOR,),
        long=True,
    ),
    Scenario("detach", "bound, attached, prepared", _detach, _is_detached, long=True),
    Scenario("program", "programmable", _program, _is_programmed),
    Scenario("first report", "new", _report, _is_known, reshapes=True),
    Scenario("changed report", "published", _change, _is_changed, warm=Life.beat, reshapes=True),
    Scenario("device lost", "published", _lose, _is_lost, warm=Life.beat, reshapes=True),
    Scenario("disable", "published", _disable, _is_disabled, warm=Life.beat, reshapes=True),
    Scenario("disable and enable", "published", _toggle, _is_known, warm=Life.beat, reshapes=True),
    Scenario(
        "enable with set-up",
        "published, bare",
        _set_up,
        _is_set_up,
        warm=_undo_set_up,
        reshapes=True,
        long=True,
    ),
    Scenario(
        "set-up after a boot",
        "published, bare",
        _boot,
        _is_set_up,
        warm=Life.beat,
        reshapes=True,
        long=True,
    ),
)
