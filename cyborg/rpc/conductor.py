# SPDX-License-Identifier: Apache-2.0
"""Clients of the conductors: the verbs that the API and the agents call.

Each write carries the request key of its request. A repetition with the same id changes nothing
and returns the same answer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cyborg.model import wire
from cyborg.model.arq import Arq, Binding
from cyborg.model.attribute import Attribute
from cyborg.model.caller import Caller
from cyborg.model.creation import Creation
from cyborg.model.device import DeviceStatus
from cyborg.model.device_profile import DeviceProfile, ProfileChange
from cyborg.model.operation import Operation
from cyborg.model.process import API
from cyborg.model.report import (
    Acknowledged,
    AgentHeartbeat,
    Desired,
    HeartbeatReply,
    Reading,
    Report,
)
from cyborg.model.work import UnitUses
from cyborg.rpc import versions
from cyborg.rpc.transport import CONDUCTOR_TOPIC, Bus, RPCClient


class Client(RPCClient):
    """A connection to the conductors; ``sender`` is the endpoint or the name of the caller."""

    def __init__(self, bus: Bus, *, timeout: float, sender: str) -> None:
        super().__init__(
            bus,
            CONDUCTOR_TOPIC,
            peer="conductor",
            timeout=timeout,
            sender=sender,
            later=versions.CONDUCTOR,
        )


#: How much earlier a write expires than this process stops to wait for it, in seconds. The clocks
#: of a database's servers may differ by that, and an answer needs time to arrive. The margin is at
#: most a quarter of the timeout.
_MARGIN: Final = 1.0


class ConductorClient(Client):
    """The verbs that the API calls, one for each request.

    Every verb raises the errors that its docstring names, and Unavailable or OutcomeUnknown of the
    bus. ``timeout`` is how long this process waits for a write, in seconds. ``now_ms`` returns the
    time of the database's clock, never ahead of it; it may raise Unavailable. With it, a write
    expires before this process stops to wait for it: a conductor that receives it later changes
    nothing. Without it, as in tests, writes do not expire and are repeated once.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        timeout: float,
        sender: str = API,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(bus, timeout=timeout, sender=sender)
        self._now_ms = now_ms

    def api_heartbeat(self, host: str, *, version: str, endpoint: str) -> None:
        """Report that the API is served on this host; each of its processes may do so."""
        self.call("api_heartbeat", host=host, version=version, endpoint=endpoint)

    def create_arqs(self, caller: Caller, request_key: str, profile_name: str) -> list[Arq]:
        """Create the ARQs that a device profile requests, all or none.

        Raises NotFound for an unknown profile.
        """
        body = self._write(caller, request_key, "create_arqs", profile_name=profile_name)
        return [wire.load(Arq, arq) for arq in body]

    def patch_arqs(
        self, caller: Caller, request_key: str, bindings: list[Binding], unbindings: list[str]
    ) -> None:
        """Bind and unbind ARQs, all or none.

        Raises NotFound (ARQ, provider), BadState, InstanceAlreadyBound, Invalid (the provider's
        class does not fit), DeviceUnavailable and NoFreeHandle.
        """
        self._write(
            caller,
            request_key,
            "patch_arqs",
            bindings=[wire.dump(binding) for binding in bindings],
            unbindings=unbindings,
        )

    def delete_arqs(self, caller: Caller, request_key: str, uuids: list[str]) -> None:
        """Delete those of the ARQs that exist and may be deleted.

        Raises BoundArqs afterwards if some are bound and the request has no service token,
        otherwise NotFound with those that do not exist.
        """
        self._write(caller, request_key, "delete_arqs", uuids=uuids)

    def delete_instance_arqs(self, caller: Caller, request_key: str, instance_uuid: str) -> None:
        """Delete all ARQs of an instance, if there are any."""
        self._write(caller, request_key, "delete_instance_arqs", instance_uuid=instance_uuid)

    def attach(
        self, caller: Caller, request_key: str, instance_uuid: str, profile_name: str | None
    ) -> Operation:
        """Start to attach the devices that a profile requests to an instance, all or none.

        None stands for the profile of its flavor. Raises NotFound (instance, profile),
        CannotAttach, NoFreeHandle, Conflict (the request key of another request) and Unavailable
        (Nova, Placement).
        """
        body = self._write(
            caller, request_key, "attach", instance_uuid=instance_uuid, profile_name=profile_name
        )
        return wire.load(Operation, body)

    def detach(
        self, caller: Caller, request_key: str, instance_uuid: str, arq_uuid: str | None
    ) -> Operation:
        """Start to detach one ARQ that attach created, or all of them (None), if there are any.

        Raises NotFound (instance, ARQ), CannotAttach, Conflict (the request key of another
        request) and Unavailable (Nova).
        """
        body = self._write(
            caller, request_key, "detach", instance_uuid=instance_uuid, arq_uuid=arq_uuid
        )
        return wire.load(Operation, body)

    def create_device_profile(
        self, caller: Caller, request_key: str, profile: DeviceProfile
    ) -> DeviceProfile:
        """Store a validated profile; raises Duplicate for a name or UUID that is in use."""
        body = self._write(caller, request_key, "create_device_profile", profile=wire.dump(profile))
        return wire.load(DeviceProfile, body)

    def update_device_profile(
        self, caller: Caller, request_key: str, key: str, change: ProfileChange
    ) -> DeviceProfile:
        """Change the profile with this UUID or name; raises NotFound, Duplicate (name)."""
        body = self._write(
            caller, request_key, "update_device_profile", key=key, change=wire.dump(change)
        )
        return wire.load(DeviceProfile, body)

    def delete_device_profiles(self, caller: Caller, request_key: str, keys: list[str]) -> None:
        """Delete profiles by UUID or name, all or none; raises NotFound, ProfileInUse."""
        self._write(caller, request_key, "delete_device_profiles", keys=keys)

    def set_device_status(
        self, caller: Caller, request_key: str, uuid: str, status: DeviceStatus
    ) -> None:
        """Set the status of a device, which enables or disables all its deployables."""
        self._write(caller, request_key, "set_device_status", uuid=uuid, status=status.value)

    def set_service_status(
        self, caller: Caller, request_key: str, uuid: str, *, disabled: bool, reason: str | None
    ) -> None:
        """Disable or enable the host of an agent.

        Raises NotFound, Conflict (the process is not an agent).
        """
        self._write(
            caller, request_key, "set_service_status", uuid=uuid, disabled=disabled, reason=reason
        )

    def remove_service(self, caller: Caller, request_key: str, uuid: str) -> Operation:
        """Start to remove the record of a process that is down; for an agent, the whole host.

        Raises NotFound, Conflict (it is up, or ARQs have units of the host).
        """
        return wire.load(Operation, self._write(caller, request_key, "remove_service", uuid=uuid))

    def update_device(
        self,
        caller: Caller,
        request_key: str,
        uuid: str,
        *,
        status: DeviceStatus | None,
        labels: dict[str, str | None],
        project: str | None,
        facts: dict[str, Any] | None = None,
        reason: str | None = None,
    ) -> None:
        """Set the status, the labels and the ``facts`` (model, traits) of a device, all or none.

        ``reason`` explains a status that disables the device. ``project`` limits the change to
        labels of devices that the ARQs of this project hold. Raises NotFound, Forbidden, Invalid
        (labels), DeviceInUse, Conflict (facts of a device that a driver discovered).
        """
        self._write(
            caller,
            request_key,
            "update_device",
            uuid=uuid,
            status=None if status is None else status.value,
            labels=labels,
            project=project,
            facts=facts or {},
            reason=reason,
        )

    def create_device(
        self, caller: Caller, request_key: str, creation: Creation, *, wait: bool
    ) -> Operation:
        """Create an accelerator on a backend.

        Raises NotFound (host, driver, backend), Unavailable, Invalid (handles) and Conflict.
        """
        body = self._write(
            caller, request_key, "create_device", creation=wire.dump(creation), wait=wait
        )
        return wire.load(Operation, body)

    def delete_device(self, caller: Caller, request_key: str, uuid: str) -> None:
        """Remove a device that an operator created, or the lost parts of any other device.

        Raises NotFound, DeviceInUse, Conflict (no part of it is lost).
        """
        self._write(caller, request_key, "delete_device", uuid=uuid)

    def program_deployable(
        self, caller: Caller, request_key: str, uuid: str, image_uuid: str
    ) -> None:
        """Load a Glance image into a deployable; raises NotFound, CannotProgram, DeviceInUse."""
        self._write(caller, request_key, "program_deployable", uuid=uuid, image_uuid=image_uuid)

    def create_attribute(
        self,
        caller: Caller,
        request_key: str,
        *,
        deployable: int | str,
        key: str,
        value: str,
        uuid: str | None,
    ) -> Attribute:
        """Add an attribute of an operator; raises NotFound (deployable), Duplicate (uuid)."""
        body = self._write(
            caller,
            request_key,
            "create_attribute",
            deployable=deployable,
            key=key,
            value=value,
            uuid=uuid,
        )
        return wire.load(Attribute, body)

    def delete_attribute(self, caller: Caller, request_key: str, uuid: str) -> None:
        """Remove an attribute; raises NotFound."""
        self._write(caller, request_key, "delete_attribute", uuid=uuid)

    def discover_services(
        self,
        caller: Caller,
        request_key: str,
        *,
        hosts: list[str] | None,
        driver: str | None,
        wait: bool,
        setup: bool = False,
    ) -> Operation:
        """Scan the hardware of hosts now; raises NotFound, Unavailable and Conflict.

        With ``setup`` the hosts also set up the inactive devices of the driver that need it.
        """
        request = {"hosts": hosts, "driver": driver, "wait": wait, "setup": setup or None}
        return wire.load(
            Operation, self._write(caller, request_key, "discover_services", **request)
        )

    def install_driver(
        self,
        caller: Caller,
        request_key: str,
        *,
        driver: str,
        hosts: list[str] | None,
        options: Mapping[str, str] | None,
        wait: bool,
    ) -> Operation:
        """Load a driver on hosts from now on; raises NotFound, Unavailable and Conflict."""
        request = {"driver": driver, "hosts": hosts, "options": options, "wait": wait}
        return wire.load(Operation, self._write(caller, request_key, "install_driver", **request))

    def update_driver(
        self,
        caller: Caller,
        request_key: str,
        *,
        driver: str,
        options: Mapping[str, str | None] | None,
        enabled: bool | None,
        wait: bool,
    ) -> Operation:
        """Set options of a driver (None removes an option), and enable or disable the driver.

        Raises NotFound, Unavailable and Conflict.
        """
        request = {"driver": driver, "options": options, "enabled": enabled, "wait": wait}
        return wire.load(Operation, self._write(caller, request_key, "update_driver", **request))

    def uninstall_driver(
        self, caller: Caller, request_key: str, *, driver: str, drain: bool, wait: bool
    ) -> Operation:
        """Uninstall a driver from its hosts; with ``drain`` as soon as no ARQ uses it.

        Raises NotFound, Unavailable and Conflict.
        """
        request = {"driver": driver, "drain": drain, "wait": wait}
        return wire.load(Operation, self._write(caller, request_key, "uninstall_driver", **request))

    def _write(self, caller: Caller, request_key: str, verb: str, **arguments: Any) -> Any:
        request = {"request_id": caller.request_id, "request_key": request_key, **arguments}
        if self._now_ms is None:
            return self.call(verb, caller=wire.dump(caller), **request)
        # Before the clock is read: the wait for the first connection is not part of the timeout.
        self.require_peer()
        left = self._timeout - min(_MARGIN, self._timeout / 4)
        caller = replace(caller, expires_ms=self._now_ms() + int(left * 1000))
        return self.call_until(verb, within=self._timeout, caller=wire.dump(caller), **request)


