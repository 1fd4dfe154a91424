# SPDX-License-Identifier: Apache-2.0
"""The rules have the names that policy files use, and every one of them can be documented."""

import re
from pathlib import Path

import pytest
from oslo_config import cfg
from oslo_policy import policy

import cyborg
from cyborg import exception, policies
from cyborg.context import RequestContext
from cyborg.policy import Policy

#: The names of the existing service (contract, section 2), and one of our own.
NAMES = {
    "cyborg:device_profile:get_all",
    "cyborg:device_profile:get_one",
    "cyborg:device_profile:create",
    "cyborg:device_profile:delete",
    "cyborg:device_profile:update",
    "cyborg:arq:get_all",
    "cyborg:arq:get_one",
    "cyborg:arq:create",
    "cyborg:arq:delete",
    "cyborg:arq:update",
    "cyborg:arq:all_projects",
    "cyborg:device:get_all",
    "cyborg:device:get_one",
    "cyborg:device:get_own",
    "cyborg:device:create",
    "cyborg:device:update",
    "cyborg:device:label",
    "cyborg:device:delete",
    "cyborg:device:disable",
    "cyborg:device:enable",
    "cyborg:deployable:get_all",
    "cyborg:deployable:get_one",
    "cyborg:deployable:program",
    "cyborg:attribute:get_all",
    "cyborg:attribute:get_one",
    "cyborg:attribute:create",
    "cyborg:attribute:delete",
    "cyborg:instance:attach",
    "cyborg:instance:detach",
    "cyborg:driver:install",
    "cyborg:driver:update",
    "cyborg:driver:uninstall",
    "cyborg:operation:get_all",
    "cyborg:operation:get_one",
    "cyborg:service:discover",
    "cyborg:service:get_all",
    "cyborg:service:get_one",
    "cyborg:service:update",
    "cyborg:service:delete",
    "cyborg:backend:get_all",
    "cyborg:backend:get_one",
    "cyborg:driver:get_all",
    "cyborg:driver:get_one",
    "cyborg:hardware:get_all",
    "cyborg:hardware:get_one",
    "cyborg:usage:get",
    "cyborg:event:get_all",
}
PERSONAS = {
    "operator_api",
    "admin_api",
    "service_api",
    "project_admin_api",
    "project_manager_api",
    "project_member_api",
    "project_reader_api",
    "project_member_or_admin",
    "project_reader_or_admin",
    "project_manager_or_admin",
    "project_member_or_service",
    "project_reader_or_service",
}
RETIRED = {
    "public_api",
    "allow",
    "deny",
    "default",
    "is_admin",
    "admin_or_owner",
    "admin_or_user",
}


def test_rules_have_the_documented_names() -> None:
    names = [rule.name for rule in policies.list_rules()]
    assert len(names) == len(set(names))
    assert set(names) == NAMES | PERSONAS | RETIRED


def test_every_rule_of_the_api_has_a_description() -> None:
    for rule in policies.list_rules():
        if not rule.name.startswith("cyborg:"):
            continue
        assert isinstance(rule, policy.DocumentedRuleDefault)
        assert rule.scope_types == ["project"]
        assert rule.description.endswith(".")
        assert all(one["path"].startswith("/v2/") for one in rule.operations)


def test_each_rule_protects_a_handler_and_no_handler_names_another() -> None:
    controllers = Path(cyborg.__file__).parent / "api/controllers/v2"
    texts = [path.read_text() for path in controllers.glob("*.py")]
    handlers = {name for text in texts for name in re.findall(r'"(cyborg:\w+:\w+)"', text)}
    assert handlers == NAMES - {"cyborg:arq:all_projects"}


def test_no_rule_refers_to_one_that_is_missing() -> None:
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[], default_config_dirs=[])
    assert Policy(conf).enforcer.check_rules(raise_on_violation=True)


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


def test_caller_without_roles_is_refused() -> None:
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[], default_config_dirs=[])
    rules = Policy(conf)
    with pytest.raises(exception.Forbidden, match="cyborg:arq:get_all"):
        rules.authorize(RequestContext(roles=["admin", "reader"]), "cyborg:arq:get_all")
    own = RequestContext(project_id="p", user_id="u", roles=["reader"])
    assert rules.authorize(own, "cyborg:arq:get_all") is False
    everybody = RequestContext(project_id="p", user_id="u", roles=["admin"])
    assert rules.authorize(everybody, "cyborg:arq:get_all") is True
