# SPDX-License-Identifier: Apache-2.0
"""Keep projects within the limits that Keystone has for them (unified limits).

The limits are read from Keystone while no transaction is open, and compared inside the transaction
that creates or binds, under the lock of the project. So a use case runs until it needs limits that
were not read yet, and then once more.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from cyborg import exception
from cyborg.conductor.context import Conductor
from cyborg.db import projects
from cyborg.db.transaction import Transaction

LOG = logging.getLogger(__name__)

R = TypeVar("R")


class LimitsNeeded(Exception):
    """The transaction needs limits that have to be read first."""

    def __init__(self, project_id: str, resources: list[str]) -> None:
        super().__init__(project_id, resources)
        self.project_id = project_id
        self.resources = resources


@dataclass
class Check:
    """The limits of one request; ``by_resource`` maps projects and resources to limits."""

    enabled: bool
    by_resource: dict[tuple[str, str], int] = field(default_factory=dict)

    def apply(self, tx: Transaction, project_id: str | None, requested: Mapping[str, int]) -> None:
        """Raise OverLimit if ``requested`` (resource → amount) is too much for a project.

        Locks the project. Raises LimitsNeeded, which ``run`` handles.
        """
        if not self.enabled or project_id is None or not requested:
            return
        resources = sorted(requested)
        if any((project_id, resource) not in self.by_resource for resource in resources):
            raise LimitsNeeded(project_id, resources)
        projects.lock(tx, project_id)
        usage = projects.usage(tx, project_id)
        for resource in resources:
            limit, used = self.by_resource[project_id, resource], usage.get(resource, 0)
            if projects.exceeds(limit, used, requested[resource]):
                raise exception.OverLimit(
                    resource=f"{resource} of project {project_id}",
                    requested=requested[resource],
                    limit=limit,
                    usage=used,
                    remedy="Delete servers or requests that use them, or have the limit raised.",
                )


def run(ctx: Conductor, use_case: Callable[[Check], R], *, required: bool) -> R:
    """Return what the use case returns, which passes its check to the transaction.

    If Keystone cannot be read: raise Unavailable if the limits are ``required``; otherwise run
    the use case without them, because its requests were within them when they were created.
    """
    check = Check(ctx.limits is not None)
    while True:
        try:
            return use_case(check)
        except LimitsNeeded as needed:
            assert ctx.limits is not None  # noqa: S101 - for mypy
            try:
                limits = ctx.limits.of_project(needed.project_id, needed.resources)
            except exception.Unavailable as error:
                result = "request refused" if required else "bind not checked"
                LOG.warning(
                    "Quota of project %s cannot be read, %s: %s",
                    *(needed.project_id, result, error),
                )
                if required:
                    raise
                check.enabled = False
            else:
                check.by_resource |= {
                    (needed.project_id, name): limits.get(name, 0) for name in needed.resources
                }
