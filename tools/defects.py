# SPDX-License-Identifier: Apache-2.0
"""Deliberate defects, and the tests that must fail with each of them; see tools/mutants.

``text`` occurs exactly once in ``file``, and ``replacement`` takes its place. ``rule`` says what
holds in the service and is broken by the defect. ``database`` names the server that the tests
need; without it they run on SQLite.
"""

from dataclasses import dataclass

_UNIT = "cyborg/tests/unit"
_RULES = "cyborg/tests/functional/rules"
_LIFE = "cyborg/tests/functional/life"
_CLIENTS = "cyborg/tests/functional/clients"
_RACES = "cyborg/tests/functional/races"


@dataclass(frozen=True)
class Defect:
    """One defect; the status of its tests decides whether it is caught."""

    name: str
    rule: str
    file: str
    text: str
    replacement: str
    tests: tuple[str, ...]
    database: str | None = None


def _unlocked(locker: str, file: str, text: str, replacement: str) -> Defect:
    """Return a SELECT without its FOR UPDATE; ``locker`` is the entry of the test's table."""
    return Defect(
        name=f"unlocked-{locker.replace(', ', '-')}",
        rule=f"{locker} locks the rows that it reads",
        file=file,
        text=text,
        replacement=replacement,
        tests=(f"{_RULES}/test_locks.py::test_statement_locks_its_rows[{locker}]",),
    )


_FOR_UPDATE = "\n        .with_for_update()"

