# SPDX-License-Identifier: Apache-2.0
"""Explanations of device profiles in a large cloud, without the requests to Placement.

Each host has as many free devices as a large one, and each device a provider with some traits.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from cyborg.api.explaining import explained
from cyborg.db import models
from cyborg.db.engine import Database, Reader
from cyborg.model.provider import provider_uuid
from cyborg.tests.fixtures.unrelated_rows import settle
from cyborg_tools.bench.figures import ExplanationFigure

DEVICES: Final = 16
_TRAITS: Final = 8
CLASS: Final = "CUSTOM_BENCH"
#: Hosts in each transaction.
_CHUNK: Final = 50


def measure(db: Database, hosts: int) -> ExplanationFigure:
    """Fill an empty database with so many hosts, and explain two profiles.

    Raises RuntimeError if the explanations are wrong.
    """
    fill(db, hosts)
    reader = Reader(db.engine.url.render_as_string(hide_password=False))
    try:
        fits = _seconds(reader, {"trait:CUSTOM_BENCH_0": "required"}, fits=True)
        renamed = _seconds(reader, {"trait:CUSTOM_BENCH_X": "required"}, fits=False)
    finally:
        reader.close()
    return ExplanationFigure(hosts, DEVICES, *fits, *renamed)


def fill(db: Database, hosts: int) -> None:
    """Fill an empty database with so many hosts."""
    for first in range(0, hosts, _CHUNK):
        with db.writer() as tx:
            for model, rows in _tables(range(first, min(first + _CHUNK, hosts))):
                tx.execute(sa.insert(model), rows)
    settle(db)


def _seconds(reader: Reader, traits: Mapping[str, str], *, fits: bool) -> tuple[float, float]:
    """Return seconds of CPU of this process and of the clock of an explanation."""
    groups = [{f"resources:{CLASS}": "1", **traits}]
    # The first one builds the statements.
    for _ in range(2):
        started, clock = time.process_time(), time.perf_counter()
        explanation, *_ = explained(reader, None, groups)
        seconds = time.process_time() - started, time.perf_counter() - clock
    if explanation.fits is not fits:
        raise RuntimeError(f"the explanation is wrong: {explanation.summary}")
    return seconds


def _tables(hosts: range) -> Iterator[tuple[Any, Sequence[Mapping[str, Any]]]]:
    """Yield the rows of some hosts, table by table, in the order of their foreign keys."""
    devices = range(hosts.start * DEVICES, hosts.stop * DEVICES)
    generations = {"generation": 1, "desired_generation": 1, "updated_ms": 0}
    yield models.Host, [{"id": host + 1, "name": f"bench-{host}", **generations} for host in hosts]
    device = {"driver": "bench", "type": "GPU", "vendor": "10de", "model": "bench"}
    yield (
        models.Device,
        [
            {
                **device,
                "id": number + 1,
                "uuid": provider_uuid(f"device {number}"),
                "host_id": number // DEVICES + 1,
                "device_key": str(number),
                "hostname": f"bench-{number // DEVICES}",
                "status": "enabled",
            }
            for number in devices
        ],
    )
    path = {"cpid_type": "PCI", "cpid_info": "{}"}
    yield (
        models.ControlpathId,
        [
            {
                **path,
                "id": number + 1,
                "uuid": provider_uuid(f"path {number}"),
                "device_id": number + 1,
            }
            for number in devices
        ],
    )
    yield (
        models.Deployable,
        [
            {
                "id": number + 1,
                "uuid": provider_uuid(f"deployable {number}"),
                "name": f"bench_{number}",
                "rp_uuid": provider_uuid(f"bench_{number}"),
                "num_accelerators": 1,
                "device_id": number + 1,
                "resource_class": CLASS,
                "published_total": 1,
                "published_reserved": 0,
            }
            for number in devices
        ],
    )
    handle = {"attach_type": "PCI", "attach_info": "{}", "handle_key": "0"}
    yield (
        models.AttachHandle,
        [
            {
                **handle,
                "uuid": provider_uuid(f"handle {number}"),
                "deployable_id": number + 1,
                "cpid_id": number + 1,
            }
            for number in devices
        ],
    )
    yield (
        models.Attribute,
        [
            {
                "uuid": provider_uuid(f"trait {index} of {number}"),
                "deployable_id": number + 1,
                "key": f"trait{index}",
                "value": f"CUSTOM_BENCH_{index}",
            }
            for number in devices
            for index in range(_TRAITS)
        ],
    )
