# SPDX-License-Identifier: Apache-2.0
"""Policy rules to attach accelerators to existing instances, and to detach them.

An attach gives an instance more than its flavor grants, so it is limited to operators until there
are quotas. A rule that allows it to members of a project applies to the instances of that project.
"""

from oslo_policy import policy

from cyborg.policies import base

ATTACH = "cyborg:instance:attach"
DETACH = "cyborg:instance:detach"

RULES = [
    policy.DocumentedRuleDefault(
        name=ATTACH,
        check_str=base.OPERATOR,
        description="Attach accelerators to an existing instance.",
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
