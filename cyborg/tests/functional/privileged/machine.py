# SPDX-License-Identifier: Apache-2.0
"""The privileged process on a tree of its own, and agents that use it.

The process sees a /sys with a card that this machine does not have. Everything else is the kernel's
own: users, permissions, capabilities, /proc, sockets.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cyborg
from cyborg.drivers.privileged.action import Action
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.processes import Program, script
from cyborg.tests.fixtures.waiting import PATIENCE, eventually

ROOT = os.geteuid() == 0
NOBODY = 65534
#: The user of the units of the process.
PRIVILEGED = 65532
#: The user of the agent. Without root there is one other user at most: who runs the test.
AGENT = NOBODY if ROOT else os.geteuid()
CARD = "0000:3b:00.0"
PATH = f"/sys/devices/pci0000:3a/{CARD}"
#: A virtual function of the card, which VFIO has.
VF = "0000:3b:02.0"
PART = f"/sys/devices/pci0000:3a/{VF}"
#: The list of functions; the process sees the directory in place of /sys.
LIST = "/sys/privileged-functions"
CHILD = Path(__file__).with_name("agent_child.py")
UNIT = Path(__file__).with_name("unit_child.py")
#: What the unit of the process has, in the words of setpriv(1).
CAPABILITIES = "dac_override,dac_read_search,net_admin,sys_admin,syslog,sys_ptrace"
#: What its two units have: that for the kind "observe", and that for all others.
OBSERVER = "dac_read_search,syslog,sys_ptrace"
OTHERS = "dac_override,dac_read_search,net_admin,sys_admin"

#: Puts the tree in place of /sys and /dev for one command, and for nothing else.
MOUNT = """
mount --bind "$0/sys" /sys && mount --bind /dev/null "$0/dev/null" &&
mount --rbind "$0/dev" /dev && exec "$@"
"""
NAMESPACE = ["unshare", "--mount"] if ROOT else ["unshare", "--user", "--map-root-user", "--mount"]


class Machine:
    """The tree, the socket, and what runs on them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "socket"
        self.tree = directory / "tree"
        host = FakeHost(
            {
                f"{PATH}/sriov_numvfs": "0\n",
                f"{PATH}/uevent": "DRIVER=ice\nPCI_CLASS=20000\nPCI_ID=8086:1592\n",
                f"{PART}/uevent": "DRIVER=vfio-pci\nPCI_CLASS=20000\nPCI_ID=8086:1889\n",
                # Nobody has opened its node, whatever this machine hides from the observer.
                f"{PART}/enable": "0\n",
                f"{PATH}/net/ens1f0/ifindex": "2147483647\n",
                "/dev/null": "",
                "/dev/vfio/71": "",
            },
            {
                f"/sys/bus/pci/devices/{CARD}": f"../../..{PATH.removeprefix('/sys')}",
                f"/sys/bus/pci/devices/{VF}": f"../../..{PART.removeprefix('/sys')}",
                f"{PATH}/virtfn0": f"../{VF}",
                f"{PART}/physfn": f"../{CARD}",
                f"{PART}/iommu_group": "../../../kernel/iommu_groups/71",
                "/sys/bus/pci/devices/0000:3b:00.1": "../../../../outside/0000:3b:00.1",
                "/sys/class/net/ens1f0": f"../..{PATH.removeprefix('/sys')}/net/ens1f0",
            },
        )
        host.materialise(self.tree)
        self.number.chmod(0o644)
        self.list.write_text(f'# the card\n{{"address": "{CARD}"}}\n')

    @property
    def number(self) -> Path:
        """The file with the number of virtual functions, which only root may write."""
        return self.tree / PATH[1:] / "sriov_numvfs"

    @property
    def list(self) -> Path:
        """The list of the functions that actions may change."""
        return self.tree / LIST[1:]

    @contextmanager
    def privileged(
        self, mode: str, *, kind: str = "", capabilities: str = CAPABILITIES
    ) -> Iterator[Program]:
        """Run the process as ``mode`` says: started by root, or by a unit with capabilities.

        With ``kind`` it listens where the agent looks for a process for one kind of action.
        """
        program = script("cyborg-privileged")
        path = self.socket.with_name(f"{self.socket.name}{kind and '.'}{kind}")
        command = [program, "--socket", str(path), "--user", "nobody" if ROOT else "root"]
        command += ["--functions", LIST]
        if mode == "unit":
            capabilities = ",".join(f"+{name}" for name in capabilities.split(","))
            user = [f"--reuid={PRIVILEGED}", f"--regid={PRIVILEGED}", "--clear-groups"]
            rights = [f"--inh-caps=-all,{capabilities}", f"--ambient-caps=-all,{capabilities}"]
            bound = f"--bounding-set=-all,{capabilities}"
            command = [
                *(sys.executable, str(UNIT), str(path), str(NOBODY), str(PRIVILEGED)),
                *("setpriv", *user, "--no-new-privs", *rights, bound, *command),
            ]
        path.unlink(missing_ok=True)
        process = Program(
            [*NAMESPACE, "sh", "-c", MOUNT, str(self.tree), *command],
            log=self.directory / f"privileged{kind}.out",
            environment={**os.environ, "PYTHONPATH": str(Path(cyborg.__file__).parents[1])},
        )
        try:
            eventually(lambda: listens(path), lambda: process.output)
            yield process
        finally:
            process.stop()

    def connection(self) -> socket.socket:
        """Return a connection of its own to the process."""
        return connect(self.socket)


def connect(path: Path) -> socket.socket:
    """Return a connection to the process that listens there."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(PATIENCE)
    connection.connect(str(path))
    return connection


def listens(path: Path) -> bool:
    """Return whether a process accepts connections there."""
    try:
        connect(path).close()
    except OSError:
        return False
    return True


class Agent:
    """An unprivileged process that runs actions."""

    def __init__(self, machine: Machine, *, user: int = AGENT, helper: str = "") -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD), str(machine.socket), str(user), helper],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(cyborg.__file__).parents[1])},
        )
        self.status = rights(self._read()["status"])

    def run(self, action: Action[Any]) -> dict[str, Any]:
        """Return the answer to an action: ``result``, or ``kind`` and the fields of an error."""
        assert self._process.stdin is not None
        request = [type(action).__name__, list(action.plain().items())]
        self._process.stdin.write(f"{json.dumps(request)}\n")
        self._process.stdin.flush()
        return self._read()

    def stop(self) -> None:
        """End the process."""
        self._process.communicate(timeout=PATIENCE)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


@contextmanager
def agent(machine: Machine, *, user: int = AGENT, helper: str = "") -> Iterator[Agent]:
    """Run an agent until the end of the block."""
    running = Agent(machine, user=user, helper=helper)
    try:
        yield running
    finally:
        running.stop()


def rights(status: str) -> dict[str, str]:
    """Return what the kernel says about a process, by name."""
    lines = (line.partition(":") for line in status.splitlines())
    return {name: value.strip() for name, _, value in lines}


def children(pid: int) -> list[dict[str, str]]:
    """Return the status of all processes whose parent is ``pid``."""
    processes = []
    for path in Path("/proc").glob("[0-9]*/status"):
        try:
            status = rights(path.read_text())
        except OSError:
            continue
        if status.get("PPid") == str(pid):
            processes.append(status)
    return processes
