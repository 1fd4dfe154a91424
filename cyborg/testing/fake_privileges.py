# SPDX-License-Identifier: Apache-2.0
"""The actions that need privileges, on a simulated host.

The actions are those of the agent. Files are the host's own. What is a request to the kernel on a
real machine is the command of the field here, so a test answers it like any other command:
``ip link set dev IF vf N …``, and ``nvme`` with ``format /dev/nvme0n1 -s N``, ``sanitize /dev/nvme0
-a N``, ``virt-mgmt /dev/nvme0 -c N -a N -r N -n N``, and with ``-o json`` ``sanitize-log``,
``id-ctrl``, ``id-ns``, ``list-ns``, ``list-ctrl``, ``primary-ctrl-caps`` and ``list-secondary``.
The content of a namespace is that of its node. A disk whose node below /dev has the fault EBUSY is
claimed exclusively. A host without the file of the kernel's log has logged nothing.
"""

import contextlib
import errno
import json
import os
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from cyborg import exception
from cyborg.drivers import kernel_log
from cyborg.drivers.command import Completed, summary
from cyborg.drivers.files import host_errors
from cyborg.drivers.host import Host
from cyborg.drivers.kernel_log import DeviceError
from cyborg.drivers.privileged import nvme
from cyborg.drivers.privileged.action import Action
from cyborg.drivers.privileged.kernel import Node, digest
from cyborg.drivers.privileged.netlink import VfSettings
from cyborg.drivers.privileged.nvme import AdminCommand

T = TypeVar("T")

_TIMEOUT = 60.0


def _ignore(action: Action[Any]) -> None:
    """Do not note an action."""


class SimulatedPrivileges:
    """Runs actions at once, in this process, on any function; ``note`` gets each before it runs."""

    def __init__(self, host: Host, note: Callable[[Action[Any]], None] = _ignore) -> None:
        self.kernel = SimulatedKernel(host)
        self._note = note

    def run(self, action: Action[T]) -> T:
        """See Privileged."""
        self._note(action)
        return action.run(self.kernel)


