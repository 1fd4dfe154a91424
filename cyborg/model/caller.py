# SPDX-License-Identifier: Apache-2.0
"""Who asks for a change, as it travels on the bus: a decision already taken, never a token."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Caller:
    """The API's decision about one request.

    ``project_id`` and ``user_id`` are Keystone ids of the requester. ``all_projects`` is the scope
    that the policy granted: True reaches the rows of every project, False only those of
    ``project_id``; the conductor puts it into its WHERE clauses. ``service`` is True when a
    valid service token came along. ``request_id`` is the ``req-…`` of the HTTP request, for
    logs and history. ``expires_ms`` is the moment, by the database's clock, from which on nobody
    waits for the answer any more, so that nothing may be changed; None where that is not known.
    """

    KIND: ClassVar[str] = "Caller"

    project_id: str | None
    user_id: str | None
    request_id: str
    all_projects: bool = False
    service: bool = False
    expires_ms: int | None = None
