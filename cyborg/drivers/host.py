# SPDX-License-Identifier: Apache-2.0
"""The interface through which drivers access the machine, and its implementation.

The interface covers files below a root, commands, UNIX sockets and kernel events.
Errors of the operating system become exception.HostError with ``action``, ``reason`` and, where
there is one, ``errno``.
"""

import errno
import os
import tempfile
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from cyborg import exception
from cyborg.drivers import command, rtnetlink, unix_socket
from cyborg.drivers.command import OUTPUT_CAP, Completed
from cyborg.drivers.files import (
    INITIAL_PROCESSES,
    TABLE_LIMIT,
    TEXT_LIMIT,
    OpenFiles,
    ProcessFiles,
    ProcessId,
    device_of_node,
    find_open_files,
    host_errors,
    is_missing,
    resolve,
    writable_by_others,
)
from cyborg.drivers.privileged.actions import ReadClaim, ReadOpenFiles
from cyborg.drivers.privileged.port import NoPrivileges, Privileged
from cyborg.drivers.rtnetlink import NETWORK, Use
from cyborg.drivers.uevents import KernelEvents, Uevent
from cyborg.drivers.unix_socket import Complete

_PAGE = 4096
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Events(Protocol):
    """A stream of kernel events, which any thread may close and one thread polls."""

    def poll(self, timeout: float | None = None) -> Uevent | None:
        """Return the next event; None after ``timeout`` seconds, and once closed."""
        ...

    @property
    def closed(self) -> bool:
        """Return whether ``close`` was called."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def close(self) -> None:
        """Stop listening; the method may be called twice."""
        ...


class Host(Protocol):
    """The machine on which a driver runs. Paths are absolute and refer to the host's own tree."""

    def read_text(self, path: str, limit: int = TEXT_LIMIT) -> str:
        """Return the file as text with undecodable bytes replaced.

        A file of more than ``limit`` bytes is an error.
        """
        ...

    def read_bytes(self, path: str, limit: int = TEXT_LIMIT) -> bytes:
        """Return the content of the file; a file of more than ``limit`` bytes is an error."""
        ...

    def read_start(self, path: str, length: int) -> tuple[bytes, int]:
        """Return up to ``length`` bytes from the start of a file, and the size of the file."""
        ...

    def write_text(self, path: str, text: str) -> None:
        """Write to an existing file in one call, as sysfs requires; never create a file."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """Return the sorted names in a directory."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether the path exists, after following links."""
        ...

    def readlink(self, path: str) -> str:
        """Return the target of one link, as written."""
        ...

    def realpath(self, path: str) -> str:
        """Return the path without links; it must exist, and it is always below the root."""
        ...

    def inode(self, path: str) -> int:
        """Return the inode number of a file or directory, after following links.

        In sysfs no two directories have the same number while the machine runs: one that is removed
        and made again has another number (Linux: ``id`` in include/linux/kernfs.h).
        """
        ...

    def open_files(self) -> OpenFiles:
        """Return the device files that processes have open, as far as this process may see that.

        This process and those that it has started do not count.
        """
        ...

    def network_uses(self) -> Sequence[Use]:
        """Return what shows that interfaces of this network namespace carry traffic."""
        ...

    def is_claimed(self, path: str) -> bool:
        """Return whether the kernel or a process has claimed the block device exclusively.

        Mounted file systems, swap, RAID, LVM, ZFS, bcachefs and LIO claim their devices, in all
        namespaces. Raises exception.HostError when the device cannot be opened.
        """
        ...

    def owned_by_root(self, path: str) -> bool:
        """Return whether only root can change a file of this machine; see ``LocalHost``."""
        ...

    def writable_by_others(self, path: str) -> str | None:
        """Return the file or directory by which others than root can change ``path``, or None."""
        ...

    def run(
        self, argv: Sequence[str], *, timeout: float, stdin: bytes = b"", cap: int = OUTPUT_CAP
    ) -> Completed:
        """Run a command and return its result with any exit status; see ``command.run``."""
        ...

    def run_to_file(self, argv: Sequence[str], *, timeout: float) -> tuple[Completed, str]:
        """Run a command whose last word is to be the path of a file, and return what it writes.

        The host adds the path, which is in a directory that only this process can use. The text is
        empty if the command writes no file; a file of more than 1 MiB is an error.
        """
        ...

    def exchange(
        self,
        path: str,
        request: bytes,
        complete: Complete,
        *,
        timeout: float,
        cap: int = OUTPUT_CAP,
    ) -> bytes:
        """Ask the program that listens on a UNIX socket; see ``unix_socket.exchange``."""
        ...

    def events(self) -> Events:
        """Start to listen to kernel events about devices."""
        ...

    def pause(self, seconds: float) -> None:
        """Wait for the machine, for example until a driver is bound."""
        ...

    @property
    def privileged(self) -> Privileged:
        """Return what runs the actions that need privileges; see ``privileged.actions``."""
        ...


