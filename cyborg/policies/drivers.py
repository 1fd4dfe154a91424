# SPDX-License-Identifier: Apache-2.0
"""Policy rules of the drivers of hosts."""

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
        description="List the drivers of each host, including installed drivers that are not "
        "loaded.",
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
        description="Load a driver on hosts, now and at each start of their agents.",
        operations=[{"path": "/v2/drivers", "method": "POST"}],
        scope_types=["project"],
    ),
    policy.DocumentedRuleDefault(
        name=UPDATE,
        check_str=base.OPERATOR,
        description="Update the options of a driver, or enable or disable it.",
        operations=[{"path": "/v2/drivers/{driver}", "method": "PATCH"}],
        scope_types=["project"],
    ),
    policy.DocumentedRuleDefault(
        name=UNINSTALL,
        check_str=base.OPERATOR,
        description="Unload a driver from its hosts, and remove the devices that it offers.",
        operations=[{"path": "/v2/drivers/{driver}", "method": "DELETE"}],
        scope_types=["project"],
    ),
]
