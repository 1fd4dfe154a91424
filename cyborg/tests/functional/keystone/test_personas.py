# SPDX-License-Identifier: Apache-2.0
"""Every command, of both programs, by everybody: real tokens, conductor, agent, generic driver.

Who may what is read from the operators' page; a command more is a row there, and a line here.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from cyborg.cli.base import ListCommand, ShowCommand
from cyborg.cli.shell import COMMANDS
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.functional.keystone.cloud import Cloud
from cyborg.tests.functional.keystone.seats import HELD, SPARE, Scene, Seats, seated, staged
from cyborg.tests.functional.life.steps import eventually, everything
from cyborg.tests.unit.cli.conftest import CommandResult
from cyborg.tests.unit.policies.page import NO, OWN, YES, table

TABLE = table()
#: Who may least comes first. The stranger is a member of another project.
PEOPLE = ("stranger", "reader", "member", "manager", "operator", "admin")
#: Who must not learn where accelerators are.
OUTSIDE = frozenset({"stranger", "reader", "member"})
DONE = ""
Arguments = Callable[[Scene], str]


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
    tidy: Callable[[Scene], object] = lambda _scene: None

    @property
    def own(self) -> Arguments:
        return self.ours or self.arguments


def on_host(scene: Scene) -> str:
    return f"--host {scene.host}"


def unmake(scene: Scene) -> None:
    """Delete what was created, and wait until it is gone."""

    def made() -> list[str]:
        found = scene.seats.cyborg("admin", "accelerator-list -f json").json
        return [one["uuid"] for one in found if one["model"] == "made"]

    scene.seats.cyborg("admin", f"accelerator-delete {' '.join(made())}")
    eventually(lambda: made() == [], timeout=60.0)


LINES = {
    "service-list": Line(on_host),
    "service-show": Line(lambda scene: scene.agent),
    "service-disable": Line(
        lambda scene: f"{scene.agent} --reason fans",
        tidy=lambda scene: scene.seats.do(f"service-enable {scene.agent}"),
    ),
    "service-enable": Line(lambda scene: scene.agent),
    "service-delete": Line(lambda scene: scene.gone_process()),
    "backend-list": Line(on_host),
    "backend-show": Line(lambda scene: scene.backend),
    "driver-list": Line(on_host),
    "driver-show": Line(lambda scene: scene.driver),
    "install-driver": Line(lambda scene: f"pci_driver --host {scene.host}"),
    "update-driver": Line(lambda scene: f"{scene.installed()} --disable"),
    "uninstall-driver": Line(lambda scene: scene.installed()),
    "discover-services": Line(on_host),
    "hardware-list": Line(on_host),
    "hardware-show": Line(lambda scene: scene.hardware),
    "accelerator-list": Line(lambda _scene: "--driver generic_driver --long"),
    "accelerator-show": Line(lambda scene: scene.held),
    "accelerator-update": Line(
        lambda scene: f"{scene.spare} --status ready",
        ours=lambda scene: f"{scene.held} --label owner=blue",
    ),
    "accelerator-create": Line(
        lambda scene: (
            f"{on_host(scene)} --driver generic_driver --backend soft --model made "
            "--type FPGA --resource-class CUSTOM_MADE"
        ),
        tidy=lambda scene: unmake(scene),
    ),
    "accelerator-delete": Line(lambda scene: scene.spare, end="(HTTP 409)"),
    "profile-list": Line(lambda scene: f"--name {scene.profile}"),
    "profile-show": Line(lambda scene: scene.profile),
    "profile-create": Line(
        lambda _scene: "made --group resources:FPGA=1",
        tidy=lambda scene: scene.seats.cyborg("admin", "profile-delete made"),
    ),
    "profile-update": Line(lambda scene: f"{scene.profile} --description d"),
    "profile-delete": Line(lambda scene: scene.new_profile()),
    "arq-list": Line(lambda scene: f"--instance {scene.server.uuid}"),
    "arq-show": Line(lambda scene: scene.arq),
    "operation-list": Line(lambda _scene: "--action discover"),
    "operation-show": Line(lambda scene: scene.operation()),
    "event-list": Line(lambda scene: f"{on_host(scene)} --limit 5"),
    "attach-instance": Line(lambda scene: scene.server.uuid, tidy=lambda scene: scene.detach()),
    "detach-instance": Line(lambda scene: scene.attached()),
    "usage-show": Line(),
}
#: All that there is of these is the operators', though projects may have some.
NONE_IS_OURS = frozenset({"operation-list", "operation-show"})
#: Everybody, and for the commands inside the other client one who may most things and one who not.
SEATS = {"cyborg": PEOPLE, "openstack": ("stranger", "member", "operator")}
#: How often a command that fails is run, until nothing in the background comes between.
_TRIES = 5
TRIED = [
    pytest.param(program, command, id=f"{program} {command}")
    for program in SEATS
    for command in LINES
    if program == "cyborg" or COMMANDS[command].openstack_name
]


@pytest.fixture(scope="module")
def seats(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seats]:
    """Everybody at both programs; the module's own, because they share one file of clouds."""
    home = tmp_path_factory.mktemp("seats")
    with (
        pytest.MonkeyPatch.context() as patch,
        seated(cloud, home, SEATS["openstack"]) as everybody,
    ):
        patch.setenv("OS_CLIENT_CONFIG_FILE", str(home / "clouds.yaml"))
        yield everybody


@pytest.fixture(scope="module")
def scene(seats: Seats, placement: PlacementService, nova_api: SimulatedNova) -> Iterator[Scene]:
    with staged(seats, placement, nova_api) as made:
        yield made


