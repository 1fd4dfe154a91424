# SPDX-License-Identifier: Apache-2.0
"""The history of what may be asked over the bus, and which part of it a message needs.

Every verb with all its arguments is of version 1.0, with microversion 2.4, unless it is named here:
as ``verb``, or as ``verb.argument``, with the version in which it came. Whatever is added gets an
entry, and so the next minor version; whatever goes or changes its meaning needs a new verb.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from cyborg import exception

#: Name → the version in which it came, for all that is later than FIRST.
Later = Mapping[str, str]

FIRST: Final = "1.0"
#: Of the conductor's verbs.
CONDUCTOR: Final[Later] = MappingProxyType(
    {"discover_services.setup": "1.1", "update_device.reason": "1.1"}
)
#: Of the agents' verbs.
AGENT: Final[Later] = MappingProxyType({"prepare.image": "1.1"})


def newest(later: Later) -> str:
    """The version of a service of this release."""
    return max((FIRST, *later.values()), key=_order)


def said(later: Later, verb: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments but for those that came later and are None: a peer needs not know of them."""
    return {
        name: value
        for name, value in arguments.items()
        if value is not None or f"{verb}.{name}" not in later
    }


def needed(later: Later, verb: str, arguments: Mapping[str, Any]) -> str:
    """The version that a peer must have to take this verb with these arguments."""
    names = (verb, *(f"{verb}.{name}" for name in arguments))
    return max((FIRST, *(later[name] for name in names if name in later)), key=_order)


def pinned(option: str, value: str | None, later: Later) -> str | None:
    """What ``[upgrade_levels]`` says is the newest version that may be sent; None is any.

    Raises ConfigError for one that this release does not have.
    """
    allowed = sorted({FIRST, *later.values()}, key=_order)
    if value is not None and value not in allowed:
        raise exception.ConfigError(
            reason=f"Option [upgrade_levels] {option} cannot be {value!r}: this release can send "
            f"{', '.join(allowed)}."
        )
    return value


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("."))
