# SPDX-License-Identifier: Apache-2.0
"""Which lost devices and deployables have no provider left, case by case."""

from types import SimpleNamespace
from typing import Any

import pytest

from cyborg.conductor.hosts.lost_devices import _without_provider


def row(id_: int | None, name: str | None, device: int, *, whole: bool) -> Any:
    return SimpleNamespace(id=id_, name=name, device_id=device, whole=whole)


#: A lost device with two deployables.
TWO = [row(1, "a", 10, whole=True), row(2, "b", 10, whole=True)]
#: A lost deployable of a device that is there, and another one.
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
        (TWO, {"a", "b", "of somebody else"}, [1, 2]),
        (PARTS, set(), []),
        (PARTS, {"c"}, [3]),
        (PARTS, {"c", "d"}, [3, 4]),
        (EMPTY, set(), [None]),
        ([*TWO, *PARTS, *EMPTY], {"a", "c"}, [3, None]),
    ],
)
def test_what_has_no_provider_left(lost: list[Any], names: set[str], bare: list[int]) -> None:
    assert [one.id for one in _without_provider(iter(lost), frozenset(names))] == bare
