# SPDX-License-Identifier: Apache-2.0
"""What the plugin writes for which services of a node and which variables; nothing runs."""

import configparser
import getpass
import socket
from pathlib import Path

import pytest

from cyborg.agent.state_store import StateStore
from cyborg.tests.functional.bus.guide import commands
from cyborg.tests.functional.deployed import page
from cyborg.tests.functional.devstack.node import MINIMAL, REPOSITORY, Node

PRIVILEGED = "cyborg-privileged"
COMPUTE = "disable_service cyborg-api cyborg-cond placement-api\nDATABASE_HOST=192.0.2.1\n"


def stacked(home: Path, *lines: str) -> Node:
    """A node on which stack.sh went through; it has keys unless its conductor creates them."""
    node = Node(home, MINIMAL + "\n".join(lines) + "\n")
    if any("cyborg-cond" in line for line in lines):
        node.put_keys()
    node.do("stack")
    return node


#: What is asked of devstack, which gives the role "service" to each account.
ACCOUNTS = ["cyborg admin", "cyborg-agent"]


def services(node: Node) -> list[str]:
    return [call.split()[0] for call in node.called("run_process")]


def test_stack_configures_all_services(tmp_path: Path) -> None:
    node = stacked(tmp_path)
    assert services(node) == [PRIVILEGED, "cyborg-cond", "cyborg-api", "cyborg-agent"]
    assert node.called("plugin_requires") == ["cyborg keystone", "cyborg placement"]
    written = node.options("etc/cyborg.conf")
    assert written["agent"] == {
        "enabled_drivers": ["fake_driver"],
        "resource_provider_startup_retries": ["6"],
        "privileged_socket": [f"{tmp_path}/privileged.sock"],
    }
    assert written["conductor"]["auto_enable"] == ["*"]
    assert written["oslo_policy"]["policy_file"] == [f"{node.etc}/policy.yaml"]
    assert written["api"]["compute_users"] == ["nova"]
    assert written["api"]["api_paste_config"] == [f"{node.etc}/api-paste.ini"]
    assert written["keystone_authtoken"]["username"] == ["cyborg"]
    for peer in ("nova", "placement"):
        assert written[peer]["username"] == ["cyborg"]
        assert written[peer]["project_name"] == ["service"]
    assert node.called("create_service_user") == ACCOUNTS
    assert node.called("get_or_create_service") == ["cyborg accelerator Accelerator life cycle"]
    assert node.called("get_or_create_endpoint") == [
        " ".join(["accelerator RegionOne", *["http://127.0.0.1/accelerator/v2"] * 3])
    ]
    assert node.called("setup_develop")[:2] == [f"{REPOSITORY}/client", f"{REPOSITORY} mysql"]
    assert node.called("recreate_database") == ["cyborg"]
    assert node.options("tempest.conf") == {"service_available": {"cyborg": ["True"]}}
    # Stacking again ends the same way, with a new database.
    kept = StateStore(node.home / "state", "devstack").path
    kept.touch()
    node.do("stack")
    assert node.options("etc/cyborg.conf") == written
    assert not kept.exists()
    # Nothing is simulated unless it is asked for.
    node.do("clean")
    assert [node.called(never) for never in ("modprobe", "depmod", "openstack")] == [[], [], []]
    assert not (tmp_path / "nova.conf").exists()


def test_stack_configures_compute_node(tmp_path: Path) -> None:
    node = stacked(tmp_path, COMPUTE)
    assert services(node) == [PRIVILEGED, "cyborg-agent"]
    written = node.options("etc/cyborg.conf")
    assert set(written) == {"DEFAULT", "agent", "placement"}
    assert written["placement"]["username"] == ["cyborg-agent"]
    assert node.called("setup_develop")[:2] == [f"{REPOSITORY}/client", str(REPOSITORY)]
    for never in ("create_service_user", "recreate_database", "cyborg-dbsync", "curl"):
        assert node.called(never) == [], never
    assert sorted(path.name for path in node.etc.iterdir()) == ["cyborg.conf", "signing-keys.json"]
    node.do("clean")
    assert not node.etc.exists()
    assert node.called("remove_uwsgi_config") == []


RABBIT = "RABBIT_PASSWORD=secret\nRABBIT_HOST=192.0.2.1\n"
BROKER = "192.0.2.1:5672/cyborg"