class LocalHost:
    """This machine, or a recorded tree of one below ``root``.

    The root is a prefix for files only. Links are followed as if the root were ``/``: absolute ones
    and those with ``..``. Commands and events are always those of this machine. ``privileged`` runs
    the actions that need privileges; without it they fail.
    """

    def __init__(self, root: str = "/", privileged: Privileged | None = None) -> None:
        self._root = os.path.realpath(root)
        self._privileged = privileged

    def read_text(self, path: str, limit: int = TEXT_LIMIT) -> str:
        return self.read_bytes(path, limit).decode(errors="replace")

    def read_bytes(self, path: str, limit: int = TEXT_LIMIT) -> bytes:
        with host_errors(f"reading {path}"):
            # Non-blocking: a named pipe in place of a file must not block a scan.
            handle = os.open(self._locate(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                content = b""
                while chunk := os.read(handle, min(limit + 1 - len(content), TEXT_LIMIT)):
                    content += chunk
                    if len(chunk) < _PAGE and path.startswith("/sys/"):
                        # sysfs answers a read with all that is left, up to one page.
                        break
            finally:
                os.close(handle)
            if len(content) > limit:
                raise OSError(errno.EFBIG, f"more than {limit} bytes")
            return content

    def read_start(self, path: str, length: int) -> tuple[bytes, int]:
        with host_errors(f"reading {path}"), open(self._locate(path), "rb") as file:
            return file.read(length), os.fstat(file.fileno()).st_size

    def write_text(self, path: str, text: str) -> None:
        with host_errors(f"writing {path}"):
            handle = os.open(self._locate(path), os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
            with open(handle, "wb", buffering=0) as file:
                file.write(text.encode())

    def list_dir(self, path: str) -> list[str]:
        with host_errors(f"listing {path}"):
            return sorted(os.listdir(self._locate(path)))

    def exists(self, path: str) -> bool:
        try:
            with host_errors(f"looking for {path}"):
                os.stat(self._locate(path))
        except exception.HostError as error:
            if is_missing(error):
                return False
            raise
        return True

    def readlink(self, path: str) -> str:
        with host_errors(f"reading link {path}"):
            if self._root == "/":
                return os.readlink(path)
            parent, name = os.path.split(path)
            return os.readlink(os.path.join(self._locate(parent), name))

    def realpath(self, path: str) -> str:
        with host_errors(f"resolving {path}"):
            if self._root == "/":
                return os.path.realpath(path, strict=True)
            resolved = resolve(path, self._link)
            os.lstat(self._root + resolved)
            return resolved

    def inode(self, path: str) -> int:
        with host_errors(f"looking for {path}"):
            return os.stat(self._locate(path)).st_ino

    def open_files(self) -> OpenFiles:
        """Ask the privileged process if this one does not see all processes."""
        own = ProcessId(self.readlink("/proc/self/ns/pid"), str(os.getpid()))
        reader = ProcessFiles(
            self.list_dir, self._links, self.readlink, self._read_table, self._device
        )
        whole = own.namespace == INITIAL_PROCESSES
        files = find_open_files("the agent", reader, whole=whole, own=own)
        if files.reason is None or self._privileged is None:
            return files
        try:
            return self._privileged.run(ReadOpenFiles(*own))
        except exception.HostError as error:
            return files._replace(reason=f"{files.reason} ({error})")

    def _read_table(self, path: str) -> str:
        return self.read_text(path, TABLE_LIMIT)

    def _device(self, path: str) -> str | None:
        """Return the directory of the device of a node; see ``ProcessFiles``."""
        with host_errors(f"looking for {path}"):
            return device_of_node(self._locate(path))

    def _links(self, path: str) -> dict[str, str]:
        """Return the targets of all links in a directory by name."""
        targets = {}
        with host_errors(f"listing {path}"):
            # A host has very many open files: names in an open directory are looked up faster.
            directory = os.open(self._locate(path), _DIRECTORY)
            try:
                for name in os.listdir(directory):
                    try:
                        targets[name] = os.readlink(name, dir_fd=directory)
                    except FileNotFoundError:
                        continue
            finally:
                os.close(directory)
        return targets

    def network_uses(self) -> Sequence[Use]:
        """See Host; a recorded tree has them in a file."""
        with host_errors("reading addresses, routes and sockets of the network"):
            if self._root == "/":
                return rtnetlink.uses()
            return rtnetlink.parse(self.read_text(NETWORK, TABLE_LIMIT))

    def is_claimed(self, path: str) -> bool:
        with host_errors(f"opening {path} exclusively"):
            try:
                # open(2): O_EXCL without O_CREAT refuses a block device that is in use.
                handle = os.open(
                    self._locate(path), os.O_RDONLY | os.O_EXCL | os.O_NONBLOCK | os.O_CLOEXEC
                )
            except OSError as error:
                if error.errno == errno.EBUSY:
                    return True
                if error.errno not in {errno.EACCES, errno.EPERM} or self._privileged is None:
                    raise
            else:
                os.close(handle)
                return False
        return self._privileged.run(ReadClaim(path.removeprefix("/dev/")))

    def owned_by_root(self, path: str) -> bool:
        """Return whether only root can change the file, the links on its path and all directories.

        The path is always on this machine, like the programs of commands. The result is False below
        a directory in which every user may create files, such as /tmp.
        """
        return self.writable_by_others(path) is None

    def writable_by_others(self, path: str) -> str | None:
        return writable_by_others(path)

    def run(
        self, argv: Sequence[str], *, timeout: float, stdin: bytes = b"", cap: int = OUTPUT_CAP
    ) -> Completed:
        return command.run(argv, timeout=timeout, stdin=stdin, cap=cap)

    def run_to_file(self, argv: Sequence[str], *, timeout: float) -> tuple[Completed, str]:
        with (
            host_errors(f"running {argv[0]}"),
            tempfile.TemporaryDirectory(prefix="cyborg-") as directory,
        ):
            path = os.path.join(directory, "output")
            result = self.run([*argv, path], timeout=timeout)
            if not os.path.exists(path):
                return result, ""
            with open(path, "rb") as file:
                content = file.read(OUTPUT_CAP + 1)
            if len(content) > OUTPUT_CAP:
                raise OSError(errno.EFBIG, f"it wrote more than {OUTPUT_CAP} bytes")
            return result, content.decode(errors="replace")

    def exchange(
        self,
        path: str,
        request: bytes,
        complete: Complete,
        *,
        timeout: float,
        cap: int = OUTPUT_CAP,
    ) -> bytes:
        with host_errors(f"asking {path}"):
            place = self._locate(path)
        return unix_socket.exchange(place, request, complete, timeout=timeout, cap=cap)

    def events(self) -> KernelEvents:
        with host_errors("listening to kernel events"):
            return KernelEvents.open()

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    @property
    def privileged(self) -> Privileged:
        return self._privileged or NoPrivileges()

    def _locate(self, path: str) -> str:
        """Return the real path of a file; below a prefix this class follows the links itself."""
        return path if self._root == "/" else self._root + resolve(path, self._link)

    def _link(self, path: str) -> str | None:
        try:
            return os.readlink(self._root + path)
        except OSError:
            # Not a link, or absent: opening the resolved path shows which of the two.
            return None
