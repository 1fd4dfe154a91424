# SPDX-License-Identifier: Apache-2.0
"""The table of counts: every request that has an allowance, brought about and counted once."""

from collections.abc import Iterator, Sequence
from uuid import uuid4

from cyborg.api import microversion
from cyborg.tests.fixtures.cost_meter import Tally
from cyborg.tests.fixtures.costs import (
    CREATE,
    DELETE_BY_INSTANCE,
    EXTENDED,
    LIST,
    SHOW,
    UNCHANGED_REPORT,
    Allowance,
    Scenarios,
    bind_allowance,
    first_report_allowance,
    listings,
)
from cyborg.tests.fixtures.counted_service import CountedService
from cyborg.tests.fixtures.host_reports import report_of
from cyborg_tools.bench.figures import Count

_COLLECTIONS = {
    "device_profiles": "device_profiles",
    "accelerator_requests": "arqs",
    "devices": "devices",
    "deployables": "deployables",
    "attributes": "attributes",
}
_SPREADS = ((1, 1), (3, 1), (3, 2), (8, 1), (8, 2))


def measure(counted_service: CountedService, others: int, devices: Sequence[int]) -> list[Count]:
    scenarios = Scenarios(counted_service)
    rows = [
        *_reads(counted_service, scenarios),
        *_writes(scenarios),
        _delivery(counted_service, scenarios),
    ]
    for size in devices:
        rows += _reports(scenarios, size)
    return [
        Count(name, others, *tally.costs, _numbers(allowance)) for name, tally, allowance in rows
    ]


Row = tuple[str, Tally, Allowance | None]


def _reads(counted_service: CountedService, scenarios: Scenarios) -> Iterator[Row]:
    wanted = scenarios.bindable(3, 2)
    scenarios.bind(wanted)
    markers = {}
    for collection, key in _COLLECTIONS.items():
        uuid = counted_service.send("GET", f"/{collection}?limit=1")[key][0]["uuid"]
        markers[collection] = uuid
        yield (
            f"show /{collection}",
            counted_service.counted("GET", f"/{collection}/{uuid}")[0],
            SHOW,
        )
    for collection in _COLLECTIONS:
        tallies = [
            counted_service.counted("GET", path, version=microversion.MAXIMUM)[0]
            for path in listings({collection: markers[collection]}, wanted.instance)
        ]
        dearest = max(tallies, key=lambda one: one.sql)
        allowed = EXTENDED.get(collection, LIST)
        yield f"list /{collection}, most expensive of {len(tallies)}", dearest, allowed
    scenarios.delete(wanted.instance)


def _writes(scenarios: Scenarios) -> Iterator[Row]:
    for units in (1, 3, 8):
        yield f"create {units} ARQs", scenarios.create(scenarios.profile(units))[0], CREATE
    for units, providers in _SPREADS:
        wanted = scenarios.bindable(units, providers)
        name = f"bind {units} ARQs on {providers} providers"
        yield name, scenarios.bind(wanted), bind_allowance(providers)
        name = f"delete by instance, {units} ARQs on {providers} providers"
        yield name, scenarios.delete(wanted.instance), DELETE_BY_INSTANCE


def _delivery(counted_service: CountedService, scenarios: Scenarios) -> Row:
    """The outbox's own cost: what is written with the bind, and sent after its answer."""
    counted_service.forget_work()
    wanted = scenarios.bindable(8, 1)
    scenarios.bind(wanted)
    tally = counted_service.deliver()
    scenarios.delete(wanted.instance)
    return f"later: telling Nova of 8 ARQs ({len(tally.http)} HTTP request)", tally, None


def _reports(scenarios: Scenarios, devices: int) -> Iterator[Row]:
    host = f"counted-{uuid4().hex[:12]}"
    report = report_of(host, devices)
    first = scenarios.first_report(report, host)
    yield f"first report of {devices} devices", first, first_report_allowance(report)
    unchanged = scenarios.unchanged_report(report, host)
    yield f"unchanged report of {devices} devices", unchanged, UNCHANGED_REPORT


def _numbers(allowance: Allowance | None) -> tuple[int, int, int] | None:
    if allowance is None:
        return None
    return allowance.statements, allowance.commits, allowance.rpc
