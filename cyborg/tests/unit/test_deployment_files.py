# SPDX-License-Identifier: Apache-2.0
"""Units, documents and images name programs, files and settings that there are."""

import configparser
import itertools
import json
import posixpath
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from oslo_config import cfg
from oslo_privsep import capabilities

from cyborg.conf import opts
from cyborg.conf.agent import PRIVILEGED_FUNCTIONS, PRIVILEGED_SOCKET
from cyborg.drivers.local_command import LocalCommand, placeholder_values
from cyborg.drivers.privileged.action import Context
from cyborg.drivers.privileged.contexts import EXPORTS
from cyborg.model.process import AGENT, API, CONDUCTOR
from cyborg.tests.fixtures.loopback import Loopback

ROOT = Path(__file__).parents[3]
UNITS = ROOT / "etc" / "systemd"
CONTAINERS = ROOT / "containers"
IMAGES = (CONTAINERS / "Containerfile").read_text()
STAGES = dict(re.findall(r"^FROM .* AS (\S+)\n((?:(?!FROM ).*\n)*)", IMAGES, re.MULTILINE))
DAEMONS = (API, CONDUCTOR, AGENT)
GENERIC = (ROOT / "doc/source/admin/generic-driver.rst").read_text()
COMMANDS_AS_ROOT = GENERIC.partition(".. _commands-as-root:")[2].partition("\nImages\n")[0]
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


def capabilities_of(contexts: Iterable[Context]) -> set[str]:
    return {
        capabilities.CAPS_BYVALUE[number]
        for context in contexts
        for number in EXPORTS[context].context.conf.capabilities
    }


def of_container(name: str) -> dict[str, list[str]]:
    """All values of a container for podman by key."""
    values: dict[str, list[str]] = {}
    for key, value in settings(CONTAINERS / f"{name}.container")["Container"]:
        values.setdefault(key, []).append(value.strip('"'))
    return values


@pytest.mark.parametrize("name", DAEMONS)
def test_unit_starts_its_program_with_watchdog(name: str):
    service = dict(settings(UNITS / f"{name}.service")["Service"])
    assert service["ExecStart"] == name
    assert service["Type"] == "notify"
    # A broker that is away delays "ready" by ten seconds, a sign of life comes each second.
    assert int(service["TimeoutStartSec"]) > 30
    assert int(service["WatchdogSec"]) >= 30


def test_agent_has_no_capability_and_uses_the_documented_socket():
    agent = settings_of_agent()
    assert agent["CapabilityBoundingSet"] == agent["AmbientCapabilities"] == ""
    assert agent["NoNewPrivileges"] == "yes"
    listening = dict(settings(UNITS / "cyborg-privileged.socket")["Socket"])
    assert listening["ListenStream"] == PRIVILEGED_SOCKET
    privileged = dict(settings(UNITS / "cyborg-privileged.service")["Service"])
    assert (listening["SocketUser"], listening["SocketMode"]) == (agent["User"], "0660")
    # Nobody else has this group.
    assert listening["SocketGroup"] == privileged["Group"] != agent["Group"]


def test_root_lists_the_functions_where_the_privileged_process_reads_them():
    prefix, *words = settings_of_agent()["ExecStartPre"].split()
    # Whatever fails, the agent starts; the command is not in its sandbox.
    assert prefix == "-+/usr/bin/env"
    listing = ["--list-functions", PRIVILEGED_FUNCTIONS]
    # Neither code nor configuration of the user of the agent.
    clean = ["HOME=/root", "PYTHONNOUSERSITE=1", "PYTHONSAFEPATH=1"]
    assert words == [*clean, "cyborg-agent", *listing]
    container = dict(settings(CONTAINERS / "cyborg-privileged.container")["Service"])
    command = shlex.split(container["ExecStartPre"])
    assert command[:3] == ["-/usr/bin/podman", "run", "--rm"]
    assert command[-3:] == ["localhost/cyborg-agent", *listing]
    directory = posixpath.dirname(PRIVILEGED_FUNCTIONS)
    assert f"{directory}:{directory}:ro" in of_container("cyborg-privileged")["Volume"]


def settings_of_agent() -> dict[str, str]:
    return dict(settings(UNITS / "cyborg-agent.service")["Service"])


def test_units_find_the_programs_of_the_documented_installation():
    """systemd looks in /usr/local/bin and /usr/bin for a program without a directory."""
    page = (ROOT / "doc/source/install/by-hand.rst").read_text()
    assert "ln -s /opt/cyborg/bin/cyborg* /usr/local/bin/" in page
    for file in UNITS.glob("*.service"):
        command = dict(settings(file)["Service"])["ExecStart"]
        assert command.startswith("cyborg-"), file


