# SPDX-License-Identifier: Apache-2.0
"""Tests of quickstart's command line."""

from pathlib import Path

import pytest

from cyborg.testing import scenario_hosts
from cyborg_tools.quickstart.options import parse


def test_all_options_are_parsed(tmp_path: Path) -> None:
    default = parse([])
    assert (default.port, default.whitelist) == (6666, [])
    assert (default.demo, default.clean, default.host) == (False, False, None)
    assert default.state.parts[-2:] == (".quickstart", "state")
    archive = str(tmp_path)
    arguments = ["--demo", "--clean", "--port", "0", "--state", "x"]
    asked = parse([*arguments, "--whitelist", "{}", "--whitelist=[]", "--host", archive])
    assert asked.host == archive
    assert (asked.demo, asked.clean) == (True, True)
    assert (asked.port, asked.state, asked.whitelist) == (0, Path("x"), ["{}", "[]"])


def test_help_lists_all_scenario_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert ", ".join(scenario_hosts.names()) in text.replace("- ", "-")


def test_unknown_host_is_refused_with_the_names_of_all_hosts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert parse(["--host", "dgx-h100"]).host == "dgx-h100"
    with pytest.raises(SystemExit) as ended:
        parse(["--host", "dgx-h101"])
    assert ended.value.code == 2
    text = " ".join(capsys.readouterr().err.split())
    assert "'dgx-h101' is neither a file nor a scenario host; the scenario hosts are" in text
    assert ", ".join(scenario_hosts.names()) in text


@pytest.mark.parametrize("port", ["65536", "-1", "http", "", "\u00b2"])
def test_invalid_port_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse([f"--port={port}"])
    assert ended.value.code == 2
    assert "is not a port" in capsys.readouterr().err


def test_dashboard_cannot_use_an_environment_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(["--dashboard"]).dashboard
    assert not parse([]).dashboard
    with pytest.raises(SystemExit):
        parse(["--dashboard", "--python", "/usr/bin/python3"])
    assert "--dashboard makes environments" in capsys.readouterr().err
