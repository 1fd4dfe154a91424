# SPDX-License-Identifier: Apache-2.0
"""openstacksdk of this environment: its own functional tests, and what they leave out.

Checks 110, 112 and 113 of a drop-in replacement.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import openstack
import pytest
from openstack.connection import Connection

from cyborg.tests.functional.keystone.cloud import Cloud
from cyborg.tests.functional.keystone.long import suites
from cyborg.tests.functional.keystone.shell import environment, write_clouds

GROUP = {"resources:FPGA": "2", "trait:CUSTOM_FAKE_DEVICE": "required"}
SUITE = [
    f"openstack.tests.functional.accelerator.v2.test_{noun}"
    for noun in ("accelerator_request", "attribute", "deployable", "device", "device_profile")
]


@pytest.fixture
def connect(cloud: Cloud) -> Callable[..., Connection]:
    """A connection of the administrator, with further settings of a cloud."""

    def connect(**settings: Any) -> Connection:
        account: dict[str, Any] = {**cloud.people.admin.options(cloud.keystone.url)}
        account.pop("auth_type")
        return openstack.connect(
            load_yaml_config=False,
            load_envvars=False,
            region_name="RegionOne",
            **account,
            **settings,
        )

    return connect


@pytest.fixture
def profiles(connect: Callable[..., Connection]) -> Iterator[list[str]]:
    """The names of three profiles."""
    accelerator = connect().accelerator
    names = [f"profile-{uuid4().hex}" for _ in range(3)]
    for name in names:
        accelerator.create_device_profile(name=name, groups=[GROUP])
    yield names
    for name in names:
        accelerator.delete_device_profile(name)


def test_sdk_functional_tests_pass(cloud: Cloud, tmp_path: Path):
    people = cloud.people
    write_clouds(
        tmp_path,
        cloud.keystone,
        {
            "devstack": people.member,
            "devstack-alt": people.stranger,
            "devstack-admin": people.admin,
            "devstack-system-admin": people.admin,
        },
        # Other tests leave theirs in the catalogue.
        has_compute=False,
    )
    found = suites.run(SUITE, environment(tmp_path) | {"OPENSTACKSDK_HAS_CYBORG": "1"})
    assert not found.failed, found.log
    # The suite itself skips what does not work on the existing service; see below for that.
    assert found.skipped == {"TestAttribute.test_attribute"}, found.log
    assert {name.partition(".")[0] for name in found.passed} == {
        "TestAcceleratorRequest",
        "TestDeployable",
        "TestDevice",
        "TestDeviceProfile",
    }


def test_attribute_is_created_with_uuid_of_a_deployable(connect: Callable[..., Connection]):
    accelerator = connect().accelerator
    deployable = next(iter(accelerator.deployables()))
    made = accelerator.create_attribute(deployable_id=deployable.id, key="k", value="v")
    got = accelerator.get_attribute(made.id)
    assert (got.key, got.value) == ("k", "v")
    accelerator.delete_attribute(made)
    assert made.id not in [one.id for one in accelerator.attributes()]


def test_catalog_url_may_have_version_or_none(cloud: Cloud, connect: Callable[..., Connection]):
    for suffix in ("", "/", "/v2/", "/v2"):
        cloud.keystone.register("accelerator", f"{cloud.url}{suffix}")
        accelerator = connect().accelerator
        assert [one.hostname for one in accelerator.devices()] == [cloud.host], suffix


def test_sdk_lists_follow_pages_to_the_end(
    cloud: Cloud, connect: Callable[..., Connection], profiles: list[str]
):
    accelerator = connect().accelerator
    arqs = accelerator.post("/accelerator_requests", json={"device_profile_name": profiles[0]})
    uuids = {one["uuid"] for one in arqs.json()["arqs"]}
    assert len(uuids) == 2
    walks: dict[str, Callable[..., Any]] = {
        "device_profiles": accelerator.device_profiles,
        "accelerator_requests": accelerator.accelerator_requests,
        "devices": accelerator.devices,
        "deployables": accelerator.deployables,
        "attributes": accelerator.attributes,
    }
    for name, walk in walks.items():
        whole = [one.id for one in walk()]
        assert whole, name
        # Bounded: a walk that does not stop is what must not happen.
        paged = [one.id for one in islice(walk(limit=1), len(whole) + 5)]
        assert sorted(paged) == sorted(whole), name
    for uuid in uuids:
        accelerator.delete_accelerator_request(uuid, ignore_missing=False)


def test_sdk_finds_profiles_by_name_at_every_microversion(
    connect: Callable[..., Connection], profiles: list[str]
):
    for version in (None, "2.0", "2.3"):
        settings = {} if version is None else {"accelerator_default_microversion": version}
        accelerator = connect(**settings).accelerator
        assert accelerator.get_device_profile(profiles[0]).name == profiles[0]


def test_sdk_programs_with_both_forms_of_the_path(cloud: Cloud, connect: Callable[..., Connection]):
    accelerator = connect().accelerator
    deployable = next(iter(accelerator.deployables()))
    body = [{"path": "/program", "op": "replace", "value": [{"image_uuid": str(uuid4())}]}]
    for path in ("/program", f"/program/{deployable.id}"):
        answer = accelerator.patch(f"/deployables/{deployable.id}{path}", json=body)
        # The fake device cannot be programmed: that is all that is wrong.
        assert answer.status_code == 409
        assert "program" in answer.json()["error_message"]
