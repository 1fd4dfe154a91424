# SPDX-License-Identifier: Apache-2.0
"""The RPC endpoint of a conductor: check the sender of each call, and run its use case."""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import oslo_messaging

from cyborg import exception
from cyborg.conductor.arqs.attributes import Attributes
from cyborg.conductor.arqs.bind import ArqBinder
from cyborg.conductor.arqs.create import ArqCreator
from cyborg.conductor.arqs.device_profiles import Profiles
from cyborg.conductor.arqs.release import ArqReleaser
from cyborg.conductor.hosts.devices import DeviceAdmin
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
from cyborg.model import wire
from cyborg.model.arq import Binding
from cyborg.model.caller import Caller
from cyborg.model.creation import Creation
from cyborg.model.device import DeviceStatus
from cyborg.model.device_profile import DeviceProfile, ProfileChange
from cyborg.model.process import CONDUCTOR
from cyborg.model.report import AgentHeartbeat, Reading, Report
from cyborg.rpc import versions
from cyborg.rpc.faults import answering

LOG = logging.getLogger(__name__)

Context = Mapping[str, Any]
Method = Callable[..., Any]

#: Refusals that are due to the sender of a request, or to its arguments.
_REFUSALS = (exception.Invalid, exception.Forbidden, exception.StaleEpoch)
#: Types of the arguments that requests of agents have in common.
_TYPES = {"host": str, "epoch": int}


def require_sender() -> Callable[[Method], Method]:
    """Make methods of an endpoint refuse requests without a sender; for all except ``ping``.

    The methods raise Forbidden then. The first refusal of each method is logged.
    """
    logged: set[str] = set()

    def wrap(method: Method) -> Method:
        @functools.wraps(method)
        def checked(self: object, context: Context, **arguments: Any) -> Any:
            sender = context.get("sender")
            if isinstance(sender, str) and sender:
                return method(self, context, **arguments)
            verb = method.__name__
            if verb not in logged:
                logged.add(verb)
                LOG.warning(
                    "Request %s over the message bus refused: it names no sender. Later requests "
                    "of this kind are refused without a log line.",
                    verb,
                )
            raise exception.Forbidden(reason=f"The request {verb} names no sender.")

        return checked

    return wrap


def check_agents() -> Callable[[Method], Method]:
    """Make methods of an endpoint refuse what an agent must not send; for the methods of agents.

    ``require_sender`` goes around it. The methods raise Invalid for a host or epoch of a wrong
    type, and Forbidden for a host that is not the sender's. Each refusal is logged, and the same
    refusal of a sender again only after one of its requests was accepted.
    """
    logged: dict[tuple[str, str], str] = {}

    def wrap(method: Method) -> Method:
        @functools.wraps(method)
        def checked(self: object, context: Context, **arguments: Any) -> Any:
            sender = str(context["sender"])
            try:
                _check(sender, arguments)
                answer = method(self, context, **arguments)
            except _REFUSALS as error:
                if logged.get((method.__name__, sender)) != str(error):
                    logged[method.__name__, sender] = str(error)
                    LOG.warning(
                        "Sender %s: request %s over the message bus refused: %s",
                        *(sender, method.__name__, error),
                    )
                raise
            logged.pop((method.__name__, sender), None)
            return answer

        return checked

    return wrap


def _check(sender: str, arguments: Mapping[str, Any]) -> None:
    for name, kind in _TYPES.items():
        if name in arguments and type(arguments[name]) is not kind:
            raise exception.Invalid(field=name, reason=f"{kind.__name__} is needed")
    host = arguments.get("host")
    if host is not None and sender.rpartition("@")[2] != host:
        raise exception.Forbidden(reason=f"{sender} cannot speak for host {host}.")


def _load_caller(method: Method) -> Method:
    """Make a method of the endpoint get ``caller`` as a Caller."""

    @functools.wraps(method)
    def loaded(self: object, context: Context, *, caller: Any, **arguments: Any) -> Any:
        return method(self, context, caller=wire.load(Caller, caller), **arguments)

    return loaded


_answered = answering(CONDUCTOR)
_sender_required = require_sender()
_agent_checked = check_agents()


def _request(method: Method) -> Method:
    """Make a method answer requests that users make through the API."""
    return _answered(_sender_required(_load_caller(method)))


