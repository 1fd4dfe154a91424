# SPDX-License-Identifier: Apache-2.0
"""One query of allocation candidates for many equal groups, on the real Placement.

A host has as many free devices as a large one. Placement runs in a process of its own for each
query, first with its defaults, then with the options of the installation guide for wide trees.
"""

import logging
import resource
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from cyborg.tests.fixtures.placement import PlacementService, requested
from cyborg_tools.bench.figures import WideQuery, WideTreeFigure
from cyborg_tools.bench.parts import SPAWN

DEVICES: Final = 8
_CLASS: Final = "CUSTOM_BENCH"
_HOST: Final = "bench"


def measure(directory: Path, groups: int, limit: int) -> WideTreeFigure:
    """Measure the query for so many groups, each time with at most ``limit`` seconds of CPU.

    ``directory`` is empty. Raises RuntimeError if a query fails.
    """
    queries = []
    for wide_trees in (False, True):
        place = directory / ("options" if wide_trees else "defaults")
        place.mkdir()
        queries.append(_in_process(place, groups, limit, wide_trees=wide_trees))
    defaults, options = queries
    return WideTreeFigure(groups, DEVICES, limit, defaults, options)


def _in_process(place: Path, groups: int, limit: int, *, wide_trees: bool) -> WideQuery | None:
    """Return the result of the query; None if it takes more than ``limit`` seconds of CPU."""
    pipe, end = SPAWN.Pipe()
    options = {"wide_trees": wide_trees}
    process = SPAWN.Process(target=_query, args=(end, place, groups, limit), kwargs=options)
    process.start()
    end.close()
    try:
        answer: WideQuery = pipe.recv()
    except EOFError:
        process.join()
        if process.exitcode != -signal.SIGXCPU:
            raise RuntimeError(f"the query of {groups} groups failed") from None
        return None
    finally:
        pipe.close()
        process.join()
    return answer


def _query(
    pipe: "Connection[WideQuery, None]", place: Path, groups: int, limit: int, *, wide_trees: bool
) -> None:
    """Send the query, and end by SIGXCPU if it takes longer."""
    logging.disable(logging.WARNING)
    with PlacementService(place, wide_trees=wide_trees) as placement:
        root = placement.make_compute(_HOST)
        placement.call("PUT", f"/resource_classes/{_CLASS}")
        for number in range(DEVICES):
            body = {"name": f"{_HOST}_{number}", "parent_provider_uuid": root}
            provider = placement.call("POST", "/resource_providers", body)
            placement.call(
                "PUT",
                f"/resource_providers/{provider['uuid']}/inventories",
                {
                    "resource_provider_generation": provider["generation"],
                    "inventories": {_CLASS: {"total": 1}},
                },
            )
        query = requested([{f"resources:{_CLASS}": "1"}] * groups)
        begin = time.process_time()
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(begin) + 1 + limit, hard))
        candidates = placement.candidates(query)
        pipe.send(WideQuery(time.process_time() - begin, len(candidates)))
