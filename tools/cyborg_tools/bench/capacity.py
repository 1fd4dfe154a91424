# SPDX-License-Identifier: Apache-2.0
"""Capacity of device profiles in a large cloud, as the API and the metrics count it.

The cloud is that of ``explanations``; some devices of each host are out of service, so that hosts
differ.
"""

import time
from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa

from cyborg.db import guests, models, providers
from cyborg.db.engine import Database, Reader
from cyborg.model.capacity import By, Fleet
from cyborg_tools.bench.explanations import CLASS, DEVICES, fill
from cyborg_tools.bench.figures import CapacityFigure

_PROFILES: Final = 20
#: One unit of any device.
_ONE: Final = [{f"resources:{CLASS}": "1", "trait:CUSTOM_BENCH_0": "required"}]


def measure(db: Database, hosts: int) -> CapacityFigure:
    """Fill an empty database with so many hosts, and count.

    Raises RuntimeError if a count is wrong.
    """
    fill(db, hosts)
    with db.writer() as tx:
        # From no device of a host to one less than all, in turn.
        number = models.Device.id - 1
        idle = number % DEVICES < (models.Device.host_id - 1) % DEVICES
        tx.execute(sa.update(models.Device).where(idle).values(status="inactive"))
    further = sum(DEVICES - host % DEVICES for host in range(hosts))
    pairs = sum((DEVICES - host % DEVICES) // 2 for host in range(hosts))
    profiles = [_ONE * (1 + index % 2) for index in range(_PROFILES)]
    expected = [(further, pairs)[index % 2] for index in range(_PROFILES)]
    reader = Reader(db.engine.url.render_as_string(hide_password=False))
    try:
        whole = _seconds(reader, [_ONE], None, [further])
        by_host = _seconds(reader, [_ONE], By.HOST, [further])
        many = _seconds(reader, profiles, None, expected)
    finally:
        reader.close()
    return CapacityFigure(hosts, DEVICES, *whole, by_host[0], _PROFILES, many[0])


def _seconds(
    reader: Reader,
    profiles: Sequence[Sequence[dict[str, str]]],
    by: By | None,
    expected: Sequence[int],
) -> tuple[float, float]:
    """Return seconds of CPU of this process and of the clock."""
    # The first one builds the statements.
    for _ in range(2):
        started, clock = time.process_time(), time.perf_counter()
        with reader.reader() as tx:
            stocks = providers.stocks_for(tx, [group for groups in profiles for group in groups])
            unattached = guests.unattached_units(tx)
        fleet = Fleet(stocks, by=by, unattached=unattached)
        counts = [sum(part.further for part in fleet.capacities(groups)) for groups in profiles]
        seconds = time.process_time() - started, time.perf_counter() - clock
    if counts != expected:
        raise RuntimeError(f"the counts are wrong: {counts}")
    return seconds
