# SPDX-License-Identifier: Apache-2.0
"""Attributes of deployables, and labels of devices.

A driver discovers attributes, and operators add some. Only operators set labels; labels are neither
facts of the hardware nor traits.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Final

from cyborg import exception
from cyborg.model.text import refuse_control_characters

_LABEL_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_MAX_LABEL_VALUE = 255
#: The maximum number of labels of a device.
MAX_LABELS: Final = 64

Labels = dict[str, str]


class Origin(StrEnum):
    """The source of an attribute or device; reports replace only what was discovered."""

    DISCOVERED = "discovered"
    OPERATOR = "operator"


@dataclass(frozen=True)
class Attribute:
    """One key and value of a deployable, as the API shows it."""

    KIND: ClassVar[str] = "Attribute"

    uuid: str
    deployable_id: int
    key: str
    value: str
    created_at: datetime | None
    updated_at: datetime | None = None


def parse_label_change(change: object) -> dict[str, str | None]:
    """Return a checked change of labels: a string sets a label, null removes it.

    Raises exception.Invalid, which names the field.
    """
    if not isinstance(change, Mapping):
        raise exception.Invalid(field="labels", reason="an object is needed")
    for key, value in change.items():
        _check_label_key(key)
        if value is not None and not isinstance(value, str):
            raise exception.Invalid(field=f"labels.{key}", reason="a string or null is needed")
        if value is not None and len(value) > _MAX_LABEL_VALUE:
            raise exception.Invalid(
                field=f"labels.{key}", reason=f"longer than {_MAX_LABEL_VALUE} characters"
            )
        if value is not None:
            refuse_control_characters(value, f"labels.{key}", line=True)
    return dict(change)


def parse_labels(labels: object) -> Labels:
    """Return the labels of a new object; raise exception.Invalid, which names the field."""
    change = parse_label_change(labels)
    for key, value in change.items():
        if value is None:
            raise exception.Invalid(field=f"labels.{key}", reason="a string is needed")
    return changed_labels({}, change)


def parse_label_filter(text: str) -> Labels:
    """Return the labels of a query string: ``key=value`` pairs, separated by commas."""
    labels: Labels = {}
    for pair in text.split(","):
        key, equals, value = pair.partition("=")
        if not equals:
            raise exception.Invalid(field="labels", reason="key=value pairs are needed")
        _check_label_key(key.strip())
        labels[key.strip()] = value
    return labels


def changed_labels(labels: Mapping[str, str], change: Mapping[str, str | None]) -> Labels:
    """Return the labels after a change; raise exception.Invalid for more than MAX_LABELS."""
    after = {**labels, **change}
    kept = {key: value for key, value in sorted(after.items()) if value is not None}
    if len(kept) > MAX_LABELS:
        raise exception.Invalid(field="labels", reason=f"at most {MAX_LABELS} are allowed")
    return kept


def _check_label_key(key: str) -> None:
    if _LABEL_KEY.fullmatch(key) is None:
        raise exception.Invalid(
            field="labels",
            reason=f"{key!r} is no name: 1 to 63 ASCII letters, digits, '.', '-' and '_'",
        )
