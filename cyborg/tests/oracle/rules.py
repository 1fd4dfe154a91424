# SPDX-License-Identifier: Apache-2.0
"""The invariants of this service, checked on a snapshot of a whole cloud.

Tests compare the audit, which reads its violations with SQL, with these rules.

Each check is a generator of findings. The checks that need Placement or the hosts are in
``placement``.
"""

from collections.abc import Iterator
from dataclasses import replace

from cyborg.model import readiness
from cyborg.model.arq import State
from cyborg.model.audit_findings import Ages, Finding, Fix, Kind
from cyborg.model.device import UNRELEASED, HandleState
from cyborg.model.process import AGENT, CONDUCTOR
from cyborg.model.readiness import Process, duration
from cyborg.model.report import DriverState
from cyborg.model.work import WorkKind
from cyborg.tests.oracle import placement
from cyborg.tests.oracle.rows import ArqRow, AuditViews, HandleRow, Snapshot, WorkRow

#: ARQs in these states have no handle; ARQs in obsolete states may have one.
_HANDLELESS = frozenset({State.INITIAL, State.UNBOUND, State.BIND_FAILED})
_UNBOUND = frozenset({State.INITIAL, State.UNBOUND})
_OBSOLETE = frozenset({State.UNBIND_FAILED, State.DELETING})


def check(cloud: Snapshot, peers: AuditViews, ages: Ages) -> list[Finding]:
    """Return all findings, the worst first, then by host and name."""
    findings = [
        *_handles(cloud),
        *_arqs(cloud),
        *_waiting(cloud, peers, ages),
        *_unattached(cloud, peers, ages),
        *_work(cloud, ages),
        *_hosts(cloud, ages),
        *placement.differences(
            cloud, peers, placement.GracePeriods(ages.settle, ages.agent_silence)
        ),
        *placement.allocations(cloud, peers, ages.allocation),
        *placement.prepared(cloud, peers),
        *placement.foreign_allocations(cloud, peers),
    ]
    unknown = list(placement.unknown_holders(cloud, peers))
    hosts = {finding.host for finding in unknown}
    # The database is wrong about the units of these hosts: what it would release may be in use.
    releases = (Fix.RELEASE_HANDLE, Fix.DROP_HANDLE, Fix.DELETE_ARQS)
    findings = unknown + [
        replace(
            finding,
            fixable=False,
            advice=f"Remove the finding unknown-holder of {finding.host} first: the unit may be in "
            "use.",
        )
        if finding.host in hosts and finding.fix in releases
        else finding
        for finding in findings
    ]
    return sorted(
        findings,
        key=lambda finding: (
            -finding.severity,
            finding.host or "",
            finding.kind,
            finding.noun,
            finding.key,
        ),
    )


def _handles(cloud: Snapshot) -> Iterator[Finding]:
    """Check that no handle is released while an ARQ is bound to it, and that releases end."""
    for handle in cloud.handles:
        kind, cause = _flaw(cloud, handle, cloud.holders.get(handle.id, []))
        if kind is not None:
            yield _of_handle(cloud, handle, kind, cause)


def _flaw(cloud: Snapshot, handle: HandleRow, holders: list[ArqRow]) -> tuple[Kind | None, str]:
    """Return what is wrong between a handle and its holders; (None, "") for nothing."""
    releasing = handle.state == HandleState.RELEASING
    quarantined = handle.state == HandleState.QUARANTINED
    at_work = handle.id in cloud.release_of
    bound = [arq for arq in holders if arq.state == State.BOUND]
    if bound and releasing:
        return Kind.UNSAFE_HANDLE, f"It is about to be released, but ARQ {bound[0].uuid} has it."
    if bound and quarantined:
        return Kind.UNSAFE_HANDLE, f"It is in quarantine, but ARQ {bound[0].uuid} has it."
    if quarantined and handle.suspect:
        cause = "It is in quarantine, because a server without a request may have it."
        return Kind.SUSPECT_HANDLE, cause
    if handle.state in UNRELEASED and not at_work:
        return Kind.STRANDED_RELEASE, "It is to be released, but there is no work for it."
    if quarantined:
        work = cloud.release_of[handle.id]
        cause = f"Its host does not release it; tried for {duration(work.age)}{_because(work)}"
        return Kind.QUARANTINED_HANDLE, cause
    return None, ""


def _of_handle(cloud: Snapshot, handle: HandleRow, kind: Kind, cause: str) -> Finding:
    host = cloud.host_of(handle.deployable_id)
    return Finding(kind, "handle", handle.uuid, cause, host.name if host else None)


