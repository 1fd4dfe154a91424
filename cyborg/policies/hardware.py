# SPDX-License-Identifier: Apache-2.0
"""Policy rules of the hardware of hosts, offered or not."""

from oslo_policy import policy

from cyborg.policies import base

GET_ALL = "cyborg:hardware:get_all"
GET_ONE = "cyborg:hardware:get_one"

RULES = [
    policy.DocumentedRuleDefault(
        name=GET_ALL,
        check_str=base.MANAGER_OR_OPERATOR,
        description="List the hardware of hosts, offered or not.",
        operations=[{"path": "/v2/hardware", "method": "GET"}],
        scope_types=["project"],
    ),
    policy.DocumentedRuleDefault(
        name=GET_ONE,
        check_str=base.MANAGER_OR_OPERATOR,
        description="Show a piece of hardware.",
        operations=[{"path": "/v2/hardware/{uuid}", "method": "GET"}],
        scope_types=["project"],
    ),
]