def test_each_role_has_its_account_and_keys_by_default(tmp_path: Path) -> None:
    node = stacked(tmp_path, RABBIT)
    granted = [call for call in node.called("rabbitmqctl") if "permissions" in call]
    assert granted == [
        " ".join([command, "-p cyborg", f"cyborg-{role}", *patterns])
        for command, role, patterns in commands()
    ]
    keys, own = f"{node.etc}/signing-keys.json", f"{node.etc}/signing-keys-host.json"
    assert node.called("cyborg-signing-key") == [
        f"create {keys}",
        f"derive {keys} --host {socket.gethostname()} --output {own}",
    ]
    written = node.options("etc/cyborg.conf")["DEFAULT"]
    assert written["transport_url"] == [f"rabbit://cyborg-conductor:secret@{BROKER}"]
    assert written["message_signing"] == ["required"]
    assert written["message_signing_key_file"] == [keys]
    assert node.options("etc/role-api.conf")["DEFAULT"] == {
        "transport_url": [f"rabbit://cyborg-api:secret@{BROKER}"]
    }
    assert node.options("etc/role-agent.conf")["DEFAULT"] == {
        "transport_url": [f"rabbit://cyborg-agent:secret@{BROKER}"],
        "message_signing_key_file": [own],
    }
    common = f"--config-file {node.etc}/cyborg.conf"
    assert node.options("etc/cyborg-api-uwsgi.ini")["uwsgi"]["pyargv"] == [
        f"{common} --config-file {node.etc}/role-api.conf"
    ]
    commands_by_name = dict(call.split(" ", 1) for call in node.called("run_process"))
    agent, conductor = commands_by_name["cyborg-agent"], commands_by_name["cyborg-cond"]
    assert agent.endswith(f"cyborg-agent {common} --config-file {node.etc}/role-agent.conf")
    assert conductor.endswith(f"cyborg-conductor {common}")


def test_key_of_the_agent_is_that_of_the_configured_host(tmp_path: Path) -> None:
    node = stacked(tmp_path, "[[post-config|$CYBORG_CONF]]", "[DEFAULT]", "host = compute-7")
    assert "--host compute-7 " in node.called("cyborg-signing-key")[-1]


@pytest.mark.parametrize("signing", ["off", "warn"])
def test_account_of_devstack_and_unsigned_messages_on_request(tmp_path: Path, signing: str) -> None:
    node = stacked(tmp_path, "CYBORG_SECURE_BUS=False", f"CYBORG_MESSAGE_SIGNING={signing}", RABBIT)
    assert node.called("rabbitmqctl") == []
    written = node.options("etc/cyborg.conf")["DEFAULT"]
    assert written["transport_url"] == ["fake://"]
    assert written.get("message_signing", ["off"]) == [signing]
    assert bool(node.called("cyborg-signing-key")) is (signing == "warn")
    assert (node.etc / "role-agent.conf").exists() is (signing == "warn")
    assert not (node.etc / "role-api.conf").exists()


def test_unknown_mode_of_signing_is_rejected(tmp_path: Path) -> None:
    ran = Node(tmp_path, MINIMAL + "CYBORG_MESSAGE_SIGNING=yes\n").run("stack")
    assert ran.returncode != 0
    assert "CYBORG_MESSAGE_SIGNING is off, warn or required, not yes" in ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("services", "words"),
    [
        (COMPUTE, "run cyborg-signing-key derive"),
        ("disable_service cyborg-cond cyborg-agent\n", "copy the file of the node with"),
    ],
)
def test_node_without_conductor_needs_keys(tmp_path: Path, services: str, words: str) -> None:
    ran = Node(tmp_path, MINIMAL + services).run("stack")
    assert ran.returncode != 0
    assert words in ran.stdout + ran.stderr


def test_compute_node_has_the_account_of_the_agent(tmp_path: Path) -> None:
    node = stacked(tmp_path, RABBIT + COMPUTE + "disable_service rabbit\n")
    assert node.called("rabbitmqctl") == node.called("cyborg-signing-key") == []
    written = node.options("etc/cyborg.conf")["DEFAULT"]
    assert written["transport_url"] == [f"rabbit://cyborg-agent:secret@{BROKER}"]
    assert written["message_signing"] == ["required"]


