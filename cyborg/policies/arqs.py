# SPDX-License-Identifier: Apache-2.0
"""Who may read and change accelerator requests, and of which projects.

Whoever a rule allows this in any project, or ``cyborg:arq:all_projects``, reaches the requests of
every project with it; everybody else those of the own one.
"""

from oslo_policy import policy

from cyborg.policies import base

GET_ALL = "cyborg:arq:get_all"
GET_ONE = "cyborg:arq:get_one"
CREATE = "cyborg:arq:create"
DELETE = "cyborg:arq:delete"
UPDATE = "cyborg:arq:update"
ALL_PROJECTS = "cyborg:arq:all_projects"

RULES = [
    policy.DocumentedRuleDefault(
        name=GET_ALL,
        check_str=base.READER_OR_SERVICE,
        description="List accelerator requests.",
        operations=[{"path": "/v2/accelerator_requests", "method": "GET"}],
        scope_types=["project"],
        deprecated_rule=base.bridge(GET_ALL, "rule:admin_or_owner", since=base.PERSONAS_SINCE),
    ),
    policy.DocumentedRuleDefault(
        name=GET_ONE,
        check_str=base.READER_OR_SERVICE,
        description="Show an accelerator request.",
        operations=[{"path": "/v2/accelerator_requests/{uuid}", "method": "GET"}],
        scope_types=["project"],
        deprecated_rule=base.bridge(GET_ONE, "rule:admin_or_owner", since=base.PERSONAS_SINCE),
    ),
    policy.DocumentedRuleDefault(
        name=CREATE,
        check_str=base.MEMBER_OR_SERVICE,
        description="Create the accelerator requests that a device profile asks for.",
        operations=[{"path": "/v2/accelerator_requests", "method": "POST"}],
        scope_types=["project"],
        deprecated_rule=base.bridge(CREATE, base.MEMBER_OR_ADMIN, since=base.PERSONAS_SINCE),
    ),
    policy.DocumentedRuleDefault(
        name=DELETE,
        check_str=base.MEMBER_OR_SERVICE,
        description="Delete accelerator requests. Bound ones, and those of an instance, need a "
        "service token as well.",
        operations=[
            {"path": "/v2/accelerator_requests/{uuid}", "method": "DELETE"},
            {"path": "/v2/accelerator_requests?arqs={uuids}", "method": "DELETE"},
            {"path": "/v2/accelerator_requests?instance={uuid}", "method": "DELETE"},
        ],
        scope_types=["project"],
        deprecated_rule=base.bridge(DELETE, "rule:admin_or_owner", since=base.PERSONAS_SINCE),
    ),
    policy.DocumentedRuleDefault(
        name=UPDATE,
        check_str=base.MEMBER_OR_SERVICE,
        description="Bind and unbind accelerator requests; needs a service token as well.",
        operations=[
            {"path": "/v2/accelerator_requests", "method": "PATCH"},
            {"path": "/v2/accelerator_requests/{uuid}", "method": "PATCH"},
        ],
        scope_types=["project"],
        deprecated_rule=base.bridge(UPDATE, "rule:admin_or_owner", since=base.PERSONAS_SINCE),
    ),
    policy.DocumentedRuleDefault(
        name=ALL_PROJECTS,
        check_str="rule:admin_api or rule:service_api",
        description="Reach the accelerator requests of every project with whatever the other "
        "rules allow.",
        operations=[
            {"path": "/v2/accelerator_requests", "method": method}
            for method in ("GET", "PATCH", "DELETE")
        ],
        scope_types=["project"],
    ),
]
