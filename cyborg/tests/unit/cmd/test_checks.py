# SPDX-License-Identifier: Apache-2.0
"""The upgrade checks of cyborg-status: the policy file, and the upgrade guide with all checks."""

import io
import re
from pathlib import Path

import pytest
from oslo_config import cfg

import cyborg
from cyborg.cmd import checks
from cyborg.cmd.status import CHECKS, print_table
from cyborg.conf import opts
from cyborg.model.readiness import Component, Level, State
from cyborg.rpc import keys
from cyborg.rpc.keys import CONTROLLER, MASTER, Keys

GUIDE = Path(cyborg.__file__).parents[1] / "doc/source/admin/upgrade.rst"


def check_policy(directory: Path, policy: str) -> tuple[int, str]:
    """Return the result code of the check of policy rules, and its details."""
    (directory / "policy.yaml").write_text(policy)
    (directory / "cyborg.conf").write_text("")
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf([], default_config_files=[str(directory / "cyborg.conf")], default_config_dirs=[])
    result = checks.policy_rules(checks.Deployment(conf))
    return int(result.code), result.details or ""


@pytest.mark.parametrize(
    "policy",
    [
        "",
        '"cyborg:device:get_all": "role:watcher"',
        # A rule of the operator that another rule uses, and a rule name of earlier releases.
        '"watcher": "role:watcher"\n"cyborg:device:get_all": "rule:watcher or rule:is_admin"',
    ],
)
def test_policy_file_with_used_rules_succeeds(tmp_path: Path, policy: str) -> None:
    assert check_policy(tmp_path, policy) == (0, "")


def test_policy_file_with_unused_rules_is_a_warning(tmp_path: Path) -> None:
    code, details = check_policy(tmp_path, '"cyborg:devices:list": "@"\n"admin_api": "role:admin"')
    assert code == 1
    assert details.startswith("The policy file has rules that nothing uses: cyborg:devices:list.")


def test_policy_reference_to_missing_rule_is_a_failure(tmp_path: Path) -> None:
    code, details = check_policy(tmp_path, '"cyborg:device:get_all": "role:admin or (rule:wacher)"')
    assert code == 2
    assert details.startswith("The policy file refers to rules that do not exist: wacher.")


def test_policy_file_that_is_not_a_mapping_is_a_failure(tmp_path: Path) -> None:
    code, details = check_policy(tmp_path, "- 1\n- 2")
    assert code == 2
    assert "policy_file = policy.yaml cannot be used" in details


def test_texts_of_other_processes_are_escaped() -> None:
    odd = "agent\x1b[2K\u202e"
    assert checks.warning(odd).details == checks.failure(odd).details == "agent\\x1b[2K\\u202e"
    out = io.StringIO()
    print_table([Component(odd, State.DOWN, Level.WARNING, odd, odd)], out, width=200)
    assert "\x1b" not in out.getvalue()
    assert out.getvalue().count("agent\\x1b[2K\\u202e") == 3


def guide_severities() -> dict[str, list[str]]:
    """Return the severities in the table of the guide, by the name of the check."""
    text = GUIDE.read_text()
    table = text[text.index(".. list-table:: Checks") :]
    entries = re.split(r"^   \* - ", table, flags=re.MULTILINE)[2:]
    severities = {}
    for entry in entries:
        name, severity, *_ = re.split(r"^     - ", entry, flags=re.MULTILINE)
        severities[name.strip()] = [word.strip() for word in severity.split(", ")]
    return severities


def test_upgrade_guide_lists_all_checks_in_order() -> None:
    assert list(guide_severities()) == [name for name, _ in CHECKS]


def test_upgrade_guide_and_docstrings_agree_on_severity() -> None:
    for name, check in CHECKS:
        documented = re.findall(r"FAILURE|WARNING", check.__doc__ or "")
        assert [word.upper() for word in guide_severities()[name]] == sorted(set(documented)), name


@pytest.mark.parametrize(
    ("mode", "file", "code", "words"),
    [
        ("off", None, 1, "message_signing is off: messages without"),
        ("warn", "keys", 1, "message_signing is warn: messages without"),
        ("required", None, 2, "message_signing_key_file is not set"),
        ("required", "none", 2, "none cannot be read"),
        ("warn", "none", 2, "none cannot be read"),
        ("required", "keys", 0, ""),
    ],
)
def test_message_signing_is_required_with_keys(
    tmp_path: Path, mode: str, file: str | None, code: int, words: str
) -> None:
    keys.write(tmp_path / "keys", Keys(MASTER, CONTROLLER, (keys.generate(),)))
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    conf.set_override("message_signing", mode)
    conf.set_override("message_signing_key_file", str(tmp_path / file) if file else None)
    result = checks.message_signing(checks.Deployment(conf))
    assert int(result.code) == code
    assert words in (result.details or "")