def _arqs(cloud: Snapshot) -> Iterator[Finding]:
    """Check holders and progress from the side of the ARQs."""
    preparing = {work.arq_uuid for work in cloud.work if work.kind == WorkKind.PREPARE}
    attaching = {work.instance_uuid for work in cloud.work if work.kind == WorkKind.ATTACH}
    for arq in cloud.arqs:
        if arq.state in _HANDLELESS and arq.handle_id is not None:
            yield _of_arq(cloud, arq, Kind.NEEDLESS_HOLD, f"It is {arq.state} and has a handle.")
        if arq.state == State.BOUND and arq.handle_id not in cloud.handle_by_id:
            yield _of_arq(cloud, arq, Kind.EMPTY_BIND, "It is Bound and has no handle.")
        attached = arq.hidden and arq.instance_uuid in attaching
        if arq.state == State.BIND_STARTED and arq.uuid not in preparing and not attached:
            cause = "It is BindStarted, but nobody is to finish its bind."
            yield _of_arq(cloud, arq, Kind.FORGOTTEN_BIND, cause)
        if arq.state in _OBSOLETE:
            cause = f"It is {arq.state}, a state that no request gets into any more."
            yield _of_arq(cloud, arq, Kind.OBSOLETE_STATE, cause)
        handle = cloud.handle_by_id.get(arq.handle_id or 0)
        if handle is None or not arq.binds:
            continue
        deployable = cloud.deployable_by_id[handle.deployable_id]
        if arq.rp_uuid != deployable.rp_uuid:
            cause = f"It names provider {arq.rp_uuid}, but has a unit of {deployable.rp_uuid}."
            yield _of_arq(cloud, arq, Kind.WRONG_PROVIDER, cause)
        elif arq.deployable_id != deployable.id:
            cause = f"It names deployable {arq.deployable_id}, but has a unit of {deployable.id}."
            yield _of_arq(cloud, arq, Kind.WRONG_PROVIDER, cause)


def _of_arq(cloud: Snapshot, arq: ArqRow, kind: Kind, cause: str) -> Finding:
    return Finding(kind, "arq", arq.uuid, cause, cloud.place_of(arq))


def _waiting(cloud: Snapshot, peers: AuditViews, ages: Ages) -> Iterator[Finding]:
    """Check for old ARQs that nobody binds, and for ARQs of deleted servers."""
    for arq in cloud.arqs:
        if arq.age is not None and arq.age > ages.unbound and arq.state in _UNBOUND:
            cause = f"It has been {arq.state} for {duration(arq.age)}."
            yield _of_arq(cloud, arq, Kind.AGED_ARQ, cause)
    gone: dict[str, ArqRow] = {}
    for arq in cloud.arqs:
        if arq.instance_uuid in peers.vanished and (arq.age is None or arq.age > ages.settle):
            gone.setdefault(arq.instance_uuid, arq)
    for instance, arq in gone.items():
        cause = "It has ARQs, but Nova has no such server."
        place = cloud.place_of(arq)
        yield Finding(Kind.VANISHED_INSTANCE, "instance", instance, cause, place)


def _unattached(cloud: Snapshot, peers: AuditViews, ages: Ages) -> Iterator[Finding]:
    """Check that the guests that run have the units that are bound to their servers."""
    changing = {
        work.instance_uuid for work in cloud.work if work.kind in (WorkKind.ATTACH, WorkKind.DETACH)
    }
    for instance, (name, units) in sorted(peers.guests.items()):
        missing = []
        for arq in cloud.arqs:
            handle = cloud.handle_by_id.get(arq.handle_id or 0)
            host = cloud.host_of(handle.deployable_id) if handle else None
            is_settled = arq.age is None or arq.age > ages.settle
            if (
                *(arq.instance_uuid, arq.state, arq.hidden, is_settled),
                *(handle is not None and not handle.lost, host is not None and host.name == name),
            ) != (instance, State.BOUND, False, True, True, True):
                continue
            assert handle is not None
            assert host is not None
            silence = host.agent_silence
            if silence is not None and silence <= ages.agent_silence and handle.id not in units:
                deployable = cloud.deployable_by_id[handle.deployable_id]
                missing.append(f"{handle.uuid} of {deployable.name}")
        if missing and instance not in changing:
            cause = f"It runs on {name} without its unit(s) {', '.join(missing)}."
            yield Finding(Kind.UNATTACHED_BIND, "instance", instance, cause, name)


