# SPDX-License-Identifier: Apache-2.0
"""The conductor's door on the bus: unpack, hand on, pack."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import oslo_messaging

from cyborg.conductor.arqs import Maker
from cyborg.conductor.attaching import Attacher
from cyborg.conductor.attributes import Attributes
from cyborg.conductor.binding import Binder
from cyborg.conductor.creating import CREATE, Creator
from cyborg.conductor.desired import Wishes
from cyborg.conductor.devices import Operator
from cyborg.conductor.discovering import VERB as DISCOVER
from cyborg.conductor.discovering import Explorer
from cyborg.conductor.discovery import Discovery
from cyborg.conductor.drivers import INSTALL, UNINSTALL, UPDATE, Drivers
from cyborg.conductor.forgetting import Processes
from cyborg.conductor.holdings import Custodian
from cyborg.conductor.operations import Order
from cyborg.conductor.peers import Verb, hearing, named
from cyborg.conductor.profiles import Profiles
from cyborg.conductor.readings import Readings
from cyborg.conductor.releasing import Deleter
from cyborg.conductor.retirement import Retirement
from cyborg.conductor.services import Greeter
from cyborg.model import wire
from cyborg.model.arq import Binding
from cyborg.model.caller import Caller
from cyborg.model.creation import Creation
from cyborg.model.device import DeviceStatus
from cyborg.model.device_profile import DeviceProfile, ProfileChange
from cyborg.model.names import CONDUCTOR
from cyborg.model.reading import Reading
from cyborg.model.report import Hello, Report
from cyborg.rpc import versions
from cyborg.rpc.faults import answering

Context = Mapping[str, Any]
#: For ``ping`` alone.
_answering_anybody = answering(CONDUCTOR)
_named = named()
#: For the verbs of agents.
_hearing = hearing()


def _answering(method: Verb) -> Verb:
    """Answer a request whose sender is named."""
    return _answering_anybody(_named(method))


@dataclass(frozen=True)
class UseCases:
    """Everything that the door hands on to."""

    maker: Maker
    binder: Binder
    deleter: Deleter
    attacher: Attacher
    profiles: Profiles
    operator: Operator
    attributes: Attributes
    greeter: Greeter
    discovery: Discovery
    wishes: Wishes
    retirement: Retirement
    custodian: Custodian
    explorer: Explorer
    drivers: Drivers
    creator: Creator
    processes: Processes
    readings: Readings


class Endpoint:
    """The verbs of ``cyborg.rpc.conductor``, as data in and data out."""

    target = oslo_messaging.Target(version=versions.newest(versions.CONDUCTOR))

    def __init__(self, cases: UseCases) -> None:
        self._cases = cases

    @_answering_anybody
    def ping(self, context: Context) -> str:
        return "pong"

    @_answering
    def create_arqs(
        self, context: Context, *, caller: Any, operation: str, profile_name: str
    ) -> Any:
        made = self._cases.maker.create(wire.load(Caller, caller), operation, profile_name)
        return [wire.dump(one) for one in made]

    @_answering
    def patch_arqs(
        self, context: Context, *, caller: Any, operation: str, bindings: Any, unbindings: Any
    ) -> None:
        binds = [wire.load(Binding, one) for one in bindings]
        self._cases.binder.patch(wire.load(Caller, caller), operation, binds, unbindings)

    @_answering
    def delete_arqs(self, context: Context, *, caller: Any, operation: str, uuids: Any) -> None:
        self._cases.deleter.by_uuid(wire.load(Caller, caller), operation, uuids)

    @_answering
    def delete_instance_arqs(
        self, context: Context, *, caller: Any, operation: str, instance_uuid: str
    ) -> None:
        self._cases.deleter.by_instance(wire.load(Caller, caller), operation, instance_uuid)

    @_answering
    def attach(
        self,
        context: Context,
        *,
        caller: Any,
        operation: str,
        instance_uuid: str,
        profile_name: str | None,
    ) -> Any:
        begun = self._cases.attacher.attach(
            wire.load(Caller, caller), operation, instance_uuid, profile_name
        )
        return wire.dump(begun)

    @_answering
    def detach(
        self,
        context: Context,
        *,
        caller: Any,
        operation: str,
        instance_uuid: str,
        arq_uuid: str | None,
    ) -> Any:
        begun = self._cases.attacher.detach(
            wire.load(Caller, caller), operation, instance_uuid, arq_uuid
        )
        return wire.dump(begun)

    @_answering
    def create_device_profile(
        self, context: Context, *, caller: Any, operation: str, profile: Any
    ) -> Any:
        wanted = wire.load(DeviceProfile, profile)
        return wire.dump(self._cases.profiles.create(wire.load(Caller, caller), operation, wanted))

    @_answering
    def update_device_profile(
        self, context: Context, *, caller: Any, operation: str, key: str, wish: Any
    ) -> Any:
        changed = self._cases.profiles.update(
            wire.load(Caller, caller), operation, key, wire.load(ProfileChange, wish)
        )
        return wire.dump(changed)

    @_answering
    def delete_device_profiles(
        self, context: Context, *, caller: Any, operation: str, keys: Any
    ) -> None:
        self._cases.profiles.delete(wire.load(Caller, caller), operation, keys)

    @_answering
    def create_device(
        self, context: Context, *, caller: Any, operation: str, wanted: Any, wait: bool
    ) -> Any:
        order = Order(wire.load(Caller, caller), operation, CREATE, wait)
        return wire.dump(self._cases.creator.create(order, wire.load(Creation, wanted)))

    @_answering
    def set_device_status(
        self, context: Context, *, caller: Any, operation: str, uuid: str, status: str
    ) -> None:
        self._cases.operator.set_status(
            wire.load(Caller, caller), operation, uuid, DeviceStatus(status)
        )

    @_answering
    def update_device(
        self,
        context: Context,
        *,
        caller: Any,
        operation: str,
        uuid: str,
        status: str | None,
        labels: Mapping[str, str | None],
        project: str | None,
        facts: Mapping[str, Any],
        reason: str | None = None,
    ) -> None:
        self._cases.operator.update(
            wire.load(Caller, caller),
            operation,
            uuid,
            status=None if status is None else DeviceStatus(status),
            labels=labels,
            project=project,
            facts=facts,
            reason=reason,
        )

    @_answering
    def delete_device(self, context: Context, *, caller: Any, operation: str, uuid: str) -> None:
        self._cases.operator.delete(wire.load(Caller, caller), operation, uuid)

    @_answering
    def program_deployable(
        self, context: Context, *, caller: Any, operation: str, uuid: str, image_uuid: str
    ) -> None:
        self._cases.operator.program(wire.load(Caller, caller), operation, uuid, image_uuid)

    @_answering
    def create_attribute(
        self,
        context: Context,
        *,
        caller: Any,
        operation: str,
        deployable: int | str,
        key: str,
        value: str,
        uuid: str | None,
    ) -> Any:
        made = self._cases.attributes.create(
            wire.load(Caller, caller),
            operation,
            deployable=deployable,
            key=key,
            value=value,
            uuid=uuid,
        )
        return wire.dump(made)

    @_answering
    def delete_attribute(self, context: Context, *, caller: Any, operation: str, uuid: str) -> None:
        self._cases.attributes.delete(wire.load(Caller, caller), operation, uuid)

    @_answering
    def discover_services(
        self,
        context: Context,
        *,
        caller: Any,
        operation: str,
        hosts: Sequence[str] | None,
        driver: str | None,
        wait: bool,
        setup: bool | None = None,
    ) -> Any:
        begun = self._cases.explorer.discover(
            Order(wire.load(Caller, caller), operation, DISCOVER, wait),
            hosts=hosts,
            driver=driver,
            setup=bool(setup),
        )
        return wire.dump(begun)

    @_answering
    def install_driver(
        self,
        context: Context,
        *,
        caller: Any,
        operation: str,
        driver: str,
        hosts: Sequence[str] | None,
        options: Mapping[str, str] | None,
        wait: bool,
    ) -> Any:
        order = Order(wire.load(Caller, caller), operation, INSTALL, wait)
        return wire.dump(self._cases.drivers.install(order, driver, hosts=hosts, options=options))

    @_answering
    def update_driver(
        self,
        context: Context,
        *,
        caller: Any,
        operation: str,
        driver: str,
        options: Mapping[str, str | None] | None,
        enabled: bool | None,
        wait: bool,
    ) -> Any:
        order = Order(wire.load(Caller, caller), operation, UPDATE, wait)
        begun = self._cases.drivers.update(order, driver, options=options, enabled=enabled)
        return wire.dump(begun)

    @_answering
    def uninstall_driver(
        self,
        context: Context,
        *,
        caller: Any,
        operation: str,
        driver: str,
        drain: bool,
        wait: bool,
    ) -> Any:
        order = Order(wire.load(Caller, caller), operation, UNINSTALL, wait)
        return wire.dump(self._cases.drivers.uninstall(order, driver, drain=drain))

    @_answering
    def set_service_status(
        self,
        context: Context,
        *,
        caller: Any,
        operation: str,
        uuid: str,
        disabled: bool,
        reason: str | None,
    ) -> None:
        self._cases.processes.set_status(
            wire.load(Caller, caller), operation, uuid, reason, disabled=disabled
        )

    @_answering
    def forget_service(self, context: Context, *, caller: Any, operation: str, uuid: str) -> Any:
        return wire.dump(self._cases.processes.forget(wire.load(Caller, caller), operation, uuid))

    @_answering
    def alive(self, context: Context, *, host: str, version: str, endpoint: str) -> None:
        self._cases.greeter.api_alive(host, version, endpoint)

    @_answering
    @_hearing
    def hello(self, context: Context, *, hello: Any) -> Any:
        return wire.dump(self._cases.greeter.hello(wire.load(Hello, hello)))

    @_answering
    @_hearing
    def report(self, context: Context, *, host: str, epoch: int, report: Any) -> Any:
        return wire.dump(self._cases.discovery.report(host, epoch, wire.load(Report, report)))

    @_answering
    @_hearing
    def desired(self, context: Context, *, host: str, epoch: int) -> Any:
        return wire.dump(self._cases.wishes.desired(host, epoch))

    @_answering
    @_hearing
    def holdings(self, context: Context, *, host: str, epoch: int) -> Any:
        return wire.dump(self._cases.custodian.holdings(host, epoch))

    @_answering
    @_hearing
    def published(self, context: Context, *, host: str, epoch: int, refused: Any) -> None:
        names = wire.read(dict[str, str], refused, "refused")
        self._cases.discovery.published(host, epoch, names)

    @_answering
    @_hearing
    def retired(self, context: Context, *, host: str, epoch: int, names: Any) -> None:
        gone = wire.read(list[str], names, "names")
        self._cases.retirement.retired(host, epoch, gone)

    @_answering
    @_hearing
    def readings(self, context: Context, *, host: str, epoch: int, readings: Any) -> None:
        told = [wire.load(Reading, one) for one in wire.read(list[Any], readings, "readings")]
        self._cases.readings.take(host, epoch, told)
