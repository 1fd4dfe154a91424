# SPDX-License-Identifier: Apache-2.0
"""What deployment tools check and find without a running service (check 123)."""

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import placement.conf
import yaml
from oslo_config import cfg

from cyborg.tests.fixtures.processes import Deployment, run
from cyborg.tests.functional.deployed import page, shapes

ROOT = Path(__file__).resolve().parents[4]
CONFIG = ROOT / "tools" / "config"
CONFIG_GENERATOR = "cyborg-config-generator.conf"
TESTS = ROOT / "cyborg" / "tests"


def generate(program: str, config: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of OpenStack's libraries on one of our configurations for it."""
    files = ("--config-file", str(CONFIG / config), *arguments)
    return run(program, *files, environment=os.environ, cwd=ROOT)


def validated(file: Path) -> tuple[int, list[str]]:
    """The status of oslo.config's validator, called as kolla-ansible does, and its complaints."""
    ran = generate("oslo-config-validator", CONFIG_GENERATOR, "--input-file", str(file))
    return ran.returncode, re.findall(r"^(?:ERROR|WARNING):oslo_config.*", ran.stderr, re.MULTILINE)


def test_kolla_config_validate_knows_every_option(tmp_path: Path):
    file = Deployment(tmp_path, shapes.KOLLA).conf
    status, told = validated(file)
    assert (status, [line for line in told if "Deprecated opt" not in line]) == (0, [])
    # Names that have newer ones are told, not refused.
    assert {line.split()[2] for line in told} == {"placement/endpoint_type", "nova/endpoint_type"}
    file.write_text("[agent]\nnobody_knows = this\n")
    status, told = validated(file)
    assert (status, "nobody_knows is not part of the sample config" in told[0]) == (1, True)


def test_examples_of_install_pages_are_valid(tmp_path: Path):
    file = tmp_path / "cyborg.conf"
    for name in ("kolla-override", "kolla-privileged", "endpoint-conf", "headers-conf"):
        file.write_text(page.block("kolla" if name.startswith("kolla") else "web-servers", name))
        assert validated(file) == (0, []), name
    for name in ("helm-values", "helm-agent-account"):
        values = yaml.safe_load(page.block("kolla", name))["conf"]["cyborg"]
        written = configparser.ConfigParser(interpolation=None)
        written.read_dict(values)
        with file.open("w") as opened:
            written.write(opened)
        assert validated(file) == (0, []), name


def test_placement_of_the_quickstart_has_the_documented_options_for_wide_trees(tmp_path: Path):
    expected = configparser.ConfigParser()
    expected.read_string(page.block("by-hand", "placement-conf"))
    program = (
        "import sys; from pathlib import Path\n"
        "from cyborg.tests.fixtures.placement import PlacementService\n"
        "PlacementService(Path(sys.argv[1]), wide_trees=True)\n"
    )
    # A process has one Placement; that of the other tests has the defaults.
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    file = tmp_path / "placement.conf"
    made = configparser.ConfigParser()
    made.read(file)
    conf = cfg.ConfigOpts()
    placement.conf.register_opts(conf)
    conf([], default_config_files=[str(file)], default_config_dirs=[])
    for group in expected.sections():
        assert dict(made[group]) == dict(expected[group])
        # The installed Placement knows the options and takes the values.
        values = {name: str(conf[group][name]).lower() for name in expected[group]}
        assert values == dict(expected[group])


def test_override_files_require_signatures_and_name_the_users_of_nova():
    kolla = configparser.ConfigParser(interpolation=None)
    kolla.read_string(page.block("kolla", "kolla-override"))
    helm = yaml.safe_load(page.block("kolla", "helm-values"))["conf"]["cyborg"]
    for options in (kolla, helm):
        assert options["DEFAULT"]["message_signing"] == "required"
        assert options["DEFAULT"]["message_signing_key_file"].startswith("/etc/cyborg-keys/")
        assert options["api"]["compute_users"] == "nova"


def test_samples_have_options_and_rules(tmp_path: Path):
    conf, policy = tmp_path / "cyborg.conf", tmp_path / "policy.yaml"
    for program, config, file in (
        ("oslo-config-generator", CONFIG_GENERATOR, conf),
        ("oslopolicy-sample-generator", "cyborg-policy-generator.conf", policy),
    ):
        ran = generate(program, config, "--output-file", str(file))
        assert ran.returncode == 0, ran.stderr
    options, rules = conf.read_text().splitlines(), policy.read_text().splitlines()
    groups = {f"[{group}]" for group in shapes.KOLLA} - {"[keystone]", "[service_catalog]"}
    assert groups <= set(options)
    for option in ("#heartbeat_interval = ", "#service_token_roles_required = true"):
        assert any(line.startswith(option) for line in options), option
    for rule in ("arq:get_all", "device:disable", "device_profile:create"):
        assert any(line.startswith(f'#"cyborg:{rule}": ') for line in rules), rule


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
