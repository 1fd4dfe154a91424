# SPDX-License-Identifier: Apache-2.0
"""Who may see devices and take them in and out of service."""

from oslo_policy import policy

from cyborg.policies import base

GET_ALL = "cyborg:device:get_all"
GET_ONE = "cyborg:device:get_one"
DISABLE = "cyborg:device:disable"
ENABLE = "cyborg:device:enable"

RULES = [
    policy.DocumentedRuleDefault(
        name=GET_ALL,
        check_str=base.MANAGER_OR_ADMIN,
        description="List devices.",
        operations=[{"path": "/v2/devices", "method": "GET"}],
        scope_types=["project"],
        deprecated_rule=base.bridge(GET_ALL, base.ADMIN, since=base.PERSONAS_SINCE),
    ),
    policy.DocumentedRuleDefault(
        name=GET_ONE,
        check_str=base.MANAGER_OR_ADMIN,
        description="Show a device.",
        operations=[{"path": "/v2/devices/{uuid}", "method": "GET"}],
        scope_types=["project"],
        deprecated_rule=base.bridge(GET_ONE, base.ADMIN, since=base.PERSONAS_SINCE),
    ),
    policy.DocumentedRuleDefault(
        name=DISABLE,
        check_str=base.ADMIN,
        description="Take a device out of service.",
        operations=[{"path": "/v2/devices/{uuid}/disable", "method": "POST"}],
        scope_types=["project"],
    ),
    policy.DocumentedRuleDefault(
        name=ENABLE,
        check_str=base.ADMIN,
        description="Put a device back into service.",
        operations=[{"path": "/v2/devices/{uuid}/enable", "method": "POST"}],
        scope_types=["project"],
    ),
]
