# SPDX-License-Identifier: Apache-2.0
"""The parts of the chaos run that need no daemons: what is asked, written down, and shown."""

import importlib.metadata
import io
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.drivers import loader
from cyborg.drivers.host import LocalHost
from cyborg.model.work import HandleTask
from cyborg.testing.driver_checks import look
from cyborg_tools.chaos import driver, servers
from cyborg_tools.chaos.__main__ import outcome, parse, repetition
from cyborg_tools.chaos.faults import CATALOGUE, Fault
from cyborg_tools.chaos.night import NIGHT, WELL
from cyborg_tools.chaos.results import Chapter, ClientLog, Part, Results
from cyborg_tools.chaos.run import Run
from cyborg_tools.chaos.views import View, wrong
from cyborg_tools.program import BrokenEnvironment
from cyborg_tools.quickstart.screen import Screen

CARD = "0000:81:00.0"
UNIT = "0000:81:00.1"


@pytest.fixture
def machine(tmp_path: Path) -> driver.Machine:
    made = driver.Machine(tmp_path / "machine")
    made.plug(CARD, "CUSTOM_CARD", units=2, seconds=0.0)
    return made


@pytest.fixture
def loaded(machine: driver.Machine, tmp_path: Path) -> driver.ChaosDriver:
    """The driver, on a configuration of its own."""
    file = tmp_path / "agent.conf"
    file.write_text(f"[DEFAULT]\nhost = here\n[chaos]\nmachine = {machine.directory}\n")
    conf = cfg.ConfigOpts()
    conf.register_opt(cfg.StrOpt("host"))
    conf([], default_config_files=[str(file)], default_config_dirs=[])
    return driver.ChaosDriver(LocalHost(), conf)


def faults(*arguments: str) -> list[str]:
    return [one.name for one in parse(arguments).faults]


def test_faults_are_those_of_the_chosen_run():
    assert faults() == [one.name for one in CATALOGUE]
    assert faults("--short") == [
        "conductor-kill",
        "conductor-stop",
        "agent-kill",
        "rabbit-restart",
        "mariadb-restart",
        "placement-500",
        "nova-silent",
    ]
    assert faults("--only", "nova-503", "--only", "api-kill", "--short") == ["api-kill", "nova-503"]
    assert faults("--night") == [one.name for one in NIGHT]
    assert faults("--night", "--only", "night-bus") == ["night-bus"]


