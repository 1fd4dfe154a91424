# SPDX-License-Identifier: Apache-2.0
"""Policy rules of services: processes, and services on backends."""

from oslo_policy import policy

from cyborg.policies import base

GET_ALL = "cyborg:service:get_all"
GET_ONE = "cyborg:service:get_one"
DISCOVER = "cyborg:service:discover"
UPDATE = "cyborg:service:update"
DELETE = "cyborg:service:delete"

RULES = [
    policy.DocumentedRuleDefault(
        name=GET_ALL,
        check_str=base.MANAGER_OR_OPERATOR,
        description="List processes, and services on backends.",
        operations=[{"path": "/v2/services", "method": "GET"}],
        scope_types=["project"],
    ),
    policy.DocumentedRuleDefault(
        name=GET_ONE,
        check_str=base.MANAGER_OR_OPERATOR,
        description="Show a process, or a service on a backend.",
        operations=[{"path": "/v2/services/{uuid}", "method": "GET"}],
        scope_types=["project"],
    ),
    policy.DocumentedRuleDefault(
        name=DISCOVER,
        check_str=base.OPERATOR,
        description="Discover the hardware of hosts now.",
        operations=[{"path": "/v2/services/discover", "method": "POST"}],
        scope_types=["project"],
    ),
    policy.DocumentedRuleDefault(
        name=UPDATE,
        check_str=base.OPERATOR,
        description="Take a host out of service, or put it back into service.",
        operations=[{"path": "/v2/services/{uuid}", "method": "PATCH"}],
        scope_types=["project"],
    ),
    policy.DocumentedRuleDefault(
        name=DELETE,
        check_str=base.OPERATOR,
        description="Delete a process that is down. For an agent, delete its host and all "
        "devices of the host.",
        operations=[{"path": "/v2/services/{uuid}", "method": "DELETE"}],
        scope_types=["project"],
    ),
]
