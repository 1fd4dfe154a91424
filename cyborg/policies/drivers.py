# SPDX-License-Identifier: Apache-2.0
"""Who may see the drivers of hosts, and have them installed, changed and removed."""

from oslo_policy import policy

from cyborg.policies import base

GET_ALL = "cyborg:driver:get_all"
GET_ONE = "cyborg:driver:get_one"
INSTALL = "cyborg:driver:install"
UPDATE = "cyborg:driver:update"
UNINSTALL = "cyborg:driver:uninstall"

RULES = [
    policy.DocumentedRuleDefault(
        name=GET_ALL,
        check_str=base.MANAGER_OR_OPERATOR,
        description="List drivers per host, installed ones that are not loaded included.",
        operations=[{"path": "/v2/drivers", "method": "GET"}],
        scope_types=["project"],
    ),
    policy.DocumentedRuleDefault(
        name=GET_ONE,
        check_str=base.MANAGER_OR_OPERATOR,
        description="Show a driver of a host.",
        operations=[{"path": "/v2/drivers/{uuid}", "method": "GET"}],
        scope_types=["project"],
    ),
    policy.DocumentedRuleDefault(
        name=INSTALL,
        check_str=base.OPERATOR,
        description="Have hosts load a driver from now on.",
        operations=[{"path": "/v2/drivers", "method": "POST"}],
        scope_types=["project"],
    ),
    policy.DocumentedRuleDefault(
        name=UPDATE,
        check_str=base.OPERATOR,
        description="Change the options of a driver, enable or disable it.",
        operations=[{"path": "/v2/drivers/{driver}", "method": "PATCH"}],
        scope_types=["project"],
    ),
    policy.DocumentedRuleDefault(
        name=UNINSTALL,
        check_str=base.OPERATOR,
        description="Take a driver, and all that it offers, off its hosts.",
        operations=[{"path": "/v2/drivers/{driver}", "method": "DELETE"}],
        scope_types=["project"],
    ),
]
