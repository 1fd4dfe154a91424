# SPDX-License-Identifier: Apache-2.0
"""Rules for files of the machine that hosts, archives and the privileged process share.

They say how links are followed, which errors mean that a file is absent, who can change a file, and
which process has a device file open. Errors of the operating system become exception.HostError with
``action``, ``reason`` and, where there is one, ``errno``.
"""

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType, TracebackType
from typing import Final, NamedTuple

from cyborg import exception

#: Default maximum size of a file in bytes; a file in sysfs has at most one page.
TEXT_LIMIT = 64 * 1024
#: Maximum size of a list below /proc in bytes, for hosts with very many mounts or routes.
TABLE_LIMIT = 16 * 1024 * 1024
_MAX_LINKS = 40
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
#: The namespace of the processes that a machine starts with (PROC_PID_INIT_INO in the kernel's
#: include/linux/proc_ns.h): in any other one, /proc does not show all processes of the machine.
INITIAL_PROCESSES: Final = "pid:[4026531836]"
#: Error numbers of the kernel for a file or device that is absent or has just been unplugged.
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO})
#: Error numbers of a process below /proc that has ended.
_ENDED = frozenset({errno.ENOENT, errno.ESRCH})
#: A part of the paths of files with the memory of PCI functions, and the end of these paths
#: (Documentation/PCI/sysfs-pci.rst).
_MEMORY = "/resource"
_MEMORY_FILE = re.compile(r"/resource[0-9]+(?:_wc)?$")


class OpenFiles(NamedTuple):
    """The device files that processes have open or mapped: path → process.

    The paths are below ``/dev``, and the files of sysfs with the memory of PCI functions
    (``resource0`` and so on) are among them. ``devices`` has the directories of the devices in
    ``/sys/devices``, for the paths whose device the kernel shows there. ``reason`` says why
    processes may be missing, None when all processes of the machine were seen.
    """

    holders: Mapping[str, str]
    reason: str | None = None
    devices: Mapping[str, str] = MappingProxyType({})


class ProcessFiles(NamedTuple):
    """How ``find_open_files`` reads ``/proc``; the calls raise exception.HostError.

    ``names`` returns the names in a directory, ``links`` the targets of the links in a directory by
    name, ``target`` the target of one link, ``read`` the text of a file, and ``device`` the
    directory in ``/sys/devices`` of the device of a node, None if the kernel shows none; it follows
    links.
    """

    names: Callable[[str], Iterable[str]]
    links: Callable[[str], Mapping[str, str]]
    target: Callable[[str], str]
    read: Callable[[str], str]
    device: Callable[[str], str | None]


class ProcessId(NamedTuple):
    """A process: its namespace, as ``/proc/PID/ns/pid`` shows it, and its number in there.

    Both are the same for every observer, whose own namespace may have other numbers.
    """

    namespace: str
    number: str


def resolve(path: str, link: Callable[[str], str | None]) -> str:
    """Return an absolute path with its links followed; the result is always below the root.

    ``link`` returns the target of one path, None when the path is not a link. Raises OSError
    (ELOOP) when links form a loop.
    """
    rest = path.split("/")[::-1]
    resolved = ""
    links = 0
    while rest:
        part = rest.pop()
        if part in {"", "."}:
            continue
        if part == "..":
            resolved = resolved.rpartition("/")[0]
            continue
        place = f"{resolved}/{part}"
        target = link(place)
        if target is None:
            resolved = place
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if target.startswith("/"):
            resolved = ""
        rest.extend(target.split("/")[::-1])
    return resolved or "/"


def host_errors(action: str) -> "_HostErrors":
    """Convert errors of the operating system inside to exception.HostError about ``action``."""
    return _HostErrors(action)


class _HostErrors:
    """The context of ``host_errors``: a scan enters some thousands, and a generator is slower."""

    __slots__ = ("_action",)

    def __init__(self, action: str) -> None:
        self._action = action

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError):
            raise exception.HostError(
                action=self._action, reason=error.strerror or str(error), errno=error.errno
            ) from error
        if isinstance(error, ValueError):
            # A path with a NUL in it never reaches the operating system.
            raise exception.HostError(action=self._action, reason=str(error)) from error


def is_missing(error: exception.HostError) -> bool:
    """Return whether the error means that the file or device is absent."""
    return error.fields.get("errno") in _MISSING


def read_if_exists(read: Callable[[str], str], path: str) -> str | None:
    """Return ``read(path)``, or None when the path does not exist.

    Raises exception.HostError for all other errors.
    """
    try:
        return read(path)
    except exception.HostError as error:
        if is_missing(error):
            return None
        raise


def device_of_node(path: str) -> str | None:
    """Return the directory in ``/sys/devices`` of the device of a node of this machine.

    It is None for a file that is no node, and for a device that the kernel does not show there.
    Raises OSError if the node cannot be reached.
    """
    status = os.stat(path)
    if stat.S_ISCHR(status.st_mode):
        kind = "char"
    elif stat.S_ISBLK(status.st_mode):
        kind = "block"
    else:
        return None
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    try:
        return os.path.realpath(f"/sys/dev/{kind}/{number}", strict=True)
    except FileNotFoundError:
        return None