def _agent_request(method: Method) -> Method:
    """Make a method answer requests of agents for their own host."""
    return _answered(_sender_required(_agent_checked(method)))


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
    readings: Readings


class Endpoint:
    """The methods that ``cyborg.rpc.conductor`` calls, with plain data as arguments and results."""

    target = oslo_messaging.Target(version=versions.newest(versions.CONDUCTOR))

    def __init__(self, cases: UseCases) -> None:
        self._cases = cases

    @_answered
    def ping(self, context: Context) -> str:
        return "pong"

    @_request
    def create_arqs(
        self, context: Context, *, caller: Caller, request_key: str, profile_name: str
    ) -> Any:
        created = self._cases.arq_creator.create(caller, request_key, profile_name)
        return [wire.dump(arq) for arq in created]

    @_request
    def patch_arqs(
        self, context: Context, *, caller: Caller, request_key: str, bindings: Any, unbindings: Any
    ) -> None:
        binds = [wire.load(Binding, binding) for binding in bindings]
        self._cases.arq_binder.patch(caller, request_key, binds, unbindings)

    @_request
    def delete_arqs(
        self, context: Context, *, caller: Caller, request_key: str, uuids: Any
    ) -> None:
        self._cases.arq_releaser.by_uuid(caller, request_key, uuids)

    @_request
    def delete_instance_arqs(
        self, context: Context, *, caller: Caller, request_key: str, instance_uuid: str
    ) -> None:
        self._cases.arq_releaser.by_instance(caller, request_key, instance_uuid)

    @_request
    def attach(
        self,
        context: Context,
        *,
        caller: Caller,
        request_key: str,
        instance_uuid: str,
        profile_name: str | None,
    ) -> Any:
        return wire.dump(
            self._cases.attacher.attach(caller, request_key, instance_uuid, profile_name)
        )

    @_request
    def detach(
        self,
        context: Context,
        *,
        caller: Caller,
        request_key: str,
        instance_uuid: str,
        arq_uuid: str | None,
    ) -> Any:
        return wire.dump(self._cases.attacher.detach(caller, request_key, instance_uuid, arq_uuid))

    @_request
    def create_device_profile(
        self, context: Context, *, caller: Caller, request_key: str, profile: Any
    ) -> Any:
        new = wire.load(DeviceProfile, profile)
        return wire.dump(self._cases.profiles.create(caller, request_key, new))

    @_request
    def update_device_profile(
        self, context: Context, *, caller: Caller, request_key: str, key: str, change: Any
    ) -> Any:
        change = wire.load(ProfileChange, change)
        return wire.dump(self._cases.profiles.update(caller, request_key, key, change))

    @_request
    def delete_device_profiles(
        self, context: Context, *, caller: Caller, request_key: str, keys: Any
    ) -> None:
        self._cases.profiles.delete(caller, request_key, keys)

    @_request
    def create_device(
        self, context: Context, *, caller: Caller, request_key: str, creation: Any, wait: bool
    ) -> Any:
        order = Order(caller, request_key, CREATE, wait)
        return wire.dump(
            self._cases.accelerator_creator.create(order, wire.load(Creation, creation))
        )

    @_request
    def set_device_status(
        self, context: Context, *, caller: Caller, request_key: str, uuid: str, status: str
    ) -> None:
        self._cases.device_admin.update(caller, request_key, uuid, status=DeviceStatus(status))

    @_request
    def update_device(
        self,
        context: Context,
        *,
        caller: Caller,
        request_key: str,
        uuid: str,
        status: str | None,
        labels: Mapping[str, str | None],
        project: str | None,
        facts: Mapping[str, Any],
        reason: str | None = None,
    ) -> None:
        self._cases.device_admin.update(
            caller,
            request_key,
            uuid,
            status=None if status is None else DeviceStatus(status),
            labels=labels,
            project=project,
            facts=facts,
            reason=reason,
        )

    @_request
    def delete_device(
        self, context: Context, *, caller: Caller, request_key: str, uuid: str
    ) -> None:
        self._cases.device_admin.delete(caller, request_key, uuid)

    @_request
    def program_deployable(
        self, context: Context, *, caller: Caller, request_key: str, uuid: str, image_uuid: str
    ) -> None:
        self._cases.device_admin.program(caller, request_key, uuid, image_uuid)

    @_request
    def create_attribute(
        self,
        context: Context,
        *,
        caller: Caller,
        request_key: str,
        deployable: int | str,
        key: str,
        value: str,
        uuid: str | None,
    ) -> Any:
        attributes = self._cases.attributes
        return wire.dump(
            attributes.create(
                caller, request_key, deployable=deployable, key=key, value=value, uuid=uuid
            )
        )

    @_request
    def delete_attribute(
        self, context: Context, *, caller: Caller, request_key: str, uuid: str
    ) -> None:
        self._cases.attributes.delete(caller, request_key, uuid)

    @_request
    def discover_services(
        self,
        context: Context,
        *,
        caller: Caller,
        request_key: str,
        hosts: Sequence[str] | None,
        driver: str | None,
        wait: bool,
        setup: bool | None = None,
    ) -> Any:
        order = Order(caller, request_key, DISCOVER, wait)
        return wire.dump(
            self._cases.discovery_api.discover(order, hosts=hosts, driver=driver, setup=bool(setup))
        )

    @_request
    def install_driver(
        self,
        context: Context,
        *,
        caller: Caller,
        request_key: str,
        driver: str,
        hosts: Sequence[str] | None,
        options: Mapping[str, str] | None,
        wait: bool,
    ) -> Any:
        order = Order(caller, request_key, INSTALL, wait)
        return wire.dump(self._cases.drivers.install(order, driver, hosts=hosts, options=options))

    @_request
    def update_driver(
        self,
        context: Context,
        *,
        caller: Caller,
        request_key: str,
        driver: str,
        options: Mapping[str, str | None] | None,
        enabled: bool | None,
        wait: bool,
    ) -> Any:
        order = Order(caller, request_key, UPDATE, wait)
        return wire.dump(
            self._cases.drivers.update(order, driver, options=options, enabled=enabled)
        )

    @_request
    def uninstall_driver(
        self,
        context: Context,
        *,
        caller: Caller,
        request_key: str,
        driver: str,
        drain: bool,
        wait: bool,
    ) -> Any:
        order = Order(caller, request_key, UNINSTALL, wait)
        return wire.dump(self._cases.drivers.uninstall(order, driver, drain=drain))

    @_request
    def set_service_status(
        self,
        context: Context,
        *,
        caller: Caller,
        request_key: str,
        uuid: str,
        disabled: bool,
        reason: str | None,
    ) -> None:
        self._cases.processes.set_status(caller, request_key, uuid, reason, disabled=disabled)

    @_request
    def remove_service(
        self, context: Context, *, caller: Caller, request_key: str, uuid: str
    ) -> Any:
        return wire.dump(self._cases.processes.request_removal(caller, request_key, uuid))

    @_answered
    @_sender_required
    def api_heartbeat(self, context: Context, *, host: str, version: str, endpoint: str) -> None:
        self._cases.heartbeats.api_heartbeat(host, version, endpoint)

    @_agent_request
    def heartbeat(self, context: Context, *, heartbeat: Any) -> Any:
        return wire.dump(self._cases.heartbeats.heartbeat(wire.load(AgentHeartbeat, heartbeat)))

    @_agent_request
    def report(self, context: Context, *, host: str, epoch: int, report: Any) -> Any:
        return wire.dump(self._cases.report_applier.report(host, epoch, wire.load(Report, report)))

    @_agent_request
    def desired(self, context: Context, *, host: str, epoch: int) -> Any:
        return wire.dump(self._cases.desired_states.desired(host, epoch))

    @_agent_request
    def unit_uses(self, context: Context, *, host: str, epoch: int) -> Any:
        return wire.dump(self._cases.prepared_units.unit_uses(host, epoch))

    @_agent_request
    def published(self, context: Context, *, host: str, epoch: int, refused: Any) -> None:
        names = wire.read(dict[str, str], refused, "refused")
        self._cases.report_applier.published(host, epoch, names)

    @_agent_request
    def providers_removed(self, context: Context, *, host: str, epoch: int, names: Any) -> None:
        removed = wire.read(list[str], names, "names")
        self._cases.lost_devices.confirm_removal(host, epoch, removed)

    @_agent_request
    def readings(self, context: Context, *, host: str, epoch: int, readings: Any) -> None:
        items = wire.read(list[Any], readings, "readings")
        self._cases.readings.store(host, epoch, [wire.load(Reading, item) for item in items])
