# SPDX-License-Identifier: Apache-2.0
"""Policy rules of devices."""

from oslo_policy import policy

from cyborg.policies import base

GET_ALL = "cyborg:device:get_all"
GET_ONE = "cyborg:device:get_one"
GET_OWN = "cyborg:device:get_own"
CREATE = "cyborg:device:create"
UPDATE = "cyborg:device:update"
DELETE = "cyborg:device:delete"
LABEL = "cyborg:device:label"
DISABLE = "cyborg:device:disable"
ENABLE = "cyborg:device:enable"

RULES = [
    policy.DocumentedRuleDefault(
        name=GET_ALL,
        check_str=f"{base.MANAGER_OR_ADMIN} or {base.OPERATOR}",
        description="List devices.",
        operations=[{"path": "/v2/devices", "method": "GET"}],
        scope_types=["project"],
        deprecated_rule=base.bridge(GET_ALL, base.ADMIN, since=base.PERSONAS_SINCE),
    ),
    policy.DocumentedRuleDefault(
        name=GET_ONE,
        check_str=f"{base.MANAGER_OR_ADMIN} or {base.OPERATOR}",
        description="Show a device.",
        operations=[{"path": "/v2/devices/{uuid}", "method": "GET"}],
        scope_types=["project"],
        deprecated_rule=base.bridge(GET_ONE, base.ADMIN, since=base.PERSONAS_SINCE),
    ),
    policy.DocumentedRuleDefault(
        name=GET_OWN,
        check_str=base.READER_OR_ADMIN,
        description="List and show the devices that the ARQs of the caller's project hold, without "
        "host names and addresses (from microversion 2.4).",
        operations=[
            {"path": "/v2/devices", "method": "GET"},
            {"path": "/v2/devices/{uuid}", "method": "GET"},
        ],
        scope_types=["project"],
    ),
    policy.DocumentedRuleDefault(
        name=CREATE,
        check_str=base.OPERATOR,
        description="Create a device on a backend whose driver supports it.",
        operations=[{"path": "/v2/devices", "method": "POST"}],
        scope_types=["project"],
    ),
    policy.DocumentedRuleDefault(
        name=UPDATE,
        check_str=base.OPERATOR,
        description="Update the status and labels of a device, and the model and traits of a "
        "device that was created.",
        operations=[{"path": "/v2/devices/{uuid}", "method": "PATCH"}],
        scope_types=["project"],
    ),
    policy.DocumentedRuleDefault(
        name=DELETE,
        check_str=base.OPERATOR,
        description="Delete a device that was created or is lost.",
        operations=[{"path": "/v2/devices/{uuid}", "method": "DELETE"}],
        scope_types=["project"],
    ),
    policy.DocumentedRuleDefault(
        name=LABEL,
        check_str=base.MEMBER_OR_ADMIN,
        description="Update the labels of a device that the ARQs of the caller's project hold.",
        operations=[{"path": "/v2/devices/{uuid}", "method": "PATCH"}],
        scope_types=["project"],
    ),
    policy.DocumentedRuleDefault(
        name=DISABLE,
        check_str=base.OPERATOR,
        description="Take a device out of service.",
        operations=[{"path": "/v2/devices/{uuid}/disable", "method": "POST"}],
        scope_types=["project"],
    ),
    policy.DocumentedRuleDefault(
        name=ENABLE,
        check_str=base.OPERATOR,
        description="Put a device into service.",
        operations=[{"path": "/v2/devices/{uuid}/enable", "method": "POST"}],
        scope_types=["project"],
    ),
]
