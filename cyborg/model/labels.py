# SPDX-License-Identifier: Apache-2.0
"""Labels: words that people hang on devices; never facts of the hardware, never traits."""

import re
from collections.abc import Mapping

from cyborg import exception

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_MAX_VALUE = 255
#: How many labels a device may have.
MOST = 64

Labels = dict[str, str]


def parse_key(key: str) -> str:
    """A label's name, or exception.Invalid naming the field ``labels``."""
    if _KEY.fullmatch(key) is None:
        raise exception.Invalid(
            field="labels",
            reason=f"{key!r} is no name: 1 to 63 ASCII letters, digits, '.', '-' and '_'",
        )
    return key


def parse_change(change: object) -> dict[str, str | None]:
    """What an update does to labels: a string sets one, null takes it away."""
    if not isinstance(change, Mapping):
        raise exception.Invalid(field="labels", reason="an object is needed")
    for key, value in change.items():
        parse_key(key)
        if value is not None and not isinstance(value, str):
            raise exception.Invalid(field=f"labels.{key}", reason="a string or null is needed")
        if value is not None and len(value) > _MAX_VALUE:
            raise exception.Invalid(
                field=f"labels.{key}", reason=f"longer than {_MAX_VALUE} characters"
            )
    return dict(change)


def parse_labels(given: object) -> Labels:
    """The labels that something new shall have; raises exception.Invalid naming the field."""
    change = parse_change(given)
    for key, value in change.items():
        if value is None:
            raise exception.Invalid(field=f"labels.{key}", reason="a string is needed")
    return changed({}, change)


def parse_filter(text: str) -> Labels:
    """``key=value`` pairs with commas between them, as a query string has them."""
    labels: Labels = {}
    for pair in text.split(","):
        key, equals, value = pair.partition("=")
        if not equals:
            raise exception.Invalid(field="labels", reason="key=value pairs are needed")
        labels[parse_key(key.strip())] = value
    return labels


def changed(labels: Mapping[str, str], change: Mapping[str, str | None]) -> Labels:
    """The labels after a change; raises Invalid when they become too many."""
    after = {**labels, **change}
    kept = {key: after[key] for key in sorted(after)}
    left = {key: value for key, value in kept.items() if value is not None}
    if len(left) > MOST:
        raise exception.Invalid(field="labels", reason=f"at most {MOST} are allowed")
    return left
