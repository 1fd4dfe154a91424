# SPDX-License-Identifier: Apache-2.0
"""The RPC endpoint of a conductor: check the sender of each command, and run its use case."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cyborg import exception
from cyborg.conductor.arqs.attributes import Attributes
from cyborg.conductor.arqs.bind import ArqBinder
from cyborg.conductor.arqs.create import ArqCreator
from cyborg.conductor.arqs.device_profiles import Profiles
from cyborg.conductor.arqs.release import ArqReleaser
from cyborg.conductor.hosts.devices import DeviceAdmin
from cyborg.conductor.hosts.guests import HostGuestStore
from cyborg.conductor.hosts.heartbeats import Heartbeats
from cyborg.conductor.hosts.lost_devices import LostDevices
from cyborg.conductor.hosts.removal import Processes
from cyborg.conductor.metrics import Readings
from cyborg.conductor.operations.attach import Attacher
from cyborg.conductor.operations.created_accelerators import CREATE, AcceleratorCreator
from cyborg.conductor.operations.discovery import VERB as DISCOVER
from cyborg.conductor.operations.discovery import DiscoveryAPI
from cyborg.conductor.operations.drivers import INSTALL, UNINSTALL, UPDATE, Drivers
from cyborg.conductor.operations.operations import Order
from cyborg.conductor.reports.apply import ReportApplier
from cyborg.conductor.reports.desired_state import DesiredStates, PreparedUnits
from cyborg.model.process import CONDUCTOR
from cyborg.model.text import escaped_line
from cyborg.rpc import endpoint, verbs
from cyborg.rpc.command import Handler
from cyborg.rpc.endpoint import Context
from cyborg.rpc.transport import CONDUCTOR_AGENTS_TOPIC, CONDUCTOR_TOPIC

LOG = logging.getLogger(__name__)

#: Refusals that are due to the sender of a request, or to its arguments.
_REFUSALS = (exception.Invalid, exception.Forbidden, exception.StaleEpoch)


@dataclass(frozen=True)
class UseCases:
    """The use cases that the endpoint calls."""

    arq_creator: ArqCreator
    arq_binder: ArqBinder
    arq_releaser: ArqReleaser
    attacher: Attacher
    profiles: Profiles
    device_admin: DeviceAdmin
    attributes: Attributes
    heartbeats: Heartbeats
    report_applier: ReportApplier
    desired_states: DesiredStates
    lost_devices: LostDevices
    prepared_units: PreparedUnits
    discovery_api: DiscoveryAPI
    drivers: Drivers
    accelerator_creator: AcceleratorCreator
    processes: Processes
    host_guests: HostGuestStore
    readings: Readings


class Endpoint(endpoint.Endpoint):
    """The verbs of conductors: those of the API, those of agents, or all.

    A request without a sender is refused with Forbidden; the first refusal of each verb is logged.
    So is a request of an agent for a host that is not the sender's. Each refusal of an agent is
    logged, and the same refusal again only after one of its requests was accepted.
    """

    def __init__(self, cases: UseCases, *, api: bool = True, agents: bool = True) -> None:
        handlers = _of_agents(cases) if agents else ()
        if api:
            handlers = (*_requests(cases), *_of_operations(cases), *handlers)
        super().__init__(CONDUCTOR, verbs.CONDUCTOR, *handlers)
        self._without_sender: set[str] = set()
        self._refused: dict[tuple[str, str], str] = {}

    def _run(self, handler: Handler, context: Context, arguments: Mapping[str, Any]) -> Any:
        kind, sender = handler.command, context.get("sender")
        if not isinstance(sender, str) or not sender:
            if kind.verb not in self._without_sender:
                self._without_sender.add(kind.verb)
                LOG.warning(
                    "Request %s over the message bus refused: it names no sender. Later requests "
                    "of this kind are refused without a log line.",
                    kind.verb,
                )
            raise exception.Forbidden(reason=f"The request {kind.verb} names no sender.")
        try:
            command = kind.load(arguments)
            if isinstance(command, verbs.AgentRequest):
                host = command.of_host
                if sender.rpartition("@")[2] != host:
                    raise exception.Forbidden(reason=f"{sender} cannot speak for host {host}.")
            answer = handler.handle(command)
        except _REFUSALS as error:
            place = kind.verb, sender
            if issubclass(kind, verbs.AgentRequest) and self._refused.get(place) != str(error):
                self._refused[place] = str(error)
                LOG.warning(
                    "Sender %s: request %s over the message bus refused: %s",
                    *(escaped_line(sender), kind.verb, escaped_line(str(error))),
                )
            raise
        self._refused.pop((kind.verb, sender), None)
        return answer


def endpoints(cases: UseCases, *, one_topic: bool = True) -> dict[str, Endpoint]:
    """Return the endpoints of a conductor by their topics.

    Agents of earlier releases use the topic of the API; with ``one_topic`` it has their verbs too.
    """
    return {
        CONDUCTOR_TOPIC: Endpoint(cases, agents=one_topic),
        CONDUCTOR_AGENTS_TOPIC: Endpoint(cases, api=False),
    }


def _requests(cases: UseCases) -> tuple[Handler, ...]:
    """Return what is done for users and operators, and for the API itself."""
    update = cases.device_admin.update
    return (
        verbs.ApiHeartbeat.handled(
            lambda c: cases.heartbeats.api_heartbeat(c.host, c.version, c.endpoint)
        ),
        verbs.CreateArqs.handled(lambda c: cases.arq_creator.create(*c.origin, c.profile_name)),
        verbs.PatchArqs.handled(
            lambda c: cases.arq_binder.patch(*c.origin, c.bindings, c.unbindings)
        ),
        verbs.DeleteArqs.handled(lambda c: cases.arq_releaser.by_uuid(*c.origin, c.uuids)),
        verbs.DeleteInstanceArqs.handled(
            lambda c: cases.arq_releaser.by_instance(*c.origin, c.instance_uuid)
        ),
        verbs.Attach.handled(
            lambda c: cases.attacher.attach(*c.origin, c.instance_uuid, c.profile_name)
        ),
        verbs.Detach.handled(
            lambda c: cases.attacher.detach(*c.origin, c.instance_uuid, c.arq_uuid)
        ),
        verbs.CreateDeviceProfile.handled(lambda c: cases.profiles.create(*c.origin, c.profile)),
        verbs.UpdateDeviceProfile.handled(
            lambda c: cases.profiles.update(*c.origin, c.key, c.change, denied=c.denied or ())
        ),
        verbs.DeleteDeviceProfiles.handled(lambda c: cases.profiles.delete(*c.origin, c.keys)),
        verbs.CreateDevice.handled(
            lambda c: cases.accelerator_creator.create(Order(*c.origin, CREATE, c.wait), c.creation)
        ),
        verbs.SetDeviceStatus.handled(lambda c: update(*c.origin, c.uuid, status=c.status)),
        verbs.UpdateDevice.handled(
            lambda c: update(
                *(*c.origin, c.uuid),
                status=c.status,
                labels=c.labels,
                project=c.project,
                facts=c.facts,
                reason=c.reason,
                free_unit=c.free_unit,
                health=c.health,
            )
        ),
        verbs.DeleteDevice.handled(
            lambda c: cases.device_admin.delete(*c.origin, c.uuid, force=c.force)
        ),
        verbs.ProgramDeployable.handled(
            lambda c: cases.device_admin.program(*c.origin, c.uuid, c.image_uuid)
        ),
        verbs.CreateAttribute.handled(
            lambda c: cases.attributes.create(
                *c.origin, deployable=c.deployable, key=c.key, value=c.value, uuid=c.uuid
            )
        ),
        verbs.DeleteAttribute.handled(lambda c: cases.attributes.delete(*c.origin, c.uuid)),
    )


def _of_operations(cases: UseCases) -> tuple[Handler, ...]:
    """Return what is done for operators of hosts and drivers."""
    return (
        verbs.DiscoverServices.handled(
            lambda c: cases.discovery_api.discover(
                Order(*c.origin, DISCOVER, c.wait),
                hosts=c.hosts,
                driver=c.driver,
                setup=bool(c.setup),
            )
        ),
        verbs.InstallDriver.handled(
            lambda c: cases.drivers.install(
                Order(*c.origin, INSTALL, c.wait), c.driver, hosts=c.hosts, options=c.options
            )
        ),
        verbs.UpdateDriver.handled(
            lambda c: cases.drivers.update(
                Order(*c.origin, UPDATE, c.wait), c.driver, options=c.options, enabled=c.enabled
            )
        ),
        verbs.UninstallDriver.handled(
            lambda c: cases.drivers.uninstall(
                Order(*c.origin, UNINSTALL, c.wait), c.driver, drain=c.drain, force=c.force
            )
        ),
        verbs.SetServiceStatus.handled(
            lambda c: cases.processes.set_status(*c.origin, c.uuid, c.reason, disabled=c.disabled)
        ),
        verbs.RemoveService.handled(
            lambda c: cases.processes.request_removal(*c.origin, c.uuid, force=c.force)
        ),
    )


def _of_agents(cases: UseCases) -> tuple[Handler, ...]:
    """Return what is done for agents."""
    return (
        verbs.Heartbeat.handled(lambda c: cases.heartbeats.heartbeat(c.heartbeat)),
        verbs.SendReport.handled(lambda c: cases.report_applier.report(c.host, c.epoch, c.report)),
        verbs.FetchDesired.handled(lambda c: cases.desired_states.desired(c.host, c.epoch)),
        verbs.FetchUnitUses.handled(lambda c: cases.prepared_units.unit_uses(c.host, c.epoch)),
        verbs.SendPublished.handled(
            lambda c: cases.report_applier.published(c.host, c.epoch, c.refused, c.published)
        ),
        verbs.SendProvidersRemoved.handled(
            lambda c: cases.lost_devices.confirm_removal(c.host, c.epoch, c.names)
        ),
        verbs.SendGuests.handled(lambda c: cases.host_guests.store(c.host, c.epoch, c.guests)),
        verbs.SendReadings.handled(lambda c: cases.readings.store(c.host, c.epoch, c.readings)),
    )
