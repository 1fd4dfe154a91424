# SPDX-License-Identifier: Apache-2.0
"""What happens on the host behind our back: nothing is seen any more, or other things prepared."""

import sqlalchemy as sa

from cyborg import exception
from cyborg.db.models import AttachHandle, Deployable, Device
from cyborg.tests.fixtures.host_reports import RESOURCE_CLASS
from cyborg.tests.fixtures.unit_states import UNIT
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.drift.site import CARDS, UNITS, Site

BROKEN = exception.DriverFailed(driver="card_driver", verb="discover", reason="no library")


def _pull_all(site: Site) -> None:
    for card in CARDS:
        site.rack.pull(card)


def _plug_all(site: Site) -> None:
    for card in CARDS:
        site.rack.plug(card, UNITS)


def test_empty_scan_removes_nothing(compute_site: Site):
    """No row, provider or allocation goes; all is reserved, and the next scan brings it back."""
    site, behaviour = compute_site, compute_site.rack.driver.behaviour
    rows, shown = site.rows(), site.shown()

    def is_reserved(lost: int) -> None:
        site.look()
        assert site.rows() == rows
        empty = site.shown()
        assert empty.keys() == shown.keys()
        for uuid in site.providers:
            assert empty[uuid].allocations == shown[uuid].allocations
            assert empty[uuid].traits == shown[uuid].traits
            inventory = empty[uuid].inventories[RESOURCE_CLASS]
            assert (inventory["total"], inventory["reserved"]) == (UNITS, UNITS)
        assert _lost(site) == lost
        # Nor does a full check, however often.
        site.check()
        site.check()
        assert (site.rows(), site.shown()) == (rows, empty)

    def is_back() -> None:
        site.look()
        assert _lost(site) == 0
        assert (site.rows(), site.shown()) == (rows, shown)
        assert site.found() == set()

    _pull_all(site)
    is_reserved(len(CARDS))
    _plug_all(site)
    is_back()
    behaviour.broken = BROKEN
    is_reserved(0)
    behaviour.broken = None
    is_back()


def test_full_check_prepares_and_releases_units_by_their_arqs(compute_site: Site) -> None:
    """Some that nobody has are prepared, some that guests have are not: one full check."""
    site = compute_site
    wanted = site.rack.driver.ready
    assert len(wanted) == len(site.bound)
    for key in sorted(wanted)[:2]:
        site.rack.machine.remove(f"/prepared/{key}")
    free = _free(site)
    for name, key in free[:5]:
        site.rack.leak(key, name.rpartition("_")[2])
    site.rack.leak("0000:ff:00.7")
    site.check()
    stranger = {"0000:ff:00.7"}
    # What the conductor does not know of is somebody else's.
    eventually(lambda: site.rack.driver.ready == wanted | stranger)
    assert site.found() == set()
    # After a reboot nothing is prepared.
    site.rack.boot()
    site.check()
    eventually(lambda: site.rack.driver.ready == wanted)


def _lost(site: Site) -> int:
    with site.db.reader() as tx:
        query = sa.select(sa.func.count()).where(Device.lost_ms.is_not(None))
        return int(tx.execute(query).scalar_one())


def _free(site: Site) -> list[tuple[str, str]]:
    """Deployable name and handle key of the free units."""
    with site.db.reader() as tx:
        rows = tx.execute(
            sa.select(Deployable.name, AttachHandle.handle_key)
            .join(Deployable, Deployable.id == AttachHandle.deployable_id)
            .where(UNIT == "free")
            .order_by(AttachHandle.id)
        )
        return [(row.name, row.handle_key) for row in rows]
