# SPDX-License-Identifier: Apache-2.0
"""What an action can use of the machine, and the implementation for a real kernel.

Paths are absolute. No part of a path may be a symbolic link, so a link that somebody puts there
between a check and a write changes nothing: the walk begins at the root directory and opens one
directory after the other with O_NOFOLLOW, and the last part is opened below the last directory.
An action that needs the target of a link reads the link, checks the target as text, and then walks
to the target in this way.

A program cannot be given a file in this way: its argument is a name, and OPAE refuses a name below
``/proc/self/fd`` because it is a link (``opae_load_bitstream`` in ``libraries/libbitstream``). So a
file that is checked for a program is copied, and the program gets the name of the copy.
"""

import contextlib
import ctypes
import errno
import hashlib
import mmap
import os
import shutil
import socket
import stat
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from fcntl import ioctl
from typing import Final, NamedTuple, Protocol

from cyborg import exception
from cyborg.drivers import command, kernel_log
from cyborg.drivers.command import Completed
from cyborg.drivers.files import (
    INITIAL_PROCESSES,
    TABLE_LIMIT,
    TEXT_LIMIT,
    device_of_node,
    host_errors,
    writable_by_others,
)
from cyborg.drivers.kernel_log import DeviceError
from cyborg.drivers.privileged.netlink import VfSettings, check_answer, vf_request
from cyborg.drivers.privileged.nvme import ADMIN_IOCTL, AdminCommand

#: The timeout of a request to the kernel over netlink, in seconds.
_NETLINK_TIMEOUT: Final = 60.0
#: Bytes that are read at once of a file that is copied.
_CHUNK: Final = 1024 * 1024
#: Errors of devices that are kept.
_MOST_ERRORS: Final = 1000
#: The names of linux/prctl.h, for capabilities that a started program keeps.
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_RAISE: Final = 2


class Node(NamedTuple):
    """A device by the name of its node below /dev, and by its number ``major:minor``."""

    name: str
    number: str


