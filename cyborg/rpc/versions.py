# SPDX-License-Identifier: Apache-2.0
"""The versions of the RPC interface, and the version that a message needs.

Every verb with all its arguments has version 1.0 (microversion 2.4), except those listed here as
``verb`` or ``verb.argument`` with the version that added them. Every addition gets an entry with
the next minor version. A removal or a change of meaning needs a new verb.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from cyborg import exception

#: Name → the version that added it, for all that is later than FIRST.
Later = Mapping[str, str]

FIRST: Final = "1.0"
#: The history of the conductor's verbs.
CONDUCTOR: Final[Later] = MappingProxyType(
    {"discover_services.setup": "1.1", "update_device.reason": "1.1"}
)
#: The history of the agents' verbs.
AGENT: Final[Later] = MappingProxyType({"prepare.image": "1.1"})


def newest(later: Later) -> str:
    """Return the version of a service of this release."""
    return max((FIRST, *later.values()), key=_order)


def lowest(later: Later, verb: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the lowest version that a message can have, and its arguments.

    Later arguments that are None are left out: an older peer does not accept them.
    """
    sent = {
        name: value
        for name, value in arguments.items()
        if value is not None or f"{verb}.{name}" not in later
    }
    names = (verb, *(f"{verb}.{name}" for name in sent))
    return max((FIRST, *(later[name] for name in names if name in later)), key=_order), sent


def pinned(option: str, value: str | None, later: Later) -> str | None:
    """Return the newest version that ``[upgrade_levels]`` allows to send; None for no limit.

    Raises ConfigError for a version that this release does not have.
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
