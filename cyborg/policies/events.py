# SPDX-License-Identifier: Apache-2.0
"""Who may read the history of devices, hosts, instances and requests."""

from oslo_policy import policy

from cyborg.policies import base

GET_ALL = "cyborg:event:get_all"

RULES = [
    policy.DocumentedRuleDefault(
        name=GET_ALL,
        check_str=base.OPERATOR,
        description="List events: what happened to devices, hosts, instances and accelerator "
        "requests of all projects (microversion 2.5).",
        operations=[{"path": "/v2/events", "method": "GET"}],
        scope_types=["project"],
    ),
]
