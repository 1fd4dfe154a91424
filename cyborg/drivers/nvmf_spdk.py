# SPDX-License-Identifier: Apache-2.0
"""The nvmf_spdk_driver: lists the disks of an SPDK application, and cleans those that are free.

Nova attaches no device of SPDK, so nothing is offered. What SPDK says may be anything: it is
checked, shortened, and never trusted to be there.

Sources: doc/jsonrpc.md of SPDK; NVM Express Base Specification 2.0.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers.base import (
    CleanStep,
    Driver,
    Progress,
    ResetLevel,
    no_progress,
)
from cyborg.drivers.function_cleaning import ERASE
from cyborg.drivers.host import Host
from cyborg.drivers.pci_function import parse_name
from cyborg.drivers.privileged import nvme
from cyborg.drivers.scan import Scan
from cyborg.drivers.spdk_client import SpdkClient
from cyborg.model.cleaning import CleanLevel
from cyborg.model.device import (
    SERVICE_UNKNOWN,
    Backend,
    BackendService,
    Device,
    DeviceType,
    Hardware,
)
from cyborg.model.health import Signal
from cyborg.model.report import DriverState
from cyborg.model.work import HandleTask

REASON: Final = "Nova attaches no device of SPDK"
RESET: Final = "controller reset"
#: What gives block devices to others: the method that lists it, what it is, the key of its name.
_EXPORTS: Final = (
    ("nvmf_get_subsystems", "NVMe-oF subsystem", "nqn"),
    ("vhost_get_controllers", "vhost controller", "ctrlr"),
    ("iscsi_get_target_nodes", "iSCSI target", "name"),
    ("ublk_get_disks", "ublk disk", "ublk_device"),
    ("nbd_get_disks", "NBD device", "nbd_device"),
)
#: The keys by which an export names its block devices.
_BDEV_KEYS: Final = frozenset({"bdev", "bdev_name"})
#: What identifies the path to a controller, in answers about controllers and about block devices.
_PATH_KEYS: Final = ("trtype", "traddr", "trsvcid", "subnqn")
#: Width of a column for text.
_WIDE: Final = 255
#: The most namespaces and users of a disk that are told; all are checked.
_MOST_SHOWN: Final = 8
#: The states of a controller: the usual one, and the one of a controller that does not work.
_ENABLED: Final = "enabled"
_FAILED: Final = "failed"
#: What is read from the log of a disk.
_LOG: Final = (
    "available_spare_percentage",
    "available_spare_threshold_percentage",
    "percentage_used",
    "media_errors",
)
_SAMPLES: Final = 16
#: The most namespaces that an NVMe controller lists in one answer.
_NAMESPACE_LIST: Final = nvme.AdminCommand(nvme.IDENTIFY, cdw10=2, data_length=4096)
#: Seconds that a reset may take beside the time limit of an answer, and the limits of the steps.
_RESET_PATIENCE: Final = 60.0
_RESET_LIMIT: Final = 300.0
_ERASE_LIMIT: Final = 86_400.0


@dataclass(frozen=True)
class _Bdev:
    """A block device of SPDK. ``names`` are all by which exports may call it."""

    name: str
    product: str
    uuid: str
    block_size: int
    blocks: int
    metadata: bool
    claim: str | None
    names: frozenset[str]
    #: The paths to the controller of a namespace; empty for other block devices.
    paths: frozenset[tuple[str, ...]] = frozenset()
    namespace: int = 0
    controller: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> "_Bdev | None":
        """Return the block device of an entry of ``bdev_get_bdevs``; None if it has no name."""
        name = entry.get("name")
        if not isinstance(name, str) or not name:
            return None
        aliases = entry.get("aliases")
        names = [name, entry.get("uuid"), *(aliases if isinstance(aliases, list) else ())]
        specific = _dictionary(entry.get("driver_specific")).get("nvme")
        # Releases without multipath had one object.
        specific = [specific] if isinstance(specific, dict) else specific
        parts = [_dictionary(part) for part in (specific if isinstance(specific, list) else ())]
        first = parts[0] if parts else {}
        claim = None
        if entry.get("claimed") is not False:
            # Also when it is not told: then it may be.
            claim = _text(entry.get("claim_type")) or "exclusively"
        return cls(
            name=name,
            product=_text(entry.get("product_name")) or "unknown",
            uuid=_text(entry.get("uuid")),
            block_size=_number(entry.get("block_size")),
            blocks=_number(entry.get("num_blocks")),
            metadata=bool(_number(entry.get("md_size"))),
            claim=claim,
            names=frozenset(text for text in names if isinstance(text, str) and text),
            paths=frozenset(_path(_dictionary(part.get("trid"))) for part in parts),
            namespace=_number(_dictionary(first.get("ns_data")).get("id")),
            controller=_dictionary(first.get("ctrlr_data")),
        )


@dataclass(frozen=True)
class _Disk:
    """An NVMe controller of SPDK with its namespaces; ``name`` is that of SPDK."""

    key: str
    name: str
    state: str
    transport: str
    bdevs: tuple[_Bdev, ...]
    #: Why it can never be cleaned, in use or not; None: it can.
    refusal: str | None


@dataclass(frozen=True)
class _Application:
    """What an SPDK application has. ``users`` maps names of block devices to their exports."""

    disks: tuple[_Disk, ...]
    bdevs: tuple[_Bdev, ...]
    users: Mapping[str, tuple[str, ...]]

    def uses(self, bdev: _Bdev) -> list[str]:
        """Return what uses a block device, each as a clause."""
        clauses = [f"its block device {_text(bdev.name)} is claimed ({bdev.claim})"] * (
            bdev.claim is not None
        )
        for name in sorted(bdev.names):
            clauses += [
                f"its block device {_text(bdev.name)} is given out by {user}"
                for user in self.users.get(name, ())
            ]
        return clauses


class NvmfSpdkDriver(Driver):
    """The disks of the SPDK application on the socket of the options; see module."""

    name = "nvmf_spdk_driver"
    device_type = DeviceType.NVME.value
    offers_devices: ClassVar[bool] = False

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        super().__init__(host, conf)
        options = conf.nvmf_spdk_driver
        if not options.socket.startswith("/") or "\0" in options.socket:
            reason = f"Option [nvmf_spdk_driver] socket: {options.socket!r} is not a path from /."
            raise exception.ConfigError(reason=reason)
        self._spdk = SpdkClient(
            host, options.socket, timeout=options.timeout, cap=options.answer_limit
        )

    def discover(self, scan: Scan) -> list[Device]:
        """Return nothing: no guest can have a device of SPDK."""
        return []

    def hardware(self, scan: Scan) -> list[Hardware]:
        """Return the disks and the other block devices of SPDK; none without its socket."""
        if not self._spdk.is_there():
            return []
        application = self._application()
        namespaces = {bdev.name for disk in application.disks for bdev in disk.bdevs}
        entries = {
            **{
                key: _bdev_entry(application, key, bdev)
                for bdev in application.bdevs
                if bdev.name not in namespaces and (key := _text(bdev.name))
            },
            **{disk.key: self._disk_entry(application, disk) for disk in application.disks},
        }
        return [entries[key] for key in sorted(entries)]

    def backends(self, scan: Scan) -> Sequence[Backend]:
        """Return the application, and as its services what gives block devices to others."""
        if not self._spdk.is_there():
            return ()
        version = self._spdk.call("spdk_get_version")
        names = sorted({export for export, _ in self._exports()})
        services = tuple(BackendService(name, SERVICE_UNKNOWN) for name in names)
        capabilities = {"version": _text(_dictionary(version).get("version")) or "unknown"}
        return (Backend("spdk", DriverState.READY.value, services, capabilities),)

    def signals(self, scan: Scan, device_key: str) -> Iterator[Signal]:
        """See Driver; the state of the controller, and what its own log says of its wear."""
        return self._signals(self._disk(self._application(), device_key, "health"))

    def clean_steps(self, task: HandleTask) -> Sequence[CleanStep]:
        """Return the reset and the erasure of a disk in this machine; nothing for others."""
        key = task.device_key
        disks = {disk.key: disk for disk in self._application().disks}
        if key not in disks or disks[key].refusal is not None:
            return ()

        def erase(progress: Progress) -> None:
            self._erase(key, progress)

        return (
            CleanStep(RESET, ResetLevel.FUNCTION, priority=60, timeout=_RESET_LIMIT),
            CleanStep(ERASE, erase, timeout=_ERASE_LIMIT, level=CleanLevel.FULL),
        )

    def reset(
        self, device_key: str, level: ResetLevel, *, progress: Progress = no_progress
    ) -> None:
        """Reset the controller of a disk that nothing uses."""
        if level is not ResetLevel.FUNCTION:
            self._cannot(f"reset {device_key} ({level})")
        disk = self._free_disk(device_key, "reset")
        progress(0.0, RESET)
        result = self._spdk.call(
            "bdev_nvme_reset_controller", patience=_RESET_PATIENCE, name=disk.name
        )
        if result is not True:
            raise self._failed("reset", f"SPDK could not reset {device_key}")

    def _disk_entry(self, application: _Application, disk: _Disk) -> Hardware:
        facts = disk.bdevs[0].controller if disk.bdevs else {}
        try:
            health = [signal.evidence for signal in self._signals(disk)]
        except (exception.HostError, exception.DriverCannot) as error:
            if isinstance(error, exception.HostError) and "code" not in error.fields:
                # It does not answer any more: one time limit is enough.
                raise
            health = [f"its health is not known: {error}"[:_WIDE]]
        users = [clause for bdev in disk.bdevs for clause in application.uses(bdev)]
        return Hardware(
            key=disk.key,
            kind=DeviceType.NVME.value,
            vendor=_vendor(facts.get("vendor_id")),
            model=_text(facts.get("model_number")) or "NVMe disk",
            offered=False,
            reason=REASON,
            capability={
                "controller": _text(disk.name),
                "transport": disk.transport,
                "state": disk.state,
                "serial_number": _text(facts.get("serial_number")),
                "namespaces": [_shown(bdev) for bdev in disk.bdevs[:_MOST_SHOWN]],
                "used": users[:_MOST_SHOWN],
                "clean": [] if disk.refusal else [RESET, ERASE],
                "health": health,
            },
        )

    def _signals(self, disk: _Disk) -> Iterator[Signal]:
        if disk.state == _FAILED:
            yield Signal("spdk", "controller", disk.state, "its controller has failed")
            return
        log = _dictionary(self._spdk.call("bdev_nvme_get_controller_health_info", name=disk.name))
        if not log.keys() >= set(_LOG):
            self._cannot(f"check the health of {disk.key}")
        spare, threshold, used, errors = (_number(log[name]) for name in _LOG)
        if spare < threshold:
            text = f"{spare} % of its spare blocks are left"
            yield Signal("nvme", "smart", "spare_below_threshold", text)
        if used > 100:
            text = f"{used} % of its life have passed"
            yield Signal("nvme", "smart", "percent_used_over_100", text)
        if errors:
            text = f"{errors} error{'s' if errors > 1 else ''} of its media"
            yield Signal("nvme", "smart", "media_errors", text)

    def _erase(self, device_key: str, progress: Progress) -> None:
        """Format all namespaces of a free disk with secure erase, and check samples of them."""
        disk = self._free_disk(device_key, ERASE)
        facts = nvme.controller_facts(self._spdk.admin(disk.name, nvme.identify_controller()))
        if facts.shared:
            raise self._failed(ERASE, "its NVMe subsystem may have other controllers")
        if not facts.formats:
            raise self._failed(ERASE, "its controller has no format command")
        erase = nvme.Erase.CRYPTO if facts.crypto else nvme.Erase.USER_DATA
        namespaces = self._namespaces(disk)
        before = self._samples(disk)
        for count, number in enumerate(namespaces):
            progress(count / len(namespaces), f"format of namespace {number} ({erase})")
            # SPDK does not refuse the format of a disk that was given out in the meantime, and its
            # name may be that of another disk by now.
            now = self._free_disk(device_key, ERASE)
            if now.name != disk.name or self._namespaces(now) != namespaces:
                raise self._failed(ERASE, "it has changed meanwhile; clean it again")
            identity = self._spdk.admin(disk.name, nvme.identify_namespace(number))
            self._spdk.admin(disk.name, nvme.format_namespace(number, identity, erase))
        progress(1.0, "verification")
        after = self._samples(disk)
        if any(old == new and len(set(old)) > 1 for old, new in zip(before, after, strict=True)):
            raise self._failed(ERASE, "it still has data after the format; replace the disk")

    def _namespaces(self, disk: _Disk) -> list[int]:
        """Return the active namespaces; each must have a block device, whose users were checked.

        A format may affect namespaces that have none.
        """
        answer = self._spdk.admin(disk.name, _NAMESPACE_LIST)
        active = [number for (number,) in struct.iter_unpack("<I", answer) if number]
        checked = sorted(bdev.namespace for bdev in disk.bdevs)
        if not active:
            raise self._failed(ERASE, "it has no namespace")
        if active != checked:
            reason = f"it has the namespaces {active}, but block devices of {checked}"
            raise self._failed(ERASE, reason[:_WIDE])
        return active

    def _samples(self, disk: _Disk) -> list[bytes]:
        """Return blocks of all namespaces; none of those that have metadata in their blocks."""
        return [
            self._spdk.read_block(disk.name, bdev.namespace, number, bdev.block_size)
            for bdev in disk.bdevs
            if bdev.blocks and bdev.block_size and not bdev.metadata
            for number in range(0, bdev.blocks, -(-bdev.blocks // _SAMPLES))
        ]

    def _free_disk(self, device_key: str, verb: str) -> _Disk:
        """Return a disk that can be cleaned and that nothing uses; raises DriverFailed."""
        application = self._application()
        disk = self._disk(application, device_key, verb)
        reasons = [disk.refusal] if disk.refusal is not None else []
        reasons += [clause for bdev in disk.bdevs for clause in application.uses(bdev)]
        # It may be a namespace of this disk, and in use.
        listed = {bdev.name for other in application.disks for bdev in other.bdevs}
        reasons += [
            f"block device {_text(bdev.name)} belongs to no controller that SPDK lists"
            for bdev in application.bdevs
            if bdev.paths and bdev.name not in listed
        ]
        if reasons:
            raise self._failed(verb, f"{device_key} cannot be cleaned now: {reasons[0]}")
        return disk

    def _disk(self, application: _Application, device_key: str, verb: str) -> _Disk:
        for disk in application.disks:
            if disk.key == device_key:
                return disk
        raise self._failed(verb, f"SPDK has no disk {device_key}")

    def _application(self) -> _Application:
        """Return what SPDK has now; raises exception.HostError."""
        controllers = self._spdk.entries("bdev_nvme_get_controllers")
        bdevs = tuple(filter(None, map(_Bdev.of, self._spdk.entries("bdev_get_bdevs"))))
        users: dict[str, list[str]] = {}
        for export, names in self._exports():
            for name in names:
                users.setdefault(name, []).append(export)
        disks: dict[str, _Disk] = {}
        for entry in controllers:
            disk = _disk_of(entry, bdevs)
            if disk is not None:
                disks.setdefault(disk.key, disk)
        return _Application(
            disks=tuple(disks[key] for key in sorted(disks)),
            bdevs=bdevs,
            users={name: tuple(places) for name, places in users.items()},
        )

    def _exports(self) -> Iterator[tuple[str, list[str]]]:
        """Yield what gives block devices to others, and the names of the block devices."""
        for method, what, key in _EXPORTS:
            for entry in self._spdk.entries(method):
                yield f"{what} {_text(entry.get(key))}"[:_WIDE], list(_bdevs_in(entry))

    def _failed(self, verb: str, reason: str) -> exception.DriverFailed:
        return exception.DriverFailed(driver=self.name, verb=verb, reason=reason)


def _disk_of(entry: Mapping[str, Any], bdevs: Sequence[_Bdev]) -> _Disk | None:
    """Return the disk of an entry of ``bdev_nvme_get_controllers``; None if it has no name."""
    name = entry.get("name")
    if not isinstance(name, str) or not _text(name):
        return None
    listed = entry.get("ctrlrs")
    # Releases with one controller for each name had no list.
    parts = [_dictionary(part) for part in (listed if isinstance(listed, list) else [entry])]
    places = [_dictionary(part.get("trid")) for part in parts] or [{}]
    states = [_text(part.get("state")) for part in parts]
    transport = _text(places[0].get("trtype")) or "unknown"
    address = parse_name(str(places[0].get("traddr")).lower())
    local = transport.lower() == "pcie" and address is not None
    refusal = None
    if len(places) > 1:
        refusal = "it has several paths, so others may use it"
    elif not local:
        refusal = f"it is not a disk in this machine, but connected by {transport}"
    paths = {_path(place) for place in places}
    return _Disk(
        key=str(address) if local else _text(name),
        name=name,
        state=_FAILED if _FAILED in states else next(filter(None, states), _ENABLED),
        transport=transport,
        bdevs=tuple(
            sorted(
                (bdev for bdev in bdevs if not paths.isdisjoint(bdev.paths)),
                key=lambda bdev: (bdev.namespace, bdev.name),
            )
        ),
        refusal=refusal,
    )


def _bdev_entry(application: _Application, key: str, bdev: _Bdev) -> Hardware:
    """Return the entry of a block device that is no namespace of a disk."""
    return Hardware(
        key=key,
        kind="BDEV",
        vendor="SPDK",
        model=bdev.product,
        offered=False,
        reason=REASON,
        capability={**_shown(bdev), "used": application.uses(bdev)[:_MOST_SHOWN]},
    )


def _shown(bdev: _Bdev) -> dict[str, str | int]:
    """Return what operators see of a block device."""
    shown: dict[str, str | int] = {
        "bdev": _text(bdev.name),
        "uuid": bdev.uuid,
        "bytes": bdev.block_size * bdev.blocks,
    }
    return shown | ({"namespace": bdev.namespace} if bdev.namespace else {})


def _bdevs_in(export: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of block devices anywhere in an entry about an export."""
    pending: list[object] = [export]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            for key, value in item.items():
                if key in _BDEV_KEYS and isinstance(value, str):
                    yield value
            pending += item.values()
        elif isinstance(item, list):
            pending += item


def _path(place: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what identifies the path to a controller; without case, as in transport names."""
    return tuple(str(place.get(key, "")).lower() for key in _PATH_KEYS)


def _vendor(text: object) -> str:
    """Return the vendor id as four hexadecimal digits, such as 8086 for "0x8086"."""
    digits = _text(text).lower().removeprefix("0x")
    return digits.zfill(4) if digits else "unknown"


def _text(value: object) -> str:
    """Return a text that fits in a column, without what JSON escapes; empty for other values."""
    if not isinstance(value, str):
        return ""
    return "".join(
        letter for letter in value if " " <= letter <= "~" and letter not in '"\\'
    ).strip()[:_WIDE]


def _number(value: object) -> int:
    """Return a number from 0 to 2**63 - 1; 0 for any other value."""
    valid = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
    return value if valid else 0  # type: ignore[return-value]


def _dictionary(value: object) -> Mapping[str, Any]:
    """Return an object of JSON; empty for any other value."""
    return value if isinstance(value, dict) else {}
