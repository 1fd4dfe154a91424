# SPDX-License-Identifier: Apache-2.0
"""Discovery on request: have hosts read their hardware now, and collect their answers.

The agents send the result as an ordinary report. The operation only holds the hosts and their
answers.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final, cast
from uuid import UUID, uuid5

import sqlalchemy as sa

from cyborg import exception
from cyborg.conductor.context import Conductor, handles
from cyborg.conductor.operations.operations import Task, begin, choose_hosts, show_progress
from cyborg.conductor.tasks import set_up
from cyborg.conductor.tasks.queue import Handler
from cyborg.conductor.tasks.workflow import Answer, Ask, End, Run, Step, To, Waiting, Workflow
from cyborg.db import devices, drivers, events, hosts, operations, work
from cyborg.db.hosts import HostAgent
from cyborg.db.models import Device
from cyborg.db.transaction import Transaction
from cyborg.model.device import DeviceStatus
from cyborg.model.operation import HostResult, Operation, ResultState
from cyborg.model.report import DriverState
from cyborg.model.work import Discovered, DiscoveryTask, Outcome, WorkKind
from cyborg.rpc.verbs import Discover, DiscoverServices

LOG = logging.getLogger(__name__)

VERB = "discover"
#: Reverts in a transaction what an operation has begun on the host of its work.
Undo = Callable[[Run[HostAgent], Transaction], None]
#: Precedes the error when an agent and this conductor do not understand each other's arguments.
_OTHER_RELEASE = "the agent is of another release. "
#: Milliseconds before an agent that is still looking is asked again.
_ANSWER_POLL_MS = 500
#: The fault of work on a host that does not exist any more.
HOST_REMOVED = "the host was removed"
#: The fault of work whose deadline has passed.
OVERDUE = "it was not carried out in time"
#: A discovery fails when an agent has left so many queries in a row unanswered.
_UNANSWERED = 2
#: The key in the spec of work for the number of queries in a row without an answer.
_SILENCE = "unanswered"


@handles(DiscoverServices)
def discover(ctx: Conductor, c: DiscoverServices) -> Operation:
    """Have hosts (None: all that are up) read their hardware, through one driver or all.

    With ``setup`` the hosts set up the devices of the driver that are inactive and need it.
    Raises NotFound (host, driver), Unavailable (an agent is down), Conflict.
    """

    def plan(tx: Transaction) -> list[Task]:
        chosen = choose_hosts(ctx, tx, c.hosts, wait=c.wait)
        if c.driver is not None and not drivers.on_hosts(tx, c.driver, [row.id for row in chosen]):
            raise exception.NotFound(noun="Driver", key=c.driver)
        spec = {"driver": c.driver, "setup": bool(c.setup)}
        subject = {"driver": c.driver} if c.driver else {}
        return [Task(row, WorkKind.DISCOVER, spec, subject=subject) for row in chosen]

    return begin(ctx, c, VERB, plan, wait=c.wait)


def agent_step(
    ask: Ask[HostAgent],
    *,
    end: End[HostAgent] | None = None,
    next: StrEnum | None = None,  # noqa: A002 - as in Step
    undo: Undo | None = None,
    reached: str | None = None,
) -> Step[Any]:
    """Return a step that asks the agent of a host, as soon as it is up.

    A fault ends the host's part of the operation. If the agent does not know such requests,
    ``undo`` is called in the transaction of that.
    """
    return Step(
        read=agent_of,
        ask=partial(_ask_if_up, ask),
        end=end,
        next=next,
        fail=fail,
        refuse=partial(_refused, undo=undo),
        overdue=OVERDUE,
        poll_ms=_ANSWER_POLL_MS,
        refusals={exception.UnknownVerb: "", exception.Invalid: _OTHER_RELEASE},
        reached=reached,
    )


def agent_of(ctx: Conductor, run: Run[None], tx: Transaction) -> HostAgent | None:
    """Return the agent of the host of the work, and whether it is ``up``."""
    host_id = run.row.host_id
    return None if host_id is None else hosts.agent_of(tx, ctx.settings.agent_down_ms, host_id)


def _ask_if_up(
    ask: Ask[HostAgent], ctx: Conductor, run: Run[HostAgent | None]
) -> Answer | Waiting | To:
    agent = run.subject
    if agent is None:
        return Outcome(run.row.uuid, fault=HOST_REMOVED)
    if not agent.up:
        reason = "its agent is down"
        show_progress(ctx, run.row, ResultState.WAITING, reason)
        return Waiting(reason)
    show_progress(ctx, run.row, ResultState.RUNNING, None)
    return ask(ctx, cast("Run[HostAgent]", run))


def query(ctx: Conductor, run: Run[HostAgent]) -> Answer | Waiting:
    """Have an agent that is up follow its desired state and read its hardware.

    Each step of the work is a request of its own. An agent that is up and does not answer gets
    requests about drivers with the desired state, after its heartbeat. So work on drivers waits
    for it, and so does a discovery without a deadline; another discovery fails after the second
    query without an answer.
    """
    row, agent = run.row, run.subject
    task = DiscoveryTask(
        str(uuid5(UUID(row.uuid), run.step)), run.spec.get("driver"), agent_epoch=agent.epoch
    )
    silence = 1 + int(run.spec.get(_SILENCE, 0))
    try:
        answer = ctx.agents.request(agent.service_host, Discover(task))
    except exception.NoAnswer:
        reason = agent.bus_error or "it does not answer"
        error = f"its agent sends heartbeats but receives no requests: {reason}"
        may_fail = row.kind == WorkKind.DISCOVER and row.left_ms is not None
        if may_fail and (agent.bus_error or silence >= _UNANSWERED):
            return Outcome(row.uuid, fault=error)
        show_progress(ctx, row, ResultState.WAITING, error)
        return Waiting(error, 0, {_SILENCE: silence} if may_fail else {})
    except exception.UnknownVerb:
        raise
    except exception.Unavailable as error:
        show_progress(ctx, row, ResultState.WAITING, str(error))
        raise
    if not answer.done and silence > 1:
        return Waiting(None, _ANSWER_POLL_MS, {_SILENCE: 0})
    return answer


def _end_discovery(
    ctx: Conductor, run: Run[HostAgent], tx: Transaction, answer: Discovered
) -> None:
    """End a discovery; begin the set-up of enabled devices that need one again.

    With ``setup`` in its spec, devices that are inactive and need a set-up get one as well.
    """
    row, agent = run.row, run.subject
    ready = [driver.name for driver in answer.drivers if driver.state is DriverState.READY]
    which = sa.and_(Device.host_id == agent.id, Device.driver.in_(ready))
    result = host_result(run, answer)
    statuses = [DeviceStatus.ENABLED]
    if run.spec.get("setup"):
        statuses.append(DeviceStatus.INACTIVE)
    for status in statuses:
        if devices.needing_set_up(tx, which, status=status):
            tx.publish(agent.id, agent.service_host)
            uuids = set_up.begin_needed(tx, which, row.operation_id, status=status)
            state, host = DeviceStatus.INSTALLING.value, result.host
            entries = [events.Entry("device", uuid, state, hostname=host) for uuid in uuids]
            work.record(tx, row, entries)
    installing = devices.in_set_up(tx, agent.id, ready)
    end(run, tx, replace(result, result={**(result.result or {}), "installing": installing}))


def fail(ctx: Conductor, run: Run[Any], tx: Transaction, outcome: Outcome) -> None:
    """End one host's part of an operation with a fault."""
    end(run, tx, HostResult(run.spec["host"], ResultState.FAILED, error=outcome.fault))


