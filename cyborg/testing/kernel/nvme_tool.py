# SPDX-License-Identifier: Apache-2.0
"""The command ``nvme`` of a simulated host: format, and sanitize that takes its time.

Exit statuses and messages are those of nvme-cli 2.3 on a disk of QEMU, which cannot sanitize. So
no real disk confirms the rules of sanitize: they follow the NVMe base specification 1.4 (5.24 and
5.14.1.16.2), and the log has the form that nvme-cli 2 prints as JSON.
"""

import itertools
import json
import re

from cyborg.drivers.command import Completed
from cyborg.testing.fake_host import FakeHost
from cyborg.testing.kernel.simulated import SimulatedKernel

#: Values of ``--sanact``: by number and by name; 1 leaves the failure mode, the others erase.
_LEAVE_FAILURE = frozenset({"1", "exit-failure"})
_ERASE = frozenset({"2", "start-block-erase", "3", "start-overwrite", "4", "start-crypto-erase"})
_NEVER, _COMPLETED, _RUNNING, _FAILED = range(4)
_STATUS = {
    _NEVER: "NVM Subsystem has never been sanitized.",
    _COMPLETED: "Most Recent Sanitize Command Completed Successfully.",
    _RUNNING: "Sanitize in Progress.",
    _FAILED: "Most Recent Sanitize Command Failed.",
}
#: How many queues and interrupts the controllers of all virtual functions can have.
_FLEXIBLE = 8, 4
#: The mark of a virtual function whose controller is online.
ONLINE = ".online"
#: Actions of virtualization management.
_RELEASE, _ASSIGN, _ONLINE = 1, 8, 9
#: What a guest has written.
_DATA = bytes(range(1, 256)) * 64
#: The progress of a sanitize that is complete, or of a log without one.
_FULL = 65535


def _refused(reason: str) -> Completed:
    return Completed(1, "", f"{reason}\n")


