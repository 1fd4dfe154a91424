# SPDX-License-Identifier: Apache-2.0
"""The agent has no capability, each process has those of one context, and none obeys strangers."""

import errno
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from oslo_privsep import comm

import cyborg
from cyborg.drivers.privileged.action import Action
from cyborg.drivers.privileged.actions import ReadOpenFiles, Reset, SetMigMode, SetVf, SetVfs
from cyborg.drivers.privileged.disk_actions import ReadSanitize
from cyborg.model.pci import PciAddress
from cyborg.tests.fixtures.processes import Program, script
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.privileged.machine import (
    AGENT,
    CARD,
    LIST,
    MOUNT,
    NAMESPACE,
    OBSERVER,
    OTHERS,
    PRIVILEGED,
    ROOT,
    Agent,
    Machine,
    agent,
    children,
)

FUNCTION = PciAddress.parse(CARD)
#: The capabilities of each context by the numbers of linux/capability.h.
MASKS = {
    "sysfs": 1 << 1,
    "network": 1 << 12,
    "nvme": 1 << 21 | 1 << 2,
    "vendor": 1 << 21 | 1 << 1,
    "observe": 1 << 34 | 1 << 19 | 1 << 2,
}
ONE_OF_EACH: dict[str, Action[Any]] = {
    "sysfs": SetVfs(FUNCTION, 4),
    "network": SetVf(FUNCTION, "ens1f0", 0, trust=True),
    "nvme": ReadSanitize(FUNCTION, "nvme0"),
    "vendor": SetMigMode(FUNCTION, True),
    "observe": ReadOpenFiles(),
}
#: The messages of oslo.privsep.
PING, PONG, CALL, RETURN = 1, 2, 3, 4
STRANGER = 65533
ROOT_DIRECTORY = str(Path(cyborg.__file__).parents[1])
MODULE = "cyborg.drivers.privileged.contexts"


@contextmanager
def new_machine() -> Iterator[Machine]:
    """Yield a machine in a directory that every user may enter."""
    directory = Path(tempfile.mkdtemp(prefix="cyborg-privileged-"))
    directory.chmod(0o755)
    yield Machine(directory)
    shutil.rmtree(directory)


@pytest.fixture
def machine() -> Iterator[Machine]:
    """A machine without a process."""
    with new_machine() as machine:
        yield machine


