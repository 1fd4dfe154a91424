# SPDX-License-Identifier: Apache-2.0
"""The parts of the chaos run that need no daemons: what is asked, written down, and shown."""

import importlib.metadata
import io
import os
from pathlib import Path

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.drivers import loader
from cyborg.drivers.host import LocalHost
from cyborg.model.work import HandleTask
from cyborg_tools.chaos import driver, options, servers, show
from cyborg_tools.chaos.catalogue import NAMES, NIGHT_NAMES
from cyborg_tools.chaos.client_log import Chapter, ClientLog
from cyborg_tools.chaos.faults import DONE
from cyborg_tools.chaos.night import FAULTS, WELL
from cyborg_tools.chaos.results import Part, Results
from cyborg_tools.chaos.views import View, Views
from cyborg_tools.quickstart.screen import Screen

CARD = "0000:81:00.0"
UNIT = "0000:81:00.1"


@pytest.fixture
def machine(tmp_path: Path) -> driver.Machine:
    made = driver.Machine(tmp_path / "machine")
    made.plug(CARD, "CUSTOM_CARD", units=2, seconds=0.0)
    return made


@pytest.fixture
def loaded(
    machine: driver.Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> driver.ChaosDriver:
    """The driver, on a configuration of its own."""
    file = tmp_path / "agent.conf"
    file.write_text(f"[DEFAULT]\nhost = here\n[chaos]\nmachine = {machine.directory}\n")
    conf = cfg.ConfigOpts()
    conf.register_opt(cfg.StrOpt("host"))
    conf([], default_config_files=[str(file)], default_config_dirs=[])
    return driver.ChaosDriver(LocalHost(), conf)


def task() -> HandleTask:
    return HandleTask("operation", "chaos_driver", CARD, f"here_{CARD}", UNIT, "uuid")


def test_every_named_fault_has_an_implementation():
    assert list(DONE) == list(NAMES)


def test_all_faults_run_by_default():
    plan = options.parse([])
    assert [one.name for one in plan.faults] == list(NAMES)
    assert (plan.clients, plan.short, plan.as_json, plan.keep) == (6, False, False, False)


def test_short_run_has_the_faults_of_ci():
    assert [one.name for one in options.parse(["--short"]).faults] == [
        "conductor-kill",
        "conductor-stop",
        "agent-kill",
        "rabbit-restart",
        "mariadb-restart",
        "placement-500",
        "nova-silent",
    ]


def test_named_faults_run_in_list_order():
    asked = ["--only", "nova-503", "--only", "api-kill", "--short", "--seed", "7"]
    plan = options.parse(asked)
    assert [one.name for one in plan.faults] == ["api-kill", "nova-503"]
    assert plan.seed == 7


def test_night_run_has_all_faults_of_a_night():
    assert [fault.name for fault in options.parse(["--night"]).faults] == list(FAULTS)
    assert list(FAULTS) == list(NIGHT_NAMES)
    assert [fault.name for fault in options.parse(["--night", "--only", "night-bus"]).faults] == [
        "night-bus"
    ]


@pytest.mark.parametrize(
    "arguments",
    [["--night", "--short"], ["--night", "--only", "api-kill"], ["--only", "night-bus"]],
)
def test_faults_of_both_runs_cannot_be_mixed(arguments: list[str]):
    with pytest.raises(SystemExit) as ended:
        options.parse(arguments)
    assert ended.value.code == 2


BUS_CAUSE = "Message bus is down: No conductor answers since 13:05: 403 ACCESS_REFUSED"
DOWN = frozenset({"Message bus"})


@pytest.mark.parametrize(
    ("view", "sentences"),
    [
        (View(2, [BUS_CAUSE], "Check the account.", DOWN), []),
        (View(1, [BUS_CAUSE], "", DOWN), ["status ends with 1, not 2"]),
        (View(2, ["Message bus is down: ?"], "", DOWN), ["status does not say"]),
        (
            View(2, [BUS_CAUSE], "Start cyborg-agent on compute-1.", DOWN),
            ["status blames cyborg-agent"],
        ),
        (View(2, [BUS_CAUSE], "", DOWN | {"Nova"}), ["status says that Nova is down"]),
    ],
)
def test_view_that_names_a_wrong_cause_is_a_violation(view: View, sentences: list[str]):
    _, expected = FAULTS["night-start"]
    wrong = list(Views({"status": view}).wrong(expected))
    assert [one.startswith(part) for one, part in zip(wrong, sentences, strict=True)] == [
        True for _ in sentences
    ]


def test_view_shows_the_line_that_names_the_cause():
    view = View(2, ["cyborg-agent on a is not heard", BUS_CAUSE], "")
    assert view.shown("403") == f"2: {BUS_CAUSE} (and 1 more)"
    assert list(Views({"audit": View(0, [], "")}).wrong(WELL)) == []


@pytest.mark.parametrize("arguments", [["--only", "earthquake"], ["--clients", "9"]])
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        options.parse(arguments)
    assert ended.value.code == 2
    assert arguments[1] in capsys.readouterr().err


def test_missing_program_is_named_with_its_package():
    with pytest.raises(exception.ConfigError, match=r"no-such-mariadbd .* package mariadb-server"):
        servers.needed("no-such-mariadbd", "mariadb-server")


def test_machine_file_lists_prepared_units(machine: driver.Machine, loaded: driver.ChaosDriver):
    assert machine.prepared == set()
    for _ in range(2):
        loaded.prepare(task())
        assert machine.prepared == {(CARD, UNIT)}
    for _ in range(2):
        loaded.release(task())
        assert machine.prepared == set()
    assert machine.units == {UNIT: CARD, "0000:81:00.2": CARD}


def test_driver_reports_plugged_devices(loaded: driver.ChaosDriver):
    (device,) = loaded.discover()
    (deployable,) = device.deployables
    assert (device.key, device.model, deployable.prepare) == (CARD, "CUSTOM_CARD", True)
    assert [one.key for one in deployable.handles] == [UNIT, "0000:81:00.2"]


def test_driver_is_installed_as_an_entry_point(tmp_path: Path):
    announced, tools = driver.install(tmp_path / "vendor")["PYTHONPATH"].split(os.pathsep)
    (distribution,) = importlib.metadata.distributions(path=[announced])
    assert (Path(tools) / "cyborg_tools" / "chaos" / "driver.py").exists()
    (entry,) = distribution.entry_points
    assert (entry.group, entry.name) == (loader.NAMESPACE, driver.ChaosDriver.name)
    assert entry.load() is driver.ChaosDriver


def test_unit_with_two_guests_is_a_violation():
    client_log = ClientLog()
    client_log.hold(("provider", "unit"), "one")
    client_log.hold(("provider", "unit"), "one")
    assert client_log.page.violations == []
    client_log.hold(("provider", "unit"), "other")
    (sentence,) = client_log.page.violations
    assert "one" in sentence
    assert "other" in sentence
    client_log.turn_page()
    client_log.let_go("one")
    client_log.hold(("provider", "unit"), "other")
    assert client_log.page.violations == []


def chapter() -> Chapter:
    client_log = ClientLog()
    for status, seconds in (("202", 0.1), ("503", 5.0), ("202", 0.3)):
        client_log.answer("client-1", "bind", status, seconds)
    client_log.answer("client-1", "delete", "none", 1.0)
    client_log.lived("client-1")
    return client_log.page


def test_responses_are_counted_by_outcome():
    seen = chapter().seen["client-1"]
    assert seen.row("bind") == "2, 503 x1"
    assert seen.row("delete") == "0, none x1"
    assert seen.row("create") == "0"


def test_json_document_has_all_results():
    part = Part("conductor-kill", "killed", chapter(), figures={"ARQ resolved": 3.21}, recovery=1.0)
    part.violations.append("something is wrong")
    document = Results(seed=7, parts=[part]).document()
    assert (document["violations"], document["seed"]) == (1, 7)
    (shown,) = document["parts"]
    assert shown["figures_s"] == {"ARQ resolved": 3.21}
    assert shown["bind_ms"] == {"p50": 300.0, "p99": 5000.0}
    assert shown["clients"]["client-1"]["bind"] == {"202": 2, "503": 1}


@pytest.mark.parametrize(("seconds", "words"), [(4.9, "aim: 5 s)"), (5.1, "aim: 5 s, missed)")])
def test_text_report_compares_takeover_with_its_target(seconds: float, words: str):
    out = io.StringIO()
    part = Part("conductor-kill", "killed", chapter(), figures={"ARQ resolved": seconds})
    results = Results(seed=7, parts=[part], seconds=12.0)
    show.part(Screen(out), part)
    show.summary(Screen(out), results)
    assert words in out.getvalue()
    assert "client-1" in out.getvalue()
    assert "0 violations in 12 s" in out.getvalue()
