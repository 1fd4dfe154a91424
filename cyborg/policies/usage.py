# SPDX-License-Identifier: Apache-2.0
"""Who may see how many units are offered, bound, reserved and lost."""

from oslo_policy import policy

from cyborg.policies import base

GET = "cyborg:usage:get"

RULES = [
    policy.DocumentedRuleDefault(
        name=GET,
        check_str=base.READER_OR_OPERATOR,
        description="Show how many units are offered, bound, reserved and lost; who is no operator "
        "sees what the own project has, without hosts.",
        operations=[{"path": "/v2/usage", "method": "GET"}],
        scope_types=["project"],
    ),
]