@dataclass(frozen=True)
class Served:
    """A machine with its process."""

    machine: Machine
    process: Program


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A machine and its process for requests that must have no effect."""
    with new_machine() as machine, machine.privileged("root") as process:
        yield Served(machine, process)


@pytest.fixture(params=["root", "unit"] if ROOT else ["root"])
def process(request: pytest.FixtureRequest, machine: Machine) -> Iterator[Program]:
    """The process as root starts it, and as the unit of systemd does."""
    with machine.privileged(request.param) as running:
        yield running


def test_agent_has_no_capability_and_each_process_those_of_its_context(
    machine: Machine, process: Program
):
    with agent(machine) as running:
        assert int(running.status["CapPrm"], 16) == int(running.status["CapEff"], 16) == 0
        assert running.status["Uid"].split()[1] == str(AGENT)
        for context, action in ONE_OF_EACH.items():
            before = {child["Pid"] for child in children(process.pid)}
            running.run(action)
            added = [child for child in children(process.pid) if child["Pid"] not in before]
            # A process that changes something asks a process of the observer first.
            (child,) = [new for new in added if int(new["CapPrm"], 16) == MASKS[context]]
            assert {int(new["CapPrm"], 16) for new in added} <= {MASKS[context], MASKS["observe"]}
            sets = [int(child[name], 16) for name in ("CapEff", "CapPrm")]
            assert sets == [MASKS[context]] * 2, (context, process.output)
            assert int(child["CapInh"], 16) == int(child["CapAmb"], 16) == 0
            assert child["NoNewPrivs"] == "1"
            assert int(child["Uid"].split()[1]) in {AGENT, PRIVILEGED}
            # A second action of the context needs no other process.
            number = len(children(process.pid))
            running.run(action)
            assert len(children(process.pid)) == number
    eventually(lambda: not children(process.pid), lambda: process.output)


def test_observer_has_a_process_of_its_own_where_it_has_a_socket(machine: Machine):
    """Only a unit has fewer capabilities, and only root starts one here."""
    modes = ("unit", "unit") if ROOT else ("root", "root")
    with machine.privileged(modes[0], capabilities=OTHERS) as others:
        # Without the second process the kind is refused, and the agent offers nothing on a guess.
        with agent(machine) as running:
            assert ("result" in running.run(ReadOpenFiles())) is not ROOT
        with (
            machine.privileged(modes[1], kind="observe", capabilities=OBSERVER) as observer,
            agent(machine) as running,
        ):
            assert "result" in running.run(ReadOpenFiles())
            assert "result" in running.run(SetVfs(FUNCTION, 4))
            # One for the agent, and one for the process that changes something.
            masks = [int(child["CapPrm"], 16) for child in children(observer.pid)]
            assert masks == [MASKS["observe"]] * 2
            (child,) = children(others.pid)
            assert int(child["CapPrm"], 16) == MASKS["sysfs"]


def test_actions_do_what_only_root_may_and_nothing_outside(machine: Machine, process: Program):
    outside = machine.directory / "outside" / "0000:3b:00.1"
    outside.mkdir(parents=True)
    (outside / "reset").write_text("untouched")
    with agent(machine) as running:
        answer = running.run(SetVfs(FUNCTION, 4))
        assert answer["result"] is None, answer
        assert machine.number.read_text() == "4"
        assert answer["journal"] == [f"SetVfs(function={CARD}, count=4)"]

        answer = running.run(Reset(PciAddress.parse("0000:3b:00.1")))
        assert answer["kind"] == "HostError", answer
        assert (outside / "reset").read_text() == "untouched"

        number = running.run(Reset(FUNCTION))["errno"]
        assert number == errno.ENOENT
        # The kernel looks for the interface after it has checked the capability.
        if ROOT:
            assert running.run(ONE_OF_EACH["network"])["errno"] == errno.ENODEV
        # Reading leaves no record.
        assert len(running.run(ReadOpenFiles())["journal"]) == 4 if ROOT else 3


@pytest.mark.parametrize("change", ["another function", "writable", "missing", "not JSON"])
def test_function_that_root_has_not_listed_is_refused(machine: Machine, change: str):
    if change == "another function":
        machine.list.write_text('{"address": "0000:3c:00.0"}\n')
    elif change == "writable":
        machine.list.chmod(0o666)
    elif change == "missing":
        machine.list.unlink()
    else:
        machine.list.write_text("everything\n")
    before = machine.number.read_text()
    with machine.privileged("unit" if ROOT else "root"), agent(machine) as running:
        for action in (SetVfs(FUNCTION, 4), Reset(FUNCTION), ONE_OF_EACH["network"]):
            answer = running.run(action)
            assert answer["kind"] == "HostError", answer
            assert "privileged-functions" in f"{answer['reason']} {answer['action']}", answer
    assert machine.number.read_text() == before


def test_holder_of_a_vfio_node_is_seen_although_it_is_of_another_user(
    machine: Machine, process: Program
):
    spaces = ["--mount"] if ROOT else ["--user", "--mount", "--preserve-credentials"]
    hold = "exec sleep 3600 < /dev/vfio/71"
    holder = subprocess.Popen(["nsenter", f"--target={process.pid}", *spaces, "sh", "-c", hold])
    try:
        with agent(machine) as running:

            def seen() -> bool:
                (holders, *_) = running.run(ReadOpenFiles())["result"]
                return bool(holders.get("/dev/vfio/71") == f"sleep (process {holder.pid})")

            eventually(seen, lambda: process.output)
            # So nobody changes the card while a guest has a part of it, whatever the agent says.
            changes: list[Action[Any]] = [
                *(SetVfs(FUNCTION, 0), Reset(FUNCTION), ONE_OF_EACH["network"]),
                SetMigMode(FUNCTION, True),
            ]
            for action in changes:
                answer = running.run(action)
                assert "held through VFIO by sleep" in answer["reason"], answer
            assert machine.number.read_text() == "0\n"
    finally:
        holder.kill()
        holder.wait()


HOSTILE: list[object] = [
    ("1", (CALL, "os.system", ("touch hacked", {}), {})),
    ("1", (CALL, "os.system", ("touch hacked",), {})),
    ("1", (CALL, "subprocess.check_output", (["touch", "hacked"],), {"shell": True})),
    ("1", (CALL, f"{MODULE}.LinuxKernel", (), {})),
    ("1", (CALL, f"{MODULE}.sysfs.stop", (), {})),
    ("1", (CALL, f"{MODULE}.run_nvme", ("Sanitize", {}), {})),
    ("1", (CALL, f"{MODULE}.run_sysfs", (), {"name": "SetVfs", "values": {}})),
    ("1", (CALL, f"{MODULE}.run_sysfs", ("SetVfs", {}, {}), {})),
    ("1", (CALL, f"{MODULE}.run_sysfs", ("SetVfs", {}), {"_wrap_timeout": 1})),
    ("1", (6, {"msg": "a log line"})),
    ("1", (CALL,)),
    ("1", (PING, "x")),
    (1, (PING,)),
    ("1",),
    7,
    None,
]


@pytest.mark.parametrize("message", HOSTILE, ids=str)
def test_request_for_anything_else_ends_the_process(served: Served, message: object):
    with served.machine.connection() as connection:
        connection.sendall(b"sysfs\n")
        assert answer(connection, ("0", (PING,))) == ("0", (PONG,))
        comm.Serializer(connection).send(message)
        assert closed(connection), served.process.output
    eventually(lambda: not children(served.process.pid))
    assert not Path("/hacked").exists()
    assert served.machine.number.read_text() == "0\n"


def test_action_with_bad_values_is_refused_and_the_process_goes_on(served: Served):
    bad: list[tuple[object, object]] = [
        ("SetVfs", {"function": f"../{CARD}", "count": 1, "autoprobe": None}),
        ("SetVfs", {"function": CARD, "count": "1\n2", "autoprobe": None}),
        ("SetVfs", {"function": CARD, "count": 1, "autoprobe": None, "path": "/etc/shadow"}),
        ("Bind", {"function": CARD, "driver": "../../../../etc"}),
        ("SetMigMode", {"function": CARD, "enabled": True}),
        ("load", {}),
        (None, None),
        ({}, []),
    ]
    with served.machine.connection() as connection:
        connection.sendall(b"sysfs\n")
        for name, values in bad:
            request: object = ("9", (CALL, f"{MODULE}.run_sysfs", (name, values), {}))
            (_, (_, (kind, fields))) = answer(connection, request)
            assert kind == "Invalid", fields
        assert served.machine.number.read_text() == "0\n"
        good = {"function": CARD, "count": 0, "autoprobe": None}
        valid: object = ("9", (CALL, f"{MODULE}.run_sysfs", ("SetVfs", good), {}))
        assert answer(connection, valid) == ("9", (RETURN, ("result", None)))
    assert served.machine.number.read_text() == "0"
    served.machine.number.write_text("0\n")


@pytest.mark.parametrize("line", [b"root\n", b"\n", b"x" * 100, b"sysfs", b"\xff\n", b"SYSFS\n"])
def test_unknown_context_ends_the_process(served: Served, line: bytes):
    with served.machine.connection() as connection:
        connection.sendall(line)
        connection.shutdown(socket.SHUT_WR)
        assert closed(connection)
    with served.machine.connection() as connection:
        connection.sendall(b"observe\n")
        assert answer(connection, ("0", (PING,))) == ("0", (PONG,)), served.process.output


def test_other_user_is_refused_even_with_access_to_the_socket(machine: Machine):
    with machine.privileged("root") as process:
        assert machine.socket.stat().st_mode & 0o777 == 0o600
        if not ROOT:
            # There is no other user.
            return
        machine.socket.chmod(0o666)
        with agent(machine, user=STRANGER) as running:
            answer = running.run(ReadOpenFiles())
            assert "did not begin to answer" in answer["reason"]
        process.wait_for(f"of user {STRANGER} refused")


def test_agent_connects_again_after_a_restart_of_the_process(machine: Machine):
    with agent(machine) as running:
        answer = running.run(SetVfs(FUNCTION, 2))
        assert "start cyborg-privileged.socket" in answer["reason"]
        assert answer["errno"] == errno.ENOENT
        for number in (3, 4):
            with machine.privileged("root"):
                eventually(lambda: done(running, number))  # noqa: B023 - called at once
                assert machine.number.read_text() == str(number)


def done(running: Agent, number: int) -> bool:
    """Run an action; the first one after the loss of a process may fail."""
    return "result" in running.run(SetVfs(FUNCTION, number))


def test_helper_command_starts_a_process_where_there_is_no_socket(machine: Machine):
    """Without privileges the helper cannot take its capabilities, and the action fails."""
    with agent(machine, user=os.geteuid(), helper=script("privsep-helper")) as running:
        answer = running.run(ReadOpenFiles())
        assert ("result" in answer) is ROOT, answer


def test_process_of_the_helper_judges_functions_too(machine: Machine):
    """It has no socket of an observer, and starts another process of the helper."""
    configuration = machine.directory / "helper.conf"
    configuration.write_text(f"[privileged_process]\nfunctions = {LIST}\nsocket = /nowhere\n")
    words = [script("privsep-helper"), "--config-file", str(configuration)]
    helper = shlex.join([*NAMESPACE, "sh", "-c", MOUNT, str(machine.tree), *words])
    with agent(machine, user=os.geteuid(), helper=helper) as running:
        answer = running.run(SetVfs(FUNCTION, 4))
        # Only root can take the capabilities.
        assert ("result" in answer) is ROOT, answer
        machine.list.write_text("")
        answer = running.run(SetVfs(FUNCTION, 0))
        assert "result" not in answer
        assert ("cyborg-agent --list-functions" in answer["reason"]) is ROOT, answer
    assert machine.number.read_text() == ("4" if ROOT else "0\n")


def test_copies_of_files_are_in_a_directory_that_only_the_process_may_enter(machine: Machine):
    before = copies()
    with machine.privileged("root") as process:
        with agent(machine) as running:
            running.run(ReadOpenFiles())
        during = copies()
        assert process.stop() == 0
    # Those of other processes may come and go meanwhile.
    gone = during.keys() - before.keys() - copies().keys()
    assert (os.geteuid(), 0o700) in {during[directory] for directory in gone}


def copies() -> dict[Path, tuple[int, int]]:
    """Return the directories for copies of all privileged processes: their users and modes."""
    found = {}
    for directory in Path("/var/tmp").glob("cyborg-privileged-*"):
        with suppress(FileNotFoundError):
            status = directory.stat()
            found[directory] = (status.st_uid, status.st_mode & 0o777)
    return found


def test_program_gets_the_capabilities_of_its_context(machine: Machine):
    """The kernel gives a program of an ordinary user none unless they are in the ambient set."""
    code = """
import os, sys
from oslo_privsep import capabilities
from cyborg.drivers.privileged.kernel import LinuxKernel
from cyborg.drivers import command
import cyborg.drivers.host, subprocess, tempfile, selectors, signal
if os.geteuid() == 0:
    capabilities.set_keepcaps(True)
    os.setgid(65534)
    os.setuid(65534)
wanted = [1, 21] if capabilities.get_caps()[1] else []
capabilities.drop_all_caps_except(wanted, wanted, [])
result = LinuxKernel().run(["/bin/grep", "CapEff", "/proc/self/status"], timeout=300)
print(result.stdout, result.stderr)
"""
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": ROOT_DIRECTORY},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(result.stdout.split()[1], 16) == (MASKS["vendor"] if ROOT else 0), result


def answer(connection: socket.socket, request: object) -> Any:
    """Send a request and return the answer."""
    comm.Serializer(connection).send(request)
    return next(comm.Deserializer(connection))


def closed(connection: socket.socket) -> bool:
    """Return whether the other end closes a connection without an answer."""
    try:
        return connection.recv(4096) == b""
    except ConnectionResetError:
        # It did not read all.
        return True
