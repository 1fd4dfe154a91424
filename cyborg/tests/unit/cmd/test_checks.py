# SPDX-License-Identifier: Apache-2.0
"""The checks of cyborg-status: those of the policy file, and the page that explains them all."""

import re
from pathlib import Path

import pytest
from oslo_config import cfg

import cyborg
from cyborg.cmd import site_checks
from cyborg.cmd.status import CHECKS
from cyborg.conf import opts

PAGE = Path(cyborg.__file__).parents[1] / "doc/source/admin/upgrade.rst"


def checked(directory: Path, policy: str) -> tuple[int, str]:
    """The result of the check of rules, and its details."""
    (directory / "policy.yaml").write_text(policy)
    (directory / "cyborg.conf").write_text("")
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf([], default_config_files=[str(directory / "cyborg.conf")], default_config_dirs=[])
    found = site_checks.policy_rules(site_checks.Site(conf))
    return int(found.code), found.details or ""


@pytest.mark.parametrize(
    "policy",
    [
        "",
        '"cyborg:device:get_all": "role:watcher"',
        # A rule of the operator's own that another one uses, and a name that files of old use.
        '"watcher": "role:watcher"\n"cyborg:device:get_all": "rule:watcher or rule:is_admin"',
    ],
)
def test_a_policy_file_that_means_something(tmp_path: Path, policy: str) -> None:
    assert checked(tmp_path, policy) == (0, "")


def test_rules_that_nothing_asks_for_are_a_warning(tmp_path: Path) -> None:
    code, details = checked(tmp_path, '"cyborg:devices:list": "@"\n"admin_api": "role:admin"')
    assert code == 1
    assert details.startswith(
        "The policy file has rules that nothing asks for: cyborg:devices:list."
    )


def test_a_reference_to_nothing_is_a_failure(tmp_path: Path) -> None:
    code, details = checked(tmp_path, '"cyborg:device:get_all": "role:admin or (rule:wacher)"')
    assert code == 2
    assert details.startswith("The policy file refers to rules that there are not: wacher.")


def test_a_file_that_is_no_map_is_a_failure(tmp_path: Path) -> None:
    code, details = checked(tmp_path, "- 1\n- 2")
    assert code == 2
    assert "policy_file = policy.yaml cannot be used" in details


def rows() -> dict[str, list[str]]:
    """The table of the page: the name of a check, and whether it says fails or warns."""
    text = PAGE.read_text()
    table = text[text.index(".. list-table:: Checks") :]
    entries = re.split(r"^   \* - ", table, flags=re.MULTILINE)[2:]
    found = {}
    for entry in entries:
        name, severity, *_ = re.split(r"^     - ", entry, flags=re.MULTILINE)
        found[name.strip()] = severity.split(", ")
        found[name.strip()] = [word.strip() for word in found[name.strip()]]
    return found


def test_the_page_has_all_checks_in_their_order() -> None:
    assert list(rows()) == [name for name, _ in CHECKS]


def test_the_page_and_the_code_agree_on_severity() -> None:
    for name, check in CHECKS:
        promised = re.findall(r"FAILURE|WARNING", check.__doc__ or "")
        assert [word.upper() for word in rows()[name]] == sorted(set(promised)), name
