# SPDX-License-Identifier: Apache-2.0
"""The parts of the walk that need no daemons: what is asked, typed, read, and where it happens."""

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from oslo_config import cfg
from oslo_messaging import opts as messaging

from cyborg import conf as configuration
from cyborg import exception
from cyborg.tests.fixtures import ports
from cyborg.tests.fixtures.loopback import Loopback
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.functional.deployed.page import block
from cyborg.tests.unit.cli.service import AGENT, Answer, Service, error_body
from cyborg_tools import servers
from cyborg_tools.quickstart.clients import StepFailed
from cyborg_tools.quickstart.screen import WIDTH, Screen
from cyborg_tools.walkthrough import pages
from cyborg_tools.walkthrough.__main__ import parse
from cyborg_tools.walkthrough.environment import Place
from cyborg_tools.walkthrough.operator import Operator

#: Where the package of the command is found.
_TOOLS = Path(__file__).parents[1]


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def screen() -> tuple[Screen, io.StringIO]:
    out = io.StringIO()
    return Screen(out), out


@pytest.fixture
def operator(
    service: Service, screen: tuple[Screen, io.StringIO], tmp_path: Path
) -> Iterator[Operator]:
    """Somebody whose commands are real processes."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
    with Loopback(service) as loopback:
        account = {"OS_AUTH_TYPE": "none", "OS_ENDPOINT": f"{loopback.url}/v2"}
        yield Operator({**known, **account, "HOME": str(tmp_path)}, screen[0])


def test_default_servers_are_those_of_the_tests():
    plan = parse([])
    servers_of_tests = (
        "mysql+pymysql://root@127.0.0.1:3306/",
        "rabbit://guest:guest@127.0.0.1:5672/",
    )
    assert (plan.mysql_url, plan.rabbit_url, plan.keep) == (*servers_of_tests, False)
    assert not plan.tls
    # CI hands on what it was given for the tests.
    plan = parse(["--mysql-url", "a", "--postgresql-url", "b", "--rabbit-url", "c"])
    assert (plan.mysql_url, plan.rabbit_url) == ("a", "c")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Text ``cyborg x``::\n\n    cyborg a \\\n      --b\n\n    cyborg c\n\nMore.\n",
         [("cyborg a \\\n  --b\n\ncyborg c", None)]),
        ("1. Do::\n\n       cyborg a\n\n   Then::\n\n       cyborg b\n",
         [("cyborg a", None), ("cyborg b", None)]),
        (".. code-block:: bash\n   :caption: x\n\n   C=$(cyborg c)\n", [("C=$(cyborg c)", None)]),
        ("::\n\n  for a in b; do cyborg-audit; done\n",
         [("for a in b; do cyborg-audit; done", None)]),
        ("::\n\n  curl \\\n    http://a\n", [("curl \\\n  http://a", None)]),
        ("::\n\n  openstack --os-cloud a accelerator arq list\n",
         [("openstack --os-cloud a accelerator arq list", None)]),
        (".. not run: it needs root\n\n::\n\n  sudo -u cyborg cyborg-api\n\n::\n\n  cyborg a\n",
         [("sudo -u cyborg cyborg-api", "it needs root"), ("cyborg a", None)]),
        (".. code-block:: text\n\n   cyborg-audit [--fix]\n", []),
        ("::\n\n  openstack service create --name cyborg accelerator\n", []),
        ("::\n\n  podman run --rm \\\n    cyborg-agent --list-functions a\n", []),
        ("::\n\n  sudo rabbitmqctl set_permissions a \\\n    \"^(cyborg|b)$\" '(cyborg|c)'\n", []),
        (".. image:: cyborg a\n\n   cyborg b\n", []),
    ],
)  # fmt: skip
def test_examples_are_the_blocks_with_our_commands(
    text: str, found: list[tuple[str, str | None]]
) -> None:
    assert [(block.text, block.reason) for block in pages.blocks(text)] == found


@pytest.mark.parametrize(
    "text", [".. not run: a\n", ".. not run: a\n\n.. not run: b\n\n::\n\n  cyborg c\n"]
)
def test_reason_without_a_block_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no block with our commands follows: a"):
        list(pages.blocks(text))


def test_block_that_would_change_the_machine_is_refused() -> None:
    with pytest.raises(ValueError, match="why this does not run: sudo cyborg-privileged"):
        list(pages.blocks("::\n\n  sudo cyborg-privileged\n"))


def test_variables_that_commands_set_before_they_use_them_need_no_value() -> None:
    assert pages.variables("A=$(cyborg a $B)\ncyborg b $A ${C} \\\n  $D\nD=1") == ["B", "C", "D"]


def test_each_page_with_commands_runs() -> None:
    listed = [page.name for page in pages.PAGES]
    assert sorted(listed) == list(pages.names()), (
        "List each page with commands in cyborg_tools.walkthrough.pages.PAGES, or write before the "
        "block why it does not run: .. not run: REASON"
    )


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_each_variable_of_a_page_has_a_value(page: pages.Page) -> None:
    assert set(page.unset) <= {*pages.LOOKUPS, *pages.GIVEN}


def test_examples_are_not_run_over_tls(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--examples", "--tls"])
    assert "exclude each other" in capsys.readouterr().err


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An account at a port that refuses connections, without a scheme."""
    with ports.refusing() as port:
        yield f"://me:secret@127.0.0.1:{port}/"


