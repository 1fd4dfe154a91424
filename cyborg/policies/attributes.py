# SPDX-License-Identifier: Apache-2.0
"""Policy rules of the attributes of deployables."""

from oslo_policy import policy

from cyborg.policies import base

GET_ALL = "cyborg:attribute:get_all"
GET_ONE = "cyborg:attribute:get_one"
CREATE = "cyborg:attribute:create"
DELETE = "cyborg:attribute:delete"

RULES = [
    policy.DocumentedRuleDefault(
        name=GET_ALL,
        check_str=base.MANAGER_OR_ADMIN,
        description="List the attributes of deployables.",
        operations=[{"path": "/v2/attributes", "method": "GET"}],
        scope_types=["project"],
        deprecated_rule=base.bridge(GET_ALL, base.ADMIN, since=base.PERSONAS_SINCE),
    ),
    policy.DocumentedRuleDefault(
        name=GET_ONE,
        check_str=base.MANAGER_OR_ADMIN,
        description="Show an attribute of a deployable.",
        operations=[{"path": "/v2/attributes/{uuid}", "method": "GET"}],
        scope_types=["project"],
        deprecated_rule=base.bridge(GET_ONE, base.ADMIN, since=base.PERSONAS_SINCE),
    ),
    policy.DocumentedRuleDefault(
        name=CREATE,
        check_str=base.ADMIN,
        description="Add an attribute to a deployable.",
        operations=[{"path": "/v2/attributes", "method": "POST"}],
        scope_types=["project"],
    ),
    policy.DocumentedRuleDefault(
        name=DELETE,
        check_str=base.ADMIN,
        description="Delete an attribute of a deployable.",
        operations=[{"path": "/v2/attributes/{uuid}", "method": "DELETE"}],
        scope_types=["project"],
    ),
]
