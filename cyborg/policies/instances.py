# SPDX-License-Identifier: Apache-2.0
"""Who may attach accelerators to instances that exist, and detach them.

Attaching reaches beyond what the flavor grants, so it is the operators' until there are quotas. A
rule that allows it to members of a project reaches that project's instances only.
"""

from oslo_policy import policy

from cyborg.policies import base

ATTACH = "cyborg:instance:attach"
DETACH = "cyborg:instance:detach"

RULES = [
    policy.DocumentedRuleDefault(
        name=ATTACH,
        check_str=base.OPERATOR,
        description="Attach accelerators to an instance that exists.",
        operations=[{"path": "/v2/instances/{uuid}/accelerators", "method": "POST"}],
        scope_types=["project"],
    ),
    policy.DocumentedRuleDefault(
        name=DETACH,
        check_str=base.OPERATOR,
        description="Detach accelerators that were attached to an instance.",
        operations=[
            {"path": "/v2/instances/{uuid}/accelerators", "method": "DELETE"},
            {"path": "/v2/instances/{uuid}/accelerators/{arq}", "method": "DELETE"},
        ],
        scope_types=["project"],
    ),
]