def _work(cloud: Snapshot, ages: Ages) -> Iterator[Finding]:
    """Check that work is carried out."""
    silence = cloud.conductor_silence
    if silence is None or silence > ages.conductor_silence:
        waiting = [work for work in cloud.work if work.waiting > ages.conductor_silence]
        if waiting:
            since = "ever" if silence is None else duration(silence)
            cause = f"{len(waiting)} piece(s) of work wait; no conductor was seen for {since}."
            yield Finding(Kind.NO_CONDUCTOR, "cloud", "work", cause)
        return
    judged = _processes(cloud, ages)
    if judged.bus_failure:
        bus = judged.bus(None)
        yield Finding(Kind.NO_CONDUCTOR, "cloud", "bus", bus.cause, advice=bus.remedy)
    for work in cloud.work:
        handle = cloud.handle_by_id.get(work.handle_id or 0)
        # A handle in quarantine has a finding of its own.
        may_stick = work.kind in (WorkKind.PROGRAM, WorkKind.ATTACH, WorkKind.DETACH) or (
            work.kind == WorkKind.RELEASE
            and not (handle is not None and handle.state == HandleState.QUARANTINED)
        )
        if work.kind == WorkKind.NOTIFY and work.age > ages.notify + ages.work:
            cause = f"Nova could not be told for {duration(work.age)}{_because(work)}"
            yield _of_work(cloud, work, Kind.NOVA_NOT_NOTIFIED, cause)
        elif work.kind == WorkKind.PREPARE and (work.overdue or 0) > ages.work:
            cause = f"Its bind is {duration(work.overdue or 0)} past its deadline{_because(work)}"
            yield _of_work(cloud, work, Kind.OVERDUE_BIND, cause)
        elif may_stick and work.age > ages.stuck:
            cause = f"Its {work.kind} has been tried for {duration(work.age)}{_because(work)}"
            yield _of_work(cloud, work, Kind.STUCK_WORK, cause)


def _of_work(cloud: Snapshot, work: WorkRow, kind: Kind, cause: str) -> Finding:
    """Return a finding about the object of the work: its ARQ, its handle, or the work itself."""
    arq = cloud.arq_by_uuid.get(work.arq_uuid or "")
    if arq is not None and work.kind != WorkKind.RELEASE:
        return _of_arq(cloud, arq, kind, cause)
    handle = cloud.handle_by_id.get(work.handle_id or 0)
    if handle is not None:
        return _of_handle(cloud, handle, kind, cause)
    host = cloud.host_by_id.get(work.host_id or 0)
    return Finding(kind, "work", work.uuid, cause, host.name if host else None)


def _because(work: WorkRow) -> str:
    return f", {work.attempts} time(s): {work.error}" if work.error else "."


def _hosts(cloud: Snapshot, ages: Ages) -> Iterator[Finding]:
    """Check processes, drivers and devices, so that an operator looks at those that fail."""
    names = {host.id: host.name for host in cloud.hosts}
    judged = _processes(cloud, ages)
    for conductor in cloud.conductors:
        if conductor.bus_error and judged.is_fresh(conductor):
            yield _not_receiving(judged, conductor, None)
    for host in cloud.hosts:
        silence = host.agent_silence
        if silence is None and cloud.deployables_of.get(host.id):
            cause = "Its agent has never reported to this release."
            yield Finding(Kind.SILENT_AGENT, "host", host.name, cause, host.name)
        elif silence is not None and silence > ages.agent_silence:
            seen = cloud.taken_ms - silence
            agent = judged.process(host.agent or Process(AGENT, host.name, silence, seen))
            cause = f"Its agent is {agent.state}. {agent.cause}"
            yield Finding(
                Kind.SILENT_AGENT, "host", host.name, cause, host.name, advice=agent.remedy
            )
        elif host.agent is not None:
            if host.agent.bus_error:
                yield _not_receiving(judged, host.agent, host.name)
            if host.agent.publish_error:
                cause, remedy = readiness.not_publishing(host.agent)
                key = f"{AGENT}@{host.agent.host}"
                yield Finding(Kind.CANNOT_PUBLISH, "service", key, cause, host.name, advice=remedy)
        if host.unchecked:
            cause = (
                "The database is older than its last guests: none of its units is offered or "
                "cleaned."
            )
            yield Finding(Kind.UNCHECKED_HOST, "host", host.name, cause, host.name)
    for driver in cloud.drivers:
        if driver.state == DriverState.FAILED:
            cause = f"It fails: {driver.error or 'it does not say why'}"
            place = names[driver.host_id]
            yield Finding(Kind.FAILED_DRIVER, "driver", f"{place}/{driver.name}", cause, place)
    for device in cloud.devices:
        if device.lost_age is not None and device.lost_age > ages.lost:
            cause = f"It was last seen {duration(device.lost_age)} ago."
            place = names[device.host_id]
            yield Finding(Kind.LOST_DEVICE, "device", device.uuid, cause, place)


def _processes(cloud: Snapshot, ages: Ages) -> readiness.Cloud:
    limits = {AGENT: ages.agent_silence, CONDUCTOR: ages.conductor_silence}
    return readiness.Cloud(cloud.conductors, limits)


def _not_receiving(judged: readiness.Cloud, process: Process, host: str | None) -> Finding:
    component = judged.process(process)
    key = f"{process.binary}@{process.host}"
    return Finding(
        Kind.NOT_RECEIVING, "service", key, component.cause, host, advice=component.remedy
    )


def confirmed(first: list[Finding], second: list[Finding]) -> list[Finding]:
    """Return the findings of the second check that the first one had as well.

    If the peers are queried between the two, a change that was on its way between the database and
    a peer is in one of them only.
    """
    seen = {finding.identity for finding in first}
    return [finding for finding in second if finding.identity in seen]
