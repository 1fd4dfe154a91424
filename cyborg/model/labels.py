# SPDX-License-Identifier: Apache-2.0
"""Labels: words that operators attach to devices; neither facts of the hardware nor traits."""

import re
from collections.abc import Mapping

from cyborg import exception

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_MAX_VALUE = 255
#: How many labels a device may have.
MOST = 64

Labels = dict[str, str]


def parse_key(key: str) -> str:
    """Return a label's name; raise exception.Invalid, which names the field ``labels``."""
    if _KEY.fullmatch(key) is None:
        raise exception.Invalid(
            field="labels",
            reason=f"{key!r} is no name: 1 to 63 ASCII letters, digits, '.', '-' and '_'",
        )
    return key


def parse_change(change: object) -> dict[str, str | None]:
    """Return a checked change of labels: a string sets a label, null removes it."""
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
    """Return the labels of a new object; raise exception.Invalid, which names the field."""
    change = parse_change(given)
    for key, value in change.items():
        if value is None:
            raise exception.Invalid(field=f"labels.{key}", reason="a string is needed")
    return changed({}, change)


def parse_filter(text: str) -> Labels:
    """Return the labels of a query string: ``key=value`` pairs, separated by commas."""
    labels: Labels = {}
    for pair in text.split(","):
        key, equals, value = pair.partition("=")
        if not equals:
            raise exception.Invalid(field="labels", reason="key=value pairs are needed")
        labels[parse_key(key.strip())] = value
    return labels


def changed(labels: Mapping[str, str], change: Mapping[str, str | None]) -> Labels:
    """Return the labels after a change; raise exception.Invalid for more than ``MOST``."""
    after = {**labels, **change}
    kept = {key: after[key] for key in sorted(after)}
    left = {key: value for key, value in kept.items() if value is not None}
    if len(left) > MOST:
        raise exception.Invalid(field="labels", reason=f"at most {MOST} are allowed")
    return left
