# SPDX-License-Identifier: Apache-2.0
"""The operations during which a process crashes, and their required results."""

from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from cyborg.db.models import Deployable, Device, Operation
from cyborg.model.arq import State
from cyborg.model.device import DeviceStatus
from cyborg.model.process import AGENT, CONDUCTOR
from cyborg.rpc.verbs import (
    Attach,
    DeleteInstanceArqs,
    Detach,
    PatchArqs,
    ProgramDeployable,
    SetDeviceStatus,
)
from cyborg.tests.fixtures.unit_states import UNIT
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.crash.cloud import NOVA, UNITS
from cyborg.tests.functional.crash.runs import Run
from cyborg.tests.functional.life.cards import CARD, OTHER


def _nothing(_life: Run) -> None:
    """Nobody has to do anything before."""


@dataclass(frozen=True)
class Scenario:
    """``play`` on a ``cloud``, after ``warm``, counted; ``check`` looks at what is its own.

    ``reshapes``: Placement is another one afterwards. ``given_up`` looks instead of ``check`` when
    Nova, not knowing the outcome, deleted what it had asked for. ``long``: it has so many
    boundaries that SQLite leaves it to MariaDB.
    """

    name: str
    cloud: str
    play: Callable[[Run], None]
    check: Callable[[Run], None]
    victims: tuple[str, ...] = (CONDUCTOR, AGENT)
    warm: Callable[[Run], object] = _nothing
    reshapes: bool = False
    given_up: Callable[[Run], None] | None = None
    long: bool = False


def _bind(run: Run) -> None:
    run.ask(lambda key: PatchArqs(NOVA, key, run.cloud.bindings, []))
    run.work()
    run.work()


def _is_bound(run: Run) -> None:
    assert run.arqs() == dict.fromkeys(run.cloud.arqs, State.BOUND)
    assert run.told() == dict.fromkeys(run.cloud.arqs, "completed")


def _is_given_up(run: Run) -> None:
    """An ARQ that was not bound is none of the instance's: it waits to be deleted by its uuid."""
    assert set(run.arqs().values()) <= {State.INITIAL}
    assert _handles(run) == ["free"] * UNITS


def _unbind(run: Run) -> None:
    run.ask(lambda key: PatchArqs(NOVA, key, [], list(run.cloud.arqs)))
    run.work()
    run.cloud.free()


def _is_unbound(run: Run) -> None:
    assert run.arqs() == dict.fromkeys(run.cloud.arqs, State.UNBOUND)
    assert _handles(run) == ["free"] * UNITS


def _delete(run: Run) -> None:
    run.ask(lambda key: DeleteInstanceArqs(NOVA, key, run.cloud.instance))
    run.work()
    run.cloud.free()


def _is_gone(run: Run) -> None:
    assert run.arqs() == {}
    assert _handles(run) == ["free"] * UNITS


def attach(run: Run) -> None:
    """One unit more, of the flavor's profile."""
    run.ask(lambda key: Attach(NOVA, key, run.cloud.instance, None))
    _work_on(run)


def _is_attached(run: Run) -> None:
    cloud = run.cloud
    assert list(run.arqs().values()) == [State.BOUND] * 2
    assert sorted(cloud.guest.has) == sorted(cloud.listed(cloud.instance)) == sorted(run.arqs())
    assert cloud.allocated() == 2
    assert _ended(run) == {"succeeded"}
    assert run.told() == {}


def _fail_to_attach(run: Run) -> None:
    run.cloud.guest.fails = 1
    attach(run)


def _detach(run: Run) -> None:
    run.ask(lambda key: Detach(NOVA, key, run.cloud.instance, None))
    _work_on(run)


def _is_detached(run: Run) -> None:
    _has_the_flavors_only(run)
    assert _ended(run) == {"succeeded"}


def _is_taken_back(run: Run) -> None:
    _has_the_flavors_only(run)
    assert _ended(run) == {"failed"}


def _ended(run: Run) -> set[str]:
    """How the operations stand."""
    return set(run.cloud.environment.values(sa.select(Operation.state)))


def _has_the_flavors_only(run: Run) -> None:
    cloud = run.cloud
    assert run.arqs() == dict.fromkeys(cloud.arqs, State.BOUND)
    assert cloud.guest.has == cloud.listed(cloud.instance) == list(cloud.arqs)
    assert cloud.guest.status == "ACTIVE"
    assert sorted(_handles(run)) == ["free", "free", "held"]
    assert cloud.allocated() == 1


def _work_on(run: Run) -> None:
    """So many turns as a reboot or two and a host's clean-up take, with time between them."""
    for _ in range(5):
        run.work()
        run.cloud.environment.clock.ms += 2000


def _report(run: Run) -> None:
    run.run_once()
    run.run_once()


def _is_known(run: Run) -> None:
    assert _devices(run) == [(CARD, DeviceStatus.ENABLED, False)]
    assert _handles(run) == ["free"] * UNITS
    assert _offered(run) == UNITS


