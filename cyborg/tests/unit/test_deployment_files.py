# SPDX-License-Identifier: Apache-2.0
"""Units, sudoers and images name programs, files and settings that there are."""

import configparser
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cyborg.drivers.local_command import LocalCommand, placeholder_values
from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg.tests.fixtures.loopback import Loopback

ROOT = Path(__file__).parents[3]
UNITS = ROOT / "etc" / "systemd"
IMAGES = (ROOT / "containers" / "Containerfile").read_text()
DAEMONS = (API, CONDUCTOR, AGENT)
#: What systemd.exec(5) lists as implying NoNewPrivileges for a service with a user of its own.
IMPLIES_NO_NEW_PRIVILEGES = {
    "LockPersonality",
    "MemoryDenyWriteExecute",
    "PrivateDevices",
    "ProtectClock",
    "ProtectHostname",
    "ProtectKernelLogs",
    "ProtectKernelModules",
    "ProtectKernelTunables",
    "RestrictAddressFamilies",
    "RestrictNamespaces",
    "RestrictRealtime",
    "RestrictSUIDSGID",
    "SystemCallArchitectures",
    "SystemCallFilter",
}


def settings(file: Path) -> dict[str, list[tuple[str, str]]]:
    """The settings of a unit by section, in order; one may stand there twice."""
    found: dict[str, list[tuple[str, str]]] = {}
    section = ""
    for line in file.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(section, []).append((name, value))
    return found


@pytest.mark.parametrize("name", DAEMONS)
def test_unit_starts_its_program_with_watchdog(name: str):
    unit = settings(UNITS / f"{name}.service")
    service = dict(unit["Service"])
    assert service["ExecStart"] == f"/usr/bin/{name}"
    assert (service["Type"], service["Restart"]) == ("notify", "on-failure")
    assert (service["User"], service["NoNewPrivileges"]) == ("cyborg", "yes")
    assert service["CapabilityBoundingSet"] == ""
    # A broker that is away delays "ready" by ten seconds, a sign of life comes each second.
    assert int(service["TimeoutStartSec"]) > 30
    assert int(service["WatchdogSec"]) >= 30
    assert ("Alias", f"openstack-{name}.service") in unit["Install"]


def test_drop_in_lets_sudo_work():
    before = {name for name, _ in settings(UNITS / "cyborg-agent.service")["Service"]}
    after = dict(settings(UNITS / "cyborg-agent.service.d" / "sudo.conf")["Service"])
    assert after["NoNewPrivileges"] == "no"
    assert after["CapabilityBoundingSet"] == "~"
    assert (IMPLIES_NO_NEW_PRIVILEGES & before) <= after.keys()
    assert {after[name] for name in IMPLIES_NO_NEW_PRIVILEGES & after.keys()} == {"no", ""}


def test_sudoers_allows_only_the_documented_command():
    text = (ROOT / "etc" / "sudoers.d" / "cyborg-agent").read_text()
    documented = re.search(r"^# +install_command = (.*)$", text, re.MULTILINE)
    (line,) = [one for one in text.splitlines() if one and not one.startswith("#")]
    allowed = line.partition("NOPASSWD: ")[2].replace("\\", "")
    assert documented is not None
    command = LocalCommand.parse(documented[1], 600)
    words = [word.fill(placeholder_values("0000:81:00.0")) for word in command.words]
    assert words[:2] == ["/usr/bin/sudo", "-n"]
    # Brackets mean the same to fnmatch, with which sudo compares, and here.
    assert "*" not in allowed
    pattern = "".join(
        part if part.startswith("[") else re.escape(part)
        for part in re.split(r"(\[[^\]]+\])", allowed)
    )
    assert re.fullmatch(pattern, " ".join(words[2:]))
    for other in ("0000:81:00.0 --all", "0000:81:00.8", "../../0000:81:00.0", ""):
        assert not re.fullmatch(pattern, " ".join([*words[2:-1], other]))
    assert documented[1] in (ROOT / "doc/source/admin/generic-driver.rst").read_text()


def instructions() -> list[tuple[str, str]]:
    """(instruction, its text) of the Containerfile, in order."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", IMAGES, flags=re.MULTILINE))
    return [
        (line.partition(" ")[0], line.partition(" ")[2]) for line in joined.splitlines() if line
    ]


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage after its FROM, by its name."""
    found: dict[str, list[tuple[str, str]]] = {}
    for word, text in instructions():
        if word == "FROM":
            name = text.rpartition(" AS ")[2]
            found[name] = []
        else:
            found[name].append((word, text))
    return found


def test_files_copied_to_images_exist():
    copied = 0
    for word, text in instructions():
        parts = shlex.split(text)
        if word != "COPY" or any(part.startswith("--from=") for part in parts):
            continue
        *sources, _ = [part for part in parts if not part.startswith("--")]
        assert [one for one in sources if not (ROOT / one).exists()] == []
        copied += len(sources)
    assert copied > 5


def test_images_install_existing_extras_and_server():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = re.search(r'"\.\[([^\]]+)\]" "(pyuwsgi[^"]+)"', IMAGES)
    assert extras is not None
    assert set(extras[1].split(",")) <= setup["extras"].keys()
    assert extras[2] in (ROOT / "test-requirements.txt").read_text()


@pytest.mark.parametrize("name", DAEMONS)
def test_each_process_has_an_image(name: str):
    stage = dict(stages()[name])
    # The number, not the name: orchestrators can see that it is not root.
    assert stage["USER"] == "42483:42483"
    assert stage["HEALTHCHECK"].count("healthy") == 1
    begin = stage["ENTRYPOINT"]
    setup = (ROOT / "setup.cfg").read_text()
    if name == API:
        assert begin.startswith('["uwsgi", "--module", "cyborg.wsgi.api:application"')
        assert '"--enable-threads"' in begin
    else:
        assert begin == f'["{name}"]'
        assert f"    {name} = " in setup
        port = re.search(r"METRICS_LISTEN=(\S+)", stage["ENV"])
        assert port is not None
        assert f"http://{port[1]}/metrics" in stage["HEALTHCHECK"]


def test_images_hold_no_secret():
    set_there = " ".join(text for word, text in instructions() if word in ("ENV", "ARG", "LABEL"))
    assert not re.search(r"(?i)passw|secret|token|://[^ ]*@", set_there)
    assert not any("cyborg.conf" in text for word, text in instructions() if word == "COPY")
    assert {word for word, _ in dict(stages())["base"]} >= {"LABEL", "RUN", "STOPSIGNAL"}


def test_health_check_returns_its_status():
    program = [sys.executable, str(ROOT / "containers" / "healthy")]

    def page(_environ, start_response):
        start_response("200 OK", [("Content-Length", "0")])
        return [b""]

    with Loopback(page) as server:
        assert subprocess.run([*program, server.url], check=False).returncode == 0
    gone = subprocess.run([*program, server.url], capture_output=True, check=False)
    assert gone.returncode == 1
    assert b"does not answer" in gone.stderr
