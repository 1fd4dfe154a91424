# SPDX-License-Identifier: Apache-2.0
"""Accelerators that operators create wait to be enabled like those that are found."""

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from cyborg.model.audit_findings import Kind
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.enabling.conftest import Site
from cyborg.tests.functional.life import made
from cyborg.tests.functional.life.made import DEVICES, Bench, listed, make, shown
from cyborg.tests.functional.life.steps import bind, create, eventually_offered


@pytest.fixture
def here(site: Callable[..., Site]) -> Site:
    """A service that enables nothing by itself."""
    return site(plugged=False)


@pytest.fixture
def bench(here: Site, tmp_path: Path) -> Bench:
    """A compute of the generic_driver there; its units have to be set up on one backend."""
    (tmp_path / "bench").mkdir()
    rc = f"CUSTOM_MADE_{uuid4().hex[:12].upper()}"
    one = Bench.begin(here.stack, tmp_path / "bench", rc)
    eventually(lambda: len(listed(here.operator)) == 2)
    return one


def status(here: Site, uuid: str) -> str:
    return str(here.operator.get(f"{DEVICES}/{uuid}")["status"])


def test_created_accelerator_is_inactive_until_enabled(
    here: Site, bench: Bench, placement: PlacementService
) -> None:
    uuid = make(here.operator, bench.wish(handles=2))
    assert status(here, uuid) == "inactive"
    provider = made.provider(here.database, uuid)
    eventually(lambda: shown(placement, provider) == (2, {"OWNER_CYBORG"}))
    eventually_offered(placement, provider, 0)
    name = here.as_("admin").make_profile({f"resources:{bench.resource_class}": "1"})
    nova = here.as_("member", None).with_service_token()
    arqs = create(nova, name)
    bind(nova, arqs, provider, host=bench.compute, status=409)
    here.operator.post(f"{DEVICES}/{uuid}/enable", status=204)
    assert status(here, uuid) == "enabled"
    eventually_offered(placement, provider, 2)
    bind(nova, arqs, provider, host=bench.compute)
    # On the other backend it has to be set up.
    uuid = make(here.operator, bench.wish("right"))
    assert status(here, uuid) == "inactive"
    here.operator.patch(f"{DEVICES}/{uuid}", {"status": "ready"}, status=200)
    eventually(lambda: status(here, uuid) == "enabled")
    assert bench.ran("ready") == ["ready"]
    eventually_offered(placement, made.provider(here.database, uuid), 1)


def test_audit_has_no_findings_for_created_accelerator(
    here: Site, bench: Bench, placement: PlacementService
) -> None:
    uuid = make(here.operator, bench.wish(handles=2, traits=["CUSTOM_SOFT"]))
    provider = made.provider(here.database, uuid)
    eventually(lambda: shown(placement, provider) == (2, {"OWNER_CYBORG", "CUSTOM_SOFT"}))

    def wrong() -> set[tuple[Kind, str]]:
        return {(one.kind, one.key) for one in here.stack.auditor().look().findings}

    eventually(lambda: wrong() == set())
    # While it waits for a host that is down there is nothing of it to be missed.
    bench.kill(here.database)
    here.operator.post(f"{DEVICES}?wait=true", bench.wish(), status=202)
    assert wrong() == {(Kind.SILENT_AGENT, bench.compute)}
    here.operator.delete(f"{DEVICES}/{uuid}")
    bench.run()
    eventually(lambda: shown(placement, provider) is None)
    eventually(lambda: wrong() == set())