class Kernel(Protocol):
    """The machine, as far as actions need it. All methods raise exception.HostError.

    Each method that takes a path refuses one in which a part is a symbolic link.
    """

    def read(self, path: str) -> str:
        """Return the text of a file."""
        ...

    def read_start(self, path: str, length: int) -> bytes:
        """Return up to ``length`` bytes from the start of a file."""
        ...

    def copied(self, path: str, start: bytes, name: str) -> AbstractContextManager[str]:
        """Copy a file that begins with ``start``, and give the path of the copy for a block.

        The copy has the name ``name``, and nobody but this process and its programs can change it.
        """
        ...

    def write(self, path: str, text: str) -> None:
        """Write to an existing file in one call."""
        ...

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a directory."""
        ...

    def readlink(self, path: str) -> str:
        """Return the target of the link, as written."""
        ...

    def links(self, path: str) -> dict[str, str]:
        """Return the targets of all links in a directory by name."""
        ...

    def device(self, path: str) -> str | None:
        """Return the directory of the device of a node below ``/dev``; see ``ProcessFiles``.

        This call follows links: the path is a link below ``/proc`` to a file of a process.
        """
        ...

    def device_errors(self) -> list[DeviceError]:
        """Return the last errors of devices in the log of the kernel, in their order."""
        ...

    def has_all_processes(self) -> bool:
        """Return whether /proc lists all processes of the machine, not only those of a container.

        It may still not show everything about each of them.
        """
        ...

    def claimed(self, disk: Node) -> bool:
        """Return whether the kernel or a process has claimed a block device exclusively."""
        ...

    def set_vf(self, interface: str, index: int, settings: VfSettings) -> None:
        """Change the settings of a virtual function of a network interface."""
        ...

    def nvme_admin(
        self, controller: Node, request: AdminCommand, *, exclusive: Sequence[Node] = ()
    ) -> bytes:
        """Send an admin command to an NVMe controller, and return its data.

        The disks in ``exclusive`` are claimed until the answer; the error is EBUSY if one of them
        is in use.
        """
        ...

    def sample(self, disk: Node, places: Sequence[int], length: int) -> list[str]:
        """Return a digest of ``length`` bytes at each place of a block device, in bytes.

        The digest is empty if all bytes are equal, as they are where nothing is written. The device
        is claimed meanwhile, and read past the cache of the kernel.
        """
        ...

    def run(self, argv: Sequence[str], *, timeout: float) -> Completed:
        """Run a program that only root can change, with the capabilities of this process."""
        ...


class LinuxKernel:
    """This machine, or for tests the tree below ``root``.

    Copies of files are below ``copies``, by default the directory for temporary files.
    """

    def __init__(self, root: str = "/", copies: str | None = None) -> None:
        self._root = root
        self._copies = copies
        self._log_lock = threading.Lock()
        #: The log of the kernel stays open: what was read once is not read again.
        self._log = contextlib.ExitStack()
        self._log_file: int | None = None
        self._errors: deque[DeviceError] = deque(maxlen=_MOST_ERRORS)

    def read(self, path: str) -> str:
        content = b""
        with host_errors(f"reading {path}"), self._open(path, os.O_RDONLY | os.O_NONBLOCK) as file:
            # A file below /proc answers each read with up to one page.
            while chunk := os.read(file, TEXT_LIMIT):
                content += chunk
                if len(content) > TABLE_LIMIT:
                    raise OSError(errno.EFBIG, f"more than {TABLE_LIMIT} bytes")
        return content.decode(errors="replace")

    def read_start(self, path: str, length: int) -> bytes:
        with (
            host_errors(f"reading {path}"),
            self._open(path, os.O_RDONLY | os.O_NONBLOCK) as file,
            open(file, "rb", closefd=False) as source,
        ):
            return source.read(length)

    @contextlib.contextmanager
    def copied(self, path: str, start: bytes, name: str) -> Iterator[str]:
        with contextlib.ExitStack() as stack:
            with host_errors(f"copying {path}"):
                directory = stack.enter_context(
                    tempfile.TemporaryDirectory(prefix="cyborg-", dir=self._copies)
                )
                copy = os.path.join(directory, name)
                with (
                    self._open(path, os.O_RDONLY | os.O_NONBLOCK) as file,
                    open(file, "rb", closefd=False) as source,
                    open(copy, "xb") as target,
                ):
                    if not stat.S_ISREG(os.fstat(file).st_mode):
                        raise OSError(errno.EINVAL, "it is not a regular file")
                    shutil.copyfileobj(source, target, _CHUNK)
                with open(copy, "rb") as source:
                    if source.read(len(start)) != start:
                        raise OSError(errno.EINVAL, "it is not an image for FPGAs")
            yield copy

    def write(self, path: str, text: str) -> None:
        flags = os.O_WRONLY | os.O_NONBLOCK
        action = f"writing {text.strip()!r} to {path}"
        with host_errors(action), self._open(path, flags) as file:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            os.ftruncate(file, 0)
            os.write(file, text.encode())

    def names(self, path: str) -> list[str]:
        with host_errors(f"listing {path}"), self._open(path, os.O_RDONLY | os.O_DIRECTORY) as file:
            return sorted(os.listdir(file))

    def readlink(self, path: str) -> str:
        directory, _, name = path.rpartition("/")
        with host_errors(f"reading link {path}"), self._open(directory, os.O_PATH) as file:
            return os.readlink(name, dir_fd=file)

    def links(self, path: str) -> dict[str, str]:
        targets = {}
        with host_errors(f"listing {path}"), self._open(path, os.O_RDONLY | os.O_DIRECTORY) as file:
            for name in os.listdir(file):
                # A descriptor that was closed since, or an entry that is not a link.
                with contextlib.suppress(FileNotFoundError):
                    targets[name] = os.readlink(name, dir_fd=file)
        return targets

    def device(self, path: str) -> str | None:
        with host_errors(f"looking for {path}"):
            return device_of_node(path)

    def device_errors(self) -> list[DeviceError]:
        with self._log_lock, host_errors(f"reading {kernel_log.PATH}"):
            if self._log_file is None:
                opened = self._open(kernel_log.PATH, os.O_RDONLY | os.O_NONBLOCK)
                self._log_file = self._log.enter_context(opened)
            while True:
                try:
                    # One call returns one record.
                    record = os.read(self._log_file, _CHUNK)
                except BlockingIOError:
                    break
                except BrokenPipeError:
                    # Records were overwritten before they were read; the next call goes on.
                    continue
                if not record:
                    break
                self._errors.extend(kernel_log.find_errors(record.decode(errors="replace")))
            return list(self._errors)

    def has_all_processes(self) -> bool:
        with host_errors("reading the process namespace"):
            return os.readlink("/proc/self/ns/pid") == INITIAL_PROCESSES

    def claimed(self, disk: Node) -> bool:
        try:
            with self._device(disk, block=True):
                return False
        except exception.HostError as error:
            if error.fields.get("errno") == errno.EBUSY:
                return True
            raise

    def set_vf(self, interface: str, index: int, settings: VfSettings) -> None:
        with (
            host_errors(f"changing virtual function {settings.vf} of {interface}"),
            socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link,
        ):
            link.settimeout(_NETLINK_TIMEOUT)
            link.bind((0, 0))
            link.sendto(vf_request(index, settings), (0, 0))
            check_answer(link.recv(TEXT_LIMIT))

    def nvme_admin(
        self, controller: Node, request: AdminCommand, *, exclusive: Sequence[Node] = ()
    ) -> bytes:
        data = ctypes.create_string_buffer(request.data_length)
        block = bytearray(request.encode(ctypes.addressof(data)))
        action = f"NVMe command {request.opcode:#04x} on {controller.name}"
        with contextlib.ExitStack() as stack:
            for disk in exclusive:
                stack.enter_context(self._device(disk, block=True))
            node = stack.enter_context(self._device(controller, block=False))
            with host_errors(action):
                status = ioctl(node, ADMIN_IOCTL, block)
        if status:
            reason = f"the controller answered with NVMe status {status:#x}"
            raise exception.HostError(action=action, reason=reason)
        return data.raw

    def sample(self, disk: Node, places: Sequence[int], length: int) -> list[str]:
        with (
            self._device(disk, block=True, direct=True) as file,
            host_errors(f"reading /dev/{disk.name}"),
            # O_DIRECT needs an aligned buffer, and that of a mapping is.
            mmap.mmap(-1, length) as buffer,
        ):
            digests = []
            for place in places:
                if os.preadv(file, [buffer], place) != length:
                    raise OSError(errno.EIO, f"it has no {length} bytes at {place}")
                digests.append(digest(buffer[:]))
            return digests

    def run(self, argv: Sequence[str], *, timeout: float) -> Completed:
        program = argv[0]
        writable = writable_by_others(program)
        if writable is not None:
            raise exception.HostError(
                action=f"running {program}", reason=f"others than root can change {writable}"
            )
        with host_errors(f"passing capabilities to {program}"):
            _pass_capabilities()
        return command.run(argv, timeout=timeout)

    @contextlib.contextmanager
    def _open(self, path: str, flags: int) -> Iterator[int]:
        """Open a path in which no part is a link, and close it at the end of the block."""
        *parents, name = path.strip("/").split("/")
        if {"", ".", ".."} & {*parents, name}:
            raise ValueError("the path is not in its shortest form")
        step = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        handle = os.open(self._root, step)
        try:
            for parent in parents:
                below = os.open(parent, step | os.O_NOFOLLOW, dir_fd=handle)
                os.close(handle)
                handle = below
            file = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
        finally:
            os.close(handle)
        try:
            yield file
        finally:
            os.close(file)

    @contextlib.contextmanager
    def _device(self, device: Node, *, block: bool, direct: bool = False) -> Iterator[int]:
        """Open a device for reading, a block device exclusively, after a check of its number.

        The check looks at the node without opening the device. The device is then opened through
        the same descriptor, so it is the node that was checked.
        """
        path = f"/dev/{device.name}"
        flags = os.O_RDONLY | (os.O_EXCL | os.O_NONBLOCK if block else 0)
        flags |= os.O_DIRECT if direct else 0
        with contextlib.ExitStack() as stack:
            with host_errors(f"opening {path}"):
                node = stack.enter_context(self._open(path, os.O_PATH))
                status = os.fstat(node)
                right_kind = stat.S_ISBLK if block else stat.S_ISCHR
                number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
                if not right_kind(status.st_mode) or number != device.number:
                    raise OSError(errno.ENXIO, f"it is not the node of device {device.number}")
                file = os.open(f"/proc/self/fd/{node}", flags | os.O_CLOEXEC)
                stack.callback(os.close, file)
            yield file


def digest(content: bytes) -> str:
    """Return a digest of the content of a block, empty if all its bytes are equal."""
    if content == content[:1] * len(content):
        return ""
    return hashlib.sha256(content).hexdigest()


def _pass_capabilities() -> None:
    """Let programs that this thread starts keep its capabilities.

    Without this, a program of a user other than root has none (capabilities(7), ambient set).
    """
    from oslo_privsep import capabilities

    effective, permitted, _ = capabilities.get_caps()
    capabilities.drop_all_caps_except(effective, permitted, effective)
    library = ctypes.CDLL(None, use_errno=True)
    for capability in effective:
        arguments = (_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability, 0, 0)
        if library.prctl(*(ctypes.c_ulong(argument) for argument in arguments)) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
