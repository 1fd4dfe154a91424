# SPDX-License-Identifier: Apache-2.0
"""What cards and the commands of their vendors say, which may be anything."""

import pytest

from cyborg import exception
from cyborg.drivers.card_readings import TIMEOUT, VendorTool, hwmon_figures, number, parse_json
from cyborg.drivers.command import Completed
from cyborg.testing.fake_host import FakeHost

PATHS = ("/usr/bin/tool", "/usr/local/bin/tool")


def host_with(result: Completed, path: str = PATHS[0]) -> FakeHost:
    host = FakeHost({path: ""})
    host.programs[path] = lambda *_: result
    return host


def test_a_tool_that_is_not_installed_is_not_run() -> None:
    host = FakeHost()
    assert VendorTool(host, *PATHS).ask("info") is None
    assert host.commands == []


@pytest.mark.parametrize("path", PATHS)
def test_the_first_path_with_the_tool_is_run_with_a_time_limit(path: str) -> None:
    host = host_with(Completed(0, "fine\n", "a warning"), path)
    assert VendorTool(host, *PATHS).ask("info", "-l") == "fine\n"
    assert (host.commands, host.patience) == ([(path, "info", "-l")], [TIMEOUT])


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (Completed(3, "", ""), "exit status 3"),
        (Completed(1, "no permission", ""), "exit status 1: no permission"),
        (Completed(-9, "x", "a\nkilled"), "exit status -9: killed"),
    ],
)
def test_a_tool_that_fails_is_an_error_with_what_it_says(result: Completed, reason: str) -> None:
    with pytest.raises(exception.HostError) as caught:
        VendorTool(host_with(result), *PATHS).ask("info")
    assert caught.value.fields["reason"] == reason
    assert caught.value.fields["action"] == "running /usr/bin/tool info"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ("[]", []),
        ("WARNING: [driver] old\n  {\n}\ntrailing", {}),
        ('[WARN] x\n[{"a": 1}]\n', [{"a": 1}]),
    ],
)
def test_json_is_found_after_warnings(text: str, value: object) -> None:
    assert parse_json(text, "tool") == value


@pytest.mark.parametrize("text", ["", "no answer", "{", "[" * 100_000, '{"a": }'])
def test_text_without_json_is_an_error(text: str) -> None:
    with pytest.raises(
        exception.HostError, match="reading the output of tool failed: no JSON object"
    ):
        parse_json(text, "tool")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3.0),
        (2.5, 2.5),
        (" 98304 MiB", 98304.0),
        ("-4 C", -4.0),
        ("41.5", 41.5),
        ("N/A", None),
        ("", None),
        ("1.2.3", None),
        (None, None),
        (True, None),
        ({}, None),
        ("9" * 400, None),
    ],
)
def test_numbers_may_have_a_unit(value: object, expected: float | None) -> None:
    assert number(value) == expected


def test_hwmon_tells_what_it_has() -> None:
    place = "/sys/bus/pci/devices/0000:05:00.0/hwmon/hwmon3"
    host = FakeHost({f"{place}/temp1_input": "43500\n", f"{place}/power1_average": "x\n"})
    assert hwmon_figures(host, "0000:05:00.0") == {"temperature_celsius": 43.5}
    assert hwmon_figures(host, "0000:06:00.0") == {}
