# SPDX-License-Identifier: Apache-2.0
"""tools/quickstart with a dashboard: one start, and both users sign in with what it prints."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from cyborg.tests.fixtures import programs
from cyborg_tools.dashboard.horizon import ROOT
from dashboard.tests.browser import started

HOST: Final = "alveo-u250"
#: The line after which the command has nothing more to say.
_READY: Final = "Serving until Ctrl-C."


@dataclass(frozen=True)
class Invitation:
    """What the command prints: the address, and the password of each user."""

    address: str
    passwords: dict[str, str]
    printed: str


@pytest.fixture(scope="module")
def invitation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Invitation]:
    """The command, which serves until the tests end; then it ends without an error."""
    place = tmp_path_factory.mktemp("quickstart")
    words = ["--state", str(place / "state"), "--port", "0", "--dashboard", "--host", HOST]
    with (place / "errors").open("w+") as errors:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "cyborg_tools.quickstart", *words],
            env={**os.environ, "PYTHONPATH": str(ROOT / "tools")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            assert child.stdout is not None
            lines = []
            for line in child.stdout:
                lines.append(line)
                if line.startswith(_READY):
                    break
            printed = "".join(lines)
            address = re.search(r"^Dashboard: (http://127\.0\.0\.1:\d+/)$", printed, re.MULTILINE)
            errors.seek(0)
            assert address is not None, printed + errors.read()
            passwords = re.findall(r"^  (admin|member) +(\S+) ", printed, re.MULTILINE)
            yield Invitation(address[1], dict(passwords), printed)
        finally:
            child.terminate()
            child.communicate()
        errors.seek(0)
        assert "Traceback" not in errors.read()


def test_walk_holds_with_keystone(invitation: Invitation) -> None:
    assert "Every step held." in invitation.printed
    assert f"{HOST}, simulated" in invitation.printed
    assert "without Keystone" not in invitation.printed


def test_users_have_passwords_that_were_made_for_them(invitation: Invitation) -> None:
    assert invitation.passwords.keys() == {"admin", "member"}
    assert len(set(invitation.passwords.values())) == 2
    assert all(len(text) >= 16 for text in invitation.passwords.values())


@pytest.mark.parametrize(
    ("user", "page", "sees_hosts"),
    [
        ("admin", "/admin/accelerator_overview/", True),
        ("member", "/project/accelerators/", False),
    ],
)
def test_user_signs_in_and_sees_the_accelerators(
    invitation: Invitation, tmp_path: Path, user: str, page: str, *, sees_hosts: bool
) -> None:
    programs.require(programs.BROWSER)
    with started(invitation.address.rstrip("/"), tmp_path) as browser:
        browser.open("/")
        browser.find("#id_username").send_keys(user)
        browser.find("#id_password").send_keys(invitation.passwords[user])
        browser.press("#loginBtn")
        assert browser.path == page, browser.text
        assert browser.messages == []
        browser.open("/admin/accelerator_devices/")
        assert ("Alveo" in browser.text) is sees_hosts
        assert [answer for answer in browser.loaded() if answer.status >= 500] == []


def test_shell_commands_that_are_printed_work(invitation: Invitation) -> None:
    text = invitation.printed.partition("# with the command")[2].partition("\n\nServing")[0]
    ran = subprocess.run(
        ["bash", "-e", "-c", f"#{text}"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "FPGA" in ran.stdout