class NvmeTool:
    """A program for ``FakeHost.programs``.

    ``dirty`` are the namespaces (``nvme0n1``) that have data of a former user, ``busy`` those that
    somebody has open. A sanitize takes ``seconds`` of the host's clock; it ends in a failure with
    ``fails``, and there is none with ``sanitizes`` false. ``crypto``: a format can destroy the key
    of the data. ``shared``: other controllers may have the same namespaces. ``private``: others
    have only namespaces of their own. ``holds``: a disk has
    what its virtual functions can have until it releases it. What erases a namespace
    makes the content of its node zeros.
    """

    def __init__(
        self,
        *,
        seconds: float = 60.0,
        fails: bool = False,
        sanitizes: bool = True,
        crypto: bool = True,
        shared: bool = False,
        private: bool = False,
        holds: bool = False,
    ) -> None:
        self._holds = holds
        self.dirty: set[str] = set()
        self.busy: set[str] = set()
        #: The log about the health, as nvme-cli 2 prints it; the temperature is in kelvin.
        self.smart = {
            "critical_warning": 0,
            "temperature": 310,
            "avail_spare": 100,
            "spare_thresh": 10,
            "percent_used": 1,
            "media_errors": 0,
        }
        self._seconds = seconds
        self._fails = fails
        self._sanitizes = sanitizes
        self._controllers = 2 if shared or private else 1
        self._common = int(shared)
        self._identity = {
            # As that of QEMU: there may be others, and the list tells.
            "cmic": 2,
            "oacs": 2,
            "sanicap": 3 if sanitizes else 0,
            "fna": 4 if crypto else 0,
        }
        #: By controller: when its sanitize began.
        self._begun: dict[str, float] = {}
        self._status: dict[str, int] = {}

    def __call__(self, host: FakeHost, argv: tuple[str, ...]) -> Completed:
        """Run ``nvme VERB DEVICE [OPTION ...]``."""
        verb, device, *options = argv[1:]
        if not host.exists(device):
            return _refused(f"{device}: No such file or directory")
        name = device.rpartition("/")[2]
        controller = re.sub(r"n[0-9]+$", "", name)
        self._settle(host, controller)
        if verb == "id-ctrl":
            return Completed(0, json.dumps(self._identity), "")
        if verb == "id-ns":
            return Completed(0, json.dumps({"flbas": 0, "dps": 0, "nmic": self._common}), "")
        if verb == "list-ns":
            places = (
                host.realpath(f"/sys/class/block/{disk}/nsid")
                for disk in host.list_dir("/dev")
                if re.fullmatch(rf"{controller}n[0-9]+", disk)
            )
            numbers = [int(host.read_text(place)) for place in places]
            return Completed(0, json.dumps({"nsid_list": [{"nsid": n} for n in numbers]}), "")
        if verb == "smart-log":
            return Completed(0, json.dumps(self.smart), "")
        if verb == "list-ctrl":
            controllers = [{"ctrl_id": number} for number in range(self._controllers)]
            return Completed(0, json.dumps({"ctrl_list": controllers}), "")
        if verb in ("primary-ctrl-caps", "list-secondary", "virt-mgmt"):
            return self._virtualize(host, verb, controller, options)
        if verb == "format":
            return self._format(host, name, controller, options)
        if verb == "sanitize":
            if not self._sanitizes:
                return _refused("NVMe status: Invalid Command Opcode(0x4001)")
            return self._sanitize(host, controller, options)
        if not self._sanitizes:
            return _refused("NVMe status: Invalid Field in Command(0x4002)")
        return self._log(host, controller)

    def _virtualize(
        self, host: FakeHost, verb: str, controller: str, options: list[str]
    ) -> Completed:
        """Do virtualization management, with the numbers and refusals of QEMU's controller.

        What the controllers have is in files that sysfs does not have, so it vanishes with the
        function. One that goes online has a namespace that an operator has attached. A disk that
        holds the resources releases them at once, without a reset.
        """
        disk = host.realpath(f"/sys/class/nvme/{controller}").partition("/nvme/")[0]

        def number(path: str) -> int:
            text = host.read_text(path).strip() if host.exists(path) else ""
            return int(text) if text.isdecimal() else 0

        functions = {
            index + 1: host.realpath(f"{disk}/virtfn{index}")
            for index in range(number(f"{disk}/sriov_numvfs"))
        }
        held = 0 if host.exists(f"{disk}/.released") or not self._holds else _FLEXIBLE[1]
        if verb == "primary-ctrl-caps":
            queues = {"vqfrt": _FLEXIBLE[0], "vqrfa": held, "vqrfap": held, "vqprt": 3}
            queues |= {"vqfrsm": 2, "vqgran": 1}
            interrupts = {"vifrt": _FLEXIBLE[1], "virfa": held, "virfap": held, "viprt": 6}
            interrupts |= {"vifrsm": 1, "vigran": 1}
            return Completed(0, json.dumps({"cntlid": 0, **queues, **interrupts}), "")
        if verb == "list-secondary":
            rows = [
                {
                    "secondary-controller-identifier": index,
                    "virtual-function-number": index,
                    "secondary-controller-state": int(
                        index in functions and host.exists(f"{functions[index]}/{ONLINE}")
                    ),
                }
                for index in range(1, number(f"{disk}/sriov_totalvfs") + 1)
            ]
            return Completed(0, json.dumps({"secondary-controllers": rows}), "")
        target, action, resource, count = (
            int(_option(options, name, "0")) for name in ("-c", "-a", "-r", "-n")
        )
        if action == _RELEASE and target == 0:
            host.add_file(f"{disk}/.released", "")
        elif target not in functions:
            return _refused("NVMe status: Invalid Controller Identifier(0x411f)")
        elif action == _ASSIGN and not held and count <= _FLEXIBLE[resource]:
            host.add_file(f"{functions[target]}/.share-{resource}", str(count))
        elif action == _ONLINE and all(
            number(f"{functions[target]}/.share-{kind}") >= least
            for kind, least in ((0, 2), (1, 1))
        ):
            host.add_file(f"{functions[target]}/{ONLINE}", "")
            _make_controller(host, functions[target], 100 * (1 + int(controller[4:])) + target)
        else:
            return _refused("NVMe status: Invalid Number of Controller Resources(0x4122)")
        return Completed(0, "", "")

    def _settle(self, host: FakeHost, controller: str) -> None:
        """End a sanitize whose time is over."""
        begun = self._begun.get(controller)
        if begun is None or host.clock.monotonic() < begun + self._seconds:
            return
        del self._begun[controller]
        self._status[controller] = _FAILED if self._fails else _COMPLETED
        if not self._fails:
            for name in host.list_dir("/dev"):
                if re.fullmatch(rf"{controller}n[0-9]+", name):
                    self._erase(host, name)
            self.dirty -= {name for name in self.dirty if name.startswith(f"{controller}n")}

    def _erase(self, host: FakeHost, name: str) -> None:
        self.dirty.discard(name)
        if (content := host.content(f"/dev/{name}")) is not None:
            host.add_file(f"/dev/{name}", bytes(len(content)))

    def _format(self, host: FakeHost, name: str, controller: str, options: list[str]) -> Completed:
        if controller in self._begun:
            return _refused("NVMe status: Sanitize In Progress(0x1d)")
        if name in self.busy and "--force" not in options:
            return _refused(f"Failed to open {name}.\nNamespace is currently busy.")
        # A format without secure erase need not take the data away.
        if _option(options, "-s", "0") in ("1", "2"):
            self._erase(host, name)
        return Completed(0, "Success formatting namespace:1\n", "")

    def _sanitize(self, host: FakeHost, controller: str, options: list[str]) -> Completed:
        action = _option(options, "-a", "")
        if controller in self._begun:
            return _refused("NVMe status: Sanitize In Progress(0x1d)")
        if action in _LEAVE_FAILURE:
            if self._status.get(controller) == _FAILED:
                self._status[controller] = _NEVER
            return Completed(0, "", "")
        if action not in _ERASE:
            return _refused("NVMe status: Invalid Field in Command(0x4002)")
        self._begun[controller] = host.clock.monotonic()
        self._status[controller] = _RUNNING
        return Completed(0, "", "")

    def _log(self, host: FakeHost, controller: str) -> Completed:
        status = self._status.get(controller, _NEVER)
        begun = self._begun.get(controller)
        done = 1.0
        if begun is not None:
            done = (host.clock.monotonic() - begun) / self._seconds
        log = {
            "sprog": int(done * _FULL),
            "sstat": {
                "global_erased": int(status == _COMPLETED),
                "no_cmplted_passes": 0,
                "status": f"({status}) {_STATUS[status]}",
            },
            "cdw10_info": 0,
        }
        return Completed(0, json.dumps({controller: log}), "")


