# SPDX-License-Identifier: Apache-2.0
"""Tests of quickstart's command line."""

from pathlib import Path

import pytest

from cyborg.testing import scenario_hosts
from cyborg_tools.quickstart.options import parse


def test_all_options_are_parsed() -> None:
    default = parse([])
    assert (default.port, default.whitelist) == (6666, [])
    assert (default.demo, default.clean, default.host) == (False, False, None)
    assert default.state.parts[-2:] == (".quickstart", "state")
    arguments = ["--demo", "--clean", "--port", "0", "--state", "x"]
    asked = parse([*arguments, "--whitelist", "{}", "--whitelist=[]", "--host", "h.tar.gz"])
    assert asked.host == "h.tar.gz"
    assert (asked.demo, asked.clean) == (True, True)
    assert (asked.port, asked.state, asked.whitelist) == (0, Path("x"), ["{}", "[]"])


def test_help_lists_all_scenario_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert ", ".join(scenario_hosts.names()) in text.replace("- ", "-")


@pytest.mark.parametrize("port", ["65536", "-1", "http", "", "\u00b2"])
def test_invalid_port_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse([f"--port={port}"])
    assert ended.value.code == 2
    assert "is not a port" in capsys.readouterr().err
