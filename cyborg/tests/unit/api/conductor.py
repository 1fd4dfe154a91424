# SPDX-License-Identifier: Apache-2.0
"""A conductor for tests of the API: one process, no bus, the same words and errors.

It changes the database the plain way and records what it was asked.
"""

import json
from dataclasses import fields, replace
from datetime import datetime
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from cyborg import exception
from cyborg.db import arqs, attributes, device_profiles, devices, models, operations
from cyborg.db.engine import Database
from cyborg.model.arq import Arq, Binding, State
from cyborg.model.attribute import Attribute
from cyborg.model.caller import Caller
from cyborg.model.creation import Creation
from cyborg.model.device import DeviceStatus
from cyborg.model.device_profile import DeviceProfile, ProfileChange, units
from cyborg.model.operation import Operation

NOW = datetime(2026, 3, 4, 5, 6, 7)


class FakeConductor:
    """The verbs of ``cyborg.rpc.conductor.ConductorClient``; ``fault`` makes each of them fail."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.calls: list[tuple[str, Caller, dict[str, Any]]] = []
        self.fault: Exception | None = None
        self.up = True
        self.bus_error = "the message bus refuses the connection (530 NOT_ALLOWED: vhost gone)"

    def reached(self) -> bool:
        return self.up

    @property
    def trouble(self) -> str:
        return "" if self.up else self.bus_error

    def _note(self, verb: str, caller: Caller, **arguments: Any) -> None:
        self.calls.append((verb, caller, arguments))
        if self.fault is not None:
            raise self.fault

    def create_arqs(self, caller: Caller, request_key: str, profile_name: str) -> list[Arq]:
        self._note("create_arqs", caller, profile_name=profile_name)
        with self._db.writer() as tx:
            profile = device_profiles.show(tx, None, profile_name)
            if profile is None:
                raise exception.NotFound(noun="Device profile", key=profile_name)
            profile_id = tx.scalar(
                sa.select(models.DeviceProfile.id).where(models.DeviceProfile.name == profile_name)
            )
            uuids = []
            for index, group in enumerate(profile.groups):
                for _ in range(units(group)):
                    uuids.append(str(uuid4()))
                    tx.execute(
                        sa.insert(models.Arq).values(
                            uuid=uuids[-1],
                            project_id=caller.project_id,
                            state="Initial",
                            device_profile_id=profile_id,
                            device_profile_group_id=index,
                            created_at=NOW,
                        )
                    )
            return [_known(arqs.show(tx, uuid, None)) for uuid in uuids]

    def patch_arqs(
        self, caller: Caller, request_key: str, bindings: list[Binding], unbindings: list[str]
    ) -> None:
        self._note("patch_arqs", caller, bindings=bindings, unbindings=unbindings)
        with self._db.writer() as tx:
            for binding in bindings:
                self._bind(tx, caller, binding)
            for uuid in unbindings:
                self._arq(tx, caller, uuid)
                _set(
                    tx,
                    uuid,
                    state="Unbound",
                    hostname=None,
                    device_rp_uuid=None,
                    instance_uuid=None,
                    attach_handle_id=None,
                )

    def _bind(self, tx: sa.Connection, caller: Caller, binding: Binding) -> None:
        arq = self._arq(tx, caller, binding.arq_uuid)
        if arq.state not in (State.INITIAL, State.UNBOUND):
            raise exception.BadState(uuid=arq.uuid, state=arq.state.value, event="be bound")
        deployable = tx.scalar(
            sa.select(models.Deployable.id).where(
                models.Deployable.rp_uuid == binding.device_rp_uuid
            )
        )
        if deployable is None:
            raise exception.NotFound(noun="Resource provider", key=binding.device_rp_uuid)
        handle = tx.scalar(
            sa.select(models.AttachHandle.id)
            .where(
                models.AttachHandle.deployable_id == deployable,
                models.AttachHandle.id.not_in(
                    sa.select(models.Arq.attach_handle_id).where(
                        models.Arq.attach_handle_id.is_not(None)
                    )
                ),
            )
            .limit(1)
        )
        if handle is None:
            raise exception.NoFreeHandle(provider=binding.device_rp_uuid, requested=1)
        _set(
            tx,
            binding.arq_uuid,
            state="Bound",
            hostname=binding.hostname,
            device_rp_uuid=binding.device_rp_uuid,
            instance_uuid=binding.instance_uuid,
            attach_handle_id=handle,
            project_id=binding.project_id or arq.project_id,
        )

    def _arq(self, tx: sa.Connection, caller: Caller, uuid: str) -> Arq:
        return _known(arqs.show(tx, uuid, None if caller.all_projects else caller.project_id), uuid)

    def delete_arqs(self, caller: Caller, request_key: str, uuids: list[str]) -> None:
        self._note("delete_arqs", caller, uuids=uuids)
        with self._db.writer() as tx:
            project = None if caller.all_projects else caller.project_id
            rows = {uuid: arqs.show(tx, uuid, project) for uuid in uuids}
            missing = [uuid for uuid, row in rows.items() if row is None]
            kept = [uuid for uuid, row in rows.items() if row and _known(row).instance_uuid]
            kept = [] if caller.service else kept
            gone = set(uuids) - set(missing) - set(kept)
            tx.execute(sa.delete(models.Arq).where(models.Arq.uuid.in_(gone)))
        if kept:
            raise exception.BoundArqs(uuids=", ".join(kept))
        if missing:
            raise exception.NotFound(noun="Accelerator request", key=", ".join(missing))

    def delete_instance_arqs(self, caller: Caller, request_key: str, instance_uuid: str) -> None:
        self._note("delete_instance_arqs", caller, instance_uuid=instance_uuid)
        terms = [models.Arq.instance_uuid == instance_uuid]
        if not caller.all_projects:
            terms.append(models.Arq.project_id == caller.project_id)
        with self._db.writer() as tx:
            tx.execute(sa.delete(models.Arq).where(*terms))

    def attach(
        self, caller: Caller, request_key: str, instance_uuid: str, profile_name: str | None
    ) -> Operation:
        self._note("attach", caller, instance_uuid=instance_uuid, profile_name=profile_name)
        return self._begun(caller, request_key, "attach")

    def detach(
        self, caller: Caller, request_key: str, instance_uuid: str, arq_uuid: str | None
    ) -> Operation:
        self._note("detach", caller, instance_uuid=instance_uuid, arq_uuid=arq_uuid)
        return self._begun(caller, request_key, "detach")

    def create_device_profile(
        self, caller: Caller, request_key: str, profile: DeviceProfile
    ) -> DeviceProfile:
        self._note("create_device_profile", caller, profile=profile)
        with self._db.writer() as tx:
            for field in ("name", "uuid"):
                value = getattr(profile, field)
                column = getattr(models.DeviceProfile, field)
                if tx.scalar(sa.select(models.DeviceProfile.id).where(column == value)):
                    raise exception.Duplicate(noun="Device profile", field=field, value=value)
            tx.execute(
                sa.insert(models.DeviceProfile).values(
                    uuid=profile.uuid,
                    name=profile.name,
                    description=profile.description,
                    profile_json=json.dumps({"groups": profile.groups}),
                    created_at=NOW,
                )
            )
            stored = device_profiles.show(tx, profile.uuid, profile.name)
        assert stored is not None
        return stored

    def update_device_profile(
        self, caller: Caller, request_key: str, key: str, change: ProfileChange
    ) -> DeviceProfile:
        self._note("update_device_profile", caller, key=key, change=change)
        with self._db.reader() as tx:
            profile = device_profiles.show(tx, key, key)
        if profile is None:
            raise exception.NotFound(noun="Device profile", key=key)
        return replace(
            profile,
            name=change.name or profile.name,
            groups=change.groups or profile.groups,
            description=change.description if change.sets_description else profile.description,
        )

    def delete_device_profiles(self, caller: Caller, request_key: str, keys: list[str]) -> None:
        self._note("delete_device_profiles", caller, keys=keys)
        table = models.DeviceProfile
        with self._db.writer() as tx:
            for key in keys:
                profile = device_profiles.show(tx, key, key)
                if profile is None:
                    raise exception.NotFound(noun="Device profile", key=key)
                row_id = sa.select(table.id).where(table.uuid == profile.uuid).scalar_subquery()
                count = tx.scalar(
                    sa.select(sa.func.count()).where(models.Arq.device_profile_id == row_id)
                )
                if count:
                    raise exception.ProfileInUse(name=profile.name, count=count)
                tx.execute(sa.delete(table).where(table.uuid == profile.uuid))

    def set_device_status(
        self, caller: Caller, request_key: str, uuid: str, status: DeviceStatus
    ) -> None:
        self._note("set_device_status", caller, uuid=uuid, status=status)
        with self._db.writer() as tx:
            done = tx.execute(
                sa.update(models.Device)
                .where(models.Device.uuid == uuid)
                .values(status=status.value)
            )
        if not done.rowcount:
            raise exception.NotFound(noun="Device", key=uuid)

    def update_device(
        self,
        caller: Caller,
        request_key: str,
        uuid: str,
        *,
        status: DeviceStatus | None,
        labels: dict[str, str | None],
        project: str | None,
        facts: dict[str, Any],
        reason: str | None = None,
    ) -> None:
        wish = {"status": status, "labels": labels, "project": project, "facts": facts}
        if reason is not None:
            wish["reason"] = reason
        self._note("update_device", caller, uuid=uuid, **wish)
        with self._db.reader() as tx:
            if devices.show(tx, uuid, project) is None:
                raise exception.NotFound(noun="Device", key=uuid)
        if project is not None and status is not None:
            raise exception.Forbidden(reason="Only operators change the status of a device.")

    def create_device(
        self, caller: Caller, request_key: str, creation: Creation, *, wait: bool
    ) -> Operation:
        self._note("create_device", caller, creation=creation, wait=wait)
        return self._begun(caller, request_key, "create_device")

    def delete_device(self, caller: Caller, request_key: str, uuid: str) -> None:
        self._note("delete_device", caller, uuid=uuid)
        with self._db.reader() as tx:
            if devices.show(tx, uuid) is None:
                raise exception.NotFound(noun="Device", key=uuid)

    def set_service_status(
        self, caller: Caller, request_key: str, uuid: str, *, disabled: bool, reason: str | None
    ) -> None:
        self._note("set_service_status", caller, uuid=uuid, disabled=disabled, reason=reason)
        raise exception.NotFound(noun="Process", key=uuid)

    def remove_service(self, caller: Caller, request_key: str, uuid: str) -> None:
        self._note("remove_service", caller, uuid=uuid)
        raise exception.NotFound(noun="Process", key=uuid)

    def program_deployable(
        self, caller: Caller, request_key: str, uuid: str, image_uuid: str
    ) -> None:
        self._note("program_deployable", caller, uuid=uuid, image_uuid=image_uuid)
        with self._db.reader() as tx:
            if not tx.scalar(sa.select(models.Deployable.id).where(models.Deployable.uuid == uuid)):
                raise exception.NotFound(noun="Deployable", key=uuid)

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
        self._note("create_attribute", caller, deployable=deployable, key=key, value=value)
        table = models.Deployable
        column = table.id if isinstance(deployable, int) else table.uuid
        with self._db.writer() as tx:
            row_id = tx.scalar(sa.select(table.id).where(column == deployable))
            if row_id is None:
                raise exception.NotFound(noun="Deployable", key=deployable)
            new = uuid or str(uuid4())
            if attributes.show(tx, new):
                raise exception.Duplicate(noun="Attribute", field="uuid", value=new)
            tx.execute(
                sa.insert(models.Attribute).values(
                    uuid=new, deployable_id=row_id, key=key, value=value, created_at=NOW
                )
            )
            made = attributes.show(tx, new)
        assert made is not None
        return made

    def discover_services(self, caller: Caller, request_key: str, **arguments: Any) -> Operation:
        self._note("discover_services", caller, **arguments)
        return self._begun(caller, request_key, "discover")

    def install_driver(self, caller: Caller, request_key: str, **arguments: Any) -> Operation:
        self._note("install_driver", caller, **arguments)
        return self._begun(caller, request_key, "install_driver")

    def update_driver(self, caller: Caller, request_key: str, **arguments: Any) -> Operation:
        self._note("update_driver", caller, **arguments)
        return self._begun(caller, request_key, "update_driver")

    def uninstall_driver(self, caller: Caller, request_key: str, **arguments: Any) -> Operation:
        self._note("uninstall_driver", caller, **arguments)
        return self._begun(caller, request_key, "uninstall_driver")

    def _begun(self, caller: Caller, request_key: str, verb: str) -> Operation:
        with self._db.writer() as tx:
            operations.begin(
                tx, self._db.now, caller, uuid=request_key, verb=verb, hosts=["host-1"]
            )
            begun = operations.show(tx, request_key)
        assert begun is not None
        return begun

    def delete_attribute(self, caller: Caller, request_key: str, uuid: str) -> None:
        self._note("delete_attribute", caller, uuid=uuid)
        with self._db.writer() as tx:
            done = tx.execute(sa.delete(models.Attribute).where(models.Attribute.uuid == uuid))
        if not done.rowcount:
            raise exception.NotFound(noun="Attribute", key=uuid)


def _known(row: arqs.Row | None, uuid: str = "") -> Arq:
    if row is None:
        raise exception.NotFound(noun="Accelerator request", key=uuid)
    names = [field.name for field in fields(Arq)]
    values = dict(zip(names, row, strict=True))
    values["state"] = State(values["state"])
    values["attach_handle_info"] = json.loads(values["attach_handle_info"] or "{}")
    return Arq(**values)


def _set(tx: sa.Connection, uuid: str, **values: Any) -> None:
    tx.execute(sa.update(models.Arq).where(models.Arq.uuid == uuid).values(**values))