class ReportClient(Client):
    """The verbs that an agent calls."""

    def heartbeat(self, heartbeat: AgentHeartbeat) -> HeartbeatReply:
        """Send the heartbeat; raises StaleEpoch if another agent has taken over this host."""
        return wire.load(HeartbeatReply, self.call("heartbeat", heartbeat=wire.dump(heartbeat)))

    def report(self, host: str, epoch: int, report: Report) -> Acknowledged:
        """Report the findings of the drivers; raises StaleEpoch."""
        body = self.call("report", host=host, epoch=epoch, report=wire.dump(report))
        return wire.load(Acknowledged, body)

    def desired(self, host: str, epoch: int) -> Desired:
        """Fetch the desired state of this host; raises StaleEpoch."""
        return wire.load(Desired, self.call("desired", host=host, epoch=epoch))

    def unit_uses(self, host: str, epoch: int) -> UnitUses:
        """Fetch the units of this host that binds prepare, with their use; raises StaleEpoch."""
        return wire.load(UnitUses, self.call("unit_uses", host=host, epoch=epoch))

    def published(self, host: str, epoch: int, refused: dict[str, str]) -> None:
        """Report which deployables Placement refused (name → reason); it has all others."""
        self.call("published", host=host, epoch=epoch, refused=refused)

    def providers_removed(self, host: str, epoch: int, names: list[str]) -> None:
        """Report removed deployables whose provider was deleted; raises StaleEpoch."""
        self.call("providers_removed", host=host, epoch=epoch, names=names)

    def readings(self, host: str, epoch: int, readings: Sequence[Reading]) -> None:
        """Report the readings of the devices of this host; raises StaleEpoch."""
        bodies = [wire.dump(reading) for reading in readings]
        self.call("readings", host=host, epoch=epoch, readings=bodies)
