# SPDX-License-Identifier: Apache-2.0
"""An agent that Keystone or Placement refuses: everything that is shown says so, the log once."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from cyborg.model.process import AGENT
from cyborg.model.provider import provider_uuid
from cyborg.tests.fixtures.keystone import KeystoneService
from cyborg.tests.fixtures.pages import Page
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.fixtures.processes import Deployment, Options, Program
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional import programs
from cyborg.tests.functional.conftest import offered
from cyborg.tests.functional.daemons.service import Http

#: The heartbeats for which a refused agent must not repeat itself.
HEARTBEATS = 6
Deploy = Callable[..., Deployment]


@pytest.fixture(scope="module")
def keystone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeystoneService]:
    with KeystoneService(tmp_path_factory.mktemp("keystone")) as running:
        yield running


@dataclass
class Cloud:
    """A conductor, an API and the configuration of an agent on one host."""

    deployment: Deployment
    host: str
    http: Http

    @classmethod
    def start(cls, deploy: Deploy, placement: PlacementService) -> "Cloud":
        """Start conductor and API; wait until they know each other."""
        host = fresh_host()
        placement.make_compute(host)
        deployment = deploy(
            {
                "DEFAULT": {"host": host},
                "agent": {"metrics_listen": "127.0.0.1:0", "resource_provider_name": host},
            }
        )
        deployment.conductor({"DEFAULT": {"host": "control-1"}})
        api, url = deployment.api({"DEFAULT": {"host": "control-1"}})
        http = Http(url, version="2.5")
        eventually(http.healthy, lambda: api.output)
        return cls(deployment, host, http)

    def agent(self) -> dict[str, Any] | None:
        """The agent as the list of services shows it; None while it has sent nothing."""
        services = self.http.get(f"/services?kind=process&host={self.host}")["services"]
        return next((one for one in services if one["binary"] == AGENT), None)

    def device(self) -> dict[str, Any] | None:
        """The device of the host; None before the first report."""
        found = self.http.get(f"/devices?hostname={self.host}")["devices"]
        return found[0] if found else None

    def status(self) -> tuple[int, dict[str, str | None]]:
        """The exit status of ``cyborg-status check``, and what it says of the agent."""
        shown = programs.run_on(self.deployment, "cyborg-status", "check", "--format", "json")
        components = json.loads(shown.stdout)["components"]
        (agent,) = [one for one in components if one["name"] == f"cyborg-agent on {self.host}"]
        return shown.returncode, agent

    def findings(self) -> dict[str, dict[str, Any]]:
        """What ``cyborg-audit`` finds, by kind."""
        words = ("cyborg-audit", "--host", self.host, "--format", "json")
        audit = programs.run_on(self.deployment, *words)
        return {one["kind"]: one for one in json.loads(audit.stdout)["findings"]}


def metrics(agent: Program) -> Page:
    return Page.at(agent.wait_for(r"Metrics are available at (\S+)")[1])


def everything_says(cloud: Cloud, agent: Program, reason: str) -> None:
    """All displays show since when and why this agent does not publish."""
    row = eventually(lambda: (one := cloud.agent()) and one["publish_error"] and one)
    assert row["state"] == "up"
    assert reason in row["publish_error"]
    assert row["publish_error_since"] is not None
    assert row["cause"].startswith("It cannot publish in Placement since ")
    assert reason in row["cause"]
    assert row["remedy"]
    device = eventually(cloud.device)
    assert device["units"]["free"] == 0
    assert device["units"]["reasons"] == {"unpublished": 16}
    (provider,) = device["providers"]
    assert (provider["total"], provider["reserved"], provider["published"]) == (16, 0, None)
    code, shown = cloud.status()
    assert code >= 1
    assert (shown["state"], shown["level"]) == ("not publishing", "warning")
    assert reason in str(shown["cause"])
    finding = cloud.findings()["cannot-publish"]
    assert finding["severity"] == "warning"
    assert reason in finding["cause"]
    assert metrics(agent).value("cyborg_publishing") == 0


def nothing_says(cloud: Cloud, agent: Program, placement: PlacementService) -> None:
    """The devices are in Placement, and no display has an error of the agent."""
    provider = provider_uuid(f"{cloud.host.replace('.', '_')}_FakeDevice")
    eventually(lambda: offered(placement, provider) == 16, lambda: agent.output)
    eventually(
        lambda: (one := cloud.agent()) and one["publish_error"] is None, lambda: agent.output
    )
    device = eventually(
        lambda: (one := cloud.device()) and one["providers"][0]["published"] and one
    )
    assert device["units"]["free"] == 16
    assert device["providers"][0]["published"] == {"total": 16, "reserved": 0}
    assert (cloud.agent() or {})["cause"] is None
    assert cloud.status()[1]["state"] == "up"
    assert "cannot-publish" not in cloud.findings()
    assert metrics(agent).value("cyborg_publishing") == 1


@pytest.mark.parametrize("who", ["Keystone", "Placement"])
def test_refused_agent_is_shown_everywhere_and_logs_once(
    deploy: Deploy,
    keystone: KeystoneService,
    placement: PlacementService,
    *,
    who: str,
) -> None:
    cloud = Cloud.start(deploy, placement)
    account = replace(keystone.make_account("agent", "service", "service"), password="wrong")
    refusals: Mapping[str, tuple[Options, str]] = {
        "Keystone": (
            {"placement": {**account.options(keystone.url), "endpoint_override": placement.url}},
            "refuses the account",
        ),
        "Placement": ({"placement": {"token": "nobody"}}, "was answered 403"),
    }
    options, reason = refusals[who]
    refused = cloud.deployment.agent(options)
    everything_says(cloud, refused, reason)
    seen: set[str] = set()

    def heard() -> bool:
        seen.add((cloud.agent() or {})["last_seen_at"])
        return len(seen) > HEARTBEATS

    eventually(heard, "some heartbeats")
    assert refused.output.count(reason) == 1, refused.output
    refused.stop()
    nothing_says(cloud, cloud.deployment.agent(), placement)
