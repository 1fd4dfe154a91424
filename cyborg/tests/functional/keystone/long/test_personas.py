# SPDX-License-Identifier: Apache-2.0
"""Every command by everybody: real tokens, conductor, agent, generic driver.

Who may what is read from the operators' page; a command more is a row there, and a line here. The
same commands inside the ``openstack`` client send the same requests (``cli/test_plugin``).
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.keystone.cloud import HELD, SPARE, Cloud
from cyborg.tests.functional.keystone.long.sessions import (
    Scenario,
    UserSessions,
    prepared_scenario,
    user_sessions,
)
from cyborg.tests.functional.life.steps import everything
from cyborg.tests.unit.cli.conftest import CommandResult
from cyborg.tests.unit.policies.page import NO, OWN, YES, table
from cyborg_cli.base import ListCommand, ShowCommand
from cyborg_cli.shell import COMMANDS
from cyborg_cli.watching import Top

TABLE = table()
#: Who may least comes first. The stranger is a member of another project.
PEOPLE = ("stranger", "reader", "member", "manager", "operator", "admin")
#: Who must not learn where accelerators are.
OUTSIDE = frozenset({"stranger", "reader", "member", "manager"})
#: Length of the alias of a host.
ALIAS = 56
DONE = ""
Arguments = Callable[[Scenario], str]


@dataclass(frozen=True)
class Line:
    """How a command is tried.

    ``arguments`` are made anew for everybody who may use it; ``ours`` are those of people who may
    only with what is their own, where they differ (None: nothing of this noun is theirs). ``end``
    is what those who may are told when it cannot be done just now. ``tidy`` comes after it.
    """

    arguments: Arguments = lambda _scene: ""
    ours: Arguments | None = None
    end: str = DONE
    tidy: Callable[[Scenario], object] = lambda _scene: None

    @property
    def own(self) -> Arguments:
        return self.ours or self.arguments


def on_host(scenario: Scenario) -> str:
    return f"--host {scenario.host}"


def unmake(scenario: Scenario) -> None:
    """Delete what was created, and wait until it is gone."""

    def made() -> list[str]:
        found = scenario.sessions.cyborg("admin", "accelerator-list -f json").json
        return [one["uuid"] for one in found if one["model"] == "made"]

    scenario.sessions.cyborg("admin", f"accelerator-delete {' '.join(made())}")
    eventually(lambda: made() == [], "nothing is left of what was created")


def exported(scenario: Scenario) -> Path:
    """Return a file with the profile, as it is."""
    file = Path(os.environ["OS_CLIENT_CONFIG_FILE"]).with_name("profile.yaml")
    scenario.sessions.cyborg("admin", f"profile-export {scenario.profile} --output {file}")
    return file


LINES = {
    "service-list": Line(),
    "service-show": Line(lambda scenario: scenario.agent),
    "service-disable": Line(
        lambda scenario: f"{scenario.agent} --reason fans",
        tidy=lambda scenario: scenario.sessions.do(f"service-enable {scenario.agent}"),
    ),
    "service-enable": Line(lambda scenario: scenario.agent),
    "host-drain": Line(
        lambda scenario: f"{scenario.agent} --reason fans",
        tidy=lambda scenario: scenario.sessions.do(f"host-resume {scenario.agent}"),
    ),
    "host-resume": Line(lambda scenario: scenario.agent),
    "service-delete": Line(lambda scenario: scenario.gone_process()),
    "backend-list": Line(),
    "backend-show": Line(lambda scenario: scenario.backend),
    "driver-list": Line(),
    "driver-show": Line(lambda scenario: scenario.driver),
    "install-driver": Line(lambda scenario: f"pci_driver --host {scenario.host}"),
    "update-driver": Line(lambda scenario: f"{scenario.installed()} --disable"),
    "uninstall-driver": Line(lambda scenario: scenario.installed()),
    "discover-services": Line(on_host),
    "hardware-list": Line(),
    "hardware-show": Line(lambda scenario: scenario.hardware),
    "accelerator-list": Line(lambda _scene: "--driver generic_driver --long"),
    "accelerator-show": Line(lambda scenario: scenario.held),
    "accelerator-update": Line(
        lambda scenario: f"{scenario.spare} --status ready",
        ours=lambda scenario: f"{scenario.held} --label owner=blue",
    ),
    "accelerator-drain": Line(
        lambda scenario: scenario.held,
        tidy=lambda scenario: scenario.sessions.do(f"accelerator-resume {scenario.held}"),
    ),
    "accelerator-resume": Line(lambda scenario: scenario.held),
    "accelerator-create": Line(
        lambda scenario: (
            f"{on_host(scenario)} --driver generic_driver --backend soft --model made "
            "--type FPGA --resource-class CUSTOM_MADE"
        ),
        tidy=lambda scenario: unmake(scenario),
    ),
    "accelerator-delete": Line(lambda scenario: scenario.spare, end="(HTTP 409)"),
    "profile-list": Line(lambda scenario: f"--name {scenario.profile}"),
    "profile-show": Line(lambda scenario: scenario.profile),
    "profile-explain": Line(lambda scenario: scenario.profile),
    "profile-create": Line(
        lambda _scene: "made --group resources:FPGA=1",
        tidy=lambda scenario: scenario.sessions.cyborg("admin", "profile-delete made"),
    ),
    "profile-update": Line(lambda scenario: f"{scenario.profile} --description d"),
    "profile-delete": Line(lambda scenario: scenario.new_profile()),
    # Nothing differs from the file: each change would need the rule of that change.
    "profile-apply": Line(lambda scenario: f"-f {exported(scenario)}"),
    "profile-export": Line(lambda scenario: scenario.profile),
    "limits-show": Line(),
    "arq-list": Line(lambda scenario: f"--instance {scenario.server.uuid}"),
    "arq-show": Line(lambda scenario: scenario.arq),
    "operation-list": Line(lambda _scene: "--action discover"),
    "operation-show": Line(lambda scenario: scenario.operation()),
    "event-list": Line(lambda scenario: f"{on_host(scenario)} --limit 5"),
    "watch": Line(lambda scenario: f"{on_host(scenario)} --since 2020-01-01 --count 1"),
    "top": Line(lambda _scene: "-f json"),
    "attach-instance": Line(
        lambda scenario: scenario.server.uuid, tidy=lambda scenario: scenario.detach()
    ),
    "detach-instance": Line(lambda scenario: scenario.attached()),
    "capacity": Line(),
    "usage-list": Line(),
    "usage-show": Line(),
}
#: All that there is of these is the operators', though projects may have some.
NONE_IS_OURS = frozenset({"operation-list", "operation-show"})
#: The same rule lets a project change the labels of its devices. These commands are refused with
#: 403 to a project that has the device; for all others the device does not exist.
ONLY_LABELS_ARE_OURS = frozenset({"accelerator-drain", "accelerator-resume"})
#: How often a command that fails is run, until nothing in the background comes between.
_TRIES = 5


@pytest.fixture(scope="module")
def sessions(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UserSessions]:
    """Everybody; the module's own, because they share one file of clouds."""
    place = tmp_path_factory.mktemp("seats") / "clouds.yaml"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OS_CLIENT_CONFIG_FILE", str(place))
        yield user_sessions(cloud, place)


