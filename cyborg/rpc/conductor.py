# SPDX-License-Identifier: Apache-2.0
"""The conductor's verbs, as the API and the agents call them.

Each write carries the operation id of its request: repeating it with the same id changes nothing
more and answers the same.
"""

from typing import Any

from cyborg.model import wire
from cyborg.model.arq import Arq, Binding
from cyborg.model.attribute import Attribute
from cyborg.model.caller import Caller
from cyborg.model.device import DeviceStatus
from cyborg.model.device_profile import DeviceProfile
from cyborg.model.report import Acknowledged, Desired, Hello, Report, Welcome
from cyborg.rpc.transport import CONDUCTOR_TOPIC, Bus, Line


class ConductorClient:
    """What the API asks of the conductor: one call per request.

    Every verb raises the errors named there and, of the bus, Unavailable or OutcomeUnknown.
    """

    def __init__(self, bus: Bus, *, timeout: float) -> None:
        self._line = Line(bus, CONDUCTOR_TOPIC, peer="conductor", timeout=timeout)

    def connect(self) -> None:
        """Look for the bus and a conductor in the background."""
        self._line.connect()

    @property
    def up(self) -> bool:
        """True while a conductor answers."""
        return self._line.up

    def close(self) -> None:
        """Give up calls in flight."""
        self._line.close()

    def create_arqs(self, caller: Caller, operation: str, profile_name: str) -> list[Arq]:
        """Make the ARQs that a profile asks for, all or none.

        Raises NotFound for an unknown profile.
        """
        body = self._write(caller, operation, "create_arqs", profile_name=profile_name)
        return [wire.load(Arq, one) for one in body]

    def patch_arqs(
        self, caller: Caller, operation: str, bindings: list[Binding], unbindings: list[str]
    ) -> None:
        """Bind and unbind ARQs, all or none.

        Raises NotFound (ARQ, provider), BadState, InstanceAlreadyBound, Invalid (the provider's
        class does not fit), DeviceUnavailable and NoFreeHandle.
        """
        self._write(
            caller,
            operation,
            "patch_arqs",
            bindings=[wire.dump(one) for one in bindings],
            unbindings=unbindings,
        )

    def delete_arqs(self, caller: Caller, operation: str, uuids: list[str]) -> None:
        """Delete what exists and may be deleted.

        Then raises BoundArqs when some are bound and no service token came along, else NotFound
        naming those that do not exist.
        """
        self._write(caller, operation, "delete_arqs", uuids=uuids)

    def delete_instance_arqs(self, caller: Caller, operation: str, instance_uuid: str) -> None:
        """Delete every ARQ of an instance; none is fine."""
        self._write(caller, operation, "delete_instance_arqs", instance_uuid=instance_uuid)

    def create_device_profile(
        self, caller: Caller, operation: str, profile: DeviceProfile
    ) -> DeviceProfile:
        """Store a checked profile; raises Duplicate for a name or uuid that is taken."""
        body = self._write(caller, operation, "create_device_profile", profile=wire.dump(profile))
        return wire.load(DeviceProfile, body)

    def delete_device_profiles(self, caller: Caller, operation: str, keys: list[str]) -> None:
        """Delete profiles by uuid or name, all or none; raises NotFound, ProfileInUse."""
        self._write(caller, operation, "delete_device_profiles", keys=keys)

    def set_device_status(
        self, caller: Caller, operation: str, uuid: str, status: DeviceStatus
    ) -> None:
        """Enable a device or take it out of service, with all its deployables."""
        self._write(caller, operation, "set_device_status", uuid=uuid, status=status.value)

    def program_deployable(
        self, caller: Caller, operation: str, uuid: str, image_uuid: str
    ) -> None:
        """Have a Glance image loaded; raises NotFound, CannotProgram."""
        self._write(caller, operation, "program_deployable", uuid=uuid, image_uuid=image_uuid)

    def create_attribute(
        self,
        caller: Caller,
        operation: str,
        *,
        deployable: int | str,
        key: str,
        value: str,
        uuid: str | None,
    ) -> Attribute:
        """Add an operator's attribute; raises NotFound (deployable), Duplicate (uuid)."""
        body = self._write(
            caller,
            operation,
            "create_attribute",
            deployable=deployable,
            key=key,
            value=value,
            uuid=uuid,
        )
        return wire.load(Attribute, body)

    def delete_attribute(self, caller: Caller, operation: str, uuid: str) -> None:
        """Remove an attribute; raises NotFound."""
        self._write(caller, operation, "delete_attribute", uuid=uuid)

    def _write(self, caller: Caller, operation: str, verb: str, **arguments: Any) -> Any:
        return self._line.call(
            verb,
            request_id=caller.request_id,
            caller=wire.dump(caller),
            operation=operation,
            **arguments,
        )


class ReportClient:
    """What an agent tells the conductor, and asks of it."""

    def __init__(self, bus: Bus, *, timeout: float) -> None:
        self._line = Line(bus, CONDUCTOR_TOPIC, peer="conductor", timeout=timeout)

    def close(self) -> None:
        """Give up calls in flight."""
        self._line.close()

    def hello(self, hello: Hello) -> Welcome:
        """The heartbeat; raises StaleEpoch when another agent took this host over."""
        return wire.load(Welcome, self._line.call("hello", hello=wire.dump(hello)))

    def report(self, host: str, epoch: int, report: Report) -> Acknowledged:
        """Hand in what the drivers found; raises StaleEpoch."""
        body = self._line.call("report", host=host, epoch=epoch, report=wire.dump(report))
        return wire.load(Acknowledged, body)

    def desired(self, host: str, epoch: int) -> Desired:
        """Fetch what Placement shall show of this host; raises StaleEpoch."""
        return wire.load(Desired, self._line.call("desired", host=host, epoch=epoch))

    def published(self, host: str, epoch: int, refused: dict[str, str]) -> None:
        """Tell which deployables Placement refused (name → reason); the others stand there."""
        self._line.call("published", host=host, epoch=epoch, refused=refused)
