# SPDX-License-Identifier: Apache-2.0
"""The API tests of cyborg-tempest-plugin (check 111); its scenarios need a whole cloud."""

from importlib.resources import files
from pathlib import Path

import pytest

from cyborg.tests.fixtures.choice import FULL
from cyborg.tests.fixtures.keystone import ADMIN
from cyborg.tests.functional.keystone.cloud import Cloud
from cyborg.tests.functional.keystone.long import suites
from cyborg.tests.functional.keystone.shell import environment

_PLACE = files("cyborg_tempest_plugin") / "tests" / "api"
SUITE = sorted(
    f"cyborg_tempest_plugin.tests.api.{file.name.removesuffix('.py')}"
    for file in _PLACE.iterdir()
    if file.name.startswith("test_")
)
#: They demand an answer of 500 for a client's mistake; here it is 409, 400 and 400.
DEVIATIONS = {
    "DeviceProfileNegativeTest.test_create_device_profile_server_fault",
    "DeviceProfileNegativeTest.test_create_device_profile_name_is_null",
    "DeviceProfileNegativeTest.test_create_device_profile_name_to_long",
}
CONF = """\
[DEFAULT]
log_file = {directory}/tempest.log
[oslo_concurrency]
lock_path = {directory}
[identity]
uri_v3 = {keystone}
auth_version = v3
region = RegionOne
[auth]
use_dynamic_credentials = true
create_isolated_networks = false
admin_username = {admin.user}
admin_password = {admin.password}
admin_project_name = {admin.project}
admin_domain_name = Default
[identity-feature-enabled]
api_v3 = true
[service_available]
nova = false
neutron = false
glance = false
cinder = false
swift = false
cyborg = true
[cyborg_policy]
enforce_new_defaults = {new_defaults}
"""


# Without them an administrator does what the others do with them.
@pytest.mark.parametrize("new_defaults", [False, True] if FULL else [True])
def test_tempest_plugin_has_only_listed_failures(cloud: Cloud, tmp_path: Path, new_defaults: bool):
    (tmp_path / "tempest.conf").write_text(
        CONF.format(
            directory=tmp_path, keystone=cloud.keystone.url, admin=ADMIN, new_defaults=new_defaults
        )
    )
    found = suites.run(SUITE, environment(tmp_path) | {"TEMPEST_CONFIG_DIR": str(tmp_path)})
    assert found.failed == DEVIATIONS, found.log
    assert len(found.passed) >= 30, found.log
    assert bool(found.skipped) != new_defaults, found.log  # persona tests wait for the option
