# SPDX-License-Identifier: Apache-2.0
"""The only door to the machine: five ports that drivers may use, and their real implementation.

The ports are files below a root, running a command, a vendor's library, kernel events, and the
clock. Whatever the operating system raises becomes exception.HostError with ``action``, ``reason``
and, where there is one, ``errno``.
"""

import contextlib
import errno
import functools
import importlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from cyborg import exception
from cyborg.drivers import command
from cyborg.drivers.command import OUTPUT_CAP, Completed
from cyborg.drivers.uevents import KernelEvents, Uevent

#: Bytes that a file may hold unless the caller says otherwise; sysfs gives one page at most.
TEXT_LIMIT = 64 * 1024
#: Bytes that the lists below /proc may hold on a host with very many mounts or routes.
TABLE_LIMIT = 16 * 1024 * 1024
_MAX_LINKS = 40
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
#: What the kernel answers for a thing that is not there, or has just been unplugged.
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO})


class Clock(Protocol):
    """Time as the host sees it, in seconds."""

    def monotonic(self) -> float:
        """Seconds that never go back; for durations."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch; for what is shown."""
        ...


class Events(Protocol):
    """Kernel events as they come; iterating ends when another thread calls ``close``."""

    def __iter__(self) -> Iterator[Uevent]: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def close(self) -> None:
        """Stop listening; calling twice does no harm."""
        ...


class Host(Protocol):
    """The machine as a driver sees it. Paths are absolute and mean the host's own tree."""

    @property
    def clock(self) -> Clock:
        """The host's clock."""
        ...

    def read_text(self, path: str, limit: int = TEXT_LIMIT) -> str:
        """The file as text, undecodable bytes replaced; more than ``limit`` bytes is an error."""
        ...

    def read_bytes(self, path: str, limit: int = TEXT_LIMIT) -> bytes:
        """The file as it is; more than ``limit`` bytes is an error."""
        ...

    def write_text(self, path: str, text: str) -> None:
        """Write into a file that exists, as sysfs wants it: in one call, never creating one."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """The sorted names in a directory."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is something at the end of the path, links followed."""
        ...

    def readlink(self, path: str) -> str:
        """Where one link points, as written."""
        ...

    def realpath(self, path: str) -> str:
        """The path without links; it must exist, and it never leaves the root."""
        ...

    def owned_by_root(self, path: str) -> bool:
        """Whether root alone can change a file of this machine; see ``LocalHost``."""
        ...

    def writable_by_others(self, path: str) -> str | None:
        """Return the file or directory that lets others than root change ``path``, or None."""
        ...

    def run(
        self, argv: Sequence[str], *, timeout: float, stdin: bytes = b"", cap: int = OUTPUT_CAP
    ) -> Completed:
        """Run a command to its end; any exit status is an answer, see ``command.run``."""
        ...

    def library(self, name: str) -> Any:
        """A vendor's Python binding by module name; callers annotate it with their Protocol."""
        ...

    def events(self) -> Events:
        """Listen to what the kernel says about devices, from now on."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the epoch."""
        return time.time()


