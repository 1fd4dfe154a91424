# SPDX-License-Identifier: Apache-2.0
"""Every policy rule decides for each operation that its documentation names."""

import re
from collections.abc import Callable

import pytest
from oslo_policy import policy

from cyborg.policies import list_rules
from cyborg.tests.unit.api.world import Client

NEWEST = "accelerator 2.100"
#: The role of ``nobody``, who may do nothing by default.
ROLE = "role:heat_stack_user"
#: These widen what the others allow, and refuse nothing.
SCOPES = ("cyborg:arq:all_projects", "cyborg:device:get_unheld")
#: These decide about the body of a request that another rule has granted.
CONTENTS = (
    "cyborg:device_profile:skip_cleaning",
    "cyborg:device_profile:choose_image",
    "cyborg:device:leave_unclean",
)
OPERATIONS = {
    rule.name: [(operation["method"], operation["path"]) for operation in rule.operations]
    for rule in list_rules()
    if isinstance(rule, policy.DocumentedRuleDefault) and rule.name not in (*SCOPES, *CONTENTS)
}


def filled(path: str) -> str:
    """The path with something in it that there is not."""
    return re.sub(r"\{[^}]*\}", "<random>", path)


def test_refusal_names_the_rule(client: Client) -> None:
    for rule, operations in OPERATIONS.items():
        for method, path in operations:
            answer = client.send(
                method, filled(path), as_="nobody", service="service", version=NEWEST
            )
            assert answer.status == 403, path
            assert re.search(rf"{rule}\b", answer.fault)
    assert client.calls == []


@pytest.mark.parametrize("rule", OPERATIONS)
def test_grant_of_the_rule_suffices(with_rules: Callable[..., Client], rule: str) -> None:
    client = with_rules({rule: ROLE})
    for method, path in OPERATIONS[rule]:
        answer = client.send(method, filled(path), as_="nobody", service="service", version=NEWEST)
        assert answer.status in (200, 202, 204, 400, 404, 503), answer.body
        if answer.status == 404:
            assert "microversion" not in answer.fault
            assert "could not be found" in answer.fault
        elif answer.status == 503:
            # Attach and detach ask Nova first.
            assert answer.fault.startswith("Nova is not available")
