# SPDX-License-Identifier: Apache-2.0
"""What the accounts of compute hosts need at the real Keystone and Placement, and not more."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from keystoneauth1.adapter import Adapter

from cyborg.tests.fixtures.compute_host import ComputeHost, compute_host
from cyborg.tests.fixtures.keystone import Account, KeystoneService
from cyborg.tests.fixtures.loopback import LoopbackService
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.processes import Deployment, Options
from cyborg.tests.fixtures.stack import Peers, Stack
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional import programs
from cyborg.tests.functional.keystone.cloud import authentication
from cyborg.tests.functional.life.cards import CARD, Rack, Traits
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import ended, eventually_offered

RESOURCE_CLASS = "CUSTOM_CARD_OF_AN_AGENT"
TOO_MUCH = "has the role admin, which the agent of host"


@pytest.fixture
def guarded(
    keystone: KeystoneService, placement: PlacementService, tmp_path: Path
) -> Iterator[LoopbackService]:
    """Placement as in a cloud: it asks Keystone about every token."""
    options = authentication(keystone)["keystone_authtoken"]
    account = {name: str(value) for name, value in options.items()}
    with placement.behind_keystone(tmp_path, account) as service:
        yield service


@pytest.fixture
def host(
    beside: Callable[..., Stack],
    keystone: KeystoneService,
    guarded: LoopbackService,
    nova_api: SimulatedNova,
    tmp_path: Path,
) -> Callable[[Account], tuple[ComputeHost, Rack]]:
    """Start a compute with a card, whose agent has this account at Placement."""

    def start(account: Account) -> tuple[ComputeHost, Rack]:
        session = keystone.session(account)

        def placement() -> Adapter:
            return Adapter(session, service_type="placement", endpoint_override=guarded.url)

        peers = Peers(placement=placement, nova=nova_api.adapter)
        stack = beside(agent_heartbeat=0.2, scan=0.2, full_check=0.5, peers=peers)
        compute = compute_host(stack, tmp_path / "state")
        rack = Rack.build(compute.compute, Traits(RESOURCE_CLASS), {CARD: 2})
        compute.machine = rack.machine
        compute.start(rack.loaded)
        return compute, rack

    return start


def test_agent_works_with_the_role_service_alone(
    clean: None,
    host: Callable[[Account], tuple[ComputeHost, Rack]],
    keystone: KeystoneService,
    placement: PlacementService,
    operator: Client,
    *,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        account = keystone.make_account("cyborg-agent", "service", "service")
        compute, rack = host(account)
        provider = compute.provider(CARD)
        # It creates the resource class, the provider, its traits and its inventory.
        eventually_offered(placement, provider, 2)
        rack.pull(CARD)
        eventually_offered(placement, provider, 0)
        rack.plug(CARD, 2)
        eventually_offered(placement, provider, 2)
        # It corrects what others have changed.
        path = f"/resource_providers/{provider}"
        generation = placement.call("GET", path)["generation"]
        body = {"resource_provider_generation": generation, "traits": ["CUSTOM_WRONG"]}
        placement.call("PUT", "/traits/CUSTOM_WRONG")
        placement.call("PUT", f"{path}/traits", body)
        eventually(lambda: "CUSTOM_CARD" in placement.call("GET", f"{path}/traits")["traits"])
        over = ended(operator, operator.send("DELETE", f"/drivers/{rack.driver.name}", None, 202))
        assert over["state"] == "succeeded"
        with pytest.raises(RuntimeError, match="404"):
            placement.call("GET", path)
    assert [one.getMessage() for one in caplog.records if TOO_MUCH in one.getMessage()] == []


def test_agent_warns_once_about_an_account_of_an_administrator(
    clean: None,
    host: Callable[[Account], tuple[ComputeHost, Rack]],
    keystone: KeystoneService,
    placement: PlacementService,
    *,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        account = keystone.make_account("cyborg-both", "service", "service", "admin")
        compute, rack = host(account)
        eventually_offered(placement, compute.provider(CARD), 2)
        rack.plug(CARD, 1)
        eventually_offered(placement, compute.provider(CARD), 1)
    (warning,) = [one for one in caplog.records if TOO_MUCH in one.getMessage()]
    assert warning.levelname == "WARNING"
    assert f"the agent of host {compute.compute} does not need" in warning.getMessage()


@pytest.mark.parametrize(
    ("roles", "status"), [(("service",), 0), (("service", "admin"), 1), (("member",), 2)]
)
def test_status_check_on_a_compute_host(
    keystone: KeystoneService,
    guarded: LoopbackService,
    tmp_path: Path,
    roles: tuple[str, ...],
    status: int,
) -> None:
    """Its configuration has no database, so only its account is checked."""
    account = keystone.make_account(f"agent-{'-'.join(roles)}", "service", *roles)
    options: Options = {
        "DEFAULT": {"transport_url": "fake://"},
        "placement": {**account.options(keystone.url), "endpoint_override": guarded.url},
    }
    deployment = Deployment(tmp_path, options)
    done = programs.run_on(deployment, "cyborg-status", "upgrade", "check")
    assert done.returncode == status, done.stdout + done.stderr
    assert "Account of the agent" in done.stdout
    assert ("role service alone" in " ".join(done.stdout.split())) == (status == 1)
