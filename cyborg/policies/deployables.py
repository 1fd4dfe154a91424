# SPDX-License-Identifier: Apache-2.0
"""Policy rules of deployables."""

from oslo_policy import policy

from cyborg.policies import base

GET_ALL = "cyborg:deployable:get_all"
GET_ONE = "cyborg:deployable:get_one"
PROGRAM = "cyborg:deployable:program"

RULES = [
    policy.DocumentedRuleDefault(
        name=GET_ALL,
        check_str=base.MANAGER_OR_ADMIN,
        description="List deployables.",
        operations=[{"path": "/v2/deployables", "method": "GET"}],
        scope_types=["project"],
        deprecated_rule=base.bridge(GET_ALL, base.ADMIN, since=base.PERSONAS_SINCE),
    ),
    policy.DocumentedRuleDefault(
        name=GET_ONE,
        check_str=base.MANAGER_OR_ADMIN,
        description="Show a deployable.",
        operations=[{"path": "/v2/deployables/{uuid}", "method": "GET"}],
        scope_types=["project"],
        deprecated_rule=base.bridge(GET_ONE, base.ADMIN, since=base.PERSONAS_SINCE),
    ),
    policy.DocumentedRuleDefault(
        name=PROGRAM,
        check_str=base.ADMIN,
        description="Load an image from Glance into a deployable.",
        operations=[{"path": "/v2/deployables/{uuid}/program", "method": "PATCH"}],
        scope_types=["project"],
    ),
]
