# SPDX-License-Identifier: Apache-2.0
"""Policy rules of operations: long-running requests on hosts."""

from oslo_policy import policy

from cyborg.policies import base

GET_ALL = "cyborg:operation:get_all"
GET_ONE = "cyborg:operation:get_one"

RULES = [
    policy.DocumentedRuleDefault(
        name=GET_ALL,
        check_str=base.READER_OR_OPERATOR,
        description="List the operations that were started in the caller's project, or, for "
        "operators, of all projects.",
        operations=[{"path": "/v2/operations", "method": "GET"}],
        scope_types=["project"],
    ),
    policy.DocumentedRuleDefault(
        name=GET_ONE,
        check_str=base.READER_OR_OPERATOR,
        description="Show an operation.",
        operations=[{"path": "/v2/operations/{uuid}", "method": "GET"}],
        scope_types=["project"],
    ),
]
