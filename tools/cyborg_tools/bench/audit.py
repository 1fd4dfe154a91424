# SPDX-License-Identifier: Apache-2.0
"""The audit of a large cloud: fill a database, and audit it in a process of its own.

The cloud is regular: 128 ARQs a host, 32 of them on each of its four devices. So Placement and Nova
can be simulated in the auditing process without memory of their own: their answers follow from the
number of the host or the server. The figures are those of the service, without the time that a
real Placement needs for one request per host and up to three per provider.
"""

import json
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import requests
import sqlalchemy as sa
from keystoneauth1 import session
from keystoneauth1.adapter import Adapter

from cyborg.clients.nova import Servers
from cyborg.clients.placement import Node, Placement
from cyborg.conductor.audit.auditor import Auditor
from cyborg.db import models
from cyborg.db.engine import Database, Reader
from cyborg.model.audit_findings import Ages
from cyborg.model.process import AGENT, CONDUCTOR
from cyborg.model.provider import Inventory, provider_uuid
from cyborg.tests.fixtures.unrelated_rows import settle
from cyborg_tools.bench.figures import AuditFigure
from cyborg_tools.bench.parts import SPAWN

UNITS = 32
DEVICES = 4
#: Every so many ARQs, one handle is released although its ARQ has it.
_DAMAGED = 1000
_CLASS = "CUSTOM_BENCH"
_CHUNK = 80
#: The first number of the uuids of each kind of object.
_ROOT, _INSTANCE = 1 << 96, 2 << 96


def measure(db: Database, arqs: int) -> AuditFigure:
    """Fill an empty database with so many ARQs, and audit it; raises RuntimeError if that fails."""
    fill(db, arqs)
    url = db.engine.url.render_as_string(hide_password=False)
    with ProcessPoolExecutor(1, SPAWN) as pool:
        figure = pool.submit(_audit, url, arqs).result()
    if figure.findings != -(-arqs // _DAMAGED):
        raise RuntimeError(f"the audit of {arqs} ARQs found {figure.findings} violations")
    return figure


def _audit(url: str, arqs: int) -> AuditFigure:
    logging.disable(logging.WARNING)
    auditor = Auditor(
        db=Reader(url),
        placement=_Placement(arqs),
        servers=Servers(_Nova(arqs)),
        ages=Ages(agent_silence=10**9, conductor_silence=10**9),
    )
    started = time.perf_counter()
    result = auditor.look()
    seconds = time.perf_counter() - started
    # In KiB. Not ru_maxrss, which begins with the memory of the parent process.
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) / 1024
    if result.unasked:
        raise RuntimeError("; ".join(result.unasked))
    return AuditFigure(arqs, seconds, peak, len(result.findings))