@pytest.mark.parametrize(
    ("disabled", "started", "groups", "user"),
    [
        ("cyborg-cond cyborg-agent", ["cyborg-api"], {"database", "api"}, ACCOUNTS),
        ("cyborg-api cyborg-agent", ["cyborg-cond"], {"database", "nova", "placement"}, []),
        ("cyborg", [], set(), []),
    ],
)
def test_stack_configures_only_enabled_services(
    tmp_path: Path, disabled: str, started: list[str], groups: set[str], user: list[str]
) -> None:
    node = stacked(tmp_path, f"disable_service {disabled}", "DATABASE_HOST=192.0.2.1")
    assert services(node) == started
    assert node.etc.exists() is bool(started)
    written = node.options("etc/cyborg.conf").keys() if started else set()
    assert groups <= set(written)
    assert "agent" not in written
    assert ("placement" in written) is ("placement" in groups)
    assert node.called("create_service_user") == user
    # Only the node of the database creates it.
    assert node.called("recreate_database") == []


def test_only_the_privileged_process_runs_as_root(tmp_path: Path) -> None:
    node = stacked(tmp_path)
    user = getpass.getuser()
    assert dict(call.split() for call in node.called("user_of_process")) == {
        PRIVILEGED: "root",
        **dict.fromkeys(("cyborg-cond", "cyborg-api", "cyborg-agent"), user),
    }
    socket = f"{tmp_path}/privileged.sock"
    [command] = [call for call in node.called("run_process") if call.startswith(PRIVILEGED)]
    # The user of devstack owns the code.
    functions = f"{tmp_path}/privileged/functions"
    options = f"--socket {socket} --functions {functions} --allow-writable-code --user {user}"
    assert command.endswith(f"/cyborg-privileged {options}")
    assert node.options("etc/cyborg.conf")["agent"]["privileged_socket"] == [socket]
    # Root makes the list of a copy of the configuration, which the user cannot change.
    copy = f"{tmp_path}/privileged/cyborg.conf"
    assert node.called("cyborg-agent") == [f"--config-file {copy} --list-functions {functions}"]
    assert Path(copy).read_text() == (tmp_path / "etc/cyborg.conf").read_text()
    (tmp_path / "privileged.sock").touch()
    node.do("clean")
    assert not (tmp_path / "privileged.sock").exists()
    assert not Path(copy).exists()
    node = stacked(tmp_path, f"disable_service {PRIVILEGED}")
    assert PRIVILEGED not in services(node)[4:]


def test_stack_applies_its_variables(tmp_path: Path) -> None:
    node = stacked(
        tmp_path,
        "CYBORG_USE_UWSGI=False",
        "CYBORG_SERVICE_HOST=127.0.0.5",
        "CYBORG_SERVICE_PORT=7777",
        "CYBORG_AUTH_STRATEGY=noauth",
        "CYBORG_ENABLED_DRIVERS=fake_driver,pci_driver",
        "CYBORG_AUTO_ENABLE=fake_driver",
        f"CYBORG_CONF={tmp_path}/other.conf",
        f"CYBORG_API_PASTE_INI={tmp_path}/paste.ini",
        f"CYBORG_POLICY_JSON={tmp_path}/rules.yaml",
        f"CYBORG_STATE_PATH={tmp_path}/elsewhere",
        f"CYBORG_DATA_DIR={tmp_path}/data",
        "CYBORG_CLIENT_REPO=https://example.org/client",
        "CYBORG_CLIENT_BRANCH=stable/2026.2",
        f"CYBORG_CLIENT_DIR={tmp_path}/client",
        "TEMPEST_ACCELERATOR_MIN_MICROVERSION=2.1",
        "TEMPEST_ACCELERATOR_MAX_MICROVERSION=2.2",
        "DATABASE_TYPE=postgresql",
    )
    written = node.options("other.conf")
    assert written["api"]["host_ip"] == ["127.0.0.5"]
    assert written["api"]["port"] == ["7777"]
    assert written["api"]["auth_strategy"] == ["noauth"]
    assert "compute_users" not in written["api"]
    assert written["agent"]["enabled_drivers"] == ["fake_driver,pci_driver"]
    assert written["conductor"]["auto_enable"] == ["fake_driver"]
    assert written["DEFAULT"]["state_path"] == [f"{tmp_path}/elsewhere"]
    assert (tmp_path / "paste.ini").exists()
    assert (tmp_path / "rules.yaml").exists()
    assert (tmp_path / "data").is_dir()
    assert node.called("git_clone") == [
        f"https://example.org/client {tmp_path}/client stable/2026.2"
    ]
    assert node.called("setup_develop") == [
        f"{REPOSITORY}/client",
        f"{REPOSITORY} postgresql",
        f"{tmp_path}/client",
    ]
    assert node.called("get_or_create_endpoint")[0].endswith(" http://127.0.0.5:7777/v2")
    (api,) = [call for call in node.called("run_process") if call.startswith("cyborg-api ")]
    assert f"/cyborg-api --config-file {tmp_path}/other.conf " in api
    assert node.called("write_uwsgi_config") == []
    assert node.options("tempest.conf")["accelerator"] == {
        "min_microversion": ["2.1"],
        "max_microversion": ["2.2"],
    }