class SimulatedKernel:
    """A ``Kernel`` over a simulated host."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def read(self, path: str) -> str:
        self._refuse_links("reading", path)
        return self._host.read_text(path)

    def read_start(self, path: str, length: int) -> bytes:
        self._refuse_links("reading", path)
        return self._host.read_start(path, length)[0]

    @contextlib.contextmanager
    def copied(self, path: str, start: bytes, name: str) -> Iterator[str]:
        """See Kernel; nobody changes a file of a simulated host, so it is not copied."""
        self._refuse_links("copying", path)
        with host_errors(f"copying {path}"):
            if self._host.read_start(path, len(start))[0] != start:
                raise OSError(errno.EINVAL, "it is not an image for FPGAs")
        yield path

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

    def device(self, path: str) -> str | None:
        mapped = re.fullmatch(r"/proc/[0-9]+/root(/.*)", path)
        target = mapped[1] if mapped else self._host.readlink(path)
        return self._host.open_files().devices.get(target)

    def device_errors(self) -> list[DeviceError]:
        if not self._host.exists(kernel_log.PATH):
            return []
        return kernel_log.find_errors(self._host.read_text(kernel_log.PATH))

    def has_all_processes(self) -> bool:
        return True

    def claimed(self, disk: Node) -> bool:
        try:
            self._host.read_bytes(f"/dev/{disk.name}")
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
        if settings.auto_link is not None:
            words += ["state", "auto"]
        self._checked(words)

    def nvme_admin(
        self, controller: Node, request: AdminCommand, *, exclusive: Sequence[Node] = ()
    ) -> bytes:
        for disk in exclusive:
            if self.claimed(disk):
                with host_errors(f"opening /dev/{disk.name}"):
                    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        path = f"/dev/{controller.name}"
        if request.opcode == nvme.FORMAT:
            erase = str(request.cdw10 >> 9 & 0x7)
            self._checked(["nvme", "format", f"/dev/{exclusive[0].name}", "-s", erase])
        elif request.opcode == nvme.SANITIZE:
            self._checked(["nvme", "sanitize", path, "-a", str(request.cdw10 & 0x7)])
        elif request == nvme.health_log():
            log = json.loads(self._checked(["nvme", "smart-log", path, "-o", "json"]))
            page = bytearray(request.data_length)
            struct.pack_into(
                "<BHBBB",
                page,
                0,
                log["critical_warning"],
                log["temperature"],
                *(log[name] for name in ("avail_spare", "spare_thresh", "percent_used")),
            )
            page[160:176] = log["media_errors"].to_bytes(16, "little")
            return bytes(page)
        elif request.opcode == nvme.GET_LOG_PAGE:
            answer = json.loads(self._checked(["nvme", "sanitize-log", path, "-o", "json"]))
            log = answer[controller.name]
            # "(2) Sanitize in Progress.": the number is that of the log page.
            status = int(log["sstat"]["status"][1:].partition(")")[0])
            return struct.pack("<HH", log["sprog"], status).ljust(request.data_length, b"\0")
        elif request == nvme.identify_controller():
            answer = json.loads(self._checked(["nvme", "id-ctrl", path, "-o", "json"]))
            identity = bytearray(request.data_length)
            struct.pack_into("<H", identity, 256, answer["oacs"])
            identity[76], identity[328], identity[524] = (
                answer[name] for name in ("cmic", "sanicap", "fna")
            )
            return bytes(identity)
        elif request == nvme.identify_flexible():
            answer = json.loads(self._checked(["nvme", "primary-ctrl-caps", path, "-o", "json"]))
            page = bytearray(request.data_length)
            for at, kind in ((32, "vq"), (64, "vi")):
                names = ("frt", "rfa", "rfap", "prt", "frsm", "gran")
                struct.pack_into("<IIHHHH", page, at, *(answer[kind + name] for name in names))
            return bytes(page)
        elif request == nvme.identify_virtual_controllers():
            answer = json.loads(self._checked(["nvme", "list-secondary", path, "-o", "json"]))
            rows = answer["secondary-controllers"]
            page = bytearray(request.data_length)
            page[0] = len(rows)
            for at, row in enumerate(rows, 1):
                struct.pack_into(
                    *("<HxxB3xH", page, 32 * at, row["secondary-controller-identifier"]),
                    row["secondary-controller-state"],
                    row["virtual-function-number"],
                )
            return bytes(page)
        elif request.opcode == nvme.VIRTUALIZE:
            action, resource = request.cdw10 & 0xF, request.cdw10 >> 8 & 0x7
            words = ["nvme", "virt-mgmt", path, "-c", str(request.cdw10 >> 16), "-a", str(action)]
            self._checked([*words, "-r", str(resource), "-n", str(request.cdw11)])
        elif request == nvme.identify_namespaces():
            answer = json.loads(self._checked(["nvme", "list-ns", path, "-o", "json"]))
            numbers = [row["nsid"] for row in answer["nsid_list"]]
            return struct.pack(f"<{len(numbers)}I", *numbers).ljust(request.data_length, b"\0")
        elif request.opcode == nvme.IDENTIFY and request.namespace:
            words = ["nvme", "id-ns", path, "-n", str(request.namespace), "-o", "json"]
            answer = json.loads(self._checked(words))
            identity = bytearray(request.data_length)
            identity[26], identity[29], identity[30] = (
                answer[name] for name in ("flbas", "dps", "nmic")
            )
            return bytes(identity)
        elif request == nvme.identify_controllers():
            answer = json.loads(self._checked(["nvme", "list-ctrl", path, "-o", "json"]))
            count = struct.pack("<H", len(answer["ctrl_list"]))
            return count.ljust(request.data_length, b"\0")
        return bytes(request.data_length)

    def sample(self, disk: Node, places: Sequence[int], length: int) -> list[str]:
        if self.claimed(disk):
            with host_errors(f"opening /dev/{disk.name}"):
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        content = self._host.read_bytes(f"/dev/{disk.name}")
        return [digest(content[place : place + length].ljust(length, b"\0")) for place in places]

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
