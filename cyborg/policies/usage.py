# SPDX-License-Identifier: Apache-2.0
"""Policy rule of usage, the counts of units."""

from oslo_policy import policy

from cyborg.policies import base

GET = "cyborg:usage:get"

RULES = [
    policy.DocumentedRuleDefault(
        name=GET,
        check_str=base.READER_OR_OPERATOR,
        description="Show how many units are used, free and out of service. Users who are not "
        "operators see the units of their own project only, without hosts.",
        operations=[{"path": "/v2/usage", "method": "GET"}],
        scope_types=["project"],
    ),
]