def fill(db: Database, arqs: int) -> None:
    """Fill an empty database, a few hosts in each transaction."""
    with db.writer() as tx:
        profile = {"id": 1, "uuid": _uuid(1), "name": "bench", "profile_json": '{"groups": []}'}
        tx.execute(sa.insert(models.DeviceProfile).values(**profile))
        process = {"status": "UP", "last_seen_ms": db.now}
        row = {"uuid": _uuid(0), "host": "control", "binary": CONDUCTOR}
        tx.execute(sa.insert(models.Service).values(**row, **process))
    hosts = range(-(-arqs // (UNITS * DEVICES)))
    for first in hosts[::_CHUNK]:
        with db.writer() as tx:
            moment = int(tx.execute(sa.select(db.now)).scalar_one())
            for model, rows in _tables(hosts[first : first + _CHUNK], arqs, moment):
                tx.execute(sa.insert(model), rows)
    settle(db)


def _tables(hosts: Sequence[int], arqs: int, now: int) -> Iterator[tuple[Any, list[Any]]]:
    """Yield the rows of some hosts, table by table, in the order of their foreign keys."""
    devices = [host * DEVICES + index for host in hosts for index in range(DEVICES)]
    units = [unit for device in devices for unit in _range(device, UNITS) if unit < arqs]

    def table(model: Any, numbers: Iterable[int], /, **columns: Any) -> tuple[Any, list[Any]]:
        """The rows of a table; a column's value may follow from the number of its row."""
        rows = (
            {name: value(one) if callable(value) else value for name, value in columns.items()}
            for one in numbers
        )
        return model, list(rows)

    def following(number: int) -> int:
        return number + 1

    def device_of(unit: int) -> int:
        return unit // UNITS + 1

    def host_of(device: int) -> str:
        return _name(device // DEVICES)

    def provider(device: int) -> str:
        return provider_uuid(_provider_name(device))

    names = {"name": _name, "service_host": _name}
    generations = {"generation": 1, "desired_generation": 1}
    yield table(models.Host, hosts, id=following, **names, **generations, updated_ms=0)
    yield table(
        models.Service,
        hosts,
        uuid=lambda host: _uuid(host + 2),
        host=_name,
        binary=AGENT,
        status="UP",
        last_seen_ms=now,
    )
    yield table(
        models.Device,
        devices,
        id=following,
        uuid=_uuid,
        host_id=lambda device: device // DEVICES + 1,
        driver="bench",
        device_key=str,
        type="GPU",
        vendor="0xABCD",
        model="bench",
        hostname=host_of,
        status="enabled",
    )
    path = {"id": following, "device_id": following, "cpid_type": "PCI", "cpid_info": "{}"}
    yield table(models.ControlpathId, devices, uuid=_uuid, **path)
    yield table(
        models.Deployable,
        devices,
        id=following,
        uuid=_uuid,
        name=_provider_name,
        rp_uuid=provider,
        num_accelerators=UNITS,
        device_id=following,
        resource_class=_CLASS,
    )
    yield table(
        models.Arq,
        units,
        id=following,
        uuid=_uuid,
        project_id="bench",
        state="Bound",
        device_profile_id=1,
        device_profile_group_id=0,
        instance_uuid=_instance,
        hostname=lambda unit: host_of(unit // UNITS),
        device_rp_uuid=lambda unit: provider(unit // UNITS),
        deployable_id=device_of,
    )
    yield table(
        models.AttachHandle,
        units,
        id=following,
        uuid=_uuid,
        deployable_id=device_of,
        cpid_id=device_of,
        attach_type="PCI",
        attach_info="{}",
        handle_key=str,
        arq_id=following,
        state=lambda unit: "ready" if unit % _DAMAGED else "releasing",
    )
    yield table(models.Instance, units, uuid=_instance, updated_ms=0)
    event = {"at_ms": 0, "noun": "arq", "action": "Bound"}
    yield table(models.Event, units, subject_uuid=_uuid, **event)


class _Placement(Placement):
    """Placement in agreement with the rows of ``fill``."""

    def __init__(self, arqs: int) -> None:
        super().__init__(Adapter(session.Session()))
        self._arqs = arqs
        #: The devices of the host that was asked for last.
        self._devices: dict[str, int] = {}

    def find_by_name(self, name: str) -> Node | None:
        root = str(UUID(int=_ROOT + int(name.removeprefix("bench-"))))
        return Node(root, name, 1, None, root)

    def tree(self, uuid: str) -> dict[str, Node]:
        host = UUID(uuid).int - _ROOT
        names = {index: _provider_name(index) for index in _range(host, DEVICES)}
        self._devices = {provider_uuid(name): index for index, name in names.items()}
        root = Node(uuid, _name(host), 1, None, uuid)
        nodes = [Node(provider_uuid(name), name, 1, uuid, uuid) for name in names.values()]
        return {node.uuid: node for node in [root, *nodes]}

    def inventories(self, uuid: str) -> tuple[int, dict[str, Inventory]]:
        """Return the inventory of a device: as many units as it has ARQs."""
        total = len(self.allocations_of(uuid))
        fields = {"total": total, "reserved": 0, "min_unit": 1, "max_unit": total, "step_size": 1}
        return 1, {_CLASS: fields | {"allocation_ratio": 1.0}} if total else {}

    def traits(self, uuid: str) -> tuple[int, frozenset[str]]:
        return 1, frozenset()

    def allocations_of(self, uuid: str) -> dict[str, dict[str, int]]:
        units = _range(self._devices[uuid], UNITS)
        return {_instance(unit): {_CLASS: 1} for unit in units if unit < self._arqs}


class _Nova(Adapter):
    """Nova with the servers of ``fill``."""

    def __init__(self, arqs: int) -> None:
        super().__init__(session.Session())
        self._arqs = arqs

    def request(self, url: str, method: str, **arguments: Any) -> requests.Response:
        query = parse_qs(urlsplit(url).query)
        marker = query.get("marker")
        first = UUID(marker[0]).int - _INSTANCE + 1 if marker else 0
        units = range(first, min(first + int(query["limit"][0]), self._arqs))
        answer = requests.Response()
        answer.status_code = 200
        servers = [{"id": _instance(unit)} for unit in units]
        answer._content = json.dumps({"servers": servers}).encode()
        return answer


def _range(index: int, size: int) -> range:
    return range(index * size, (index + 1) * size)


def _name(host: int) -> str:
    return f"bench-{host}"


def _provider_name(device: int) -> str:
    return f"bench-{device // DEVICES}_{device}"


def _instance(unit: int) -> str:
    return str(UUID(int=_INSTANCE + unit))


def _uuid(number: int) -> str:
    """Return a uuid that is not in the order of the numbers, as real ones are not."""
    return str(UUID(int=(number + 1) * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128)))
