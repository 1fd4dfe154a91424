# SPDX-License-Identifier: Apache-2.0
"""Policy rules of device profiles."""

from oslo_policy import policy

from cyborg.policies import base

GET_ALL = "cyborg:device_profile:get_all"
GET_ONE = "cyborg:device_profile:get_one"
CREATE = "cyborg:device_profile:create"
UPDATE = "cyborg:device_profile:update"
DELETE = "cyborg:device_profile:delete"

RULES = [
    policy.DocumentedRuleDefault(
        name=GET_ALL,
        check_str=f"{base.READER_OR_ADMIN} or {base.OPERATOR}",
        description="List device profiles. All projects share them.",
        operations=[{"path": "/v2/device_profiles", "method": "GET"}],
        scope_types=["project"],
        deprecated_rule=base.bridge(GET_ALL, "rule:admin_or_owner"),
    ),
    policy.DocumentedRuleDefault(
        name=GET_ONE,
        check_str=f"{base.READER_OR_ADMIN} or {base.OPERATOR}",
        description="Show a device profile.",
        operations=[{"path": "/v2/device_profiles/{uuid or name}", "method": "GET"}],
        scope_types=["project"],
        deprecated_rule=base.bridge(GET_ONE, "rule:admin_or_owner"),
    ),
    policy.DocumentedRuleDefault(
        name=CREATE,
        check_str=base.ADMIN,
        description="Create a device profile.",
        operations=[{"path": "/v2/device_profiles", "method": "POST"}],
        scope_types=["project"],
        deprecated_rule=base.bridge(CREATE, "rule:is_admin"),
    ),
    policy.DocumentedRuleDefault(
        name=UPDATE,
        check_str=base.OPERATOR,
        description="Update the name, description or groups of a device profile.",
        operations=[{"path": "/v2/device_profiles/{uuid or name}", "method": "PATCH"}],
        scope_types=["project"],
    ),
    policy.DocumentedRuleDefault(
        name=DELETE,
        check_str=base.ADMIN,
        description="Delete device profiles.",
        operations=[
            {"path": "/v2/device_profiles/{uuid or name}", "method": "DELETE"},
            {"path": "/v2/device_profiles?value={names}", "method": "DELETE"},
        ],
        scope_types=["project"],
        deprecated_rule=base.bridge(DELETE, "rule:is_admin"),
    ),
]
