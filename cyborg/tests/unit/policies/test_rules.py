# SPDX-License-Identifier: Apache-2.0
"""The rules have the names that policy files use, and every one of them can be documented."""

import re
from pathlib import Path

import pytest
from oslo_config import cfg
from oslo_policy import policy

import cyborg
from cyborg import exception, policies
from cyborg.api.expose import LEAVE_UNCLEAN
from cyborg.context import RequestContext
from cyborg.model.device_profile import CHOOSE_IMAGE, SKIP_CLEANING
from cyborg.policy import Policy

NAMES = {rule.name for rule in policies.list_rules() if rule.name.startswith("cyborg:")}


@pytest.fixture
def rules() -> Policy:
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[], default_config_dirs=[])
    return Policy(conf)


def test_every_rule_of_the_api_has_a_description() -> None:
    for rule in policies.list_rules():
        if rule.name in NAMES:
            assert isinstance(rule, policy.DocumentedRuleDefault)
            assert rule.scope_types == ["project"]
            assert rule.description.endswith(".")
            assert all(one["path"].startswith("/v2/") for one in rule.operations)


def test_each_rule_protects_a_handler_and_no_handler_names_another() -> None:
    controllers = Path(cyborg.__file__).parent / "api/controllers/v2"
    texts = [path.read_text() for path in controllers.glob("*.py")]
    handlers = {name for text in texts for name in re.findall(r'"(cyborg:\w+:\w+)"', text)}
    widening = {"cyborg:arq:all_projects", "cyborg:device:get_unheld"}
    assert handlers == NAMES - widening - {SKIP_CLEANING, CHOOSE_IMAGE, LEAVE_UNCLEAN}


def test_no_rule_refers_to_one_that_is_missing(rules: Policy) -> None:
    assert rules.enforcer.check_rules(raise_on_violation=True)


@pytest.mark.parametrize("text", ["- a list\n", '"cyborg:arq:create": [\n', "a: b: c\n"])
def test_unusable_policy_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    options = tmp_path / "cyborg.conf"
    options.write_text(f"[oslo_policy]\npolicy_file = {path}\n")
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[str(options)], default_config_dirs=[])
    with pytest.raises(exception.ConfigError, match=r"policy\.yaml"):
        Policy(conf)


def test_caller_without_project_is_refused(rules: Policy) -> None:
    with pytest.raises(exception.Forbidden, match="cyborg:arq:get_all"):
        rules.authorize(RequestContext(roles=["admin", "reader"]), "cyborg:arq:get_all")
    own = RequestContext(project_id="p", user_id="u", roles=["reader"])
    assert rules.authorize(own, "cyborg:arq:get_all") is False
    everybody = RequestContext(project_id="p", user_id="u", roles=["admin"])
    assert rules.authorize(everybody, "cyborg:arq:get_all") is True
