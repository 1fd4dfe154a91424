# SPDX-License-Identifier: Apache-2.0
"""``cyborg instance-move`` with the real Nova, which shelves and unshelves for it."""

import contextlib
import io
import signal
from collections.abc import Callable
from typing import Any

import pytest

from cyborg.tests.fixtures.processes import Program, at_home, script
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.nova.cloud import UNITS, Cloud
from cyborg.tests.unit.cli.conftest import CommandResult
from cyborg_cli import shell

pytestmark = pytest.mark.usefixtures("own_clouds")


class Progress(io.StringIO):
    """The error output of a command; ``act`` is called once, when a line has ``words``."""

    def __init__(self, words: str, act: Callable[[], object]) -> None:
        super().__init__()
        self._words = words
        self._act: Callable[[], object] | None = act

    def write(self, text: str) -> int:
        if self._act and self._words in text:
            act, self._act = self._act, None
            act()
        return super().write(text)


def move(
    server: str, host: str, *options: str, who: str = "admin", err: io.StringIO | None = None
) -> CommandResult:
    """Run the command in this process."""
    out, err = io.StringIO(), err or io.StringIO()
    line = ["--os-cloud", who, "instance-move", server, "--host", host, "-f", "json", *options]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = shell.main(line, stdout=out, stderr=err)
    return CommandResult(status, out.getvalue(), err.getvalue())


def places(cloud: Cloud, server: str) -> tuple[Any, ...]:
    """Status and host of a server, and the hosts of its accelerators."""
    shown = cloud.show(server)
    arqs = [(arq["state"], arq["hostname"]) for arq in cloud.arqs(server, cloud.admin)]
    return shown.status, shown.compute_host, arqs


def test_server_moves_and_its_old_units_are_given_back(cloud: Cloud) -> None:
    with cloud.server(units=2) as server:
        source = cloud.show(server).compute_host
        target, before = cloud.other(source), cloud.arqs(server)
        assert (cloud.offered(source), cloud.offered(target)) == (UNITS - 2, UNITS)
        # What would happen is no change.
        assert move(server, target, "--dry-run").json["from"] == source
        assert move(server, target, who="member").status == 1
        assert places(cloud, server) == ("ACTIVE", source, [("Bound", source)] * 2)
        moved = move(server, target)
        assert moved.json["status"] == "ACTIVE"
        assert places(cloud, server) == ("ACTIVE", target, [("Bound", target)] * 2)
        # The owner has new requests, not the administrator who moved the server.
        after = cloud.arqs(server)
        assert [arq["project_id"] for arq in after] == [before[0]["project_id"]] * 2
        assert not {arq["uuid"] for arq in before} & {arq["uuid"] for arq in after}
        eventually(lambda: cloud.offered(source) == UNITS, "the old units are clean and free")
        assert cloud.offered(target) == UNITS - 2
        assert cloud.dirty_units(source) == 0
        assert cloud.images.snapshots == []
        # The command ends the same way as often as it runs.
        assert move(server, target).json["status"] == "ACTIVE"


def test_server_without_accelerators_moves_and_stays_off(cloud: Cloud) -> None:
    with cloud.server(units=0) as server:
        source = cloud.show(server).compute_host
        refused = move(server, source)
        assert refused.status == 1
        assert f"is on host {source} already" in refused.err
        cloud.connection(cloud.member).compute.stop_server(server)
        eventually(lambda: cloud.show(server).status == "SHUTOFF", "the server is off")
        moved = move(server, cloud.other(source))
        assert moved.status == 0, moved.err
        assert places(cloud, server) == ("SHUTOFF", cloud.other(source), [])


def test_server_stays_where_it_is_if_the_host_is_full(cloud: Cloud) -> None:
    with cloud.server(units=2) as server:
        source = cloud.show(server).compute_host
        arqs = cloud.arqs(server)
        with cloud.full(cloud.other(source)):
            refused = move(server, cloud.other(source))
        assert refused.status == 1
        assert "cannot give the accelerators" in refused.err
        assert "Nothing was changed" in refused.err
        assert cloud.arqs(server) == arqs


def test_server_returns_if_the_host_is_full_when_it_is_shelved(cloud: Cloud) -> None:
    with cloud.server(units=2) as server, contextlib.ExitStack() as filled:
        source = cloud.show(server).compute_host
        target = cloud.other(source)
        err = Progress("Shelving", lambda: filled.enter_context(cloud.full(target)))
        failed = move(server, target, err=err)
        assert failed.status == 1
        assert f"The server returns to host {source}" in failed.err
        assert f"is on host {source} (ACTIVE) again" in failed.err
        assert places(cloud, server) == ("ACTIVE", source, [("Bound", source)] * 2)


def test_server_returns_if_nova_does_not_start_it_on_the_host(cloud: Cloud) -> None:
    """Nova alone knows that the compute of the host is gone."""
    admin = cloud.connection()
    with cloud.server(units=2) as server:
        source = cloud.show(server).compute_host
        target = cloud.other(source)
        (service,) = admin.compute.services(binary="nova-compute", host=target)

        def force(*, down: bool) -> None:
            path, body = f"/os-services/{service.id}", {"forced_down": down}
            answer = admin.compute.put(path, json=body, microversion="2.53")
            assert answer.status_code == 200

        failed = move(server, target, err=Progress("Shelving", lambda: force(down=True)))
        force(down=False)
        assert failed.status == 1
        assert f"Nova did not start the server on host {target}" in failed.err
        assert places(cloud, server) == ("ACTIVE", source, [("Bound", source)] * 2)


@pytest.mark.parametrize("line", ["Shelving server", "task unshelving"])
def test_command_that_was_killed_ends_the_move_when_it_runs_again(cloud: Cloud, line: str) -> None:
    with cloud.server(units=2) as server:
        source = cloud.show(server).compute_host
        target = cloud.other(source)
        words = [script("cyborg"), "--os-cloud", "admin", "instance-move", server]
        program = Program(
            [*words, "--host", target],
            log=cloud.home / f"{server}.out",
            environment=at_home(cloud.home),
        )
        program.wait_for(line)
        program.signal(signal.SIGKILL)
        program.wait()
        again = move(server, target)
        assert again.status == 0, again.err
        assert places(cloud, server) == ("ACTIVE", target, [("Bound", target)] * 2)
