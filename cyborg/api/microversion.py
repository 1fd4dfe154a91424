# SPDX-License-Identifier: Apache-2.0
"""Microversions of the v2 API: negotiate the version of a request, and set the headers.

* 2.0: base.
* 2.1: ``/project_id`` may be patched.
* 2.2: device profiles are shown by name (here at every microversion).
* 2.3: devices show ``status``.
* 2.4: the answer for one ARQ has ``fault`` and ``events``, devices have ``status_reason``; the
  bodies of device profiles and attributes refuse unknown keys; the operators' resources.
* 2.5 (open until it is released): more detail for operators; see the API reference.

Microversions up to 2.4 are frozen (``cyborg/tests/unit/api/test_frozen.py``).
"""

import re
from collections.abc import MutableMapping
from typing import Final

from cyborg import exception

HEADER: Final = "OpenStack-API-Version"
SERVICE_TYPE: Final = "accelerator"
_MAJOR = 2
_NUMBER = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")

#: Minor versions; the major one is always 2.
BASE: Final = 0
PROJECT_ID: Final = 1
DEVICE_STATUS: Final = 3
REASONS: Final = 4
STRICT_BODIES: Final = 4
OPERATORS: Final = 4
#: What microversion 2.5 adds.
OPERATOR_VIEWS: Final = 5
LATEST: Final = 5

MINIMUM: Final = f"{_MAJOR}.{BASE}"
MAXIMUM: Final = f"{_MAJOR}.{LATEST}"


def negotiate(header: str | None) -> int:
    """Return the minor version for a request with this header; raises NotAcceptable.

    The header may name several services; an ``X.Y`` without a service counts for this one.
    """
    if header is None:
        return BASE
    version = ""
    for part in header.lower().split(","):
        words = part.split()
        if len(words) == 2 and words[0] == SERVICE_TYPE:
            version = words[1]
            break
        if len(words) == 1:
            version = version or words[0]
    if version == "latest":
        return LATEST
    match = _NUMBER.fullmatch(version)
    if match is None:
        raise exception.NotAcceptable(
            reason=f"{HEADER} has no usable version for {SERVICE_TYPE}; {MINIMUM} to {MAXIMUM} "
            "are supported."
        )
    major, minor = int(match[1]), int(match[2])
    if major != _MAJOR or minor > LATEST:
        raise exception.NotAcceptable(
            reason=f"Version {major}.{minor} is not supported; {MINIMUM} to {MAXIMUM} are."
        )
    return minor


def stamp(headers: MutableMapping[str, str], minor: int | None) -> None:
    """Set the version headers of an answer; with ``minor`` None, no version was negotiated."""
    vary = headers.get("Vary")
    if vary is None or HEADER.lower() not in vary.lower():
        headers["Vary"] = HEADER if not vary else f"{vary}, {HEADER}"
    headers["OpenStack-API-Minimum-Version"] = MINIMUM
    headers["OpenStack-API-Maximum-Version"] = MAXIMUM
    if minor is not None:
        headers[HEADER] = f"{SERVICE_TYPE} {_MAJOR}.{minor}"
