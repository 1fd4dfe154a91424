# SPDX-License-Identifier: Apache-2.0
"""The actions that need privileges, on a simulated host.

The actions are those of the agent. Files are the host's own. What is a request to the kernel on a
real machine is the command of the field here, so a test answers it like any other command:
``ip link set dev IF vf N …`` and ``nvme admin-passthru /dev/nvmeN …``. A disk whose node below
/dev has the fault EBUSY is claimed exclusively.
"""

import errno
import os
from collections.abc import Sequence
from typing import TypeVar

from cyborg import exception
from cyborg.drivers.command import Completed
from cyborg.drivers.host import Host, host_errors
from cyborg.drivers.local_command import summary
from cyborg.drivers.privileged.actions import Action
from cyborg.drivers.privileged.netlink import VfSettings
from cyborg.drivers.privileged.nvme import AdminCommand

T = TypeVar("T")

_TIMEOUT = 60.0


class SimulatedPrivileges:
    """Runs actions at once, in this process."""

    def __init__(self, host: Host) -> None:
        self._kernel = _SimulatedKernel(host)

    def run(self, action: Action[T]) -> T:
        """See Privileged."""
        return action.run(self._kernel)


class _SimulatedKernel:
    """A ``Kernel`` over a simulated host."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def read(self, path: str) -> str:
        self._refuse_links("reading", path)
        return self._host.read_text(path)

    def write(self, path: str, text: str) -> None:
        self._refuse_links("writing", path)
        self._host.write_text(path, text)

    def names(self, path: str) -> list[str]:
        self._refuse_links("listing", path)
        return self._host.list_dir(path)

    def readlink(self, path: str) -> str:
        self._refuse_links("reading link below", path.rpartition("/")[0])
        return self._host.readlink(path)

    def links(self, path: str) -> dict[str, str]:
        return {name: self._host.readlink(f"{path}/{name}") for name in self.names(path)}

    def has_all_processes(self) -> bool:
        return True

    def claimed(self, disk: str, number: str) -> bool:
        try:
            self._host.read_bytes(f"/dev/{disk}")
        except exception.HostError as error:
            if error.fields.get("errno") == errno.EBUSY:
                return True
            raise
        return False

    def set_vf(self, interface: str, index: int, settings: VfSettings) -> None:
        words = ["ip", "link", "set", "dev", interface, "vf", str(settings.vf)]
        for name, value in (("mac", settings.mac), ("vlan", settings.vlan)):
            if value is not None:
                words += [name, str(value)]
        if settings.rate is not None:
            least, most = settings.rate
            words += ["min_tx_rate", str(least), "max_tx_rate", str(most)]
        for name, flag in (("spoofchk", settings.spoof_check), ("trust", settings.trust)):
            if flag is not None:
                words += [name, "on" if flag else "off"]
        self._checked(words)

    def nvme_admin(self, controller: str, number: str, request: AdminCommand) -> bytes:
        words = ["nvme", "admin-passthru", f"/dev/{controller}", f"--opcode={request.opcode:#04x}"]
        words += [f"--namespace-id={request.namespace}", f"--cdw10={request.cdw10:#x}"]
        if request.data_length:
            words += [f"--data-len={request.data_length}", "--read", "--raw-binary"]
        # One character of a command's output stands for one byte.
        return self._checked(words).encode("latin-1")

    def run(self, argv: Sequence[str], *, timeout: float) -> Completed:
        if (writable := self._host.writable_by_others(argv[0])) is not None:
            raise exception.HostError(
                action=f"running {argv[0]}", reason=f"others than root can change {writable}"
            )
        return self._host.run(argv, timeout=timeout)

    def _checked(self, words: Sequence[str]) -> str:
        result = self._host.run(words, timeout=_TIMEOUT)
        if result.status != 0:
            raise exception.HostError(action=f"running {words[0]}", reason=summary(result))
        return result.stdout

    def _refuse_links(self, verb: str, path: str) -> None:
        """Raise exception.HostError if a part of the path is a link, as a real kernel does."""
        with host_errors(f"{verb} {path}"):
            if self._host.realpath(path) != path:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
