# SPDX-License-Identifier: Apache-2.0
"""The default rules of the service in the form in which Horizon reads them."""

from pathlib import Path
from typing import Any, Final

import yaml
from oslo_policy import policy

from cyborg.policies import list_rules

#: The file of the panels.
FILE: Final = (
    Path(__file__).resolve().parents[3]
    / "dashboard/cyborg_dashboard/conf/cyborg_default_policies.yaml"
)
_HEAD: Final = """\
# SPDX-License-Identifier: Apache-2.0
# The default rules of the service, written by dashboard/tests/test_policies.py.
"""


def rendered() -> str:
    """Return the file for the rules of this checkout."""
    rules = [_rule(rule) for rule in list_rules()]
    return _HEAD + yaml.safe_dump(rules, sort_keys=False, width=100)


def _rule(rule: policy.RuleDefault) -> dict[str, Any]:
    older = rule.deprecated_rule
    return {
        "name": rule.name,
        "check_str": rule.check_str,
        "description": rule.description,
        "operations": getattr(rule, "operations", []),
        "scope_types": rule.scope_types,
        **(
            {
                "deprecated_for_removal": True,
                "deprecated_reason": rule.deprecated_reason,
                "deprecated_since": rule.deprecated_since,
            }
            if rule.deprecated_for_removal
            else {}
        ),
        **({"deprecated_rule": _older(older)} if older else {}),
    }


def _older(rule: policy.DeprecatedRule) -> dict[str, Any]:
    return {
        "name": rule.name,
        "check_str": rule.check_str,
        "deprecated_reason": rule.deprecated_reason,
        "deprecated_since": rule.deprecated_since,
    }