def test_stack_applies_named_uwsgi_module(tmp_path: Path) -> None:
    node = stacked(
        tmp_path,
        "CYBORG_UWSGI=example.wsgi:application",
        f"CYBORG_UWSGI_CONF={tmp_path}/served.ini",
        "CYBORG_SERVICE_PROTOCOL=https",
        "CYBORG_CLIENT_INSTALL=False",
    )
    assert node.called("write_uwsgi_config") == [
        "example.wsgi:application /accelerator  cyborg-api"
    ]
    (api,) = [call for call in node.called("run_process") if call.startswith("cyborg-api ")]
    assert api.endswith(f"/uwsgi --procname-prefix cyborg-api --ini {tmp_path}/served.ini")
    assert node.called("get_or_create_endpoint")[0].endswith(" https://127.0.0.1/accelerator/v2")
    assert node.called("git_clone") == []


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("CYBORG_AUTOMATED_CLEAN_ENABLED=True", "drivers clean up after each guest; remove it"),
        ("NOVA_USE_SERVICE_TOKEN=False", "set NOVA_USE_SERVICE_TOKEN=True"),
    ],
)
def test_stack_warns_about_ineffective_variables(tmp_path: Path, line: str, sentence: str) -> None:
    said = Node(tmp_path, f"{MINIMAL}{line}\n").do("stack")
    (warning,) = [one for one in said.splitlines() if "WARNING" in one]
    assert sentence in warning


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("CYBORG_AUTH_STRATEGY=none", "CYBORG_AUTH_STRATEGY is keystone or noauth, not none"),
        (
            "CYBORG_USE_UWSGI=False\nCYBORG_SERVICE_PROTOCOL=https",
            "set CYBORG_SERVICE_PROTOCOL=http",
        ),
        (
            "SERVICE_TIMEOUT=0.1",
            "not ready: http://127.0.0.1/accelerator/healthcheck does not answer",
        ),
    ],
)
def test_stack_gives_up_with_one_sentence(tmp_path: Path, lines: str, sentence: str) -> None:
    (tmp_path / "status-curl").write_text("7")
    ran = Node(tmp_path, f"{MINIMAL}{lines}\n").run("stack")
    assert ran.returncode == 1
    assert sentence in ran.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("drivers", "before", "after"),
    [
        ("intel_nic_driver", "port_security", "port_security,port_device_profile"),
        ("pci_driver,intel_nic_driver", "", "port_device_profile"),
        ("intel_nic_driver", "port_device_profile", "port_device_profile"),
        ("pci_driver", "port_security", "port_security"),
        ("pci_driver\nCYBORG_NEUTRON_PORT_PROFILES=True", "", "port_device_profile"),
    ],
)
def test_stack_enables_port_profiles_with_nic_drivers(
    tmp_path: Path, drivers: str, before: str, after: str
) -> None:
    node = Node(
        tmp_path,
        f"{MINIMAL}CYBORG_ENABLED_DRIVERS={drivers}\nCYBORG_NEUTRON_ML2_CONF={tmp_path}/ml2.conf\n",
    )
    node.write_options("ml2.conf", "ml2", extension_drivers=before)
    node.do("stack")
    assert node.options("ml2.conf")["ml2"]["extension_drivers"] == [after]


@pytest.mark.parametrize("served", [True, False])
def test_stack_gives_placement_the_documented_options_for_wide_trees(
    tmp_path: Path, served: bool
) -> None:
    elsewhere = "" if served else "disable_service placement-api\nenable_service placement-client\n"
    node = Node(tmp_path, MINIMAL + elsewhere)
    node.etc.mkdir()
    node.write_options("etc/placement.conf", "api", auth_strategy="keystone")
    node.do("stack")
    expected = configparser.ConfigParser()
    expected.read_string(page.block("by-hand", "placement-conf"))
    options = node.options("etc/placement.conf")
    assert options["api"] == {"auth_strategy": ["keystone"]}
    for group in expected.sections():
        values = {name: [value] for name, value in expected[group].items()}
        assert options.get(group, {}) == (values if served else {})
