# SPDX-License-Identifier: Apache-2.0
"""Quotas of projects by the limits of a real Keystone."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import oslo_limit.limit
import pytest
from keystoneauth1 import loading
from oslo_config import cfg

from cyborg import exception
from cyborg.clients.limits import UnifiedLimits
from cyborg.conductor.arqs import device_profiles, release
from cyborg.conductor.arqs.create import create as create_arqs
from cyborg.db.projects import REQUESTS
from cyborg.model.caller import Caller
from cyborg.model.device_profile import DeviceProfile
from cyborg.rpc.verbs import CreateArqs, CreateDeviceProfile, DeleteArqs
from cyborg.tests.fixtures.contexts import context
from cyborg.tests.functional.keystone.cloud import Cloud

SERVICE = "accelerator"


@pytest.fixture
def options(cloud: Cloud) -> dict[str, Any]:
    """The account that may read all limits, and the endpoint that they belong to."""
    keystone = cloud.keystone
    account = keystone.make_account("limits", "service", "service")
    keystone.grant_on_system(account, "reader")
    given = {**account.options(keystone.url), "endpoint_id": keystone.endpoint_id(SERVICE)}
    del given["project_name"], given["project_domain_id"]
    return {**given, "system_scope": "all"}


@pytest.fixture
def limits(options: dict[str, Any]) -> Iterator[UnifiedLimits]:
    """The limits, by the global configuration, which oslo.limit reads."""
    plugin = loading.get_auth_plugin_conf_options(options["auth_type"])
    cfg.CONF.register_opts(plugin, group="oslo_limit")
    for name, value in options.items():
        cfg.CONF.set_override(name, value, group="oslo_limit")
    oslo_limit.limit._SDK_CONNECTION = None
    yield UnifiedLimits()
    oslo_limit.limit._SDK_CONNECTION = None
    for name in options:
        cfg.CONF.clear_override(name, group="oslo_limit")


@pytest.fixture
def project(cloud: Cloud) -> str:
    """The id of the project that manager, member and reader belong to."""
    return cloud.keystone.project_id(cloud.people.member.project)


@pytest.fixture
def caller(cloud: Cloud, project: str) -> Iterator[Caller]:
    """A member, whose requests are deleted at the end."""
    made = Caller(project, "member", "req-limits")
    yield made
    token = cloud.keystone.token(cloud.people.member)
    uuids = [arq["uuid"] for arq in cloud.ask("/accelerator_requests", token).json()["arqs"]]
    if uuids:
        release.delete(cloud.database, DeleteArqs(made, str(uuid4()), uuids))


@pytest.fixture
def profile(cloud: Cloud, caller: Caller) -> str:
    name = f"profile-{uuid4().hex[:12]}"
    made = DeviceProfile(str(uuid4()), name, ({"resources:FPGA": "1"},))
    device_profiles.create(context(cloud.database), CreateDeviceProfile(caller, str(uuid4()), made))
    return name


def test_project_creates_what_its_limit_in_keystone_allows(
    cloud: Cloud, limits: UnifiedLimits, caller: Caller, profile: str, project: str
) -> None:
    ctx = replace(context(cloud.database), limits=limits)

    def create() -> None:
        create_arqs(ctx, CreateArqs(caller, str(uuid4()), profile))

    cloud.keystone.limit(SERVICE, {REQUESTS: 2})
    create()
    create()
    with pytest.raises(
        exception.OverLimit, match=r"needs 1 accelerator_requests .* limit is 2 and"
    ):
        create()
    # The limit of the project replaces the registered one, at once.
    cloud.keystone.limit(SERVICE, {REQUESTS: 2}, **{project: {REQUESTS: 3}})
    create()
    with pytest.raises(exception.OverLimit, match="the limit is 3 and 3 are in use"):
        create()
    cloud.keystone.limit(SERVICE, {"class:FPGA": 2})
    with pytest.raises(exception.OverLimit, match="the limit is 0 and 3 are in use"):
        create()


def test_limits_are_shown_to_the_project(
    cloud: Cloud,
    limits: UnifiedLimits,
    options: dict[str, Any],
    caller: Caller,
    profile: str,
    project: str,
) -> None:
    create_arqs(context(cloud.database), CreateArqs(caller, str(uuid4()), profile))
    cloud.keystone.limit(SERVICE, {REQUESTS: 20, "class:FPGA": -1}, **{project: {"class:FPGA": 4}})
    token = cloud.keystone.token(cloud.people.reader)
    with cloud.api({"quota": {"enabled": "true"}, "oslo_limit": options}) as url:
        answer = cloud.ask("/limits", token, url=url, version="2.100")
    assert answer.status_code == 200
    shown = answer.json()["limits"]
    assert shown["project_id"] == project
    assert shown["quotas"] == {
        REQUESTS: {"limit": 20, "usage": 1},
        "class:FPGA": {"limit": 4, "usage": 0},
    }
    assert limits.registered() == [REQUESTS, "class:FPGA"]


def test_keystone_that_cannot_be_reached_is_unavailable(
    limits: UnifiedLimits, project: str
) -> None:
    cfg.CONF.set_override("auth_url", "http://127.0.0.1:1/v3", group="oslo_limit")
    for _ in range(2):
        with pytest.raises(exception.Unavailable, match=r"Keystone .*\[oslo_limit\]"):
            limits.of_project(project, [REQUESTS])


def test_endpoint_that_does_not_exist_is_unavailable(
    cloud: Cloud, limits: UnifiedLimits, options: dict[str, Any], project: str
) -> None:
    cloud.keystone.limit(SERVICE, {REQUESTS: 2})
    cfg.CONF.set_override("endpoint_id", "0" * 32, group="oslo_limit")
    try:
        with pytest.raises(exception.Unavailable, match="find endpoint"):
            limits.of_project(project, [REQUESTS])
    finally:
        cfg.CONF.set_override("endpoint_id", options["endpoint_id"], group="oslo_limit")
    assert limits.of_project(project, [REQUESTS, "class:FPGA"]) == {REQUESTS: 2, "class:FPGA": 0}
