# SPDX-License-Identifier: Apache-2.0
"""What the JSON of several nouns has in common."""

from datetime import datetime


def moment(time: datetime | None) -> str | None:
    """ISO 8601 with ``+00:00``; times are stored in UTC without a zone."""
    return None if time is None else f"{time.isoformat()}+00:00"


def link(prefix: str, uuid: str, rel: str = "self") -> dict[str, str]:
    """A link to the thing of this uuid."""
    return {"href": prefix + uuid, "rel": rel}