def write_data(host: FakeHost, address: str) -> bool:
    """Write data into each namespace of a function, as its guest does; False if it has none."""
    nodes = _namespaces(host, address)
    for node in nodes:
        host.add_file(node, _DATA)
    return bool(nodes)


def has_data(host: FakeHost, address: str) -> bool:
    """Return whether a namespace of a function has anything but zeros."""
    return any(any(host.content(node) or b"") for node in _namespaces(host, address))


def _namespaces(host: FakeHost, address: str) -> list[str]:
    """Return the nodes of the namespaces of a function."""
    place = f"/sys/bus/pci/devices/{address}/nvme"
    controllers = host.list_dir(place) if host.exists(place) else []
    names = (name for each in controllers for name in host.list_dir(f"{place}/{each}"))
    return [f"/dev/{name}" for name in names if re.fullmatch(r"nvme[0-9]+n[0-9]+", name)]


def _make_controller(host: FakeHost, function: str, number: int) -> None:
    """Let the driver show a controller of a virtual function, with a disk, when it gets it."""
    name = f"nvme{number}"
    place = f"{function}/nvme/{name}"
    for path, text in {
        f"{place}/dev": f"239:{number}",
        f"{place}/state": "live",
        f"{place}/{name}n1/dev": f"259:{number}",
        f"{place}/{name}n1/nsid": "1",
        f"{place}/{name}n1/size": "8",
    }.items():
        host.add_file(path, f"{text}\n")
    links = {f"/sys/class/nvme/{name}": place, f"/sys/class/block/{name}n1": f"{place}/{name}n1"}
    for path, target in links.items():
        host.add_link(path, target)
    nodes = (f"/dev/{name}", f"/dev/{name}n1")
    for node in nodes:
        host.add_file(node, bytes(4096))
    made = [host.take(path) for path in (f"{function}/nvme", *links, *nodes)]
    if isinstance(host.kernel, SimulatedKernel):
        host.kernel.binding.provide(function, "nvme", made)


def _option(options: list[str], name: str, default: str) -> str:
    """Return the word after an option."""
    return dict(itertools.pairwise(options)).get(name, default)
