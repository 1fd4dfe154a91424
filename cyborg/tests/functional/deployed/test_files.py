# SPDX-License-Identifier: Apache-2.0
"""What deployment tools check and find without a running service."""

import os
import re
from pathlib import Path

import pytest

from cyborg.tests.fixtures.processes import run
from cyborg.tests.functional.deployed import page, shapes

ROOT = Path(__file__).resolve().parents[4]
GENERATOR = ROOT / "tools" / "config" / "cyborg-config-generator.conf"
TESTS = ROOT / "cyborg" / "tests"


def validated(file: Path) -> tuple[int, list[str]]:
    """The status of oslo.config's validator, called as kolla-ansible does, and its complaints."""
    files = ("--config-file", str(GENERATOR), "--input-file", str(file))
    ran = run("oslo-config-validator", *files, environment=os.environ, cwd=ROOT)
    return ran.returncode, re.findall(r"^(?:ERROR|WARNING):oslo_config.*", ran.stderr, re.MULTILINE)


def test_kolla_config_validate_knows_every_option(tmp_path: Path):
    file = tmp_path / "cyborg.conf"
    lines: list[str] = []
    for group, values in shapes.KOLLA.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in values.items())]
    file.write_text("\n".join(lines))
    status, told = validated(file)
    assert (status, [line for line in told if "Deprecated opt" not in line]) == (0, [])
    # Names that have newer ones are told, not refused.
    assert {line.split()[2] for line in told} == {"placement/endpoint_type", "nova/endpoint_type"}


@pytest.mark.parametrize("name", ["kolla-override", "endpoint-conf", "headers-conf"])
def test_examples_of_install_pages_are_valid(tmp_path: Path, name: str):
    file = tmp_path / "cyborg.conf"
    file.write_text(page.block("kolla" if name.startswith("kolla") else "web-servers", name))
    assert validated(file) == (0, [])


def test_every_test_in_kolla_page_exists():
    text = (page.INSTALL / "kolla.rst").read_text()
    named = set(re.findall(r"``(test_\w+)``", text))
    assert len(named) > 10
    known = {
        found
        for path in TESTS.rglob("test_*.py")
        for found in re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE)
    }
    assert named <= known
