# SPDX-License-Identifier: Apache-2.0
"""Archives of hosts: what tools/capture-host and the recorder of the vendor kit write.

An archive is a directory, or a tar.gz file of one, with the tree of a host and a file
``.cyborg-host.json`` in its root. That file has what no tree can show:

=============== ==================================================================================
``format``      1
``kernel``      release and machine of the kernel
``unreadable``  path → errno of each file or directory that is there and could not be read
``claimed``     the block devices that the kernel or a process has claimed exclusively
``commands``    lists of argument vector, exit status, standard output and standard error
=============== ==================================================================================

The processes that hold devices are links in the tree, ``/proc/PID/fd/N``. The file
``.cyborg-network`` says which network interfaces carry traffic. Each line has an interface and one
of ``default-route``, ``address``, ``route``, ``xdp`` and ``packet-socket``. A tree without
``.cyborg-host.json`` is an archive in which everything can be read.
"""

import errno
import gzip
import json
import os
import re
import sys
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, Self, cast

from cyborg import exception
from cyborg.drivers import rtnetlink
from cyborg.drivers.command import OUTPUT_CAP, Completed
from cyborg.drivers.files import (
    INITIAL_PROCESSES,
    TABLE_LIMIT,
    TEXT_LIMIT,
    OpenFiles,
    ProcessFiles,
    find_open_files,
    host_errors,
    is_missing,
    resolve,
)
from cyborg.drivers.host import Events
from cyborg.drivers.privileged.port import NoPrivileges, Privileged
from cyborg.drivers.rtnetlink import NETWORK, Use
from cyborg.drivers.unix_socket import Complete

FORMAT: Final = 1
#: The file into which a command writes its output; see ``Host.run_to_file``.
OUTPUT_FILE: Final = "/.output"
_NOTES: Final = "/.cyborg-host.json"
#: More entries and bytes than the archive of any host has.
_MAX_ENTRIES: Final = 200_000
_MAX_BYTES: Final = 512 * 1024 * 1024
_CHUNK: Final = 64 * 1024
#: More bytes than the names of any entry have.
_MAX_HEADER: Final = 1024 * 1024
#: More directories than any path of the kernel has.
_MAX_DEPTH: Final = 100


