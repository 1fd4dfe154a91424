# SPDX-License-Identifier: Apache-2.0
"""Limits: what the caller's project may have and has, and the limits of every request."""

from collections.abc import Mapping
from typing import Any, ClassVar

from cyborg import exception
from cyborg.api import answers, microversion, types
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.db import projects

_LIMIT_AND_USAGE = answers.Answer(
    "LimitAndUsage",
    "A limit, null for none, and how much of it is used.",
    limit=answers.Shown(answers.Nullable(types.Anything({"type": "integer"}))),
    usage=answers.Shown(types.INTEGER),
)
LIMITS_VIEW = answers.Answer(
    "LimitsView",
    "What a project may have and has, and the limits of every request.",
    project_id=answers.Shown(answers.STRING),
    quotas=answers.Shown(types.Members(_LIMIT_AND_USAGE, maximum=types.MAX_INT)),
    unbound_accelerator_requests=answers.Shown(_LIMIT_AND_USAGE),
    max_accelerator_requests_per_request=answers.Shown(types.INTEGER),
    max_limit=answers.Shown(types.INTEGER),
    max_groups=answers.Shown(types.INTEGER),
    max_units_per_group=answers.Shown(types.INTEGER),
)


class Limits(Controller):
    """``/v2/limits``."""

    collection = "limits"
    routes: ClassVar[Routes] = {"": {"GET": "show"}}

    @expose(
        "cyborg:limits:get",
        since=microversion.OPERATOR_VIEWS,
        answer=answers.Envelope(LIMITS_VIEW, "limits"),
    )
    def show(self, call: Call) -> dict[str, Any]:
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
        fixed = self.settings
        return {
            "limits": {
                "project_id": project_id,
                "quotas": {
                    name: {"limit": quotas.get(name, default), "usage": usage.get(name, 0)}
                    for name in sorted({*quotas, *usage})
                },
                "unbound_accelerator_requests": {
                    "limit": fixed.max_unbound_arqs,
                    "usage": unbound,
                },
                "max_accelerator_requests_per_request": fixed.max_arqs_per_request,
                "max_limit": fixed.paging.max_limit,
                "max_groups": fixed.limits.groups,
                "max_units_per_group": fixed.limits.units,
            }
        }
