# SPDX-License-Identifier: Apache-2.0
"""The upgrade check of many equal devices in one host: one query to the real Placement."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from oslo_upgradecheck.upgradecheck import Code, Result

from cyborg.cmd import checks
from cyborg.db import units
from cyborg.db.models import AttachHandle, Deployable, Device
from cyborg.model.device import DeviceStatus
from cyborg.tests.fixtures.host_reports import RESOURCE_CLASS, provider_of, report_of
from cyborg.tests.fixtures.loopback import LoopbackService
from cyborg.tests.fixtures.placement import TOKEN, PlacementService, fresh_host, shared
from cyborg.tests.fixtures.use_cases import UseCases
from cyborg.tests.unit.drivers.configured import written


class Clock:
    """A clock on which this many seconds pass between two looks."""

    def __init__(self, seconds: float) -> None:
        self._now, self._seconds = 0.0, seconds

    def __call__(self) -> float:
        self._now += self._seconds
        return self._now


@pytest.fixture
def placement() -> PlacementService:
    return shared()


@pytest.fixture
def host(pair: UseCases, placement: PlacementService) -> str:
    """A host with seven devices in service, which Placement offers, beside a smaller one."""
    name = fresh_host()
    for other, devices in ((fresh_host(), 4), (name, 7)):
        pair.report(other, report_of(other, devices, handles=1))
    pair.change(Device, status=DeviceStatus.ENABLED.value)
    root = placement.make_compute(name)
    inventories = {RESOURCE_CLASS: {"total": 1}}
    for index in range(7):
        provider = provider_of(name, index)
        body = {"name": f"{name}_{index}", "uuid": provider, "parent_provider_uuid": root}
        placement.call("POST", "/resource_providers", body)
        placement.call(
            "PUT",
            f"/resource_providers/{provider}/inventories",
            {"resource_provider_generation": 0, "inventories": inventories},
        )
    return name


def withdraw(pair: UseCases, placement: PlacementService, host: str, index: int) -> None:
    """Let a device of the host have no free unit."""
    provider = provider_of(host, index)
    (part,) = pair.rows(Deployable, Deployable.rp_uuid == provider)
    pair.change(AttachHandle, AttachHandle.deployable_id == part.id, blocked=True)
    placement.claim(str(uuid4()), {provider: {RESOURCE_CLASS: 1}})


def looked(pair: UseCases, directory: Path, url: str, seconds: float) -> Result:
    """Return the result of the check, for which the query takes so many seconds."""
    group = f"[placement]\nauth_type = admin_token\nendpoint = {url}\ntoken = {TOKEN}\n"
    database = pair.db.engine.url.render_as_string(hide_password=False)
    text = f"{group}[database]\nconnection = {database}\n"
    conf = written(directory / "cyborg.conf", text)
    return checks.wide_trees(checks.Deployment(conf, Clock(seconds)))


def test_the_widest_tree_has_the_most_free_devices_of_one_class(
    pair: UseCases, host: str, placement: PlacementService
) -> None:
    with pair.db.reader() as tx:
        tree = units.widest_tree(tx)
    assert tree is not None
    assert tree[:2] == (host, RESOURCE_CLASS)
    assert tree.provider in [provider_of(host, index) for index in range(7)]
    assert tree.providers == 7
    withdraw(pair, placement, host, 0)
    with pair.db.reader() as tx:
        tree = units.widest_tree(tx)
    assert tree is not None
    assert tree.providers == 6


@pytest.mark.parametrize(
    ("free", "seconds", "took"),
    [
        # 7 * 6 * 5 * 4 * 3 candidates, of which nobody needs more than 1000.
        (7, 0.2, "took 0.2 s for more than 1000 candidates"),
        (5, 6.4, "took 6.4 s for 120 candidates"),
        (5, 0.2, None),
    ],
)
def test_check_warns_if_placement_combines_five_devices_with_too_much_work(
    *,
    pair: UseCases,
    host: str,
    placement: PlacementService,
    tmp_path: Path,
    free: int,
    seconds: float,
    took: str | None,
) -> None:
    for index in range(free, 7):
        withdraw(pair, placement, host, index)
    result = looked(pair, tmp_path, placement.url, seconds)
    if took is None:
        assert result == checks.SUCCESS
        return
    assert result.code is Code.WARNING
    details = result.details or ""
    begin = f"A query of 5 equal groups of {RESOURCE_CLASS} on host {host}, which has {free} free"
    assert details.startswith(begin)
    for part in (
        took,
        "[workarounds] optimize_for_wide_provider_trees = true",
        "[placement] max_allocation_candidates = 1000",
    ):
        assert part in details


@pytest.fixture
def refusing() -> Iterator[tuple[LoopbackService, list[str]]]:
    """A Placement whose server ends each request that takes too long, and its queries."""
    queries: list[str] = []

    def application(environ, start_response):
        queries.append(f"{environ['PATH_INFO']}?{environ['QUERY_STRING']}")
        start_response("504 Gateway Timeout", [("Content-Length", "0")])
        return [b""]

    with LoopbackService(application) as service:
        yield service, queries


@pytest.mark.usefixtures("host")
def test_check_warns_once_if_placement_refuses_the_query(
    pair: UseCases, refusing: tuple[LoopbackService, list[str]], tmp_path: Path
) -> None:
    service, queries = refusing
    result = looked(pair, tmp_path, service.url, 0)
    assert result.code is Code.WARNING
    assert "failed: Placement is not available" in (result.details or "")
    assert "optimize_for_wide_provider_trees" in (result.details or "")
    (query,) = [one for one in queries if one.startswith("/allocation_candidates")]
    assert query.count("resources_") == 5


@pytest.mark.usefixtures("host")
def test_check_asks_nothing_without_five_free_devices_of_a_host(
    pair: UseCases, refusing: tuple[LoopbackService, list[str]], tmp_path: Path
) -> None:
    service, queries = refusing
    pair.change(Device, status=DeviceStatus.INACTIVE.value)
    assert looked(pair, tmp_path, service.url, 0).code is Code.SUCCESS
    assert queries == []
