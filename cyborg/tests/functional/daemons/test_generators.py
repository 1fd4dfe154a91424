# SPDX-License-Identifier: Apache-2.0
"""The generators and the validator of OpenStack's libraries find us (check 123)."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from cyborg.tests.fixtures.processes import run

ROOT = Path(__file__).resolve().parents[4]
CONFIG = ROOT / "tools" / "config"
DEPLOYED = """\
[DEFAULT]
transport_url = rabbit://cyborg:secret@broker:5672//
log_dir = /var/log/cyborg
[api]
host_ip = 192.0.2.1
api_workers = 2
public_endpoint = https://cloud.example.org:6666
[agent]
enabled_drivers = nvidia_gpu_driver,pci_driver
[pci]
passthrough_whitelist = [{"vendor_id": "8086"}]
[gpu_devices]
enabled_vgpu_types = nvidia-35
[database]
connection = mysql+pymysql://cyborg:secret@database/cyborg
[keystone_authtoken]
auth_type = password
service_token_roles_required = true
[placement]
auth_type = password
valid_interfaces = internal
[nova]
auth_type = password
[service_user]
send_service_user_token = true
[oslo_messaging_rabbit]
rabbit_quorum_queue = true
[oslo_policy]
policy_file = policy.yaml
[oslo_middleware]
enable_proxy_headers_parsing = true
[cors]
allowed_origin = https://dashboard.example.org
"""


def generate(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(program, *arguments, environment=os.environ, cwd=ROOT)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The sample configuration file."""
    file = tmp_path_factory.mktemp("sample") / "cyborg.conf"
    config = str(CONFIG / "cyborg-config-generator.conf")
    ran = generate("oslo-config-generator", "--config-file", config, "--output-file", str(file))
    assert ran.returncode == 0, ran.stderr
    return file.read_text()


@pytest.mark.parametrize(
    "part",
    [
        "[agent]",
        "[api]",
        "[conductor]",
        "[database]",
        "[glance]",
        "[keystone_authtoken]",
        "[nova]",
        "[oslo_messaging_rabbit]",
        "[oslo_policy]",
        "[placement]",
        "[service_user]",
        "#enabled_drivers = ",
        "#service_token_roles_required = true",
    ],
)
def test_sample_configuration_has_every_section(sample: str, part: str):
    assert part in sample


def test_policy_sample_lists_rules_by_name(tmp_path: Path):
    file = tmp_path / "policy.yaml"
    config = str(CONFIG / "cyborg-policy-generator.conf")
    ran = generate(
        "oslopolicy-sample-generator", "--config-file", config, "--output-file", str(file)
    )
    assert ran.returncode == 0, ran.stderr
    rules = yaml.safe_load(
        "\n".join(
            line.removeprefix("#")
            for line in file.read_text().splitlines()
            if line.startswith('#"cyborg:')
        )
    )
    assert {"cyborg:arq:get_all", "cyborg:device:disable", "cyborg:device_profile:create"} <= set(
        rules
    )


@pytest.mark.parametrize(("more", "status"), [("", 0), ("[agent]\nnobody_knows = this\n", 1)])
def test_config_validator_accepts_deployed_file_and_names_unknown_option(
    tmp_path: Path, more: str, status: int
):
    file = tmp_path / "cyborg.conf"
    file.write_text(DEPLOYED + more)
    config = str(CONFIG / "cyborg-config-generator.conf")
    ran = generate("oslo-config-validator", "--config-file", config, "--input-file", str(file))
    assert ran.returncode == status, ran.stderr
    assert ("nobody_knows is not part of the sample config" in ran.stderr) == bool(more)