@pytest.mark.parametrize(
    ("scheme", "kind", "words"),
    [
        ("mysql+pymysql", "mysql", "Can't connect"),
        ("postgresql", "mysql", "must begin with mysql+pymysql://"),
        ("", "mysql", "The server at nowhere"),
        ("rabbit", "rabbit", "Connection refused"),
        ("kafka", "rabbit", "must begin with rabbit://"),
    ],
)
def test_missing_server_is_named_in_one_line(
    scheme: str, kind: str, words: str, nowhere: str, tmp_path: Path
):
    url = f"{scheme}{nowhere}" if scheme else ""
    database = servers.database(url, tmp_path, "cyborg_walkthrough")
    opened = database if kind == "mysql" else servers.exchange(url)
    with pytest.raises(exception.ConfigError) as refused, opened:
        pass
    said = str(refused.value)
    assert words in said
    assert said.endswith(f"Another one is named with --{kind}-url.")
    assert "\n" not in said
    assert "secret" not in said


def test_walkthrough_ends_without_a_server(nowhere: str):
    command = [sys.executable, "-m", "cyborg_tools.walkthrough"]
    ran = subprocess.run(
        [*command, "--mysql-url", f"mysql+pymysql{nowhere}"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "PYTHONPATH": str(_TOOLS)},
    )
    assert ran.returncode == 1
    (line,) = ran.stderr.splitlines()
    assert line.startswith("walkthrough: The server at 127.0.0.1:")


def test_commands_are_trusted_only_in_directories_of_root():
    place = Place.make()
    try:
        assert place.directory.is_dir()
        assert place.trusted == (os.geteuid() == 0)
        assert place.mark("0000:0a:00.0").parent == place.directory
    finally:
        place.directory.rmdir()


def test_operator_reads_returned_columns(
    operator: Operator, screen: tuple[Screen, io.StringIO], service: Service
):
    found = operator.asks(f"service-show {AGENT} -c uuid -c binary")
    assert found == {"uuid": AGENT, "binary": "cyborg-agent"}
    text = screen[1].getvalue()
    assert f"$ cyborg service-show {AGENT} -c uuid -c binary -f json" in text
    assert '< 0 {"uuid": ' in text
    assert operator.does(f"service-show {AGENT} -f value -c binary").out == "cyborg-agent\n"


def test_step_fails_with_an_unexpected_exit_status(operator: Operator, service: Service):
    service.answers["/drivers"] = [Answer(409, error_body("It is in use."))] * 3
    with pytest.raises(StepFailed, match="status 1 came back, and 0 was expected"):
        operator.does("driver-list")
    operator.is_refused("driver-list", "It is in use")
    with pytest.raises(StepFailed, match="'in the way' is not in its output"):
        operator.is_refused("driver-list", "in the way")
    with pytest.raises(StepFailed, match="status 0 came back, and 1 was expected"):
        operator.is_refused(f"service-show {AGENT}")


def test_only_the_last_attempt_is_shown(operator: Operator, screen: tuple[Screen, io.StringIO]):
    seen: list[object] = []

    def holds(shown: object) -> bool:
        seen.append(shown)
        return len(seen) == 2

    operator.awaits("service-list -c uuid", holds, "it never holds")
    assert len(seen) == 2
    assert screen[1].getvalue().count("$ cyborg") == 1
    operator.show_last()
    assert screen[1].getvalue().count("$ cyborg service-list -c uuid -f json") == 2


def test_commands_and_their_output_are_shown(screen: tuple[Screen, io.StringIO]):
    screen[0].command("cyborg x", 1, "It is not so.\nNor so.\n", None)
    screen[0].command(f"cyborg {' '.join(['--option'] * 20)}", 0, "", "| a |\n| b |")
    lines = screen[1].getvalue().splitlines()
    assert lines[:4] == [
        "           $ cyborg x",
        "           ! It is not so.",
        "           ! Nor so.",
        "           < 1",
    ]
    assert lines[4].endswith("--option \\")
    assert max(map(len, lines)) <= WIDTH
    assert [one.endswith("\\") for one in lines[4:-3]] == [True, True, False]
    assert lines[-3:] == ["           < 0", " " * 13 + "| a |", " " * 13 + "| b |"]


@pytest.mark.parametrize("name", ["tls-controllers", "tls-agents"])
def test_page_about_tls_has_options_of_the_service(name: str, tmp_path: Path):
    """CI runs the walk with the same blocks on servers that accept TLS alone."""
    file = tmp_path / "cyborg.conf"
    file.write_text(block("tls", name))
    conf = configuration.prepare(
        [], prog="cyborg-test", default_config_files=[str(file)], conf=cfg.ConfigOpts()
    )
    for group, options in messaging.list_opts():
        conf.register_opts(options, group=group)
    assert conf.message_signing == "required"
    ca = "/etc/cyborg/tls/ca.pem"
    assert (conf.placement.cafile, conf.oslo_messaging_rabbit.ssl_ca_file) == (ca, ca)
    if name == "tls-agents":
        assert conf.glance.cafile == ca
        return
    assert conf.api.enable_ssl_api
    assert (conf.ssl.cert_file, conf.ssl.key_file) == (
        "/etc/cyborg/tls/api.pem",
        "/etc/cyborg/tls/api.key",
    )
    assert conf.nova.cafile == ca
    assert conf.database.connection.endswith(f"?ssl_ca={ca}")
