# SPDX-License-Identifier: Apache-2.0
"""Policy rule of events, the history of devices, hosts, instances and requests."""

from oslo_policy import policy

from cyborg.policies import base

GET_ALL = "cyborg:event:get_all"

RULES = [
    policy.DocumentedRuleDefault(
        name=GET_ALL,
        check_str=base.OPERATOR,
        description="List events: the history of devices, hosts, instances and ARQs of all "
        "projects (from microversion 2.5).",
        operations=[{"path": "/v2/events", "method": "GET"}],
        scope_types=["project"],
    ),
]
