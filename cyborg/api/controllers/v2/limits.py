# SPDX-License-Identifier: Apache-2.0
"""Limits: what the caller's project may have and has, and the limits of every request."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cyborg import exception
from cyborg.api import answers, microversion, types
from cyborg.api.answers import Answer, Member
from cyborg.api.expose import Call, Controller, Settings, expose
from cyborg.api.framework import Routes
from cyborg.db import projects


@dataclass(frozen=True)
class Quota:
    """A limit, None for none, and how much of it is used."""

    limit: int | None
    usage: int


@dataclass(frozen=True)
class ProjectLimits:
    """What a project may have and has."""

    project_id: str
    quotas: Mapping[str, Quota]
    unbound: Quota
    settings: Settings


QUOTA_VIEW = Answer[Quota](
    "LimitAndUsage",
    "A limit, null for none, and how much of it is used.",
    limit=Member(answers.Nullable(types.Anything({"type": "integer"}))),
    usage=Member(types.INTEGER),
)


LIMITS_VIEW = Answer[ProjectLimits](
    "LimitsView",
    "What a project may have and has, and the limits of every request.",
    project_id=Member(answers.STRING),
    quotas=Member(types.Members(QUOTA_VIEW, maximum=types.MAX_INT)),
    unbound_accelerator_requests=Member(QUOTA_VIEW, lambda limits: limits.unbound),
    max_accelerator_requests_per_request=Member(
        types.INTEGER, lambda limits: limits.settings.conductor.max_arqs_per_request
    ),
    max_limit=Member(types.INTEGER, lambda limits: limits.settings.options.max_limit),
    max_groups=Member(types.INTEGER, lambda limits: limits.settings.options.max_groups),
    max_units_per_group=Member(
        types.INTEGER, lambda limits: limits.settings.options.max_units_per_group
    ),
)


class Limits(Controller):
    """``/v2/limits``."""

    collection = "limits"
    routes: ClassVar[Routes] = {"": {"GET": "show"}}

    @expose(
        "cyborg:limits:get",
        since=microversion.EXTENDED,
        answer=answers.Envelope(LIMITS_VIEW, "limits"),
    )
    def show(self, call: Call) -> ProjectLimits:
        """Return the limits and the usage of the caller's project."""
        project_id = call.caller.project_id
        if project_id is None:
            raise exception.Forbidden(reason="Limits belong to projects: use a project's token.")
        quotas: Mapping[str, int] = {}
        source = self.settings.unified_limits
        if source is not None:
            quotas = source.of_project(project_id, source.registered())
        with self.reader.reader() as tx:
            usage = projects.usage(tx, project_id)
            unbound = projects.count_unbound(tx, project_id)
        # A resource without a registered limit has the limit 0.
        default = None if source is None else 0
        return ProjectLimits(
            project_id,
            {
                name: Quota(quotas.get(name, default), usage.get(name, 0))
                for name in sorted({*quotas, *usage})
            },
            Quota(self.settings.conductor.max_unbound_arqs, unbound),
            self.settings,
        )