class ArchivedHost:
    """A host of files, links and directories in memory, which nothing changes through its ports.

    ``faults`` maps real paths (links followed) to the errno that touching them gives, ``answers``
    argument vectors to the result of the command. ``claimed`` are the block devices that something
    has claimed exclusively.
    """

    def __init__(self) -> None:
        self.release = ""
        self.faults: dict[str, int] = {}
        self.answers: dict[tuple[str, ...], Completed] = {}
        self.claimed: set[str] = set()
        self._files: dict[str, bytes] = {}
        self._links: dict[str, str] = {}
        self._names: dict[str, set[str]] = {"/": set()}
        #: The inode numbers that were requested: the first free number, and those by real path.
        self._next_inode = 1
        self._inodes: dict[str, int] = {}

    @classmethod
    def recorded(cls, path: Path, *, max_entries: int = _MAX_ENTRIES) -> Self:
        """Return the host of an archive, a directory or a tar.gz file.

        Raises ValueError with a clause that says why the path cannot be used as an archive.
        """
        host = cls()
        notes = b""
        try:
            entries = _directory(path) if path.is_dir() else _tar(path)
            for number, (place, content) in enumerate(entries, 1):
                if number > max_entries:
                    raise ValueError(
                        f"{path} has more than {max_entries} entries, so it is not an archive of a "
                        "host"
                    )
                if content is None:
                    host.add_dir(place)
                elif isinstance(content, str):
                    host.add_link(place, content)
                elif place == _NOTES:
                    notes = content
                else:
                    host.add_file(place, content)
        except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
            raise ValueError(f"{path} cannot be read as an archive of a host: {error}") from error
        if notes:
            host._add_notes(path, notes)
        return host

    def materialise(self, directory: Path) -> None:
        """Write the archive as a directory, which may exist; absolute links stay as they are."""
        for path in self._names:
            (directory / path[1:]).mkdir(parents=True, exist_ok=True)
        for path, content in self._files.items():
            if path not in self.faults:
                (directory / path[1:]).write_bytes(content)
        for path, target in self._links.items():
            (directory / path[1:]).symlink_to(target)
        notes = {
            "format": FORMAT,
            "kernel": self.release,
            "unreadable": self.faults,
            "claimed": sorted(self.claimed),
            "commands": [
                [argv, answer.status, answer.stdout, answer.stderr]
                for argv, answer in self.answers.items()
            ],
        }
        (directory / _NOTES[1:]).write_text(json.dumps(notes, indent=1))

    def add_file(self, path: str, content: str | bytes) -> None:
        """Put a file there, with the directories above it; one that is there is replaced."""
        self._enter(path)
        self._files[path] = content if isinstance(content, bytes) else content.encode()

    def add_link(self, path: str, target: str) -> None:
        """Put a symbolic link there, with the directories above it."""
        self._enter(path)
        self._links[path] = target

    def add_dir(self, path: str) -> None:
        """Put a directory there; one that is there stays as it is."""
        self._enter(path)
        self._names.setdefault(path, set())

    # The ports.

    def read_text(self, path: str, limit: int = TEXT_LIMIT) -> str:
        """See Host."""
        return self.read_bytes(path, limit).decode(errors="replace")

    def read_bytes(self, path: str, limit: int = TEXT_LIMIT) -> bytes:
        """See Host."""
        with host_errors(f"reading {path}"):
            real = self._touch(path)
            content = self._files.get(real)
            if content is None:
                raise os_error(errno.EISDIR if real in self._names else errno.ENOENT)
            if len(content) > limit:
                raise OSError(errno.EFBIG, f"more than {limit} bytes")
            return content

    def read_start(self, path: str, length: int) -> tuple[bytes, int]:
        """See Host."""
        content = self.read_bytes(path, sys.maxsize)
        return content[:length], len(content)

    def write_text(self, path: str, text: str) -> None:
        """Refuse."""
        with host_errors(f"writing {path}"):
            raise os_error(errno.EROFS)

    def list_dir(self, path: str) -> list[str]:
        """See Host."""
        with host_errors(f"listing {path}"):
            real = self._touch(path)
            if real not in self._names:
                raise os_error(errno.ENOTDIR if real in self._files else errno.ENOENT)
            return sorted(self._names[real])

    def exists(self, path: str) -> bool:
        """See Host."""
        try:
            self.realpath(path)
        except exception.HostError as error:
            if is_missing(error):
                return False
            raise
        return True

    def readlink(self, path: str) -> str:
        """See Host."""
        with host_errors(f"reading link {path}"):
            parent, _, name = path.rpartition("/")
            real = f"{self._touch(parent or '/').rstrip('/')}/{name}"
            self._fail(real)
            if real not in self._links:
                there = real in self._files or real in self._names
                raise os_error(errno.EINVAL if there else errno.ENOENT)
            return self._links[real]

    def realpath(self, path: str) -> str:
        """See Host."""
        with host_errors(f"resolving {path}"):
            real = self._touch(path)
            if real not in self._files and real not in self._names:
                raise os_error(errno.ENOENT)
            return real

    def inode(self, path: str) -> int:
        """See Host; a path gets its number when it is requested first."""
        real = self.realpath(path)
        if real not in self._inodes:
            self._inodes[real] = self._next_inode
            self._next_inode += 1
        return self._inodes[real]

    def open_files(self) -> OpenFiles:
        """See Host; processes are directories of ``/proc`` with links in ``fd``."""
        whole = self._links.get("/proc/self/ns/pid") == INITIAL_PROCESSES
        nodes: dict[str, str] = {}
        reader = ProcessFiles(
            self.list_dir,
            lambda path: {name: self.readlink(f"{path}/{name}") for name in self.list_dir(path)},
            self.readlink,
            lambda path: self.read_text(path, TABLE_LIMIT),
            lambda path: self._device(path, nodes),
        )
        return find_open_files("the agent", reader, whole=whole)

    def _device(self, path: str, nodes: dict[str, str]) -> str | None:
        """Return the directory of the device whose node a link of a process leads to.

        An archive has no numbers of nodes, so the names decide: DEVNAME in ``uevent``. ``nodes``
        keeps the table of all devices.
        """
        if not nodes:
            for file, content in self._files.items():
                if file.startswith("/sys/devices/") and file.endswith("/uevent"):
                    place = file.removesuffix("/uevent")
                    lines = content.decode(errors="replace").splitlines()
                    names = [line[8:] for line in lines if line.startswith("DEVNAME=")]
                    nodes |= {f"/dev/{name.removeprefix('/dev/')}": place for name in names}
        target = self._links.get(path) or re.sub("^/proc/[0-9]+/root", "", path)
        return nodes.get(target.removesuffix(" (deleted)"))

    def network_uses(self) -> Sequence[Use]:
        """See Host; they are in a file of the archive."""
        text = self.read_text(NETWORK, TABLE_LIMIT)
        with host_errors(f"reading {NETWORK}"):
            return rtnetlink.parse(text)

    def is_claimed(self, path: str) -> bool:
        """See Host."""
        self.read_bytes(path)
        return path in self.claimed

    def owned_by_root(self, path: str) -> bool:
        """See Host."""
        return self.writable_by_others(path) is None

    def writable_by_others(self, path: str) -> str | None:
        """Return None: an archive does not have the owners of files."""
        return None

    def run(
        self, argv: Sequence[str], *, timeout: float, stdin: bytes = b"", cap: int = OUTPUT_CAP
    ) -> Completed:
        """Return what the command printed; others are not installed."""
        if (answer := self.answers.get(tuple(argv))) is not None:
            return answer
        raise exception.HostError(action=f"running {argv[0]}", reason="it is not in the archive")

    def exchange(
        self,
        path: str,
        request: bytes,
        complete: Complete,
        *,
        timeout: float,
        cap: int = OUTPUT_CAP,
    ) -> bytes:
        """Refuse: nothing listens in an archive."""
        raise exception.HostError(
            action=f"asking {path}", reason="nothing listens on a socket of an archive"
        )

    def pause(self, seconds: float) -> None:
        """Return at once: nothing changes in an archive."""

    def run_to_file(self, argv: Sequence[str], *, timeout: float) -> tuple[Completed, str]:
        """See Host; the file is ``OUTPUT_FILE`` of the archive."""
        result = self.run((*argv, OUTPUT_FILE), timeout=timeout)
        return result, self._files.get(OUTPUT_FILE, b"").decode(errors="replace")

    @property
    def privileged(self) -> Privileged:
        """Return what refuses every action."""
        return NoPrivileges()

    def events(self) -> Events:
        """Refuse: nothing happens in an archive."""
        raise exception.HostError(
            action="listening to kernel events", reason="an archive has no events"
        )

    def _add_notes(self, path: Path, text: bytes) -> None:
        try:
            notes: dict[str, Any] = json.loads(text)
            if notes["format"] != FORMAT:
                raise ValueError(f"its format is {notes['format']!r}, supported is {FORMAT}")
            self.release = str(notes["kernel"])
            self.claimed.update(_texts(notes["claimed"]))
            for argv, status, *streams in notes["commands"]:
                stdout, stderr = _texts(streams)
                if type(status) is not int:
                    raise ValueError(f"{str(status)[:80]!r} is not an exit status")
                self.answers[_texts(argv)] = Completed(status, stdout, stderr)
            unreadable: Mapping[str, int] = notes["unreadable"]
            for place, number in unreadable.items():
                if type(number) is not int or number not in errno.errorcode:
                    raise ValueError(f"{str(number)[:80]!r} is not an error number")
                if not place.startswith("/") or place.count("/") > _MAX_DEPTH:
                    raise ValueError(f"{place[:80]!r} is not the path of a file")
                self.faults[place] = number
                if place not in self._names and place not in self._links:
                    self.add_file(place, b"")
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path} cannot be used, {_NOTES[1:]} in it: {error}") from error

    def _enter(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        if parent and parent not in self._names:
            self.add_dir(parent)
        self._names[parent or "/"].add(name)

    def _touch(self, path: str) -> str:
        """Return the real path; raises OSError where touching it fails."""
        if "\0" in path:
            raise ValueError("embedded null byte")
        real = resolve(path, self._links.get)
        self._fail(real)
        return real

    def _fail(self, real: str) -> None:
        if real in self.faults:
            raise os_error(self.faults[real])


def _texts(values: Any) -> tuple[str, ...]:
    """Return a list of texts as a tuple; raises ValueError for any other value."""
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError("a list of texts is needed")
    return tuple(values)


def os_error(number: int) -> OSError:
    """Return the error of the operating system with this number."""
    return OSError(number, os.strerror(number))


def read(path: Path) -> ArchivedHost:
    """Return the host of an archive that a user named; raises exception.ConfigError."""
    try:
        return ArchivedHost.recorded(path)
    except ValueError as error:
        raise exception.ConfigError(reason=f"Option --host: {error}.") from error


#: Absolute path, and content, target of a link, or None for a directory.
_Entry = tuple[str, bytes | str | None]


def _directory(directory: Path) -> Iterator[_Entry]:
    if any(os.path.ismount(directory / name) for name in ("proc", "sys")):
        raise ValueError(
            f"{directory} is a running machine and not a recorded tree; capture it first with "
            "tools/capture-host or 'python3 -m cyborg.testing.recorder DRIVER DIRECTORY', and name "
            "that archive"
        )
    for place, names, files in os.walk(directory):
        for entry in (Path(place, name) for name in (*names, *files)):
            inside = f"/{entry.relative_to(directory)}"
            if entry.is_symlink():
                yield inside, os.readlink(entry)
            elif entry.is_dir():
                yield inside, None
            elif entry.is_file():
                yield inside, entry.read_bytes()


class _Bounded:
    """The content of a tar.gz file, of which only a part of bounded size can be read at once.

    tarfile reads a header before it returns an entry, and a header may claim any length (pax).
    """

    def __init__(self, path: Path, content: gzip.GzipFile) -> None:
        self._path = path
        self._content = content
        self.seek, self.tell = content.seek, content.tell

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes; raises ValueError for more than a header may have."""
        if not 0 <= size <= _MAX_HEADER:
            raise ValueError(f"{self._path} has a header of more than {_MAX_HEADER} bytes")
        return self._content.read(size)


def _tar(path: Path) -> Iterator[_Entry]:
    """Yield the entries of a tar.gz file, of which nothing is unpacked to the disk."""
    size = 0
    with (
        gzip.open(path) as content,
        tarfile.open(fileobj=cast(IO[bytes], _Bounded(path, content)), mode="r:") as archive,
    ):
        for entry in archive:
            size += entry.size
            if size > _MAX_BYTES:
                raise ValueError(f"{path} has more than {_MAX_BYTES} bytes")
            inside = f"/{entry.name.removeprefix('./').rstrip('/')}"
            if inside in {"/", "/."}:
                continue
            irregular = entry.name.startswith("/") or os.path.normpath(inside) != inside
            if irregular or inside.count("/") > _MAX_DEPTH:
                raise ValueError(f"{path} has an entry with the name {entry.name[:200]!r}")
            if entry.isdir():
                yield inside, None
            elif entry.issym():
                yield inside, entry.linkname
            elif entry.isreg() and (file := archive.extractfile(entry)) is not None:
                yield inside, b"".join(iter(partial(file.read, _CHUNK), b""))
        # The checksum of the whole file is behind its end.
        while chunk := content.read(_CHUNK):
            size += len(chunk)
            if size > _MAX_BYTES:
                raise ValueError(f"{path} has more than {_MAX_BYTES} bytes")
