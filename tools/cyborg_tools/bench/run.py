# SPDX-License-Identifier: Apache-2.0
"""One run: fill the database step by step, count, measure the floor, then the service above it.

The floor and the counts are taken in this process while nothing else runs; the service then runs
in processes of its own, as it does in the field. On the in-process bus, which reaches no other
process, API, conductor and agent share one.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from oslo_config import cfg

from cyborg.db.engine import Database
from cyborg.tests.fixtures.costs import Scenarios
from cyborg.tests.fixtures.counted_service import CountedService, running_service
from cyborg.tests.fixtures.host_reports import provider_of
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.unrelated_rows import crowd
from cyborg_tools import servers
from cyborg_tools.bench import (
    audit,
    capacity,
    counts,
    explanations,
    floor,
    parts,
    scan,
    signing,
    wide,
)
from cyborg_tools.bench.figures import Figure, Results
from cyborg_tools.bench.load import getting, living, repeated
from cyborg_tools.bench.options import Plan
from cyborg_tools.bench.parts import Child, Parts

#: Highest multiples of the floor: reads and lists of 1,000 rows; a life cycle.
READ_AIM = 3.0
LIFE_AIM = 2.0
_LARGEST_AIMED_AT = 1000
#: The open files on a host for each of its PCI functions.
_OPEN_FILES = 20

Say = Callable[[str], None]


@dataclass(frozen=True)
class Service:
    """The service in its processes."""

    api: str
    empty: str
    front: Child
    agent: Child


class Run:
    """Run a plan; ``say`` receives the progress."""

    def __init__(self, plan: Plan, conf: cfg.ConfigOpts, say: Say) -> None:
        self._plan = plan
        self._conf = conf
        self._say = say

    def measure(self) -> Results:
        """Measure everything; this takes minutes unless the plan is quick."""
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="cyborg-bench-") as directory:
            self._say("making a database")
            with servers.prepared(self._plan.database_url, Path(directory)) as db:
                results = Results(_product(db), self._plan.transport_url.partition(":")[0])
                there = 0
                for others in () if self._plan.only_parts else self._plan.others:
                    self._say(f"{others:,} unrelated accelerator requests: filling the database")
                    crowd(db, others - there)
                    there = others
                    self._measure_among(db, others, results)
                if not self._plan.only_parts:
                    self._measure_reports(db, there, results)
            for arqs in self._plan.audits:
                self._say(f"audit of {arqs:,} accelerator requests")
                place = Path(directory) / str(arqs)
                place.mkdir()
                with servers.prepared(self._plan.database_url, place) as db:
                    results.audits.append(audit.measure(db, arqs))
            for hosts in self._plan.explanations:
                self._say(f"explanations in a cloud of {hosts:,} hosts")
                place = Path(directory) / f"explain-{hosts}"
                place.mkdir()
                with servers.prepared(self._plan.database_url, place) as db:
                    results.explanations.append(explanations.measure(db, hosts))
            for hosts in self._plan.capacities:
                self._say(f"capacity of a cloud of {hosts:,} hosts")
                place = Path(directory) / f"capacity-{hosts}"
                place.mkdir()
                with servers.prepared(self._plan.database_url, place) as db:
                    results.capacities.append(capacity.measure(db, hosts))
            for functions in self._plan.scans:
                self._say(f"rounds of an agent on a host with {functions:,} PCI functions")
                place = Path(directory) / f"scan-{functions}"
                place.mkdir()
                figure = scan.measure(place, functions, _OPEN_FILES * functions)
                results.scans.append(figure)
            if self._plan.signing:
                self._say("signed messages")
                place = Path(directory) / f"signing-{uuid4().hex[:12]}"
                place.mkdir()
                url, seconds = self._plan.transport_url, self._plan.seconds * 4
                results.signing.append(signing.measure(place, self._conf, url, seconds))
            for groups in self._plan.wide_trees:
                self._say(f"queries of allocation candidates for {groups} groups")
                place = Path(directory) / f"wide-{groups}"
                place.mkdir()
                results.wide_trees.append(wide.measure(place, groups, self._plan.query_limit))
        results.seconds = time.monotonic() - started
        return results

    def _measure_among(self, db: Database, others: int, results: Results) -> None:
        with self._counted(db) as counted_service:
            self._say(f"{others:,} unrelated: counting statements, commits and calls")
            results.counts += counts.measure(counted_service, others, self._plan.devices[:1])
            self._say(f"{others:,} unrelated: the floor of the driver")
            scenarios = Scenarios(counted_service, devices=max(self._plan.clients))
            paths = floor.read_paths(counted_service, db, others)
            readings = {
                name: floor.Reading.of(counted_service, path.removeprefix("/v2"))
                for name, path in paths.items()
            }
            lifecycle = floor.lifecycle_ms(counted_service, scenarios, self._plan.seconds)
            profile = scenarios.profile(1)
        more: dict[str, Any]
        with self._service(db) as service:
            self._say(f"{others:,} unrelated: reads")
            base = self._base(service, others, results)
            for name, path in paths.items():
                below = readings[name].ms(db, self._plan.seconds / 3)
                found = repeated(service.api, [getting(path)], self._plan.seconds)
                aim = READ_AIM if others <= _LARGEST_AIMED_AT else None
                above = below + base[1, "http"]
                more = {"rows": readings[name].rows, "floor_ms": above, "aim": aim}
                results.figures.append(Figure.of(name, found, others=others, **more))
            self._say(f"{others:,} unrelated: life cycles")
            for clients in self._plan.clients:
                lifecycles = [
                    living(profile, scenarios.host, provider_of(scenarios.host, one))
                    for one in range(clients)
                ]
                found = repeated(service.api, lifecycles, self._plan.seconds * 2)
                more = {"clients": clients, "aim": LIFE_AIM}
                if not self._plan.in_process:
                    calls = 4 * base[clients, "http"] + 3 * base[clients, "rpc"]
                    more["floor_ms"] = lifecycle + calls
                name = "whole ARQ life cycle"
                results.figures.append(Figure.of(name, found, others=others, **more))

    def _base(
        self, service: Service, others: int, results: Results
    ) -> dict[tuple[int, str], float]:
        """The floor of HTTP and RPC, by number of clients: medians in milliseconds."""
        found: dict[tuple[int, str], float] = {}
        for clients in self._plan.clients:
            samples = repeated(service.empty, [getting("/")] * clients, self._plan.seconds / 2)
            name = "empty pecan controller, same middleware"
            results.floor.append(Figure.of(name, samples, others=others, clients=clients))
            found[clients, "http"] = samples.p50_ms
            if not self._plan.in_process:
                samples = service.front.ask(Parts.echo, clients, self._plan.seconds / 2)
                name = "empty RPC echo"
                results.floor.append(Figure.of(name, samples, others=others, clients=clients))
                found[clients, "rpc"] = samples.p50_ms
        return found

    def _measure_reports(self, db: Database, others: int, results: Results) -> None:
        floors = {}
        for devices in self._plan.devices:
            self._say(f"reports of {devices} devices: the floor of the driver")
            with self._counted(db) as counted_service:
                floors[devices] = floor.reports_ms(
                    counted_service, Scenarios(counted_service), devices, self._plan.seconds / 2
                )
        with self._service(db) as service:
            base = self._base(service, others, results)
            for devices in self._plan.devices:
                self._say(f"reports of {devices} devices")
                reports = service.agent.ask(Parts.reports, devices, self._plan.seconds * 2)
                for index, (kind, samples) in enumerate(reports.items()):
                    more: dict[str, float] = {"others": others, "rows": devices}
                    if not self._plan.in_process:
                        more["floor_ms"] = floors[devices][index] + base[1, "rpc"]
                    results.figures.append(Figure.of(f"{kind} report", samples, **more))

    @contextmanager
    def _counted(self, db: Database) -> Iterator[CountedService]:
        with (
            SimulatedNova() as nova,
            running_service(
                conf=self._conf,
                database_url=_url(db),
                transport_url=self._plan.transport_url,
                exchange=f"bench-{uuid4().hex[:12]}",
                nova=nova.adapter(),
            ) as counted_service,
        ):
            yield counted_service

    @contextmanager
    def _service(self, db: Database) -> Iterator[Service]:
        """The service's processes, each up."""
        setting = {
            "database_url": _url(db),
            "transport_url": self._plan.transport_url,
            "exchange": f"bench-{uuid4().hex[:12]}",
            "nova": "",
        }
        with ExitStack() as ends:

            def child(*wanted: str) -> Child:
                return ends.enter_context(Child(wanted, setting))

            setting["nova"] = child(parts.NOVA).answer()["nova"]
            if self._plan.in_process:
                front = back = agent = child(parts.CONDUCTOR, parts.API, parts.AGENT)
            else:
                back, front, agent = child(parts.CONDUCTOR), child(parts.API), child(parts.AGENT)
            address: dict[str, Any] = {}
            for one in dict.fromkeys((back, front, agent)):
                address |= one.answer()
            yield Service(address["api"], address["empty"], front, agent)


def _product(db: Database) -> str:
    dialect = db.engine.dialect
    with db.reader():
        version: Sequence[object] = dialect.server_version_info or ()
    name = "mariadb" if getattr(dialect, "is_mariadb", False) else dialect.name
    return f"{name} {'.'.join(str(part) for part in version)}"


def _url(db: Database) -> str:
    return db.engine.url.render_as_string(hide_password=False)