@pytest.mark.parametrize(
    ("name", "contexts"),
    [
        ("cyborg-privileged", set(EXPORTS) - {Context.OBSERVE}),
        ("cyborg-observer", {Context.OBSERVE}),
    ],
)
def test_privileged_units_have_exactly_the_capabilities_of_their_contexts(
    name: str, contexts: set[Context]
):
    unit = dict(settings(UNITS / f"{name}.service")["Service"])
    assert set(unit["CapabilityBoundingSet"].split()) == capabilities_of(contexts)
    assert unit["AmbientCapabilities"] == unit["CapabilityBoundingSet"]
    assert unit["ExecStart"] == "cyborg-privileged"
    assert unit["NoNewPrivileges"] == "yes"
    assert unit["User"] == unit["Group"] == "cyborg-privileged"
    assert unit["Environment"].split() == ["PYTHONNOUSERSITE=1", "PYTHONSAFEPATH=1"]


def test_observer_listens_where_the_agent_looks_for_it():
    sockets = {
        name: dict(settings(UNITS / f"cyborg-{name}.socket")["Socket"])
        for name in ("privileged", "observer")
    }
    assert sockets["observer"].pop("ListenStream") == f"{PRIVILEGED_SOCKET}.{Context.OBSERVE}"
    assert sockets["privileged"].pop("ListenStream") == PRIVILEGED_SOCKET
    assert sockets["observer"] == sockets["privileged"]


def test_capabilities_of_the_contexts_are_documented():
    documented = (ROOT / "doc/source/admin/security.rst").read_text()
    for context, export in EXPORTS.items():
        (line,) = re.findall(rf"^``{context}``.*?(CAP_.*)$", documented, re.MULTILINE)
        names = {capabilities.CAPS_BYVALUE[number] for number in export.context.conf.capabilities}
        assert set(line.split(", ")) == names


def test_documented_drop_in_lets_sudo_work():
    before = {name for name, _ in settings(UNITS / "cyborg-agent.service")["Service"]}
    text = COMMANDS_AS_ROOT.partition("[Service]\n")[2].partition("\n\n")[0]
    after = dict(line.strip().split("=", 1) for line in text.splitlines())
    assert after["NoNewPrivileges"] == "no"
    assert after["CapabilityBoundingSet"] == "~"
    assert (IMPLIES_NO_NEW_PRIVILEGES & before) <= after.keys()
    assert {after[name] for name in IMPLIES_NO_NEW_PRIVILEGES & after.keys()} == {"no", ""}


def test_documented_sudoers_line_allows_only_the_documented_command():
    documented = re.search(r"^ +install_command = (.*)$", COMMANDS_AS_ROOT, re.MULTILINE)
    (line,) = re.findall(r"^ +(cyborg ALL = .*)$", COMMANDS_AS_ROOT, re.MULTILINE)
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


def test_documented_sudoers_line_of_the_helper_allows_only_the_contexts():
    text = (ROOT / "doc/source/admin/security.rst").read_text()
    (pattern,) = re.findall(r"NOPASSWD: /usr/bin/privsep-helper (\^.*\$)$", text, re.MULTILINE)
    for export in EXPORTS.values():
        words = export.context.helper_command("/tmp/tmp_a1b2/privsep.sock")
        words = [
            "--config-file",
            "/etc/cyborg/cyborg.conf",
            *words[words.index("--privsep_context") :],
        ]
        assert re.search(pattern, " ".join(words))
        for bad in (
            [*words, "--log-file=/etc/x"],
            ["--config-dir", "/tmp", *words],
            [*words[:-1], "/tmp/a/../../etc/privsep.sock"],
        ):
            assert not re.search(pattern, " ".join(bad))


def test_files_copied_to_images_exist():
    copied = [
        part
        for line in re.findall(r"^COPY (.*)$", IMAGES.replace("\\\n", " "), re.MULTILINE)
        if "--from=" not in line
        for part in shlex.split(line)[:-1]
        if not part.startswith("--")
    ]
    assert len(copied) > 5
    assert [one for one in copied if not (ROOT / one).exists()] == []


def test_images_install_existing_extras():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = re.search(r'"\.\[([^\]]+)\]"', IMAGES)
    assert extras is not None
    assert set(extras[1].split(",")) <= setup["extras"].keys()