@pytest.fixture(scope="module")
def scenario(
    sessions: UserSessions, placement: PlacementService, nova_api: SimulatedNova
) -> Iterator[Scenario]:
    with prepared_scenario(sessions, placement, nova_api) as made:
        yield made


def test_every_documented_command_is_tried() -> None:
    assert set(LINES) == set(TABLE)


@pytest.mark.parametrize("command", LINES)
def test_command_is_allowed_as_documented(scenario: Scenario, command: str) -> None:
    for who in PEOPLE:
        promised = TABLE[command].people["member" if who == "stranger" else who]
        ran = tried(scenario, command, who, own=promised == OWN)
        keeps_quiet(scenario, command, who, ran)
        if promised == NO and who == "stranger" and command in ONLY_LABELS_ARE_OURS:
            is_empty_handed(command, ran)
        elif promised == NO:
            is_refused(command, ran)
        elif promised == OWN and who == "stranger" and command == "limits-show":
            # The stranger sees the limits of the stranger's own project.
            cloud = scenario.sessions.cloud
            project = cloud.keystone.project_id(cloud.people.member.project)
            assert (ran.status, project in ran.out) == (0, False)
        elif promised == OWN and (who == "stranger" or command in NONE_IS_OURS):
            is_empty_handed(command, ran)
        elif promised == YES and LINES[command].end:
            assert (ran.status, ran.out) == (1, ""), who
            assert LINES[command].end in ran.err
        else:
            assert ran.status == 0, f"{who}: {ran.err}"
            LINES[command].tidy(scenario)


def tried(scenario: Scenario, command: str, who: str, *, own: bool) -> CommandResult:
    """Run it; whoever fails has changed nothing.

    Work in the background may still change something, but not each time.
    """
    line = LINES[command]
    words = (line.own if own else line.arguments)(scenario)
    shows = issubclass(COMMANDS[command].command, ListCommand | ShowCommand)
    before = after = everything(scenario.sessions.cloud.database)
    for _ in range(_TRIES):
        ran = scenario.sessions.cyborg(
            who, f"{command} {words}", *(("-f", "json") if shows else ())
        )
        after, before = everything(scenario.sessions.cloud.database), after
        if not ran.status or after == before:
            return ran
    assert after == before, who
    return ran


