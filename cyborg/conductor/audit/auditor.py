# SPDX-License-Identifier: Apache-2.0
"""Compare database, Placement and Nova, and return the invariants that are violated.

The auditor reads the database and Placement, then asks Nova, then checks each violation again. A
difference is a finding only if both reads show it: a bind, a delete or a report in progress shows
in one of them only. Memory grows with the violations, not with the cloud.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from cyborg import exception
from cyborg.clients.nova import Server, Servers
from cyborg.clients.placement import Placement
from cyborg.conductor.audit import unattached
from cyborg.conductor.audit.placement_view import HostComparison, PlacementView, misnamed_providers
from cyborg.conductor.audit.unattached import UnattachedServer
from cyborg.db import audit, audit_processes, guests
from cyborg.db.engine import Reader
from cyborg.db.models import Host
from cyborg.model import readiness
from cyborg.model.audit_findings import Ages, Finding, Fix, Kind
from cyborg.model.process import AGENT, CONDUCTOR
from cyborg.model.readiness import Process, duration

#: The repairs that release a unit.
_RELEASES = frozenset({Fix.RELEASE_HANDLE, Fix.DROP_HANDLE, Fix.DELETE_ARQS})
#: The servers that use units without an ARQ, by host; and the resource classes of which the flavor
#: of the server requests these units itself.
Holders = Mapping[str, Mapping[str, frozenset[str]]]
#: The values of ``page`` of the violations of each check.
Violations = Mapping[audit.Check, Collection[int | str]]


@dataclass(frozen=True)
class AuditResult:
    """The findings of an audit, and one sentence for each service that did not answer."""

    findings: tuple[Finding, ...]
    unasked: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Differences:
    """The differences from Placement, the hosts that have some, and allocations without ARQs.

    The latter are host, provider and consumer. ``comparisons`` are those of hosts where a consumer
    has allocated more units than it has, by the name of the host.
    """

    findings: list[Finding]
    host_ids: set[int]
    unbound: set[tuple[str, str, str]]
    comparisons: dict[str, HostComparison]


class Auditor:
    """Reads, and changes nothing.

    Without ``placement`` or ``servers``, the part of the invariants that Placement or Nova shows is
    not checked. The auditor remembers
    what Placement showed at which generation, and since when a consumer has an allocation without
    an ARQ. Only the cost of repeated audits depends on this memory. An auditor is for one thread.
    """

    def __init__(
        self, *, db: Reader, placement: Placement | None, servers: Servers | None, ages: Ages
    ) -> None:
        self._db = db
        self._placement_view = None if placement is None else PlacementView(placement)
        self._servers = servers
        self._ages = ages
        self._first_seen: dict[str, int] = {}

    def look(self, host: str | None = None) -> AuditResult:
        """Return the findings of the cloud, or of one host (by its provider's name).

        With one host, Placement is asked about that host only, and findings that belong to no
        single host are left out. When a service does not answer, its part of the invariants is not
        checked; the other parts are.

        Raises exception.Unavailable for the database, exception.NotFound for the host.
        """
        with self._db.reader() as tx:
            query = sa.select(Host.id).where(Host.name == host)
            hosts = None if host is None else list(tx.execute(query).scalars())
        if hosts == []:
            raise exception.NotFound(noun="Host", key=host)
        unasked: list[str] = []
        first, violations = self._rows(None)
        differences = self._differences(hosts, unasked)
        consumers = {consumer for _, _, consumer in differences.unbound}
        vanished: frozenset[str] = frozenset()
        holders: Holders = {}
        running: list[UnattachedServer] = []
        if self._servers is not None:
            try:
                running = unattached.confirmed(self._servers, unattached.find(self._db, self._ages))
                instances = audit.bound_instances(self._db, host)
                vanished = self._servers.vanished(heapq.merge(instances, sorted(consumers)))
                holders = self._holders(self._servers, differences, vanished)
            except exception.CyborgError as error:
                unasked.append(str(error))
        second, _ = self._rows(violations)
        differences.host_ids.update(differences.comparisons[name].host.id for name in holders)
        confirmed = self._differences(differences.host_ids, unasked)
        findings = [
            finding
            for finding in _in_both([*first, *differences.findings], [*second, *confirmed.findings])
            # An instance without a server has a finding of its own.
            if finding.kind is not Kind.UNALLOCATED or finding.key not in vanished
        ]
        gone = audit.violations(self._db, audit.VANISHED, self._ages, vanished)
        findings += [finding for _, finding in gone]
        findings += self._stale(differences.unbound, vanished)
        if running:
            still = unattached.find(self._db, self._ages, {server.uuid for server in running})
            findings += [unattached.finding(server) for server in still]
        findings += _foreign(confirmed, holders)
        unknown = list(_unknown(confirmed, holders))
        findings, unknown = self._named(findings), self._named(unknown)
        findings = unknown + list(
            _without_releases(findings, {finding.host for finding in unknown})
        )
        shown = [finding for finding in findings if host is None or finding.host == host]
        return AuditResult(
            tuple(
                sorted(
                    shown,
                    key=lambda finding: (
                        -finding.severity,
                        finding.host or "",
                        finding.kind,
                        finding.noun,
                        finding.key,
                    ),
                )
            ),
            tuple(dict.fromkeys(unasked)),
        )

    def _rows(self, only: Violations | None) -> tuple[list[Finding], Violations]:
        """Return the findings of the rows alone; with ``only``, check only those rows."""
        findings = []
        violations: dict[audit.Check, list[int | str]] = {}
        with self._db.reader() as tx:
            now = audit.read_clock(tx, self._db)
            conductors = audit_processes.conductors(tx, now)
            limits = {AGENT: self._ages.agent_silence, CONDUCTOR: self._ages.conductor_silence}
            processes = readiness.Cloud(conductors, limits)
            findings += [
                _not_receiving(processes, conductor, None)
                for conductor in conductors
                if conductor.bus_error and processes.is_fresh(conductor)
            ]
            silent = audit_processes.troubled_agents(tx, now, self._ages.agent_silence)
            findings += [
                finding for host, agent in silent for finding in _of_agent(processes, host, agent)
            ]
            checks = audit.CHECKS
            silence = audit_processes.silence(tx, now)
            if silence is not None and silence <= self._ages.conductor_silence:
                checks += audit.WORK_CHECKS
                if processes.bus_failure:
                    bus = processes.bus(None)
                    findings.append(
                        Finding(Kind.NO_CONDUCTOR, "cloud", "bus", bus.cause, advice=bus.remedy)
                    )
            else:
                waiting = audit.waiting_work(tx, now - self._ages.conductor_silence)
                since = "ever" if silence is None else duration(silence)
                cause = f"{waiting} piece(s) of work wait; no conductor was seen for {since}."
                if waiting:
                    findings.append(Finding(Kind.NO_CONDUCTOR, "cloud", "work", cause))
        for check in checks if only is None else [check for check in checks if check in only]:
            pages = None if only is None else only[check]
            for page, finding in audit.violations(self._db, check, self._ages, pages):
                findings.append(finding)
                violations.setdefault(check, []).append(page)
        return findings, violations

    def _differences(self, hosts: Collection[int] | None, unasked: list[str]) -> _Differences:
        """Compare hosts with Placement, page by page; add the error if it does not answer."""
        differences = _Differences([], set(), set(), {})
        misnamed: list[Finding] = []
        view = self._placement_view
        for page in audit.host_pages(self._db, hosts):
            orphans: dict[str, Finding] = {}
            for row in page:
                findings = list(misnamed_providers(row))
                misnamed += findings
                try:
                    shown = None if view is None else view.view(row.name, row.providers)
                except exception.CyborgError as error:
                    # For instance, a wrong endpoint answers 404 to everything. Earlier answers do
                    # not count either.
                    unasked.append(str(error))
                    view = shown = None
                    for answers in (differences.findings, differences.unbound, orphans):
                        answers.clear()
                    differences.comparisons.clear()
                if shown is not None:
                    comparison = HostComparison(row, shown, self._ages)
                    own_orphans = {finding.key: finding for finding in comparison.orphans()}
                    orphans |= own_orphans
                    of_placement = list(comparison.differences())
                    differences.findings.extend(of_placement)
                    findings += [*of_placement, *own_orphans.values()]
                    differences.unbound.update((row.name, *pair) for pair in comparison.unbound())
                    if any(comparison.surplus()):
                        differences.comparisons[row.name] = comparison
                if findings:
                    differences.host_ids.add(row.id)
            published = audit.published(self._db, orphans)
            differences.findings.extend(
                finding for uuid, finding in orphans.items() if uuid not in published
            )
        differences.findings.extend(misnamed)
        return differences

    def _holders(
        self, servers: Servers, differences: _Differences, vanished: Collection[str]
    ) -> Holders:
        """Return the servers that use units without an ARQ, as Nova shows them.

        A server that Nova builds, moves or deletes may be between its allocation and its bind, and
        one that was evacuated still has the allocation of the host that failed.
        """
        surplus = {
            (consumer, host)
            for host, comparison in differences.comparisons.items()
            for _, consumer, _ in comparison.surplus()
            if consumer not in vanished
        }
        consumers = {consumer for consumer, _ in surplus}
        released = audit.unbound_since(self._db, consumers)
        changing = audit.changing(self._db, consumers)
        with self._db.reader() as tx:
            now = audit.read_clock(tx, self._db)
        holders: dict[str, dict[str, frozenset[str]]] = {}
        for consumer, host in sorted(surplus):
            recent = now - released.get(consumer, 0) <= self._ages.settle
            server = None if recent or consumer in changing else servers.server(consumer)
            if server is not None and server.settled and server.node == host:
                foreign = self._foreign_classes(server, differences.comparisons[host])
                holders.setdefault(host, {})[consumer] = foreign
        return holders

    def _foreign_classes(self, server: Server, comparison: HostComparison) -> frozenset[str]:
        """Return the classes of which the flavor of a server requests all units without an ARQ.

        If Placement counts one unit more, the server may have a device that the database does not
        know, such as an attached one.
        """
        if server.profile is not None or not server.requested or self._placement_view is None:
            return frozenset()
        allocated = self._placement_view.units_of(server.uuid)
        return frozenset(
            name
            for name, amount in server.requested.items()
            if allocated.get(name, 0) - comparison.bound(server.uuid, name) == amount
        )

    def _named(self, findings: Sequence[Finding]) -> list[Finding]:
        """Return the findings; those about units that somebody may have tell who has them."""
        with self._db.reader() as tx:
            units = [item.key for item in findings if item.kind is Kind.SUSPECT_HANDLE]
            providers = [item.key for item in findings if item.kind is Kind.UNKNOWN_HOLDER]
            seen = {
                (Kind.SUSPECT_HANDLE, unit): {unit: holder}
                for unit, holder in guests.holders(tx, units).items()
            } | {
                (Kind.UNKNOWN_HOLDER, provider): of_provider
                for provider, of_provider in guests.holders_of_providers(tx, providers).items()
            }
        return [
            replace(finding, cause=f"{finding.cause} {_seen(seen[finding.kind, finding.key])}")
            if (finding.kind, finding.key) in seen
            else finding
            for finding in findings
        ]

    def _stale(
        self, unbound: Collection[tuple[str, str, str]], vanished: Collection[str]
    ) -> Iterator[Finding]:
        """Yield the allocations of servers that do not exist, without ARQ for long enough.

        An allocation without ARQ is not a fault while Nova has its server: a bind may follow, or an
        evacuated host may clean up.
        """
        consumers = {consumer for _, _, consumer in unbound}
        bound = audit.binding_units(self._db, consumers)
        remaining = {
            (consumer, host)
            for host, provider, consumer in unbound
            if (provider, consumer) not in bound
        }
        # The database knows since when an instance is not bound. Of a consumer that never was an
        # instance with ARQs, only the time since the auditor first saw it is known.
        since = self._first_seen | audit.unbound_since(self._db, consumers)
        with self._db.reader() as tx:
            now = audit.read_clock(tx, self._db)
        self._first_seen = {
            consumer: self._first_seen.get(consumer, now) for consumer, _ in remaining
        }
        for consumer, host in sorted(remaining):
            age = now - since[consumer] if consumer in since else None
            if consumer in vanished and (age is None or age > self._ages.allocation):
                kind = Kind.UNDATED_ALLOCATION if age is None else Kind.STALE_ALLOCATION
                cause = f"It has an allocation on {host}, but no ARQ, and Nova has no server."
                yield Finding(kind, "consumer", consumer, cause, host)


def _unknown(differences: _Differences, holders: Holders) -> Iterator[Finding]:
    """Yield the providers of which these servers still use units without an ARQ."""
    for host, servers in holders.items():
        comparison = differences.comparisons.get(host)
        if comparison is not None:
            units: dict[str, dict[str, int]] = {}
            for provider, consumer, missing in comparison.surplus():
                if (
                    consumer in servers
                    and comparison.resource_class(provider) not in servers[consumer]
                ):
                    units.setdefault(provider, {})[consumer] = missing
            yield from comparison.unknown_holders(units)


def _foreign(differences: _Differences, holders: Holders) -> Iterator[Finding]:
    """Yield the servers whose flavors still have units that they request themselves."""
    for host, servers in holders.items():
        comparison = differences.comparisons.get(host)
        if comparison is not None:
            units: dict[str, dict[str, int]] = {}
            for provider, consumer, missing in comparison.surplus():
                if comparison.resource_class(provider) in servers.get(consumer, ()):
                    units.setdefault(consumer, {})[provider] = missing
            for consumer, of_consumer in units.items():
                yield comparison.foreign(consumer, of_consumer)


def _seen(holders: Mapping[str, str]) -> str:
    """Return what an agent saw of these units (handle, holder), as a sentence."""
    units = ", ".join(f"{handle} by {holder}" for handle, holder in sorted(holders.items()))
    return f"Its host shows in use: {units}."


def _without_releases(
    findings: Iterable[Finding], hosts: Collection[str | None]
) -> Iterator[Finding]:
    """Yield the findings; on these hosts those that are repaired by a release are not fixable.

    The database is wrong about the units of a host with servers that it does not know: the unit
    that it would release may be in use.
    """
    advice = "Remove the finding unknown-holder of {host} first: the unit may be in use."
    for finding in findings:
        if finding.host in hosts and finding.fix in _RELEASES:
            yield replace(finding, fixable=False, advice=advice.format(host=finding.host))
        else:
            yield finding


def _in_both(first: Sequence[Finding], second: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the findings of the second look that the first one had as well."""
    seen = {finding.identity for finding in first}
    return (finding for finding in second if finding.identity in seen)


def _of_agent(processes: readiness.Cloud, host: str, agent: Process | None) -> Iterator[Finding]:
    """Yield the findings for an agent that is silent, receives nothing, or cannot publish."""
    if agent is None:
        cause = "Its agent has never reported to this release."
        yield Finding(Kind.SILENT_AGENT, "host", host, cause, host)
        return
    if not processes.is_fresh(agent):
        component = processes.process(agent)
        cause = f"Its agent is {component.state}. {component.cause}"
        yield Finding(Kind.SILENT_AGENT, "host", host, cause, host, advice=component.remedy)
        return
    if agent.bus_error or agent.clock_error:
        yield _not_receiving(processes, agent, host)
    if agent.publish_error:
        cause, remedy = readiness.not_publishing(agent)
        key = f"{agent.binary}@{agent.host}"
        yield Finding(Kind.CANNOT_PUBLISH, "service", key, cause, host, advice=remedy)


def _not_receiving(processes: readiness.Cloud, process: Process, host: str | None) -> Finding:
    component = processes.process(process)
    key = f"{process.binary}@{process.host}"
    return Finding(
        Kind.NOT_RECEIVING, "service", key, component.cause, host, advice=component.remedy
    )
