# SPDX-License-Identifier: Apache-2.0
"""Microversions of the v2 API: negotiate the version of a request, and set the headers.

* 2.0: base.
* 2.1: ``/project_id`` may be patched.
* 2.2: device profiles are shown by name (here at every microversion).
* 2.3: devices show ``status``.
* 2.4 to 2.99 are reserved for the existing service and are not acceptable.
* 2.100 (open until the first release): all additions to the existing service; see the API
  reference. It does not contain what 2.4 to 2.99 may become.

Microversions up to 2.3 are frozen (``cyborg/tests/unit/api/test_frozen.py``).
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
#: The first one that the existing service does not have.
EXTENDED: Final = 100
LATEST: Final = EXTENDED
#: All minor versions, in order.
MINORS: Final = (*range(DEVICE_STATUS + 1), EXTENDED)

#: All versions, in order.
SPELLED: Final = tuple(f"{_MAJOR}.{minor}" for minor in MINORS)
MINIMUM: Final = SPELLED[0]
MAXIMUM: Final = SPELLED[-1]
_SUPPORTED: Final = ", ".join(SPELLED)


def negotiate(header: str | None) -> int:
    """Return the minor version for a request with this header; raises NotAcceptable.

    The header may name several services; an ``X.Y`` without a service counts for this one. By the
    guideline of OpenStack, a header that names other services only means the minimum version.
    """
    if header is None:
        return BASE
    parts = [words for part in header.lower().split(",") if (words := part.split())]
    named = [words[1] for words in parts if len(words) == 2 and words[0] == SERVICE_TYPE]
    bare = [words[0] for words in parts if len(words) == 1]
    if parts and not named and all(len(words) == 2 for words in parts):
        return BASE
    version = next(iter([*named, *bare]), "")
    if version == "latest":
        return LATEST
    match = _NUMBER.fullmatch(version)
    if match is None:
        raise exception.NotAcceptable(
            reason=f"{HEADER} has no usable version for {SERVICE_TYPE}; {_SUPPORTED} are supported."
        )
    major, minor = int(match[1]), int(match[2])
    if major != _MAJOR or minor not in MINORS:
        raise exception.NotAcceptable(
            reason=f"Version {major}.{minor} is not supported; {_SUPPORTED} are."
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
