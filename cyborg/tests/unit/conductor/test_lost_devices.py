# SPDX-License-Identifier: Apache-2.0
"""Lost devices and deployables that have no provider left, case by case."""

from types import SimpleNamespace
from typing import Any

import pytest

from cyborg.conductor.hosts.lost_devices import _without_provider


def row(id_: int | None, name: str | None, device: int, *, whole: bool) -> Any:
    return SimpleNamespace(id=id_, name=name, device_id=device, whole=whole)


#: A lost device with two deployables.
TWO = [row(1, "a", 10, whole=True), row(2, "b", 10, whole=True)]
#: Two lost deployables of a device that is present.
PARTS = [row(3, "c", 11, whole=False), row(4, "d", 11, whole=False)]
#: A lost device without deployables.
EMPTY = [row(None, None, 12, whole=True)]


@pytest.mark.parametrize(
    ("lost", "names", "bare"),
    [
        ([], {"a"}, []),
        (TWO, set(), []),
        (TWO, {"a"}, []),
        (TWO, {"a", "b"}, [1, 2]),
        (TWO, {"a", "b", "of another compute"}, [1, 2]),
        (PARTS, set(), []),
        (PARTS, {"c"}, [3]),
        (PARTS, {"c", "d"}, [3, 4]),
        (EMPTY, set(), [None]),
        ([*TWO, *PARTS, *EMPTY], {"a", "c"}, [3, None]),
    ],
)
def test_only_things_without_any_provider_are_removed(
    lost: list[Any], names: set[str], bare: list[int]
) -> None:
    assert [row.id for row in _without_provider(iter(lost), frozenset(names))] == bare
