# SPDX-License-Identifier: Apache-2.0
"""The conductor's door on the bus: unpack, hand on, pack."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import oslo_messaging

from cyborg.conductor.arqs import Maker
from cyborg.conductor.attributes import Attributes
from cyborg.conductor.binding import Binder
from cyborg.conductor.desired import Wishes
from cyborg.conductor.devices import Operator
from cyborg.conductor.discovery import Discovery
from cyborg.conductor.profiles import Profiles
from cyborg.conductor.releasing import Deleter
from cyborg.conductor.services import Greeter
from cyborg.model import wire
from cyborg.model.arq import Binding
from cyborg.model.caller import Caller
from cyborg.model.device import DeviceStatus
from cyborg.model.device_profile import DeviceProfile
from cyborg.model.names import CONDUCTOR
from cyborg.model.report import Hello, Report
from cyborg.rpc.faults import answering
from cyborg.rpc.transport import VERSION

Context = Mapping[str, Any]
_answering = answering(CONDUCTOR)


@dataclass(frozen=True)
class UseCases:
    """Everything that the door hands on to."""

    maker: Maker
    binder: Binder
    deleter: Deleter
    profiles: Profiles
    operator: Operator
    attributes: Attributes
    greeter: Greeter
    discovery: Discovery
    wishes: Wishes


class Endpoint:
    """The verbs of ``cyborg.rpc.conductor``, as data in and data out."""

    target = oslo_messaging.Target(version=VERSION)

    def __init__(self, cases: UseCases) -> None:
        self._cases = cases

    @_answering
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
    def create_device_profile(
        self, context: Context, *, caller: Any, operation: str, profile: Any
    ) -> Any:
        wanted = wire.load(DeviceProfile, profile)
        return wire.dump(self._cases.profiles.create(wire.load(Caller, caller), operation, wanted))

    @_answering
    def delete_device_profiles(
        self, context: Context, *, caller: Any, operation: str, keys: Any
    ) -> None:
        self._cases.profiles.delete(wire.load(Caller, caller), operation, keys)

    @_answering
    def set_device_status(
        self, context: Context, *, caller: Any, operation: str, uuid: str, status: str
    ) -> None:
        self._cases.operator.set_status(
            wire.load(Caller, caller), operation, uuid, DeviceStatus(status)
        )

    @_answering
    def program_deployable(
        self, context: Context, *, caller: Any, operation: str, uuid: str, image_uuid: str
    ) -> None:
        self._cases.operator.program(wire.load(Caller, caller), operation, uuid, image_uuid)

    @_answering
    def create_attribute(
        self, context: Context, *, caller: Any, operation: str, **attribute: Any
    ) -> Any:
        return wire.dump(
            self._cases.attributes.create(wire.load(Caller, caller), operation, **attribute)
        )

    @_answering
    def delete_attribute(self, context: Context, *, caller: Any, operation: str, uuid: str) -> None:
        self._cases.attributes.delete(wire.load(Caller, caller), operation, uuid)

    @_answering
    def hello(self, context: Context, *, hello: Any) -> Any:
        return wire.dump(self._cases.greeter.hello(wire.load(Hello, hello)))

    @_answering
    def report(self, context: Context, *, host: str, epoch: int, report: Any) -> Any:
        return wire.dump(self._cases.discovery.report(host, epoch, wire.load(Report, report)))

    @_answering
    def desired(self, context: Context, *, host: str, epoch: int) -> Any:
        return wire.dump(self._cases.wishes.desired(host, epoch))

    @_answering
    def published(
        self, context: Context, *, host: str, epoch: int, refused: Mapping[str, str]
    ) -> None:
        self._cases.discovery.published(host, epoch, refused)
