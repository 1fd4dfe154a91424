# SPDX-License-Identifier: Apache-2.0
"""Compare database, Placement and Nova, and return the invariants that are violated.

The auditor reads the database and Placement, then asks Nova, then checks each violation again. A
difference is a finding only if both reads show it: a bind, a delete or a report in progress shows
in one of them only. Memory grows with the violations, not with the cloud.
"""

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from cyborg import exception
from cyborg.clients.nova import Servers
from cyborg.clients.placement import Placement
from cyborg.conductor.audit.placement_view import HostComparison, PlacementView, misnamed_providers
from cyborg.db import audit
from cyborg.db.engine import Reader
from cyborg.db.models import Host
from cyborg.model import health_view
from cyborg.model.audit_findings import Ages, Finding, Kind
from cyborg.model.health_view import Process, duration
from cyborg.model.process import AGENT, CONDUCTOR

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

    The latter are host, provider and consumer.
    """

    findings: list[Finding]
    host_ids: set[int]
    unbound: set[tuple[str, str, str]]


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
        if self._servers is not None:
            try:
                instances = audit.bound_instances(self._db, host)
                vanished = self._servers.vanished(heapq.merge(instances, sorted(consumers)))
            except exception.CyborgError as error:
                unasked.append(str(error))
        second, _ = self._rows(violations)
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
            conductors = audit.conductors(tx, now)
            limits = {AGENT: self._ages.agent_silence, CONDUCTOR: self._ages.conductor_silence}
            processes = health_view.Cloud(conductors, limits)
            findings += [
                _not_receiving(processes, conductor, None)
                for conductor in conductors
                if conductor.bus_error and processes.is_fresh(conductor)
            ]
            silent = audit.troubled_agents(tx, now, self._ages.agent_silence)
            findings += [_of_agent(processes, host, agent) for host, agent in silent]
            checks = audit.CHECKS
            if any(processes.is_fresh(conductor) for conductor in conductors):
                checks += audit.WORK_CHECKS
                if processes.bus_failure:
                    bus = processes.bus(None)
                    findings.append(
                        Finding(Kind.NO_CONDUCTOR, "cloud", "bus", bus.cause, advice=bus.remedy)
                    )
            else:
                waiting = audit.waiting_work(tx, now - self._ages.conductor_silence)
                silence = min((conductor.silent_ms for conductor in conductors), default=None)
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
        differences = _Differences([], set(), set())
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
                if shown is not None:
                    comparison = HostComparison(row, shown, self._ages)
                    own_orphans = {finding.key: finding for finding in comparison.orphans()}
                    orphans |= own_orphans
                    of_placement = list(comparison.differences())
                    differences.findings.extend(of_placement)
                    findings += [*of_placement, *own_orphans.values()]
                    differences.unbound.update((row.name, *pair) for pair in comparison.unbound())
                if findings:
                    differences.host_ids.add(row.id)
            published = audit.published(self._db, orphans)
            differences.findings.extend(
                finding for uuid, finding in orphans.items() if uuid not in published
            )
        differences.findings.extend(misnamed)
        return differences

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


def _in_both(first: Sequence[Finding], second: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the findings of the second look that the first one had as well."""
    seen = {finding.identity for finding in first}
    return (finding for finding in second if finding.identity in seen)


def _of_agent(processes: health_view.Cloud, host: str, agent: Process | None) -> Finding:
    """Return the finding for an agent that is silent, or receives nothing."""
    if agent is None:
        cause = "Its agent has never reported to this release."
        return Finding(Kind.SILENT_AGENT, "host", host, cause, host)
    if processes.is_fresh(agent):
        return _not_receiving(processes, agent, host)
    component = processes.process(agent)
    cause = f"Its agent is {component.state}. {component.cause}"
    return Finding(Kind.SILENT_AGENT, "host", host, cause, host, advice=component.remedy)


def _not_receiving(processes: health_view.Cloud, process: Process, host: str | None) -> Finding:
    component = processes.process(process)
    key = f"{process.binary}@{process.host}"
    return Finding(
        Kind.NOT_RECEIVING, "service", key, component.cause, host, advice=component.remedy
    )