class LocalHost:
    """This machine, or a recorded tree of one below ``root``.

    The root is a prefix for files alone: links are followed as if it were ``/``, whether they are
    absolute or climb with ``..``. Commands, libraries and events are always this machine's.
    """

    def __init__(self, root: str = "/") -> None:
        self._root = os.path.realpath(root)
        self.clock: Clock = SystemClock()

    def read_text(self, path: str, limit: int = TEXT_LIMIT) -> str:
        """See Host."""
        return self.read_bytes(path, limit).decode(errors="replace")

    def read_bytes(self, path: str, limit: int = TEXT_LIMIT) -> bytes:
        """See Host."""
        with host_errors(f"reading {path}"):
            # Non-blocking: a pipe somebody left in place of a file must not hold up a scan.
            handle = os.open(self._locate(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(handle, "rb", buffering=0) as file:
                parts: list[bytes] = []
                left = limit + 1
                while left > 0 and (part := file.read(min(left, TEXT_LIMIT))):
                    parts.append(part)
                    left -= len(part)
            if left <= 0:
                raise OSError(errno.EFBIG, f"more than {limit} bytes")
            return b"".join(parts)

    def write_text(self, path: str, text: str) -> None:
        """See Host."""
        with host_errors(f"writing {path}"):
            handle = os.open(self._locate(path), os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
            with open(handle, "wb", buffering=0) as file:
                file.write(text.encode())

    def list_dir(self, path: str) -> list[str]:
        """See Host."""
        with host_errors(f"listing {path}"):
            return sorted(os.listdir(self._locate(path)))

    def exists(self, path: str) -> bool:
        """See Host."""
        try:
            with host_errors(f"looking for {path}"):
                os.stat(self._locate(path))
        except exception.HostError as error:
            if is_missing(error):
                return False
            raise
        return True

    def readlink(self, path: str) -> str:
        """See Host."""
        with host_errors(f"reading link {path}"):
            parent, name = os.path.split(path)
            return os.readlink(os.path.join(self._locate(parent), name))

    def realpath(self, path: str) -> str:
        """See Host."""
        with host_errors(f"resolving {path}"):
            if self._root == "/":
                return os.path.realpath(path, strict=True)
            inside = resolve(path, self._link)
            os.lstat(self._root + inside)
            return inside

    def owned_by_root(self, path: str) -> bool:
        """Whether the file, every link on the way and every directory above are root's alone.

        Like commands, whose programs are asked about, the path is always this machine's. A
        directory in which everybody may make files, as /tmp, is nobody's alone.
        """
        return self.writable_by_others(path) is None

    def writable_by_others(self, path: str) -> str | None:
        """See Host."""
        with host_errors(f"looking who owns {path}"):
            places = ["/"]

            def link(place: str) -> str | None:
                places.append(place)
                return os.readlink(place) if os.path.islink(place) else None

            resolve(path, link)
            return next((one for one in places if not _is_roots(os.lstat(one))), None)

    def run(
        self, argv: Sequence[str], *, timeout: float, stdin: bytes = b"", cap: int = OUTPUT_CAP
    ) -> Completed:
        """See Host."""
        return command.run(argv, timeout=timeout, stdin=stdin, cap=cap)

    def library(self, name: str) -> Any:
        """See Host."""
        try:
            return importlib.import_module(name)
        except (ImportError, OSError) as error:
            raise exception.HostError(action=f"loading {name}", reason=str(error)) from error

    def events(self) -> KernelEvents:
        """See Host."""
        with host_errors("listening to kernel events"):
            return KernelEvents.open()

    def _locate(self, path: str) -> str:
        """The real path of a file; below a prefix the links are followed by hand."""
        return path if self._root == "/" else self._root + resolve(path, self._link)

    def _link(self, path: str) -> str | None:
        try:
            return os.readlink(self._root + path)
        except OSError:
            # No link, or not there: whoever opens the resolved path will learn which.
            return None


def _is_roots(status: os.stat_result) -> bool:
    """Whether only root can change it; the mode of a link means nothing."""
    writable_by_others = status.st_mode & _OTHERS_WRITE and not stat.S_ISLNK(status.st_mode)
    return status.st_uid == 0 and not writable_by_others


def resolve(path: str, link: Callable[[str], str | None]) -> str:
    """Follow the links of an absolute path without ever leaving the root.

    ``link`` tells where one path points, None when it is no link. Raises OSError (ELOOP) for
    links in a circle.
    """
    rest = path.split("/")[::-1]
    done: list[str] = []
    links = 0
    while rest:
        part = rest.pop()
        if part in {"", "."}:
            continue
        if part == "..":
            del done[-1:]
            continue
        done.append(part)
        target = link("/" + "/".join(done))
        if target is None:
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        del done[0 if target.startswith("/") else -1 :]
        rest.extend(target.split("/")[::-1])
    return "/" + "/".join(done)


@contextlib.contextmanager
def host_errors(action: str) -> Iterator[None]:
    """Turn what the operating system raises inside into exception.HostError about ``action``."""
    try:
        yield
    except OSError as error:
        raise exception.HostError(
            action=action, reason=error.strerror or str(error), errno=error.errno
        ) from error
    except ValueError as error:
        # A path with a NUL in it never reaches the operating system.
        raise exception.HostError(action=action, reason=str(error)) from error


def is_missing(error: exception.HostError) -> bool:
    """Whether the error says that the thing is not there (any more)."""
    return error.fields.get("errno") in _MISSING


def if_there(read: Callable[[str], str], path: str) -> str | None:
    """What ``read`` says about the path, None when it is not there.

    Raises exception.HostError for every other reason.
    """
    try:
        return read(path)
    except exception.HostError as error:
        if is_missing(error):
            return None
        raise


def table(host: Host, path: str) -> list[str]:
    """The lines of a list below /proc; none when the kernel does not have that list."""
    return (if_there(functools.partial(host.read_text, limit=TABLE_LIMIT), path) or "").splitlines()