DEFECTS = (
    Defect(
        "ownership-native-driver",
        "only a function on a VFIO driver counts as held when it is enabled",
        "cyborg/drivers/ownership.py",
        "function.on_vfio and function.enabled",
        "function.enabled",
        (f"{_UNIT}/drivers/test_pci.py",),
    ),
    Defect(
        "vfio-last-process-wins",
        "the open VFIO nodes of all processes are found",
        "cyborg/drivers/pci_scan.py",
        "nodes[target.removeprefix(_VFIO_NODES)] = _command(host, process)",
        "nodes = {target.removeprefix(_VFIO_NODES): _command(host, process)}",
        (f"{_UNIT}/drivers/test_pci.py::test_each_process_that_has_a_vfio_node_open_is_found",),
    ),
    Defect(
        "vfio-unreadable-process-ends-the-search",
        "a process that cannot be read hides no other",
        "cyborg/drivers/pci_scan.py",
        "            # Ended, or of another user: then the state of the function must suffice.\n"
        "            continue",
        "            break",
        (f"{_UNIT}/drivers/test_pci.py::test_each_process_that_has_a_vfio_node_open_is_found",),
    ),
    Defect(
        "lost-again-at-each-report",
        "a part that is lost already keeps the moment of its loss",
        "cyborg/conductor/reports/device_diff.py",
        "row.id for row in rows if row.lost_ms is None)",
        "row.id for row in rows)",
        (f"{_UNIT}/conductor/test_device_diff.py", f"{_RULES}/test_lost_things.py"),
    ),
    Defect(
        "lost-device-again-at-each-report",
        "a device that is lost already keeps the moment of its loss",
        "cyborg/conductor/reports/device_diff.py",
        "        if row.lost_ms is None:\n            self._lose(Device, [row])",
        "        if True:\n            self.lost.setdefault(Device, set()).add(row.id)",
        (f"{_UNIT}/conductor/test_device_diff.py",),
    ),
    Defect(
        "lost-deployable-is-bound",
        "a lost deployable of a device that is there cannot be bound",
        "cyborg/conductor/arqs/bind.py",
        "if deployable.lost_ms is not None or deployable.device_lost_ms is not None:",
        "if deployable.device_lost_ms is not None:",
        (f"{_UNIT}/conductor/test_bind.py",),
    ),
    Defect(
        "remembered-owner-for-anybody",
        "only a caller with a scope of all projects binds in the name of the former owner",
        "cyborg/conductor/arqs/bind.py",
        "if caller.all_projects and remembered is not None and",
        "if remembered is not None and",
        (f"{_UNIT}/conductor/test_bind.py",),
    ),
    Defect(
        "cancel-prepare-cancels-release",
        "a deleted ARQ calls off its preparation and no release",
        "cyborg/db/work.py",
        "sa.delete(Work).where(Work.arq_uuid.in_(arq_uuids), Work.kind == WorkKind.PREPARE.value)",
        "sa.delete(Work).where(Work.arq_uuid.in_(arq_uuids))",
        (f"{_RULES}/test_binds.py",),
    ),
    Defect(
        "operators-program",
        "only administrators load images into deployables",
        "cyborg/policies/devices.py",
        '"cyborg:deployable:program",\n        base.ADMIN,',
        '"cyborg:deployable:program",\n        base.OPERATOR,',
        (f"{_UNIT}/policies/test_frozen.py",),
    ),
    Defect(
        "hidden-arqs-keep-unresolved",
        "an ARQ that an attach prepares keeps no instance unresolved",
        "cyborg/db/arqs.py",
        "        _R.instance_uuid == instance_uuid,\n        ~_R.hidden,\n",
        "        _R.instance_uuid == instance_uuid,\n",
        (f"{_RULES}/test_binds.py",),
    ),
    Defect(
        "created-device-takes-a-row",
        "a created device never takes the row of another driver by its key",
        "cyborg/conductor/reports/apply.py",
        "if index not in matched and not device.operator_created and device.key in by_key:",
        "if index not in matched and device.key in by_key:",
        (f"{_UNIT}/conductor/test_device_matching.py",),
    ),
    Defect(
        "created-device-loses-its-row",
        "another driver never takes the row of a created device by its key",
        "cyborg/conductor/reports/apply.py",
        "by_key = {row.device_key: row for row in free.values() if not _is_operator_created(row)}",
        "by_key = {row.device_key: row for row in free.values()}",
        (f"{_UNIT}/conductor/test_device_matching.py",),
    ),
    Defect(
        "releasing-unit-first",
        "a free unit is claimed before one that is being released",
        "cyborg/db/attach_handles.py",
        ".order_by(AttachHandle.state, AttachHandle.id)\n    .limit",
        ".order_by(AttachHandle.id)\n    .limit",
        (f"{_RULES}/test_binds.py",),
    ),
    Defect(
        "foreign-provider-retired",
        "a provider in the tree of another compute is not deleted",
        "cyborg/clients/placement_sync.py",
        "if root is not None and node.root_uuid != root:",
        "if False:",
        (f"{_CLIENTS}/test_publish.py::test_provider_below_another_compute_is_not_retired",),
    ),
    *(
        Defect(
            f"instance-stays-bound-{server}",
            "an instance whose first bind commits during its delete is open after the delete",
            "cyborg/conductor/arqs/release.py",
            "            if rows and not opened:\n",
            "            if False:\n",
            (f"{_RULES}/test_first_bind.py",),
            server,
        )
        for server in ("mysql", "postgresql")
    ),
    Defect(
        "nova-told-of-hidden-arqs",
        "Nova is not told of the ARQs that an attach prepares",
        "cyborg/conductor/arqs/bind.py",
        "if row.instance_uuid is not None and not row.hidden",
        "if row.instance_uuid is not None",
        (f"{_RULES}/test_binds.py",),
    ),
    Defect(
        "set-up-not-called-off",
        "the set-up of a device that is forgotten is called off",
        "cyborg/conductor/hosts/lost_devices.py",
        "            work.cancel_install(tx, row.id)\n",
        "",
        (f"{_RULES}/test_lost_things.py",),
    ),
    Defect(
        "unretired-siblings-go",
        "a lost device goes when all of its providers are gone, and not before",
        "cyborg/conductor/hosts/lost_devices.py",
        "row.device_id not in published if row.whole else row.name in names",
        "row.whole or row.name in names",
        (f"{_UNIT}/conductor/test_lost_devices.py",),
    ),
    Defect(
        "pause-does-not-grow",
        "the pause before the next attempt grows",
        "cyborg/conductor/tasks/queue.py",
        "_FIRST_PAUSE_MS * 2 ** min(tries - 1, 10)",
        "_FIRST_PAUSE_MS",
        (f"{_UNIT}/conductor/test_queue.py",),
    ),
    Defect(
        "pause-has-no-limit",
        "the pause before the next attempt has a limit",
        "cyborg/conductor/tasks/queue.py",
        "growing = min(_LONGEST_PAUSE_MS, _FIRST_PAUSE_MS * 2 ** min(tries - 1, 10))",
        "growing = _FIRST_PAUSE_MS * 2 ** min(tries - 1, 10)",
        (f"{_UNIT}/conductor/test_queue.py",),
    ),
    Defect(
        "unresolved-arqs-told",
        "Nova is told of ARQs in a final state only",
        "cyborg/conductor/tasks/nova_events.py",
        "if states.get(row.arq_uuid) in RESOLVED",
        "if row.arq_uuid in states",
        (f"{_RULES}/test_outbox.py",),
    ),
    Defect(
        "young-notifications-given-up",
        "only notifications for which Nova no longer waits are given up",
        "cyborg/conductor/tasks/nova_events.py",
        "[row for row in rows if row.age_ms >= _NOVA_WAITS_MS]",
        "[row for row in rows if max(one.age_ms for one in rows) >= _NOVA_WAITS_MS]",
        (f"{_RULES}/test_outbox.py",),
    ),
    Defect(
        "ended-conductors-stay",
        "rows of former processes of a conductor go after a day",
        "cyborg/conductor/leases.py",
        "            services.remove_silent("
        "tx, self._db.now, self._process, silent_ms=_REMOVE_AFTER_MS)",
        "            pass",
        (f"{_UNIT}/conductor/test_queue.py",),
    ),
    Defect(
        "quarantine-seen-in-any-state",
        "only a handle in quarantine is found in quarantine",
        "cyborg/db/attach_handles.py",
        ".where(AttachHandle.uuid == uuid, AttachHandle.state == HandleState.QUARANTINED.value)",
        ".where(AttachHandle.uuid == uuid)",
        (f"{_RULES}/test_handles.py",),
    ),
    Defect(
        "quarantine-from-any-state",
        "only a handle that is being released goes into quarantine",
        "cyborg/db/attach_handles.py",
        ".where(AttachHandle.id == handle_id, AttachHandle.state == HandleState.RELEASING.value)",
        ".where(AttachHandle.id == handle_id)",
        (f"{_RULES}/test_handles.py",),
    ),
    Defect(
        "release-ends-in-any-state",
        "the end of a release moves a handle that is being released, and no other",
        "cyborg/db/attach_handles.py",
        "            AttachHandle.state.in_([state.value for state in UNRELEASED]),\n",
        "",
        (f"{_RULES}/test_handles.py",),
    ),
    Defect(
        "fault-outlives-unbind",
        "an unbound ARQ has no fault of its failed bind",
        "cyborg/db/arqs.py",
        '"prepared": False, "fault": None, **cleared}',
        '"prepared": False, **cleared}',
        (f"{_RULES}/test_binds.py",),
    ),
    Defect(
        "repairs-pile-up",
        "a unit has one repair at a time",
        "cyborg/agent/operations.py",
        "            if previous is None or previous.done():\n",
        "            if previous is None or True:\n",
        (f"{_UNIT}/agent/test_operations.py",),
    ),
    Defect(
        "operations-pile-up",
        "an agent remembers a limited number of operations",
        "cyborg/agent/operations.py",
        "while len(self._operations) > self._max_operations:",
        "while False:",
        (f"{_UNIT}/agent/test_operations.py",),
    ),
    Defect(
        "newest-operation-forgotten",
        "the oldest operation is forgotten first",
        "cyborg/agent/operations.py",
        "self._operations.popitem(last=False)",
        "self._operations.popitem(last=True)",
        (f"{_UNIT}/agent/test_operations.py",),
    ),
    Defect(
        "equal-moment-counts-as-restored",
        "only an order that was issued later can come from a restored database",
        "cyborg/agent/operations.py",
        "restored = 0 < issued < task.issued_ms",
        "restored = 0 < issued <= task.issued_ms",
        (f"{_UNIT}/agent/test_operations.py",),
    ),
    Defect(
        "order-without-moment-counts-as-restored",
        "without a moment of issue the order alone decides",
        "cyborg/agent/operations.py",
        "restored = 0 < issued < task.issued_ms",
        "restored = issued < task.issued_ms",
        (f"{_UNIT}/agent/test_operations.py",),
    ),
    Defect(
        "repair-logged-as-its-opposite",
        "the log tells a unit that was prepared from one that was released",
        "cyborg/agent/operations.py",
        'if verb is WorkKind.PREPARE else "no guest has it"\n',
        'if verb is WorkKind.RELEASE else "no guest has it"\n',
        (f"{_UNIT}/agent/test_operations.py",),
    ),
    Defect(
        "repair-leaves-no-mark",
        "a comparison from before a repair leads to no other repair",
        "cyborg/agent/operations.py",
        "            reason,\n        )\n        self._count_change(task.unit)\n",
        "            reason,\n        )\n",
        (f"{_UNIT}/agent/test_operations.py",),
    ),
    Defect(
        "own-project-reaches-all",
        "who acts by the rule for the own project reaches no other project",
        "cyborg/api/expose.py",
        "all_projects, own_project = False, context.project_id",
        "all_projects, own_project = True, context.project_id",
        (f"{_UNIT}/api/test_devices.py",),
    ),
    Defect(
        "own-project-is-not-limited",
        "who acts by the rule for the own project sees what it holds, and nothing else",
        "cyborg/api/expose.py",
        "all_projects, own_project = False, context.project_id",
        "all_projects, own_project = False, None",
        (f"{_UNIT}/api/test_devices.py",),
    ),
    # Tests that could not fail for what they name.
    Defect(
        "fence-is-not-raised",
        "what is taken over cannot be ended by its former owner",
        "cyborg/db/work.py",
        "        fence=Work.fence + 1,\n",
        "",
        (f"{_LIFE}/test_takeover.py::test_former_owner_cannot_complete_taken_over_work",),
    ),
    Defect(
        "failing-driver-loses-devices",
        "the devices of a driver that fails are not lost",
        "cyborg/conductor/reports/apply.py",
        "if row.id not in kept and row.driver not in failed:",
        "if row.id not in kept:",
        (f"{_LIFE}/test_reports.py::test_failing_driver_does_not_stop_the_others",),
    ),
    *(
        Defect(
            f"every-bind-refused-{test}",
            "a bind finds the units that are there",
            "cyborg/conductor/arqs/bind.py",
            "        if len(handles) < len(group):\n            if not wait:\n",
            "        if True:\n            if not wait:\n",
            (f"{_RACES}/{file}::{test}",),
        )
        for file, test in (
            ("test_binds.py", "test_boot_storm"),
            ("test_reports.py", "test_devices_vanish_while_they_are_bound"),
            ("test_reports.py", "test_units_vanish_while_they_are_bound"),
            ("test_reports.py", "test_enable_and_disable_against_reports"),
        )
    ),
    # A removed FOR UPDATE was seen on PostgreSQL only.
    _unlocked(
        "instances.lock",
        "cyborg/db/instances.py",
        "    .order_by(Instance.uuid)\n    .with_for_update()",
        "    .order_by(Instance.uuid)",
    ),
    _unlocked(
        "arqs.lock",
        "cyborg/db/arqs.py",
        "    .order_by(Arq.id)\n    .with_for_update()",
        "    .order_by(Arq.id)",
    ),
    _unlocked(
        "attach_handles.lock",
        "cyborg/db/attach_handles.py",
        "tx.execute(query.with_for_update()).all()",
        "tx.execute(query).all()",
    ),
    _unlocked(
        "attach_handles.claim, skipping",
        "cyborg/db/attach_handles.py",
        "_CLAIM.with_for_update(skip_locked=True, of=AttachHandle)",
        "_CLAIM",
    ),
    _unlocked(
        "attach_handles.claim, waiting",
        "cyborg/db/attach_handles.py",
        ").with_for_update(of=AttachHandle)",
        ")",
    ),
    _unlocked(
        "attach_handles.finish_release",
        "cyborg/db/attach_handles.py",
        "sa.select(AttachHandle.id).where(AttachHandle.id == handle_id).with_for_update()",
        "sa.select(AttachHandle.id).where(AttachHandle.id == handle_id)",
    ),
    _unlocked(
        "mending.release_handle",
        "cyborg/conductor/audit/repairs.py",
        "AttachHandle.uuid == uuid).with_for_update()).all()",
        "AttachHandle.uuid == uuid)).all()",
    ),
    _unlocked(
        "hosts.lock",
        "cyborg/db/hosts.py",
        "sa.select(Host.id).where(Host.id == host_id).with_for_update()",
        "sa.select(Host.id).where(Host.id == host_id)",
    ),
    _unlocked(
        "hosts.lock_for_agent",
        "cyborg/db/hosts.py",
        '        sa.select(*_COLUMNS, AGENT_EPOCH.label("epoch"), DISABLED.label("disabled"))\n'
        "        .where(Host.service_host == service_host)" + _FOR_UPDATE,
        '        sa.select(*_COLUMNS, AGENT_EPOCH.label("epoch"), DISABLED.label("disabled"))\n'
        "        .where(Host.service_host == service_host)",
    ),
    _unlocked(
        "hosts.lock_for_report",
        "cyborg/db/hosts.py",
        '            sa.or_(reported, _HAS_DRIVERS).label("has_drivers"),\n        )\n'
        "        .where(Host.service_host == service_host)" + _FOR_UPDATE,
        '            sa.or_(reported, _HAS_DRIVERS).label("has_drivers"),\n        )\n'
        "        .where(Host.service_host == service_host)",
    ),
    _unlocked(
        "hosts.lock_with_handles",
        "cyborg/db/hosts.py",
        "locked = sa.select(Host.name).where(Host.id == host_id).with_for_update()",
        "locked = sa.select(Host.name).where(Host.id == host_id)",
    ),
    _unlocked(
        "devices.lock_labels",
        "cyborg/db/devices.py",
        "sa.select(Device.labels).where(Device.id == id_).with_for_update()",
        "sa.select(Device.labels).where(Device.id == id_)",
    ),
    _unlocked(
        "device_profiles.lock",
        "cyborg/db/device_profiles.py",
        "        .order_by(models.DeviceProfile.id)" + _FOR_UPDATE,
        "        .order_by(models.DeviceProfile.id)",
    ),
    _unlocked(
        "operations._lock",
        "cyborg/db/operations.py",
        "sa.select(_O.id, _O.state, _O.steps).where(_O.uuid == uuid).with_for_update()",
        "sa.select(_O.id, _O.state, _O.steps).where(_O.uuid == uuid)",
    ),
    _unlocked(
        "services.register",
        "cyborg/db/services.py",
        "sa.select(Service.id, Service.epoch).where(*_named(process)).with_for_update()",
        "sa.select(Service.id, Service.epoch).where(*_named(process))",
    ),
    _unlocked(
        "work.claim",
        "cyborg/db/work.py",
        "        .limit(limit)\n        .with_for_update(skip_locked=True, of=Work)",
        "        .limit(limit)",
    ),
    _unlocked(
        "work.lock_owned",
        "cyborg/db/work.py",
        "sa.select(Work.id).where(_fenced(len(rows))).with_for_update()",
        "sa.select(Work.id).where(_fenced(len(rows)))",
    ),
    _unlocked(
        "work.supersede_program",
        "cyborg/db/work.py",
        "        .order_by(Work.id)\n        .with_for_update()\n    ).all()\n    if older:",
        "        .order_by(Work.id)\n    ).all()\n    if older:",
    ),
)
