# SPDX-License-Identifier: Apache-2.0
"""Policy rules of the backends that drivers manage."""

from oslo_policy import policy

from cyborg.policies import base

GET_ALL = "cyborg:backend:get_all"
GET_ONE = "cyborg:backend:get_one"

RULES = [
    policy.DocumentedRuleDefault(
        name=GET_ALL,
        check_str=base.MANAGER_OR_OPERATOR,
        description="List the backends of each host and driver.",
        operations=[{"path": "/v2/backends", "method": "GET"}],
        scope_types=["project"],
    ),
    policy.DocumentedRuleDefault(
        name=GET_ONE,
        check_str=base.MANAGER_OR_OPERATOR,
        description="Show a backend.",
        operations=[{"path": "/v2/backends/{uuid}", "method": "GET"}],
        scope_types=["project"],
    ),
]
