# SPDX-License-Identifier: Apache-2.0
"""The conductor's verbs, as the API and the agents call them.

Each write carries the request key of its request: repeating it with the same id changes nothing
more and answers the same.
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
from cyborg.model.names import API
from cyborg.model.operation import Operation
from cyborg.model.reading import Reading
from cyborg.model.report import Acknowledged, AgentHeartbeat, Desired, HeartbeatReply, Report
from cyborg.model.work import UnitUses
from cyborg.rpc import versions
from cyborg.rpc.transport import CONDUCTOR_TOPIC, Bus, RPCClient


class Client:
    """A connection to the conductors; ``sender`` is the caller's own endpoint, or its name."""

    def __init__(self, bus: Bus, *, timeout: float, sender: str) -> None:
        self._line = RPCClient(
            bus,
            CONDUCTOR_TOPIC,
            peer="conductor",
            timeout=timeout,
            sender=sender,
            later=versions.CONDUCTOR,
        )

    def reached(self) -> bool:
        """Whether a conductor is found; see ``RPCClient``."""
        return self._line.reached()

    @property
    def up(self) -> bool:
        """True while a conductor answers."""
        return self._line.up

    @property
    def trouble(self) -> str:
        """Why no conductor is reached, as a clause; empty while a conductor answers."""
        return self._line.trouble

    def close(self) -> None:
        """Give up calls in flight."""
        self._line.close()


#: A write expires so much earlier than this process gives it up, in seconds: the clocks of a
#: database's servers may differ by that, and an answer that was sent in time arrives. It is at most
#: a quarter of the patience.
_MARGIN: Final = 1.0


