# SPDX-License-Identifier: Apache-2.0
"""Agents that Keystone or Placement refuses: everything that is shown says so, the log once."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cyborg.model import process
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
CONTROL: Options = {"DEFAULT": {"host": "control-1"}}
#: Host → its entry.
ByHost = dict[str, dict[str, Any]]


@dataclass
class Refused:
    """A host whose agent does not get into Placement with ``options``, for ``reason``."""

    reason: str
    options: Options
    path: Path
    host: str

    def begin(self, deployment: Deployment, options: Options | None = None) -> Program:
        """Start the agent of the host, without waiting for it."""
        own: Options = {
            "DEFAULT": {"host": self.host, "state_path": self.path / self.host},
            "agent": {"metrics_listen": "127.0.0.1:0", "resource_provider_name": self.host},
        }
        return deployment.begin(process.AGENT, {**own, **(options or {})})


@dataclass
class Cloud:
    """A conductor and an API as processes, and what they and the commands show."""

    deployment: Deployment
    http: Http

    def agent(self, host: str) -> dict[str, Any] | None:
        """The agent as the list of services shows it; None while it has sent nothing."""
        services = self.http.get(f"/services?kind=process&host={host}")["services"]
        return next((one for one in services if one["binary"] == process.AGENT), None)

    def device(self, host: str) -> dict[str, Any] | None:
        """The device of the host; None before the first report."""
        found = self.http.get(f"/devices?hostname={host}")["devices"]
        return found[0] if found else None

    def status(self) -> tuple[int, dict[str, dict[str, str | None]]]:
        """The exit status of ``cyborg-status check``, and its components by name."""
        shown = programs.run_on(self.deployment, "cyborg-status", "check", "--format", "json")
        components = json.loads(shown.stdout)["components"]
        return shown.returncode, {one["name"]: one for one in components}

    def refusals(self) -> ByHost:
        """The findings ``cannot-publish`` of ``cyborg-audit``."""
        audit = programs.run_on(self.deployment, "cyborg-audit", "--format", "json")
        findings = json.loads(audit.stdout)["findings"]
        return {one["host"]: one for one in findings if one["kind"] == "cannot-publish"}


def metrics(agent: Program) -> Page:
    return Page.at(agent.wait_for(r"Metrics are available at (\S+)")[1])


def everything_says(cloud: Cloud, agents: dict[str, Program], reasons: dict[str, str]) -> None:
    """All displays show since when and why these agents do not publish."""
    for host, reason in reasons.items():
        _api_says(cloud, host, reason, agents[host])
    code, components = cloud.status()
    assert code >= 1
    findings = cloud.refusals()
    for host, reason in reasons.items():
        shown = components[f"cyborg-agent on {host}"]
        assert (shown["state"], shown["level"]) == ("not publishing", "warning")
        assert reason in str(shown["cause"])
        assert findings[host]["severity"] == "warning"
        assert reason in findings[host]["cause"]


def _api_says(cloud: Cloud, host: str, reason: str, agent: Program) -> None:
    row = eventually(
        lambda: (one := cloud.agent(host)) and one["publish_error"] and one, lambda: agent.output
    )
    assert row["state"] == "up"
    assert reason in row["publish_error"]
    assert row["publish_error_since"] is not None
    assert row["cause"].startswith("It cannot publish in Placement since ")
    assert reason in row["cause"]
    assert row["remedy"]
    device = eventually(lambda: cloud.device(host))
    assert device["units"]["free"] == 0
    assert device["units"]["reasons"] == {"unpublished": 16}
    (provider,) = device["providers"]
    assert (provider["total"], provider["reserved"], provider["published"]) == (16, 0, None)
    assert metrics(agent).value("cyborg_publishing") == 0


def logs_once(cloud: Cloud, host: str, reason: str, agent: Program) -> None:
    """An agent that is refused says so once, not with each heartbeat."""
    seen: set[str] = set()

    def heard() -> bool:
        seen.add((cloud.agent(host) or {})["last_seen_at"])
        return len(seen) > HEARTBEATS

    eventually(heard, "some heartbeats")
    assert agent.output.count(reason) == 1, agent.output


def nothing_says(cloud: Cloud, agents: dict[str, Program], placement: PlacementService) -> None:
    """The devices are in Placement, and no display has an error of an agent."""
    for host, agent in agents.items():
        _api_says_nothing(cloud, host, agent, placement)
    _, components = cloud.status()
    assert {components[f"cyborg-agent on {host}"]["state"] for host in agents} == {"up"}
    assert not cloud.refusals()


def _api_says_nothing(cloud: Cloud, host: str, agent: Program, placement: PlacementService) -> None:
    provider = provider_uuid(f"{host.replace('.', '_')}_FakeDevice")
    eventually(lambda: offered(placement, provider) == 16, lambda: agent.output)
    eventually(
        lambda: (one := cloud.agent(host)) and one["publish_error"] is None, lambda: agent.output
    )
    assert (cloud.agent(host) or {})["cause"] is None
    device = eventually(
        lambda: (one := cloud.device(host)) and one["providers"][0]["published"] and one
    )
    assert device["units"]["free"] == 16
    assert device["providers"][0]["published"] == {"total": 16, "reserved": 0}
    assert metrics(agent).value("cyborg_publishing") == 1


def test_refused_agents_are_shown_everywhere_and_log_once(
    deploy: Callable[..., Deployment], placement: PlacementService, tmp_path: Path
) -> None:
    with KeystoneService(tmp_path) as keystone:
        account = replace(keystone.make_account("agent", "service", "service"), password="wrong")
        of_keystone = {**account.options(keystone.url), "endpoint_override": placement.url}
        refused = [
            Refused(reason, {"placement": options}, tmp_path, fresh_host())
            for reason, options in (
                ("refuses the account", of_keystone),
                ("was answered 403", {"token": "nobody"}),
            )
        ]
        for one in refused:
            placement.make_compute(one.host)
        reasons = {one.host: one.reason for one in refused}
        # All begin at once: they spend most of the time on imports.
        deployment = deploy(CONTROL)
        deployment.begin(process.CONDUCTOR)
        agents = {one.host: one.begin(deployment, one.options) for one in refused}
        api, url = deployment.api()
        cloud = Cloud(deployment, Http(url, version="2.100"))
        eventually(cloud.http.healthy, lambda: api.output)
        everything_says(cloud, agents, reasons)
        for host, agent in agents.items():
            logs_once(cloud, host, reasons[host], agent)
            agent.stop()
    accepted = {one.host: one.begin(deployment) for one in refused}
    nothing_says(cloud, accepted, placement)