def _refused(
    ctx: Conductor, run: Run[Any], tx: Transaction, outcome: Outcome, *, undo: Undo | None
) -> None:
    if undo is not None:
        undo(run, tx)
    fail(ctx, run, tx, outcome)


def end(run: Run[Any], tx: Transaction, result: HostResult) -> None:
    """End one host's part of an operation."""
    operations.end(tx, run.row.operation_id, result)
    tx.then(
        LOG.info,
        "Operation %s on %s: %s%s",
        *(run.row.operation_id, result.host, result.state.value),
        f", {result.error}" if result.error else "",
    )


def host_result(run: Run[Any], answer: Discovered) -> HostResult:
    """Return the result of one host from its agent's answer.

    The host has failed if any driver failed or reports what another driver has. A driver that the
    request names must be ready as well.
    """
    spec = run.spec
    errors = [
        f"{driver.name}: {driver.error}"
        for driver in answer.drivers
        if not driver.accepted
        or driver.state is DriverState.FAILED
        or (driver.failed and driver.error)
        or (driver.name == spec.get("driver") and driver.state is not DriverState.READY)
    ]
    state = ResultState.FAILED if errors else ResultState.SUCCEEDED
    result = {"drivers": [_counted(asdict(driver)) for driver in answer.drivers]}
    return HostResult(spec["host"], state, result, "; ".join(errors) or None)


def _counted(findings: dict[str, Any]) -> dict[str, Any]:
    """Return findings as the API shows them: ``found`` is how many devices were discovered."""
    counted = {"found" if name == "discovered" else name: findings[name] for name in findings}
    if "backends" in counted:
        counted["backends"] = [_counted(backend) for backend in counted["backends"]]
    return counted


#: The workflow of ``discover`` work.
WORK: Final[Mapping[WorkKind, Handler]] = {
    WorkKind.DISCOVER: Workflow({VERB: agent_step(query, end=_end_discovery)})
}
