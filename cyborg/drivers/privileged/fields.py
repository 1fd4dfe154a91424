# SPDX-License-Identifier: Apache-2.0
"""Check the fields of actions; every check raises exception.Invalid with the name of the field."""

import re

from cyborg import exception
from cyborg.model.pci import PciAddress


def address(value: object) -> PciAddress | None:
    try:
        return PciAddress.parse(value) if isinstance(value, str) else None
    except ValueError:
        return None


def text(field: str, value: object, pattern: re.Pattern[str], meaning: str) -> None:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise invalid(field, value, meaning)


def number(field: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise invalid(field, value, f"a number from {least} to {most}")


def flag(field: str, value: object) -> None:
    if value is not None and not isinstance(value, bool):
        raise invalid(field, value, "true, false or nothing")


def choice(field: str, value: object, choices: frozenset[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise invalid(field, value, f"one of {', '.join(sorted(choices))}")


def invalid(field: str, value: object, meaning: str) -> exception.Invalid:
    return exception.Invalid(field=field, reason=f"{value!r:.200} is not {meaning}")
