# SPDX-License-Identifier: Apache-2.0
"""The hooks of grenade, one by one, without services; ``test_services`` runs them with services."""

import subprocess
from pathlib import Path

import pytest

from cyborg.tests.functional.devstack.node import REPOSITORY, Node

HOOKS = REPOSITORY / "devstack" / "upgrade"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "devices").write_text("device-2\ndevice-1\n")
    made = Node(tmp_path)
    # The old release has written it.
    made.etc.mkdir(exist_ok=True)
    (made.etc / "cyborg.conf").touch()
    return made


def succeeded(ran: subprocess.CompletedProcess[str]) -> None:
    assert ran.returncode == 0, ran.stdout + ran.stderr


def refusal(ran: subprocess.CompletedProcess[str]) -> str:
    """The sentence with which a hook ended badly."""
    assert ran.returncode == 1
    (sentence,) = [line for line in ran.stderr.splitlines() if line.startswith("[ERROR]")]
    return sentence


def test_grenade_registers_the_project(node: Node) -> None:
    grenade = "source $GRENADE_DIR/grenaderc; source $GRENADE_DIR/functions"
    succeeded(node.bash(f"{grenade}; source {HOOKS}/settings"))
    assert node.calls == [
        "register_project_for_upgrade cyborg",
        "register_db_to_save cyborg",
        *(
            f"devstack_localrc {side} enable_plugin cyborg https://opendev.org/openstack/cyborg"
            f" {branch}"
            for side, branch in (("base", "stable/2026.2"), ("target", "master"))
        ),
        *(
            f"devstack_localrc {side} enable_service cyborg cyborg-api cyborg-cond cyborg-agent"
            for side in ("base", "target")
        ),
    ]


def test_resources_survive_all_phases(node: Node) -> None:
    for phase in (
        "early_create",
        "create",
        "verify pre-upgrade",
        "verify_noapi pre-upgrade",
        "verify_noapi post-upgrade",
        "verify post-upgrade",
        "destroy",
    ):
        succeeded(node.hook("resources.sh", phase))
    commands = [call.removeprefix("accelerator ") for call in node.called("openstack")]
    assert commands[0] == (
        'device profile create cyborg-grenade [{"resources:FPGA": "1", '
        '"trait:CUSTOM_FAKE_DEVICE": "required"}] -f value -c uuid'
    )
    assert [command.split()[:3] for command in commands[-2:]] == [
        ["device", "profile", "delete"],
        ["device", "profile", "list"],
    ]


def test_resources_that_changed_fail_their_phase(node: Node) -> None:
    succeeded(node.hook("resources.sh", "create"))
    (node.home / "devices").write_text("device-1\ndevice-3\n")
    said = refusal(node.hook("resources.sh", "verify"))
    assert 'Device device-2 is not there any more, only "device-1 device-3"' in said
    (node.home / "keeps-profiles").touch()
    assert "is still there although" in refusal(node.hook("resources.sh", "destroy"))
    (profile,) = (node.home / "profiles").iterdir()
    profile.write_text("another\n")
    assert "is not called cyborg-grenade any more" in refusal(node.hook("resources.sh", "verify"))
    profile.unlink()
    assert "is not called cyborg-grenade any more" in refusal(node.hook("resources.sh", "verify"))
    assert "there is no late_create" in refusal(node.hook("resources.sh", "late_create"))


def test_upgrade_runs_its_steps_in_order(node: Node) -> None:
    succeeded(node.hook("upgrade.sh"))
    conf = f"--config-file {node.etc}/cyborg.conf"
    steps = [call for call in node.calls if call.startswith(("upgrade_project", "cyborg-", "run"))]
    assert steps[:4] == [
        "upgrade_project cyborg stable/2026.2 master",
        f"cyborg-dbsync {conf} upgrade",
        f"cyborg-dbsync {conf} online_data_migrations",
        f"cyborg-status {conf} upgrade check",
    ]
    assert steps[4].startswith("cyborg-agent ")
    assert "--list-functions" in steps[4]
    assert [step.split()[1] for step in steps[5:]] == [
        *("cyborg-privileged", "cyborg-cond", "cyborg-api", "cyborg-agent")
    ]
    assert node.called("setup_develop") != []
    # The database is the old one.
    assert node.called("recreate_database") == []
    assert node.called("ensure_services_started") == [
        "cyborg-api",
        "cyborg-conductor",
        "cyborg-agent",
    ]


def test_upgrade_continues_after_warnings(node: Node) -> None:
    (node.home / "status-cyborg-status").write_text("1")
    succeeded(node.hook("upgrade.sh"))
    assert len(node.called("run_process")) == 4


@pytest.mark.parametrize("status", ["2", "255"])
def test_upgrade_stops_after_a_failed_check(node: Node, status: str) -> None:
    (node.home / "status-cyborg-status").write_text(status)
    assert f"ended with {status}" in refusal(node.hook("upgrade.sh"))
    assert node.called("run_process") == []


def test_upgrade_stops_when_schema_upgrade_fails(node: Node) -> None:
    (node.home / "status-cyborg-dbsync").write_text("1")
    assert node.hook("upgrade.sh").returncode == 1
    assert node.called("cyborg-status") == []
    assert node.called("run_process") == []


def test_shutdown_succeeds_when_nothing_runs(node: Node) -> None:
    succeeded(node.hook("shutdown.sh"))
