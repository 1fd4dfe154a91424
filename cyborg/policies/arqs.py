# SPDX-License-Identifier: Apache-2.0
"""Policy rules of accelerator requests: who can read and change them, and in which projects.

A caller reaches the requests of every project if the rule grants this, or if the rule
``cyborg:arq:all_projects`` does. Other callers reach the requests of their own project only.
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
        description="List accelerator requests (ARQs).",
        operations=[{"path": "/v2/accelerator_requests", "method": "GET"}],
        scope_types=["project"],
        deprecated_rule=base.bridge(GET_ALL, "rule:admin_or_owner", since=base.PERSONAS_SINCE),
    ),
    policy.DocumentedRuleDefault(
        name=GET_ONE,
        check_str=base.READER_OR_SERVICE,
        description="Show an ARQ.",
        operations=[{"path": "/v2/accelerator_requests/{uuid}", "method": "GET"}],
        scope_types=["project"],
        deprecated_rule=base.bridge(GET_ONE, "rule:admin_or_owner", since=base.PERSONAS_SINCE),
    ),
    policy.DocumentedRuleDefault(
        name=CREATE,
        check_str=base.MEMBER_OR_SERVICE,
        description="Create the ARQs that a device profile requests.",
        operations=[{"path": "/v2/accelerator_requests", "method": "POST"}],
        scope_types=["project"],
        deprecated_rule=base.bridge(CREATE, base.MEMBER_OR_ADMIN, since=base.PERSONAS_SINCE),
    ),
    policy.DocumentedRuleDefault(
        name=DELETE,
        check_str=base.MEMBER_OR_SERVICE,
        description="Delete ARQs. Deleting bound ARQs, or deleting by instance, also requires a "
        "service token.",
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
        description="Bind and unbind ARQs. Also requires a service token.",
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
        description="Apply the other rules of ARQs to the ARQs of all projects instead of the "
        "caller's project only.",
        operations=[
            {"path": "/v2/accelerator_requests", "method": method}
            for method in ("GET", "PATCH", "DELETE")
        ],
        scope_types=["project"],
    ),
]
