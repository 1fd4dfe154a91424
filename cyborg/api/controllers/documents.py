# SPDX-License-Identifier: Apache-2.0
"""The version documents for API discovery; they need neither token nor database."""

from typing import Any

from cyborg.api import microversion
from cyborg.api.rendering import Links


def root(links: Links) -> dict[str, Any]:
    """Return the answer of ``GET /``."""
    version = _version("v2", links.v2)
    return {
        "name": "OpenStack Cyborg API",
        "description": "Cyborg manages the life cycle of hardware accelerators: GPUs, FPGAs, "
        "smart NICs, NVMe disks and the like.",
        "versions": [version],
        "default_version": version,
    }


def v2(links: Links) -> dict[str, Any]:
    """Return the answer of ``GET /v2``: the version without an envelope."""
    return _version("v2.0", f"{links.v2}/")


def _version(id_: str, href: str) -> dict[str, Any]:
    return {
        "id": id_,
        "status": "CURRENT",
        "max_version": microversion.MAXIMUM,
        "min_version": microversion.MINIMUM,
        "links": [{"href": href, "rel": "self"}],
    }
