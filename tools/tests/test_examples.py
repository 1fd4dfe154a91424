# SPDX-License-Identifier: Apache-2.0
"""The Sphinx extension ``examples`` finds examples that fail and names that do not exist."""

import importlib.util
from pathlib import Path

import pytest

EXTENSION = Path(__file__).parents[2] / "doc" / "source" / "_ext" / "examples.py"
_spec = importlib.util.spec_from_file_location("examples", EXTENSION)
assert _spec is not None
assert _spec.loader is not None
examples = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(examples)


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        ("[conductor]\nlease = never", "lease"),
        ("[conductor]\nleese = 3", "there is no option [conductor] leese"),
        ("[generic_driver]\nbackends = a\n[generic_driver:a]\nunits = 1", "resource_class"),
        ("[pci]\npassthrough_whitelist = {", "passthrough_whitelist"),
        ("SELECT colour FROM work;", "no such column"),
        ("cyborg accelerator-list --colour red", "--colour"),
        ("cyborg --os-cloud production usages", "usages"),
        ("for h in a; do\n  cyborg accelerators > file 2>&1  # all\ndone", "accelerators"),
        ("openstack --os-cloud production accelerator boil", "boil"),
        ("openstack server reboot --gently $SERVER", "--gently"),
        ("cyborg profile-create a --group resources:GOLD=1", "GOLD"),
        (
            'openstack accelerator device profile create a \\\n  \'[{"trait:A": "required"}]\'',
            "asks",
        ),
        ("cyborg update-driver pci_driver --option colour=red", "colour"),
        ("sudo cyborg-dbsync downgrade", "downgrade"),
        ("cyborg-audit --repair", "--repair"),
        ("tools/test --fast -- --anything", "tools/test has no --fast"),
        ('echo "$(cyborg nothing)"', "nothing"),
    ],
)
def test_failing_example_is_found(text: str, flaw: str) -> None:
    assert [flaw in found for found in examples.flaws(text)] == [True]


@pytest.mark.parametrize(
    "name",
    [
        "[api] colour",
        "cyborg:device:boil",
        "tools/nothing",
        "cyborg/nothing",
        "cyborg event-boil",
        "openstack accelerator boil --all",
    ],
)
def test_name_that_does_not_exist_is_found(name: str) -> None:
    assert len(list(examples.flaws_of_name(name))) == 1


@pytest.mark.parametrize(
    "name",
    ["[api] port", "cyborg:device:get_all", "tools/test", "cyborg/exception", "cyborg event-list"],
)
def test_name_that_exists_is_no_flaw(name: str) -> None:
    assert list(examples.flaws_of_name(name)) == []


def test_options_of_another_file_are_not_checked() -> None:
    text = "[service_user]\ncolour = red"
    assert list(examples.flaws(text, caption="/etc/nova/nova.conf")) == []
    assert list(examples.flaws(text, caption="/etc/cyborg/cyborg.conf"))
