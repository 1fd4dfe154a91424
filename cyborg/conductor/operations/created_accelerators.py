# SPDX-License-Identifier: Apache-2.0
"""Create accelerators for operators: store the order, and the device when a report shows it.

The order is a work row of the host, and part of its desired state. Only the driver can decide
whether the host can create the accelerator. The driver reports the new device like any other, and
the report adds the rows. So a refused accelerator was never in the database or in Placement.
"""

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID, uuid5

from cyborg import exception
from cyborg.conductor.context import Conductor, handles
from cyborg.conductor.operations.discovery import VERB, agent_step, query
from cyborg.conductor.operations.operations import Task, begin, choose_hosts
from cyborg.conductor.tasks.queue import Handler
from cyborg.conductor.tasks.workflow import Run, Workflow
from cyborg.db import created_accelerators, devices, events, host_inventory, hosts, operations
from cyborg.db.created_accelerators import DriverBackend, Request
from cyborg.db.hosts import HostAgent
from cyborg.db.transaction import Transaction
from cyborg.model import creation
from cyborg.model.creation import Creation
from cyborg.model.device import AttachType
from cyborg.model.operation import HostResult, Operation, ResultState
from cyborg.model.report import DriverState
from cyborg.model.work import Discovered, WorkKind
from cyborg.rpc.verbs import CreateDevice

CREATE = "create_device"
#: States of a driver that reports no devices.
_NOT_LOADED = (DriverState.FAILED, DriverState.STOPPED)


@handles(CreateDevice)
def create(ctx: Conductor, c: CreateDevice) -> Operation:
    """Have an accelerator created on a backend of a host.

    Raises NotFound (host, driver, backend), Unavailable (its agent is down), Invalid (the
    backend has no such handles), and Conflict when the driver creates no accelerators there or
    the host has, or will get, an accelerator with the same key or name.
    """

    request = c.creation

    def plan(tx: Transaction) -> list[Task]:
        host = choose_hosts(ctx, tx, [request.host], wait=c.wait)[0]
        # This locks the host: of two orders for the same place the second sees the first.
        tx.publish(host.id, host.service_host)
        backends = created_accelerators.backends(tx, host.id, request.driver)
        attach_type = _attach_type(backends, request)
        pending = [ordered.facts for ordered in created_accelerators.requests(tx, host.id)]
        keys = {
            *created_accelerators.drivers_by_key(tx, host.id),
            *(device.key for device in pending),
        }
        handles = creation.handles(request, attach_type, keys)
        device = creation.device(request, handles, host.service_host)
        names = {deployable.name for deployable in device.deployables}
        reserved = {deployable.name for other in pending for deployable in other.deployables}
        # A card that has moved keeps the name of its first place, and its driver uses another.
        used = {
            name
            for name, holder in host_inventory.taken_names(tx, names).items()
            if holder.key == name
        }
        if device.key in keys or names & (reserved | used):
            raise exception.Conflict(
                reason=f"There is an accelerator {device.key} on {host.name} already, or there "
                "will be one soon."
            )
        uuid = str(uuid5(UUID(c.request_key), "device"))
        ordered = Request(uuid, request.driver, device, request.labels)
        entry = events.Entry("device", ordered.uuid, "ordered", hostname=host.name)
        events.record(tx, [entry])
        subject = {
            "device": ordered.uuid,
            "driver": request.driver,
            "backend": request.backend,
        }
        return [Task(host, WorkKind.CREATE_DEVICE, ordered.spec(), subject=subject)]

    return begin(ctx, c, CREATE, plan, wait=c.wait)


def _attach_type(backends: Sequence[DriverBackend], request: Creation) -> AttachType:
    """Return how guests get what the requested backend creates; raises NotFound, Conflict."""
    if not backends:
        raise exception.NotFound(noun="Driver", key=request.driver)
    if backends[0].state in _NOT_LOADED:
        error = backends[0].error or "it is not loaded"
        raise exception.Conflict(
            reason=f"Driver {request.driver} is {backends[0].state} on {request.host}: {error}"
        )
    if all(backend.creates is None for backend in backends):
        raise exception.Conflict(
            reason=f"Driver {request.driver} has no backend on {request.host} on which "
            "accelerators can be created. The field creates of the backends (backend-list on the "
            "command line) tells where that is possible."
        )
    for backend in backends:
        if backend.backend == request.backend:
            if backend.creates is None:
                raise exception.Conflict(
                    reason=f"Accelerators cannot be created on backend {request.backend} of driver "
                    f"{request.driver}. The field creates of the backends (backend-list on the "
                    "command line) tells where that is possible."
                )
            return AttachType(backend.creates)
    raise exception.NotFound(noun="Backend", key=request.backend)


def _end(ctx: Conductor, run: Run[HostAgent], tx: Transaction, answer: Discovered) -> None:
    """End the operation: the report of the host has added the device, or it has not."""
    agent, ordered = run.subject, Request.from_spec(run.spec)
    result = HostResult(run.spec["host"], ResultState.SUCCEEDED, {"device": ordered.uuid})
    # No report adds the device while this transaction decides, nor after it.
    hosts.lock(tx, agent.id)
    if devices.with_agent(tx, ordered.uuid) is None:
        error = _refusal(tx, agent.id, ordered, answer)
        result = HostResult(run.spec["host"], ResultState.FAILED, error=error)
        tx.publish(agent.id, agent.service_host)
    operations.end(tx, run.row.operation_id, result)


def _refusal(tx: Transaction, host_id: int, ordered: Request, answer: Discovered) -> str:
    """Return why a host does not report the ordered device, for the operator."""
    for driver in answer.drivers:
        if driver.name == ordered.driver and driver.error is not None:
            return f"{ordered.driver}: {driver.error}"
    names = [deployable.name for deployable in ordered.facts.deployables]
    for name, holder in host_inventory.taken_names(tx, names).items():
        if holder.key == name:
            return f"{name} is already a deployable of driver {holder.driver} on {holder.hostname}"
    reason = created_accelerators.reason(tx, host_id, ordered.driver, ordered.facts.key)
    return reason or f"{ordered.driver} does not report it on backend {ordered.facts.backend}"


#: The workflow of ``create`` work. It has the host report its hardware, which adds the device, and
#: then ends the operation.
WORK: Final[Mapping[WorkKind, Handler]] = {
    WorkKind.CREATE_DEVICE: Workflow({VERB: agent_step(query, end=_end)})
}