def _change(run: Run) -> None:
    run.cloud.rack.plug(CARD, UNITS + 1)
    run.cloud.rack.plug(OTHER, 1)
    run.run_once()


def _is_changed(run: Run) -> None:
    both = [(CARD, DeviceStatus.ENABLED, False), (OTHER, DeviceStatus.ENABLED, False)]
    assert _devices(run) == both
    assert _handles(run) == ["free"] * (UNITS + 2)
    assert (_offered(run), _offered(run, OTHER)) == (UNITS + 1, 1)


def _lose(run: Run) -> None:
    run.cloud.rack.pull(CARD)
    run.run_once()


def _is_lost(run: Run) -> None:
    assert _devices(run) == [(CARD, DeviceStatus.ENABLED, True)]
    assert _offered(run) == 0


def _program(run: Run) -> None:
    run.ask(lambda key: ProgramDeployable(NOVA, key, _deployable(run)[0], run.cloud.image))
    run.work()


def _is_programmed(run: Run) -> None:
    assert _deployable(run)[1] == run.cloud.image
    assert set(run.cloud.rack.driver.loaded.values()) == {b"bitstream"}


def _is_bound_with_image(run: Run) -> None:
    _is_bound(run)
    _is_programmed(run)


def _toggle(run: Run) -> None:
    for status in (DeviceStatus.MAINTAINING, DeviceStatus.ENABLED):
        _set_status(run, status)
        run.run_once()


def _disable(run: Run) -> None:
    _set_status(run, DeviceStatus.MAINTAINING)
    run.run_once()


def _is_disabled(run: Run) -> None:
    assert _devices(run) == [(CARD, DeviceStatus.MAINTAINING, False)]
    assert _offered(run) == 0


def _undo_set_up(run: Run) -> None:
    """The card is out of service, and its host has reported that it has to be set up."""
    _set_status(run, DeviceStatus.MAINTAINING)
    run.cloud.boot()
    run.run_once()


def _set_up(run: Run) -> None:
    _set_status(run, DeviceStatus.ENABLED)
    run.work()
    run.run_once()


def _boot(run: Run) -> None:
    run.cloud.boot()
    run.run_once()
    run.work()
    run.work()
    run.run_once()


def _is_set_up(run: Run) -> None:
    _is_known(run)
    assert run.cloud.is_set_up()


def _set_status(run: Run, status: DeviceStatus) -> None:
    (uuid,) = run.cloud.environment.values(sa.select(Device.uuid))
    run.ask(lambda key: SetDeviceStatus(NOVA, key, uuid, status))


def _devices(run: Run) -> list[tuple[str, str, bool]]:
    query = sa.select(Device.device_key, Device.status, Device.lost_ms)
    rows = run.cloud.environment.rows(query.order_by(Device.device_key))
    return [(row.device_key, row.status, row.lost_ms is not None) for row in rows]


def _deployable(run: Run) -> tuple[str, str | None]:
    """The only one that there is, and its image."""
    (row,) = run.cloud.environment.rows(sa.select(Deployable.uuid, Deployable.bitstream_id))
    return row.uuid, row.bitstream_id


def _handles(run: Run) -> list[str]:
    return run.cloud.environment.values(sa.select(UNIT))


def _offered(run: Run, card: str = CARD) -> int:
    return offered(run.cloud.placement, run.cloud.rack.provider(card))


#: Kinds of units that a host prepares and releases: of the test's own driver, vGPUs, and GPUs that
#: a guest gets together.
KINDS = ("prepared units", "vgpus", "partitions")
SCENARIOS = (
    Scenario("bind", "requested", _bind, _is_bound, (CONDUCTOR,), given_up=_is_given_up),
    *(
        Scenario(
            f"asynchronous bind of {kind}",
            f"requested, {kind}",
            _bind,
            _is_bound,
            given_up=_is_given_up,
        )
        for kind in KINDS
    ),
    Scenario(
        "bind with an image",
        "requested, programmable, imaged",
        _bind,
        _is_bound_with_image,
        given_up=_is_given_up,
    ),
    *(Scenario(f"unbind of {kind}", f"bound, {kind}", _unbind, _is_unbound) for kind in KINDS),
    *(Scenario(f"delete of {kind}", f"bound, {kind}", _delete, _is_gone) for kind in KINDS),
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
    Scenario("changed report", "published", _change, _is_changed, warm=Run.run_once, reshapes=True),
    Scenario("device lost", "published", _lose, _is_lost, warm=Run.run_once, reshapes=True),
    Scenario("disable", "published", _disable, _is_disabled, warm=Run.run_once, reshapes=True),
    Scenario(
        "disable and enable", "published", _toggle, _is_known, warm=Run.run_once, reshapes=True
    ),
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
        warm=Run.run_once,
        reshapes=True,
        long=True,
    ),
)