def test_sample_has_short_faults_that_the_seed_chooses():
    short = faults("--short")
    samples = [faults("--sample", "2", "--seed", str(seed)) for seed in range(40)]
    assert samples[3] == faults("--sample", "2", "--seed", "3")
    assert all(len(one) == 2 and set(one) < set(short) for one in samples)
    # In the order of the catalogue, and each of them sometimes.
    assert all(one == [name for name in short if name in one] for one in samples)
    assert set().union(*samples) == set(short)
    assert faults("--sample", str(len(short))) == short
    # The outages are short, too.
    assert parse(["--sample", "1"]).short


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ("--short", "tools/chaos --short --seed 7"),
        ("--sample 2 --seed 7", "tools/chaos --sample 2 --seed 7"),
        ("--seed=7 --json", "tools/chaos --seed=7 --json"),
        ("", "tools/chaos --seed 7"),
    ],
)
def test_run_tells_the_command_that_repeats_it(arguments: str, command: str):
    words = arguments.split()
    plan = parse(words)
    plan.seed = "7"
    assert repetition(words, plan) == command


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ("--night --short", "--night is another run"),
        ("--night --sample 2", "--night is another run"),
        ("--sample 2 --only api-kill", "both choose"),
        ("--sample 0", "invalid choice"),
        ("--night --only api-kill", "api-kill"),
        ("--only night-bus", "night-bus"),
        ("--only earthquake", "earthquake"),
        ("--clients 9", "9"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: str, word: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        parse(arguments.split())
    assert ended.value.code == 2
    assert word in capsys.readouterr().err


BUS_CAUSE = "Message bus is down: No conductor answers since 13:05: 403 ACCESS_REFUSED"
DOWN = frozenset({"Message bus"})


@pytest.mark.parametrize(
    ("view", "sentences"),
    [
        (View(2, [BUS_CAUSE], "Check the account.", DOWN), []),
        (View(1, [BUS_CAUSE], "", DOWN), ["status ends with 1, not 2"]),
        (View(2, ["Message bus is down: ?"], "", DOWN), ["status does not say"]),
        (View(2, [BUS_CAUSE], "Start cyborg-agent on a.", DOWN), ["status blames cyborg-agent"]),
        (View(2, [BUS_CAUSE], "", DOWN | {"Nova"}), ["status says that Nova is down"]),
    ],
)
def test_view_that_names_a_wrong_cause_is_a_violation(view: View, sentences: list[str]):
    said = wrong({"status": view}, NIGHT[0].expected)
    assert all(one.startswith(part) for one, part in zip(said, sentences, strict=True))


def test_view_shows_the_line_that_names_the_cause():
    view = View(2, ["cyborg-agent on a is not heard", BUS_CAUSE], "")
    assert view.shown("403") == f"2: {BUS_CAUSE} (and 1 more)"
    assert list(wrong({"audit": View(0, [], "")}, WELL)) == []


def test_missing_program_is_named_with_its_package():
    with pytest.raises(exception.ConfigError, match=r"no-such-mariadbd .* package mariadb-server"):
        servers.needed("no-such-mariadbd", "mariadb-server")


class NeverStarts(servers.Server):
    """A server whose program ends at once."""

    title = "MariaDB"
    _command = [sys.executable, "-c", "raise SystemExit('no space left')"]  # noqa: RUF012

    def answers(self) -> bool:
        return False


def test_server_that_does_not_start_says_nothing_about_the_service(tmp_path: Path):
    server = NeverStarts(tmp_path / "server")
    server.begin()
    with pytest.raises(BrokenEnvironment, match="MariaDB does not start:\nno space left"):
        server.wait()


@pytest.mark.parametrize(
    "fault", [RuntimeError("see child.log"), subprocess.CalledProcessError(1, ["keystone-manage"])]
)
def test_keystone_that_does_not_start_says_nothing_about_the_service(fault: Exception):
    starting: Future[None] = Future()
    starting.set_exception(fault)
    with pytest.raises(BrokenEnvironment, match=r"Keystone does not start: .+"):
        servers.started(starting)


class Faults(Run):
    """A run of faults that raise these errors, without daemons and clients."""

    def __init__(self, *errors: Exception | None) -> None:
        plan = parse(["--seed", "7"])
        plan.clients = 0
        plan.faults = [
            Fault(f"fault-{number}", "", _raising(error), short=True)
            for number, error in enumerate(errors)
        ]
        world = SimpleNamespace(
            make_profiles=lambda _profiles: None,
            open_urls=["http://127.0.0.1:9"],
            placement=None,
            nova=None,
        )
        super().__init__(plan, world, say=lambda _title: None, tell=lambda _part: None)
        self.judge = SimpleNamespace(judge=lambda: iter(()))

    def walk(self) -> None:
        self.inject_all()

    def recovered(self, _fault_run: object) -> float:
        return 0.0


def _raising(error: Exception | None) -> Callable[[object], None]:
    def do(_fault_run: object) -> None:
        if error:
            raise error

    return do


LOST = exception.ConfigError(reason="cyborg-agent does not start")
NO_SERVER = BrokenEnvironment(reason="RabbitMQ does not start")


def test_error_of_the_service_is_a_violation_and_the_run_goes_on():
    results = outcome(Faults(LOST, None))
    assert [one.chapter.violations for one in results.parts] == [[str(LOST)], []]


def test_server_that_does_not_come_back_ends_the_run_without_a_verdict():
    with pytest.raises(BrokenEnvironment, match="RabbitMQ"):
        outcome(Faults(None, NO_SERVER, LOST))


def test_violation_counts_even_if_a_server_does_not_come_back_later():
    results = outcome(Faults(LOST, NO_SERVER, None))
    assert [one.name for one in results.parts] == ["fault-0"]
    assert results.violations == 1


def test_machine_shows_what_the_driver_prepares(
    machine: driver.Machine, loaded: driver.ChaosDriver
):
    (device,) = look(loaded).discover()
    (deployable,) = device.deployables
    assert (device.key, device.model, deployable.prepare) == (CARD, "CUSTOM_CARD", True)
    assert [one.key for one in deployable.handles] == [UNIT, "0000:81:00.2"]
    assert machine.units == {UNIT: CARD, "0000:81:00.2": CARD}
    task = HandleTask("operation", "chaos_driver", CARD, f"here_{CARD}", UNIT, "uuid")
    for act, prepared in ((loaded.prepare, {(CARD, UNIT)}), (loaded.release, set())):
        for _ in range(2):
            act(task)
            assert machine.prepared == prepared


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
    client_log.count("client-1", "boots")
    return client_log.page


def test_json_document_has_all_results():
    part = Part("conductor-kill", "killed", chapter(), figures={"ARQ resolved": 3.21}, recovery=1.0)
    part.chapter.violations.append("something is wrong")
    document = Results(seed="7", parts=[part]).document()
    assert (document["violations"], document["seed"]) == (1, "7")
    (shown,) = document["parts"]
    assert shown["figures_s"] == {"ARQ resolved": 3.21}
    assert shown["bind_ms"] == {"p50": 300.0, "p99": 5000.0}
    assert shown["clients"]["client-1"]["bind"] == {"202": 2, "503": 1}
    seen = part.chapter.seen["client-1"]
    assert [seen.row(verb) for verb in ("bind", "delete", "create")] == [
        "2, 503 x1",
        "0, none x1",
        "0",
    ]


@pytest.mark.parametrize(("seconds", "words"), [(4.9, "aim: 5 s)"), (5.1, "aim: 5 s, missed)")])
def test_text_report_compares_takeover_with_its_target(seconds: float, words: str):
    out = io.StringIO()
    part = Part("conductor-kill", "killed", chapter(), figures={"ARQ resolved": seconds})
    results = Results(seed="7", parts=[part], seconds=12.0)
    part.show(Screen(out))
    results.show(Screen(out))
    assert words in out.getvalue()
    assert "client-1" in out.getvalue()
    assert "0 violations in 12 s" in out.getvalue()