def is_refused(command: str, ran: CommandResult) -> None:
    """403, with the rule and what to do."""
    assert (ran.status, ran.out) == (1, ""), ran.out
    if "Only operators change the status of a device" not in ran.err:
        assert TABLE[command].rule in ran.err
    else:
        assert command in ONLY_LABELS_ARE_OURS
    assert "(HTTP 403)" in ran.err
    assert "accelerator_operator" in ran.err


def is_empty_handed(command: str, ran: CommandResult) -> None:
    """A list of nothing, or 404."""
    if issubclass(COMMANDS[command].command, ListCommand | Top):
        assert (ran.status, json.loads(ran.out)) == (0, []), ran.err
        return
    assert (ran.status, ran.out) == (1, "")
    assert "could not be found (HTTP 404)" in ran.err


def keeps_quiet(scenario: Scenario, command: str, who: str, ran: CommandResult) -> None:
    """No secrets for anybody, and no places for those who only use accelerators."""
    said = ran.out + ran.err
    people = vars(scenario.sessions.cloud.people).values()
    for secret in [*scenario.sessions.tokens.values(), *(one.password for one in people)]:
        assert secret not in said
    if who in OUTSIDE:
        for place in (scenario.host, HELD, SPARE):
            assert place not in said, who


@pytest.mark.parametrize("who", ["member", "reader"])
def test_project_sees_devices_that_it_holds(scenario: Scenario, who: str) -> None:
    (listed,) = scenario.sessions.cyborg(who, "accelerator-list -f json").json
    assert listed["uuid"] == scenario.held
    # An alias, which is the same in all answers.
    assert len(listed["hostname"]) == ALIAS
    one = scenario.sessions.cyborg(who, f"accelerator-show {scenario.held} -f json").json
    assert [each["uuid"] for each in one["instances"]] == [scenario.server.uuid]
    assert one["hostname"] == listed["hostname"]
    places = {"backend", "std_board_info", "vendor_board_info", "address", "numa_node"}
    assert one.keys().isdisjoint({*places, "identity", "topology", "providers", "units", "events"})
    foreign = scenario.sessions.cyborg(who, f"accelerator-show {scenario.spare}")
    assert "(HTTP 404)" in foreign.err
    where = scenario.sessions.cyborg(who, f"accelerator-list --host {scenario.host}")
    assert (where.status, "(HTTP 403)" in where.err) == (1, True)


def test_members_may_only_label_devices_that_they_hold(scenario: Scenario) -> None:
    member = scenario.sessions.cyborg(
        "member", f"accelerator-update {scenario.held} --status maintaining"
    )
    assert "Only operators change the status of a device (HTTP 403)" in member.err
    label = "--label owner=blue"
    assert (
        scenario.sessions.cyborg("member", f"accelerator-update {scenario.held} {label}").status
        == 0
    )
    for who, device in (("member", scenario.spare), ("stranger", scenario.held)):
        ran = scenario.sessions.cyborg(who, f"accelerator-update {device} {label}")
        assert (ran.status, "(HTTP 404)" in ran.err) == (1, True), who
    shown = scenario.sessions.do(f"accelerator-show {scenario.held}")
    assert (shown["labels"], shown["status"]) == ({"owner": "blue"}, "enabled")


def test_attach_is_for_operators_unless_policy_changes(scenario: Scenario) -> None:
    uuid = scenario.server.uuid
    before = scenario.sessions.of_instance(uuid)
    ran = scenario.sessions.cyborg("member", f"attach-instance {uuid}")
    assert "cyborg:instance:attach" in ran.err
    done = scenario.sessions.do(f"attach-instance {uuid} --no-wait")
    assert done["state"] in {"running", "succeeded"}
    over = scenario.sessions.do(f"operation-show {done['uuid']} --wait")
    assert over["state"] == "succeeded"
    now = scenario.sessions.of_instance(uuid)
    (new,) = [one["uuid"] for one in now if one not in before]
    gone = scenario.sessions.do(f"detach-instance {uuid} {new} --no-wait")
    assert scenario.sessions.do(f"operation-show {gone['uuid']} --wait")["state"] == "succeeded"
    assert scenario.sessions.of_instance(uuid) == before
    ran = scenario.sessions.cyborg("operator", f"detach-instance {uuid} {scenario.arq}")
    assert (ran.status, "came with its flavor" in ran.err) == (1, True)
