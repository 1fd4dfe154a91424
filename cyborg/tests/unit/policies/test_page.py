# SPDX-License-Identifier: Apache-2.0
"""The table of commands and roles says what the rules say."""

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.context import RequestContext
from cyborg.policy import Policy
from cyborg.tests.unit.policies.page import NO, OF_NOVA, OWN, YES, table
from cyborg_cli.shell import COMMANDS

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
#: Commands that change what the rule for the own project's does not cover.
OPERATORS_ONLY = {"accelerator-drain", "accelerator-resume"}
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
    assert set(TABLE) == set(COMMANDS) - OF_NOVA


def test_table_cells_equal_the_rules(rules: Policy) -> None:
    for command, row in TABLE.items():
        assert row.rule in rules.enforcer.registered_rules
        for who, promised in row.people.items():
            assert promised in {YES, OWN, NO}
            may = allows(rules, row.rule, who)
            instead = command not in OPERATORS_ONLY and row.rule in INSTEAD
            instead = instead and allows(rules, INSTEAD[row.rule], who)
            assert (may or instead) is (promised != NO), (command, who)
            assert may or not instead or promised == OWN, (command, who)
