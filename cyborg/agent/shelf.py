# SPDX-License-Identifier: Apache-2.0
"""Small files under the state path: what was half written is told apart, trouble is said once.

Nothing that the agent must have is kept here: without a disk it works on.
"""

import contextlib
import json
import logging
import os
import threading
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LOG = logging.getLogger(__name__)

#: A file that is longer was not written by us; reading it would fill the memory.
_LONGEST = 64 * 1024 * 1024


class Shelf:
    """A directory of files with one record a line, each behind its checksum.

    No method raises what the disk brings up: the first trouble is logged, and that it is over.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._troubled = False

    def read(self, name: str) -> list[Any]:
        """The records of a file up to its end or the first one that is damaged; none without it.

        A damaged file is kept beside as ``<name>.damaged`` and said so.
        """
        path = self._directory / name
        try:
            if path.stat().st_size > _LONGEST:
                self.put_aside(name)
                return []
            lines = path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        except OSError as error:
            self._trouble(error)
            return []
        records = []
        for line in lines:
            record = _parse(line)
            if record is None:
                self.put_aside(name)
                break
            records.append(record)
        return records

    def append(self, name: str, record: Any) -> bool:
        """Add one record to a file that is there and have it on the disk; False: it is not."""
        try:
            with self._lock:
                _append(self._directory / name, _line(record))
        except OSError as error:
            self._trouble(error)
            return False
        return True

    def replace(self, name: str, records: Iterable[Any]) -> bool:
        """Make a file hold these records, all or as before; False: it is as before."""
        try:
            with self._lock:
                self._directory.mkdir(parents=True, exist_ok=True)
                _replace(self._directory / name, b"".join(map(_line, records)))
        except OSError as error:
            self._trouble(error)
            return False
        if self._troubled:
            self._troubled = False
            LOG.info("%s can be written again", self._directory)
        return True

    def put_aside(self, name: str) -> None:
        """Keep a file that cannot be understood for whoever wants to look at it."""
        path = self._directory / name
        LOG.warning("%s is damaged or not ours; it is kept as %s.damaged", path, name)
        with contextlib.suppress(OSError):
            path.replace(path.with_name(f"{name}.damaged"))

    def _trouble(self, error: OSError) -> None:
        if not self._troubled:
            self._troubled = True
            LOG.warning(
                "%s cannot be used, the agent works on without it: %s", self._directory, error
            )


def _line(record: Any) -> bytes:
    text = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _parse(line: bytes) -> Any:
    """A line's record; None when it is not what was written."""
    checksum, _, text = line.removesuffix(b"\n").partition(b" ")
    if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(text):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None


def _append(path: Path, line: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        _write(descriptor, line)
    finally:
        os.close(descriptor)


def _replace(path: Path, content: bytes) -> None:
    fresh = path.with_name(f"{path.name}.new")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write(descriptor, content)
        finally:
            os.close(descriptor)
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Else the new name may be gone after a power cut.
        os.fsync(directory)
    finally:
        os.close(directory)


def _write(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)
