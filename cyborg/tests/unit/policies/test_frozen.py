# SPDX-License-Identifier: Apache-2.0
"""What each rule allows is a committed list: a rule that opens or closes shows as a difference."""

from collections.abc import Iterator
from pathlib import Path

from cyborg import policies
from cyborg.tests.committed import advice, lines_of

LIST = Path(__file__).with_name("rules.txt")


def rendered() -> Iterator[str]:
    """Each rule with its default, and with what is still allowed by its former default."""
    for rule in sorted(policies.list_rules(), key=lambda one: str(one.name)):
        former = rule.deprecated_rule
        also = f"    (formerly {former.name}: {former.check_str})" if former else ""
        yield f"{rule.name}: {rule.check_str}{also}"


def test_rules_allow_what_the_recorded_list_says() -> None:
    lines = list(rendered())
    flaw = advice("A policy rule differs from rules.txt.", "unit/policies/test_frozen.py")
    assert lines_of(LIST, lines) == lines, flaw
