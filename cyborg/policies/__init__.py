# SPDX-License-Identifier: Apache-2.0
"""The policy rules of all resources with their defaults and their descriptions."""

from oslo_policy import policy

from cyborg.policies import arqs, base, devices, operators


def list_rules() -> list[policy.RuleDefault]:
    """Return all rules (entry point ``oslo.policy.policies: cyborg.api``)."""
    return [*base.RULES, *arqs.RULES, *devices.RULES, *operators.RULES]
