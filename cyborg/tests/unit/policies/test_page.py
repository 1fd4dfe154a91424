# SPDX-License-Identifier: Apache-2.0
"""The table of commands and roles says what the rules say."""

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.cli.shell import COMMANDS
from cyborg.context import RequestContext
from cyborg.policy import Policy
from cyborg.tests.unit.policies.page import NO, OWN, PEOPLE, YES, table

ROLES = {
    "admin": ["admin", "manager", "member", "reader"],
    "operator": ["accelerator_operator"],
    "manager": ["manager", "member", "reader"],
    "member": ["member", "reader"],
    "reader": ["reader"],
}
#: What lets people do it with the own project's, where the rule itself does not let them.
INSTEAD = {
    "cyborg:device:get_all": "cyborg:device:get_own",
    "cyborg:device:get_one": "cyborg:device:get_own",
    "cyborg:device:update": "cyborg:device:label",
}
TABLE = table()


@pytest.fixture(scope="module")
def rules() -> Policy:
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[], default_config_dirs=[])
    return Policy(conf)


def allows(rules: Policy, rule: str, who: str) -> bool:
    try:
        rules.authorize(RequestContext(project_id="p", user_id="u", roles=ROLES[who]), rule)
    except exception.Forbidden:
        return False
    return True


def test_every_command_is_in_the_table() -> None:
    assert set(TABLE) == set(COMMANDS)


@pytest.mark.parametrize("who", PEOPLE)
@pytest.mark.parametrize("command", TABLE)
def test_table_cell_equals_the_rule(rules: Policy, command: str, who: str) -> None:
    rule, promised = TABLE[command].rule, TABLE[command].people[who]
    assert rule in rules.enforcer.registered_rules
    assert promised in {YES, OWN, NO}
    instead = rule in INSTEAD and allows(rules, INSTEAD[rule], who)
    assert (allows(rules, rule, who) or instead) is (promised != NO)
    if not allows(rules, rule, who) and instead:
        assert promised == OWN
