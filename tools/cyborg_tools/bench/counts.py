# SPDX-License-Identifier: Apache-2.0
"""The table of counts: every request that has an allowance, brought about and counted once."""

from collections.abc import Iterator, Sequence
from uuid import uuid4

from cyborg.api import microversion
from cyborg.tests.fixtures.costs import (
    CREATE,
    DELETE_BY_INSTANCE,
    DEVICES,
    LIST,
    SHOW,
    UNCHANGED_REPORT,
    Allowance,
    Scenes,
    bind_allowance,
    first_report_allowance,
    listings,
)
from cyborg.tests.fixtures.counted import CountedService
from cyborg.tests.fixtures.counting import Tally
from cyborg.tests.fixtures.machines import report_of
from cyborg_tools.bench.figures import Count

_COLLECTIONS = {
    "device_profiles": "device_profiles",
    "accelerator_requests": "arqs",
    "devices": "devices",
    "deployables": "deployables",
    "attributes": "attributes",
}
_SPREADS = ((1, 1), (3, 1), (3, 2), (8, 1), (8, 2))


def measure(house: CountedService, others: int, devices: Sequence[int]) -> list[Count]:
    """Count everything once among so many unrelated requests."""
    scenes = Scenes(house)
    rows = [*_reads(house, scenes), *_writes(scenes), _delivery(house, scenes)]
    for size in devices:
        rows += _reports(scenes, size)
    return [
        Count(name, others, *tally.costs, _numbers(allowance)) for name, tally, allowance in rows
    ]


Row = tuple[str, Tally, Allowance | None]


def _reads(house: CountedService, scenes: Scenes) -> Iterator[Row]:
    wanted = scenes.bindable(3, 2)
    scenes.bind(wanted)
    markers = {}
    for collection, key in _COLLECTIONS.items():
        uuid = house.send("GET", f"/{collection}?limit=1")[key][0]["uuid"]
        markers[collection] = uuid
        yield f"show /{collection}", house.counted("GET", f"/{collection}/{uuid}")[0], SHOW
    for collection in _COLLECTIONS:
        tallies = [
            house.counted("GET", path, version=microversion.MAXIMUM)[0]
            for path in listings({collection: markers[collection]}, wanted.instance)
        ]
        dearest = max(tallies, key=lambda one: one.sql)
        allowed = DEVICES if collection == "devices" else LIST
        yield f"list /{collection}, dearest of {len(tallies)}", dearest, allowed
    scenes.delete(wanted.instance)


def _writes(scenes: Scenes) -> Iterator[Row]:
    for units in (1, 3, 8):
        yield f"create {units} ARQs", scenes.create(scenes.profile(units))[0], CREATE
    for units, providers in _SPREADS:
        wanted = scenes.bindable(units, providers)
        name = f"bind {units} ARQs on {providers} providers"
        yield name, scenes.bind(wanted), bind_allowance(providers)
        name = f"delete by instance, {units} ARQs on {providers} providers"
        yield name, scenes.delete(wanted.instance), DELETE_BY_INSTANCE


def _delivery(house: CountedService, scenes: Scenes) -> Row:
    """The outbox's own cost: what is written with the bind, and sent after its answer."""
    house.forget_work()
    wanted = scenes.bindable(8, 1)
    scenes.bind(wanted)
    tally = house.deliver()
    scenes.delete(wanted.instance)
    return f"later: telling Nova of 8 ARQs ({len(tally.http)} HTTP request)", tally, None


def _reports(scenes: Scenes, devices: int) -> Iterator[Row]:
    host = f"counted-{uuid4().hex[:12]}"
    report = report_of(host, devices)
    first = scenes.first_report(report, host)
    yield f"first report of {devices} devices", first, first_report_allowance(report)
    unchanged = scenes.unchanged_report(report, host)
    yield f"unchanged report of {devices} devices", unchanged, UNCHANGED_REPORT


def _numbers(allowance: Allowance | None) -> tuple[int, int, int] | None:
    if allowance is None:
        return None
    return allowance.statements, allowance.commits, allowance.rpc