def test_every_documented_command_is_tried() -> None:
    assert set(LINES) == set(TABLE)


@pytest.mark.parametrize(("program", "command"), TRIED)
def test_command_is_allowed_as_documented(scene: Scene, program: str, command: str) -> None:
    for who in SEATS[program]:
        promised = TABLE[command].people["member" if who == "stranger" else who]
        ran = tried(scene, program, command, who, own=promised == OWN)
        keeps_quiet(scene, command, who, ran)
        if promised == NO:
            is_refused(command, ran)
        elif promised == OWN and (who == "stranger" or command in NONE_IS_OURS):
            is_empty_handed(command, ran)
        elif promised == YES and LINES[command].end:
            assert (ran.status, ran.out) == (1, ""), who
            assert LINES[command].end in ran.err
        else:
            assert ran.status == 0, f"{who}: {ran.err}"
            LINES[command].tidy(scene)


def tried(scene: Scene, program: str, command: str, who: str, *, own: bool) -> CommandResult:
    """Run it; whoever fails has changed nothing.

    Work in the background may still change something, but not each time.
    """
    line = LINES[command]
    run = scene.seats.cyborg if program == "cyborg" else scene.seats.plugin
    words = (line.own if own else line.arguments)(scene)
    shows = issubclass(COMMANDS[command].command, ListCommand | ShowCommand)
    before = after = everything(scene.seats.cloud.database)
    for _ in range(_TRIES):
        ran = run(who, f"{command} {words}", *(("-f", "json") if shows else ()))
        after, before = everything(scene.seats.cloud.database), after
        if not ran.status or after == before:
            return ran
    assert after == before, who
    return ran


def is_refused(command: str, ran: CommandResult) -> None:
    """403, with the rule and what to do."""
    assert (ran.status, ran.out) == (1, ""), ran.out
    assert TABLE[command].rule in ran.err
    assert "(HTTP 403)" in ran.err
    assert "accelerator_operator" in ran.err


def is_empty_handed(command: str, ran: CommandResult) -> None:
    """A list of nothing, or 404."""
    if issubclass(COMMANDS[command].command, ListCommand):
        assert (ran.status, json.loads(ran.out)) == (0, []), ran.err
        return
    assert (ran.status, ran.out) == (1, "")
    assert "could not be found (HTTP 404)" in ran.err


def keeps_quiet(scene: Scene, command: str, who: str, ran: CommandResult) -> None:
    """No secrets for anybody, and no places for those who only use accelerators."""
    said = ran.out + ran.err
    people = vars(scene.seats.cloud.people).values()
    for secret in [*scene.seats.tokens.values(), *(one.password for one in people)]:
        assert secret not in said
    # What Nova hands a guest is in its owner's requests, as ever.
    if who in OUTSIDE and not command.startswith("arq-"):
        for place in (scene.host, HELD, SPARE):
            assert place not in said, who


@pytest.mark.parametrize("who", ["member", "reader"])
def test_project_sees_devices_that_it_holds(scene: Scene, who: str) -> None:
    (listed,) = scene.seats.cyborg(who, "accelerator-list -f json").json
    assert (listed["uuid"], listed["hostname"]) == (scene.held, None)
    one = scene.seats.cyborg(who, f"accelerator-show {scene.held} -f json").json
    assert [each["uuid"] for each in one["instances"]] == [scene.server.uuid]
    places = {"hostname", "backend", "std_board_info", "vendor_board_info", "address", "numa_node"}
    assert one.keys().isdisjoint({*places, "providers", "units", "events"})
    foreign = scene.seats.cyborg(who, f"accelerator-show {scene.spare}")
    assert "(HTTP 404)" in foreign.err
    where = scene.seats.cyborg(who, f"accelerator-list --host {scene.host}")
    assert (where.status, "(HTTP 403)" in where.err) == (1, True)


def test_members_may_only_label_devices_that_they_hold(scene: Scene) -> None:
    member = scene.seats.cyborg("member", f"accelerator-update {scene.held} --status maintaining")
    assert "Only operators change the status of a device (HTTP 403)" in member.err
    label = "--label owner=blue"
    assert scene.seats.cyborg("member", f"accelerator-update {scene.held} {label}").status == 0
    for who, device in (("member", scene.spare), ("stranger", scene.held)):
        ran = scene.seats.cyborg(who, f"accelerator-update {device} {label}")
        assert (ran.status, "(HTTP 404)" in ran.err) == (1, True), who
    shown = scene.seats.do(f"accelerator-show {scene.held}")
    assert (shown["labels"], shown["status"]) == ({"owner": "blue"}, "enabled")


def test_attach_is_for_operators_unless_policy_changes(scene: Scene) -> None:
    uuid = scene.server.uuid
    before = scene.seats.of_instance(uuid)
    ran = scene.seats.cyborg("member", f"attach-instance {uuid}")
    assert "cyborg:instance:attach" in ran.err
    done = scene.seats.do(f"attach-instance {uuid} --no-wait")
    assert done["state"] in {"running", "succeeded"}
    over = scene.seats.do(f"operation-show {done['uuid']} --wait")
    assert over["state"] == "succeeded"
    now = scene.seats.of_instance(uuid)
    (new,) = [one["uuid"] for one in now if one not in before]
    gone = scene.seats.do(f"detach-instance {uuid} {new} --no-wait")
    assert scene.seats.do(f"operation-show {gone['uuid']} --wait")["state"] == "succeeded"
    assert scene.seats.of_instance(uuid) == before
    ran = scene.seats.cyborg("operator", f"detach-instance {uuid} {scene.arq}")
    assert (ran.status, "came with its flavor" in ran.err) == (1, True)
