# SPDX-License-Identifier: Apache-2.0
"""Two hosts whose names begin alike, and whose drivers, devices and units have the same keys."""

from collections.abc import Mapping
from typing import Any

from cyborg.model.cleaning import HostClean
from cyborg.model.device import AttachHandle as Handle
from cyborg.model.device import AttachType, DeviceType
from cyborg.model.device import Deployable as Part
from cyborg.model.device import Device as Card
from cyborg.model.provider import provider_uuid
from cyborg.model.report import DriverReport, DriverState, Report
from cyborg.tests.fixtures.host_reports import DRIVER, RESOURCE_CLASS, facts, report_of
from cyborg.tests.fixtures.use_cases import UseCases

FIRST, SECOND = "node-1", "node-10"
#: Milliseconds: how long lost things are kept, and an agent may be silent.
RETENTION = 30 * 24 * 3600 * 1000
DOWN_AFTER = 30_000
#: The units of the memory of a sliced card, and what a slice of each size takes of them.
MEMORY = 8
SLICES = {"big": 6, "half": 4, "small": 1}


def both(cases: UseCases, devices: int = 1, **more: Any) -> None:
    """Both hosts report so many devices, see ``report_of``."""
    for host in (FIRST, SECOND):
        cases.report(host, report_of(host, devices, **more))


def generations(cases: UseCases) -> list[int]:
    return [cases.generation(host) for host in (FIRST, SECOND)]


def sliced(
    host: str,
    cards: int = 1,
    *,
    memory: int = MEMORY,
    slices: Mapping[str, int] = SLICES,
    clean: HostClean | None = None,
) -> Report:
    """The report of a host whose cards are taken in slices of several sizes.

    ``slice_of`` names their providers.
    """
    shown = tuple(
        Card(
            f"0000:8{index}:00.0",
            DeviceType.GPU,
            "v",
            "m",
            {},
            tuple(
                Part(
                    f"{host}_{index}_{name}",
                    RESOURCE_CLASS,
                    "bench",
                    tuple(
                        Handle(f"{name}-{unit}", AttachType.PCI, {})
                        for unit in range(MEMORY // size)
                    ),
                    attributes=facts(RESOURCE_CLASS),
                    prepare=True,
                    cost={"memory": size} if memory else {},
                    clean=clean,
                )
                for name, size in slices.items()
            ),
            pools={"memory": memory} if memory else {},
        )
        for index in range(cards)
    )
    return Report((DriverReport(DRIVER, DriverState.READY, shown),))


def slice_of(host: str, index: int, name: str) -> str:
    """The provider of the slices of a size of a card of ``sliced``."""
    return provider_uuid(f"{host}_{index}_{name}")