def find_open_files(
    observer: str, files: ProcessFiles, *, whole: bool, own: ProcessId | None = None
) -> OpenFiles:
    """Return the device files that processes have open or mapped, as far as ``observer`` sees them.

    ``whole`` says that ``files`` shows all processes of the machine. The process ``own`` and those
    that it has started do not count as holders of hardware.
    """
    reason = None if whole else f"{observer} sees only the processes of its own container"
    holders: dict[str, str] = {}
    devices: dict[str, str] = {}
    ours: dict[str, bool] = {"0": False}
    for process in filter(str.isdecimal, files.names("/proc")):
        try:
            for path, place in _files_of_process(files, process):
                if own is not None and _is_hardware(place) and _is_own(files, process, own, ours):
                    continue
                holders[path] = process
                if place is not None:
                    devices[path] = place
        except exception.HostError as error:
            if error.fields.get("errno") not in _ENDED:
                # Without the number of the process, so that the reason is equal in each round.
                reason = reason or (
                    f"{observer} may not see the open files of other users' processes: "
                    f"{error.fields['reason']}"
                )
    names = {process: _process_name(files.read, process) for process in set(holders.values())}
    holders = {path: names[process] for path, process in holders.items()}
    return OpenFiles(holders, reason, devices)


def _files_of_process(files: ProcessFiles, process: str) -> Iterator[tuple[str, str | None]]:
    """Yield the files of devices that a process has open or mapped, with their devices."""
    place = f"/proc/{process}"
    paths: dict[str, str] = {}
    for name, target in files.links(f"{place}/fd").items():
        if target.startswith("/dev/") or _MEMORY in target:
            paths[target] = f"{place}/fd/{name}"
    try:
        maps = files.read(f"{place}/maps")
    except exception.HostError as error:
        if error.fields.get("errno") not in _ENDED:
            raise
        maps = ""
    if " /dev/" in maps or _MEMORY in maps:
        for line in maps.splitlines():
            # proc(5): range, permissions, offset, device, inode, path
            target = (line.split(maxsplit=5) + [""] * 6)[5]
            if target.startswith("/dev/") or _MEMORY in target:
                paths.setdefault(target, f"{place}/root{target}")
    for target, path in paths.items():
        node = target.removesuffix(" (deleted)")
        if not node.startswith("/dev/"):
            # Nothing else is asked for its device: the server of a file may be down.
            if node.startswith("/sys/devices/") and _MEMORY_FILE.search(node):
                yield node, node.rpartition("/")[0]
            continue
        try:
            device = files.device(path)
        except exception.HostError as error:
            if error.fields.get("errno") not in _ENDED:
                raise
            device = None
        yield node, device


def _is_hardware(place: str | None) -> bool:
    """Return whether a device may be hardware, from its directory in ``/sys/devices``.

    Very many processes have others open, such as terminals. The generic node of an NVMe disk is
    below a virtual device where the kernel has multipath.
    """
    virtual = place is not None and place.startswith("/sys/devices/virtual/")
    return not virtual or "/nvme-subsystem/" in str(place)


def _is_own(files: ProcessFiles, process: str, own: ProcessId, answers: dict[str, bool]) -> bool:
    """Return whether a process is ``own`` or was started by it; ``answers`` keeps the answers."""
    if process not in answers:
        answers[process] = False
        with contextlib.suppress(exception.HostError):
            lines = files.read(f"/proc/{process}/status").splitlines()
            status = dict(line.partition(":")[::2] for line in lines)
            number = (status.get("NSpid", "").split() or [process])[-1]
            answers[process] = (
                number == own.number and files.target(f"/proc/{process}/ns/pid") == own.namespace
            ) or _is_own(files, status.get("PPid", "0").strip(), own, answers)
    return answers[process]


def _process_name(read: Callable[[str], str], process: str) -> str:
    """Return the name of a process as messages show it; the process may have ended."""
    try:
        name = read(f"/proc/{process}/comm").strip()
    except exception.HostError:
        name = ""
    return f"{name} (process {process})" if name else f"process {process}"


def writable_by_others(path: str) -> str | None:
    """Return the file or directory by which others than root can change ``path``, or None.

    The path is on this machine. Raises exception.HostError if it cannot be followed.
    """
    with host_errors(f"checking the owner of {path}"):
        visited = ["/"]

        def link(step: str) -> str | None:
            visited.append(step)
            return os.readlink(step) if os.path.islink(step) else None

        resolve(path, link)
        for step in visited:
            status = os.lstat(step)
            # The mode of a link has no effect.
            writable = status.st_mode & _OTHERS_WRITE and not stat.S_ISLNK(status.st_mode)
            if status.st_uid != 0 or writable:
                return step
        return None
