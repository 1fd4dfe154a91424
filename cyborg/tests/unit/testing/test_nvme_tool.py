# SPDX-License-Identifier: Apache-2.0
"""The simulated command nvme erases as a disk does: at once or by and by, or not at all."""

import json

import pytest

from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.guest import guest
from cyborg.testing.kernel.nvme_tool import NvmeTool

CONTROLLER, DISK = "/dev/nvme1", "/dev/nvme1n1"


def machine(tool: NvmeTool) -> FakeHost:
    """Return the simulated guest with this tool; one disk has data of a former user."""
    host = guest()
    host.programs["nvme"] = tool
    tool.dirty |= {"nvme1n1", "nvme0n1"}
    return host


def run(host: FakeHost, *words: str) -> int:
    """Run the command; return its exit status."""
    return host.run(["nvme", *words], timeout=10.0).status


def log(host: FakeHost) -> tuple[int, str]:
    """Return progress and status of the sanitize log."""
    answer = host.run(["nvme", "sanitize-log", CONTROLLER, "-o", "json"], timeout=10.0)
    entry = json.loads(answer.stdout)["nvme1"]
    return entry["sprog"], entry["sstat"]["status"][:3]


def test_sanitize_progresses_with_the_clock_and_erases_at_its_end() -> None:
    tool = NvmeTool(seconds=60.0)
    host = machine(tool)
    assert log(host) == (65535, "(0)")
    assert run(host, "sanitize", CONTROLLER, "-a", "4") == 0
    seen = []
    for _ in range(3):
        seen.append((*log(host), sorted(tool.dirty)))
        host.clock.advance(30.0)
    assert seen == [
        (0, "(2)", ["nvme0n1", "nvme1n1"]),
        (32767, "(2)", ["nvme0n1", "nvme1n1"]),
        (65535, "(1)", ["nvme0n1"]),
    ]


def test_disk_that_is_sanitized_refuses_other_commands() -> None:
    host = machine(NvmeTool(seconds=60.0))
    run(host, "sanitize", CONTROLLER, "-a", "start-block-erase")
    assert run(host, "sanitize", CONTROLLER, "-a", "4") == 1
    assert run(host, "format", DISK, "-s", "1", "--force") == 1


def test_failed_sanitize_leaves_the_data_until_the_failure_is_left() -> None:
    tool = NvmeTool(seconds=60.0, fails=True)
    host = machine(tool)
    run(host, "sanitize", CONTROLLER, "-a", "2")
    host.clock.advance(60.0)
    assert log(host) == (65535, "(3)")
    assert "nvme1n1" in tool.dirty
    assert run(host, "sanitize", CONTROLLER, "-a", "1") == 0
    assert log(host) == (65535, "(0)")


@pytest.mark.parametrize(("erase", "erased"), [("0", False), ("1", True), ("2", True)])
def test_format_erases_only_with_secure_erase(erase: str, erased: bool) -> None:
    tool = NvmeTool()
    assert run(machine(tool), "format", DISK, "-s", erase) == 0
    assert ("nvme1n1" not in tool.dirty) is erased


def test_format_of_a_busy_disk_needs_force() -> None:
    tool = NvmeTool()
    tool.busy.add("nvme1n1")
    host = machine(tool)
    assert run(host, "format", DISK, "-s", "1") == 1
    assert "nvme1n1" in tool.dirty
    assert run(host, "format", DISK, "-s", "1", "--force") == 0
    assert "nvme1n1" not in tool.dirty


def test_disk_of_the_guest_cannot_sanitize_and_unknown_disks_are_refused() -> None:
    host = guest()
    assert run(host, "sanitize", CONTROLLER, "-a", "4") == 1
    assert run(host, "format", "/dev/nvme9n1", "-s", "1") == 1
    assert run(host, "sanitize", CONTROLLER, "-a", "9") == 1


def test_sanitize_with_an_unknown_action_is_refused() -> None:
    assert run(machine(NvmeTool()), "sanitize", CONTROLLER, "-a", "9") == 1