class ConductorClient(Client):
    """What the API asks of the conductor: one call per request.

    Every verb raises the errors named there and, of the bus, Unavailable or OutcomeUnknown.
    ``timeout`` is how long a write is waited for, in seconds. ``now_ms`` is the time by the
    database's clock, never ahead of it; it may raise Unavailable. With it a write expires before
    this process gives it up: a conductor that comes to it later changes nothing. Without it, as in
    tests, writes do not expire, and are given up after one repeat.
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
        self._patience = timeout
        self._now_ms = now_ms

    def api_heartbeat(self, host: str, *, version: str, endpoint: str) -> None:
        """Say that the API is served on this host; any of its processes may."""
        self._line.call("api_heartbeat", host=host, version=version, endpoint=endpoint)

    def create_arqs(self, caller: Caller, request_key: str, profile_name: str) -> list[Arq]:
        """Make the ARQs that a profile asks for, all or none.

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
        """Delete what exists and may be deleted.

        Then raises BoundArqs when some are bound and no service token came along, else NotFound
        naming those that do not exist.
        """
        self._write(caller, request_key, "delete_arqs", uuids=uuids)

    def delete_instance_arqs(self, caller: Caller, request_key: str, instance_uuid: str) -> None:
        """Delete every ARQ of an instance; none is fine."""
        self._write(caller, request_key, "delete_instance_arqs", instance_uuid=instance_uuid)

    def attach(
        self, caller: Caller, request_key: str, instance_uuid: str, profile_name: str | None
    ) -> Operation:
        """Begin to attach what a profile asks for to an instance that exists, all or nothing.

        None is the profile of its flavor. Raises NotFound (instance, profile), CannotAttach,
        NoFreeHandle, Conflict (the request key is another one's) and Unavailable (Nova,
        Placement).
        """
        body = self._write(
            caller, request_key, "attach", instance_uuid=instance_uuid, profile_name=profile_name
        )
        return wire.load(Operation, body)

    def detach(
        self, caller: Caller, request_key: str, instance_uuid: str, arq_uuid: str | None
    ) -> Operation:
        """Begin to detach one ARQ that attach made, or all of them (None); none is fine.

        Raises NotFound (instance, ARQ), CannotAttach, Conflict (the request key is another one's)
        and Unavailable (Nova).
        """
        body = self._write(
            caller, request_key, "detach", instance_uuid=instance_uuid, arq_uuid=arq_uuid
        )
        return wire.load(Operation, body)

    def create_device_profile(
        self, caller: Caller, request_key: str, profile: DeviceProfile
    ) -> DeviceProfile:
        """Store a checked profile; raises Duplicate for a name or uuid that is taken."""
        body = self._write(caller, request_key, "create_device_profile", profile=wire.dump(profile))
        return wire.load(DeviceProfile, body)

    def update_device_profile(
        self, caller: Caller, request_key: str, key: str, change: ProfileChange
    ) -> DeviceProfile:
        """Change a profile, named by uuid or name; raises NotFound, Duplicate (name)."""
        body = self._write(
            caller, request_key, "update_device_profile", key=key, change=wire.dump(change)
        )
        return wire.load(DeviceProfile, body)

    def delete_device_profiles(self, caller: Caller, request_key: str, keys: list[str]) -> None:
        """Delete profiles by uuid or name, all or none; raises NotFound, ProfileInUse."""
        self._write(caller, request_key, "delete_device_profiles", keys=keys)

    def set_device_status(
        self, caller: Caller, request_key: str, uuid: str, status: DeviceStatus
    ) -> None:
        """Enable a device or take it out of service, with all its deployables."""
        self._write(caller, request_key, "set_device_status", uuid=uuid, status=status.value)

    def set_service_status(
        self, caller: Caller, request_key: str, uuid: str, *, disabled: bool, reason: str | None
    ) -> None:
        """Take the host of an agent out of service, or put it back.

        Raises NotFound, Conflict (another process than an agent).
        """
        self._write(
            caller, request_key, "set_service_status", uuid=uuid, disabled=disabled, reason=reason
        )

    def remove_service(self, caller: Caller, request_key: str, uuid: str) -> Operation:
        """Begin to forget a process that is down, and the whole host of an agent.

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
        """Set status, labels, and the ``facts`` (model, traits) that operators tell; all or none.

        ``reason`` explains a status that takes the device out of service.
        ``project`` limits this to labels of what its requests hold. Raises NotFound, Forbidden,
        Invalid (labels), DeviceInUse, Conflict (facts of what was discovered).
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
        """Have an accelerator created on a backend.

        Raises NotFound (host, driver, backend), Unavailable, Invalid (handles) and Conflict.
        """
        body = self._write(
            caller, request_key, "create_device", creation=wire.dump(creation), wait=wait
        )
        return wire.load(Operation, body)

    def delete_device(self, caller: Caller, request_key: str, uuid: str) -> None:
        """Remove a device that an operator created; forget what is lost, of any other.

        Raises NotFound, DeviceInUse, Conflict (nothing of it is lost).
        """
        self._write(caller, request_key, "delete_device", uuid=uuid)

    def program_deployable(
        self, caller: Caller, request_key: str, uuid: str, image_uuid: str
    ) -> None:
        """Have a Glance image loaded; raises NotFound, CannotProgram, DeviceInUse."""
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
        """Add an operator's attribute; raises NotFound (deployable), Duplicate (uuid)."""
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
        """Have hosts look at their hardware now; raises NotFound, Unavailable and Conflict.

        With ``setup`` they set up the devices of the driver that are inactive and need it.
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
        """Have hosts load a driver from now on; raises NotFound, Unavailable and Conflict."""
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
        """Change options of a driver (None: remove it), enable or disable it.

        Raises NotFound, Unavailable and Conflict.
        """
        request = {"driver": driver, "options": options, "enabled": enabled, "wait": wait}
        return wire.load(Operation, self._write(caller, request_key, "update_driver", **request))

    def uninstall_driver(
        self, caller: Caller, request_key: str, *, driver: str, drain: bool, wait: bool
    ) -> Operation:
        """Take a driver off its hosts, with ``drain`` once nobody uses it any more.

        Raises NotFound, Unavailable and Conflict.
        """
        request = {"driver": driver, "drain": drain, "wait": wait}
        return wire.load(Operation, self._write(caller, request_key, "uninstall_driver", **request))

    def _write(self, caller: Caller, request_key: str, verb: str, **arguments: Any) -> Any:
        request = {"request_id": caller.request_id, "request_key": request_key, **arguments}
        if self._now_ms is None:
            return self._line.call(verb, caller=wire.dump(caller), **request)
        # Before the clock is read: the wait for the first connection is not part of the patience.
        self._line.insist()
        left = self._patience - min(_MARGIN, self._patience / 4)
        caller = replace(caller, expires_ms=self._now_ms() + int(left * 1000))
        return self._line.call_until(
            verb, within=self._patience, caller=wire.dump(caller), **request
        )


class ReportClient(Client):
    """What an agent tells the conductor, and asks of it."""

    def heartbeat(self, heartbeat: AgentHeartbeat) -> HeartbeatReply:
        """The heartbeat; raises StaleEpoch when another agent took this host over."""
        return wire.load(
            HeartbeatReply, self._line.call("heartbeat", heartbeat=wire.dump(heartbeat))
        )

    def report(self, host: str, epoch: int, report: Report) -> Acknowledged:
        """Hand in what the drivers found; raises StaleEpoch."""
        body = self._line.call("report", host=host, epoch=epoch, report=wire.dump(report))
        return wire.load(Acknowledged, body)

    def desired(self, host: str, epoch: int) -> Desired:
        """Fetch what Placement shall show of this host; raises StaleEpoch."""
        return wire.load(Desired, self._line.call("desired", host=host, epoch=epoch))

    def unit_uses(self, host: str, epoch: int) -> UnitUses:
        """Fetch who has which of this host's units that binds prepare; raises StaleEpoch."""
        return wire.load(UnitUses, self._line.call("unit_uses", host=host, epoch=epoch))

    def published(self, host: str, epoch: int, refused: dict[str, str]) -> None:
        """Tell which deployables Placement refused (name → reason); the others stand there."""
        self._line.call("published", host=host, epoch=epoch, refused=refused)

    def providers_removed(self, host: str, epoch: int, names: list[str]) -> None:
        """Tell which deployables that are given up have no provider any more; raises StaleEpoch."""
        self._line.call("providers_removed", host=host, epoch=epoch, names=names)

    def readings(self, host: str, epoch: int, readings: Sequence[Reading]) -> None:
        """Tell what the host's devices measure of themselves; raises StaleEpoch."""
        bodies = [wire.dump(reading) for reading in readings]
        self._line.call("readings", host=host, epoch=epoch, readings=bodies)