def test_images_start_existing_programs():
    assert '"--module", "cyborg.wsgi.api:application"' in STAGES[API]
    assert all("USER 42483:42483\n" in STAGES[name] for name in DAEMONS)
    for name in (CONDUCTOR, AGENT):
        assert f'ENTRYPOINT ["{name}"]' in STAGES[name]
        port = re.search(r"METRICS_LISTEN=(\S+)", STAGES[name])
        assert port is not None
        assert f"http://{port[1]}/metrics" in STAGES[name]


def test_containers_have_the_capabilities_and_files_that_they_need_and_no_more():
    privileged, agent = of_container("cyborg-privileged"), of_container("cyborg-agent")
    for name, container in (("cyborg-privileged", privileged), ("cyborg-agent", agent)):
        assert container["Image"] == [f"localhost/{name}"]
        assert name in STAGES
        assert container["DropCapability"] == ["ALL"]
        assert container["NoNewPrivileges"] == ["true"]
        assert container["Network"] == ["host"]
        assert "--pid=host" in container["PodmanArgs"]
        assert not any("privileged" in word for word in container["PodmanArgs"])
    added = {name for line in privileged["AddCapability"] for name in line.split()}
    assert added == capabilities_of(EXPORTS) | {"CAP_CHOWN", "CAP_SETGID", "CAP_SETUID"}
    assert "AddCapability" not in agent
    # Both see the same socket, and only one of them changes files of the host.
    words = re.search(r"^ENTRYPOINT (\[.*\])$", STAGES["cyborg-privileged"], re.MULTILINE)
    assert words is not None
    assert json.loads(words[1]) == [
        *("cyborg-privileged", "--socket", "/run/cyborg/privileged.sock", "--user", "cyborg")
    ]
    shared = "/run/cyborg:/run/cyborg:z"
    functions = "/etc/cyborg-privileged:/etc/cyborg-privileged:ro"
    assert set(privileged["Volume"]) == {shared, "/sys:/sys", "/dev:/dev", functions}
    assert shared in agent["Volume"]
    assert not {"/sys:/sys", "/dev:/dev"} & set(agent["Volume"])
    unit = dict(settings(CONTAINERS / "cyborg-agent.container")["Unit"])
    for order in ("Wants", "After"):
        assert "cyborg-privileged.service" in unit[order].split()


@pytest.mark.parametrize("page", ["containers", "kolla"])
def test_documented_containers_are_started_with_these_capabilities(page: str):
    container = of_container("cyborg-privileged")
    text = (ROOT / f"doc/source/install/{page}.rst").read_text()
    commands = re.findall(r"^ +(?:podman|docker) run (?:.*\\\n)*.*$", text, re.MULTILINE)
    (block,) = [command for command in commands if "--cap-add" in command]
    words = shlex.split(block.replace("\\\n", " "))
    assert "--privileged" not in words
    added = {
        f"CAP_{name}"
        for option, value in itertools.pairwise(words)
        if option == "--cap-add"
        for name in value.split(",")
    }
    assert added == {name for line in container["AddCapability"] for name in line.split()}
    for option, values in (
        ("--volume", {value.removesuffix(":z") for value in container["Volume"]}),
        ("--device-cgroup-rule", {"b *:* r", "c *:* rw"}),
        ("--security-opt", {"no-new-privileges", "apparmor=unconfined", "label=disable"}),
        ("--pid", {"host"}),
        ("--cap-drop", {"ALL"}),
    ):
        given = {value for name, value in itertools.pairwise(words) if name == option}
        assert {value.removesuffix(":z") for value in given} == values
    arguments = [value for value in container["PodmanArgs"] if "cgroup" in value]
    assert arguments == ["--device-cgroup-rule=b *:* r", "--device-cgroup-rule=c *:* rw"]


def test_agents_of_kolla_keep_the_files_below_the_default_state_path():
    """kolla-ansible mounts nothing there, and a new container would begin without them."""
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    text = (ROOT / "doc/source/install/kolla.rst").read_text()
    blocks = re.findall(r"^   cyborg_agent_extra_volumes:\n((?:     - .*\n)+)", text, re.MULTILINE)
    volumes = [yaml.safe_load(block) for block in blocks]
    assert len(volumes) == 2
    mount = f"{conf.state_path}:{conf.state_path}"
    assert all(mount in block for block in volumes)
    (command,) = re.findall(r"^    (install .*" + conf.state_path + ")$", text, re.MULTILINE)
    words = shlex.split(command)
    # The user in the images of kolla and of this project.
    assert words[words.index("-o") + 1] == words[words.index("-g") + 1] == "42483"
    assert words[words.index("-m") + 1] == "0750"


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
