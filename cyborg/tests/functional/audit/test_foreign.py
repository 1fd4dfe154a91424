# SPDX-License-Identifier: Apache-2.0
"""Servers whose flavors request the class of our units themselves: no unit is in doubt for them."""

from uuid import uuid4

import pytest

from cyborg.model.audit_findings import Kind, Severity
from cyborg.tests.fixtures.fake_servers import Guest
from cyborg.tests.fixtures.host_reports import RESOURCE_CLASS, provider_of
from cyborg.tests.functional.audit.cloud import SmallCloud
from cyborg.tests.functional.audit.test_damages import handles


def boot(cloud: SmallCloud, host: str, specs: dict[str, str], units: int = 1) -> str:
    """Boot a server without an ARQ, for which Placement has allocated units of the host."""
    server = str(uuid4())
    assert cloud.placement.claim(server, {provider_of(host, 0): {RESOURCE_CLASS: units}})
    cloud.nova.guests.put(server, Guest("project", host, specs=specs))
    return server


@pytest.mark.parametrize("group", ["resources", "resources1", "resources_GPU"])
def test_unit_that_a_flavor_requests_itself_is_a_foreign_allocation(
    cloud: SmallCloud, group: str
) -> None:
    host = cloud.host()
    cloud.bind(host)
    server = boot(cloud, host, {f"{group}:{RESOURCE_CLASS}": "2"}, units=2)
    assert cloud.found() == {(Kind.FOREIGN_ALLOCATION, server)}
    (finding,) = cloud.auditor().look(host).findings
    assert (finding.severity, finding.fix) == (Severity.WARNING, None)
    assert f"2 unit(s) of {host}_0 ({RESOURCE_CLASS}) without a device" in finding.cause
    assert f"Delete server {server}" in finding.remedy
    # Nothing is set aside, and the other units can be bound.
    assert not handles(cloud, host, "quarantined")
    cloud.bind(host)
    cloud.nova.disown(server)
    cloud.placement.free(server)
    assert cloud.found() == set()


@pytest.mark.parametrize(
    ("specs", "units"),
    [
        # One more than the flavor requests: an attached unit, which a restored database forgot.
        ({f"resources:{RESOURCE_CLASS}": "1"}, 2),
        ({f"resources:{RESOURCE_CLASS}": "1", "accel:device_profile": "gpu"}, 1),
        ({"resources:VGPU": "1"}, 1),
        ({f"resources:{RESOURCE_CLASS}": "one"}, 1),
        ({}, 1),
    ],
)
def test_unit_that_a_server_may_have_stays_in_doubt(
    cloud: SmallCloud, specs: dict[str, str], units: int
) -> None:
    host = cloud.host()
    boot(cloud, host, specs, units)
    assert cloud.found() == {(Kind.UNKNOWN_HOLDER, provider_of(host, 0))}


def test_bound_units_of_the_server_do_not_count_as_foreign(cloud: SmallCloud) -> None:
    host = cloud.host()
    _, server = cloud.bind(host)
    cloud.placement.free(server)
    assert cloud.placement.claim(server, {provider_of(host, 0): {RESOURCE_CLASS: 2}})
    specs = {f"resources:{RESOURCE_CLASS}": "1"}
    cloud.nova.guests.put(server, Guest("project", host, specs=specs))
    assert cloud.found() == {(Kind.FOREIGN_ALLOCATION, server)}
