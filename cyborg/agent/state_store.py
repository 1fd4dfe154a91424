# SPDX-License-Identifier: Apache-2.0
"""Files below the state path of an agent: the cache of desired state, and the operation journal.

The agent works without them: a disk that fails is logged once and then ignored.
"""

import contextlib
import json
import logging
import os
import threading
import zlib
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cyborg import exception
from cyborg.model import wire
from cyborg.model.report import Desired, Report
from cyborg.model.work import HandleTask, InstallTask, ProgramTask, Unit

LOG = logging.getLogger(__name__)

#: A longer file was not written by an agent, and reading it would fill the memory.
_MAX_FILE_BYTES = 64 * 1024 * 1024


class StateFiles:
    """A directory of files with one record in each line, after its checksum.

    No method raises an error of the disk. The first error is logged, and the first success after
    it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._failing = False

    def read(self, name: str) -> list[Any]:
        """Return the records of a file up to its end or the first damaged record.

        A file that does not exist has no records. A damaged file is renamed to ``<name>.damaged``,
        with a warning.
        """
        path = self._directory / name
        try:
            if path.stat().st_size > _MAX_FILE_BYTES:
                self.set_aside(name)
                return []
            lines = path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        except OSError as error:
            self._log_failure(error)
            return []
        records = []
        for line in lines:
            record = _decode(line)
            if record is None:
                self.set_aside(name)
                break
            records.append(record)
        return records

    def append(self, name: str, record: Any) -> bool:
        """Append one record to a file that exists; return whether it is on the disk."""
        try:
            with self._lock:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
                descriptor = os.open(self._directory / name, flags)
                try:
                    _write(descriptor, _encode(record))
                finally:
                    os.close(descriptor)
        except OSError as error:
            self._log_failure(error)
            return False
        return True

    def replace(self, name: str, records: Iterable[Any]) -> bool:
        """Replace the records of a file; return False if the file is as before."""
        try:
            with self._lock:
                self._directory.mkdir(parents=True, exist_ok=True)
                _replace(self._directory / name, b"".join(map(_encode, records)))
        except OSError as error:
            self._log_failure(error)
            return False
        if self._failing:
            self._failing = False
            LOG.info("State directory %s can be written again", self._directory)
        return True

    def set_aside(self, name: str) -> None:
        """Rename a file that cannot be read, so that an operator can look at it."""
        path = self._directory / name
        LOG.warning(
            "State file %s is damaged or not written by an agent: it is kept as %s.damaged",
            path,
            name,
        )
        with contextlib.suppress(OSError):
            path.replace(path.with_name(f"{name}.damaged"))

    def _log_failure(self, error: OSError) -> None:
        if not self._failing:
            self._failing = True
            LOG.warning(
                "State directory %s cannot be used, the agent works without it: %s",
                self._directory,
                error,
            )


def _encode(record: Any) -> bytes:
    text = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _decode(line: bytes) -> Any:
    """Return the record of a line; None if the line is damaged."""
    checksum, _, text = line.removesuffix(b"\n").partition(b" ")
    if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(text):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None


def _replace(path: Path, content: bytes) -> None:
    new_path = path.with_name(f"{path.name}.new")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        descriptor = os.open(new_path, flags, 0o600)
        try:
            _write(descriptor, content)
        finally:
            os.close(descriptor)
        new_path.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            new_path.unlink()
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Without this the new name may be gone after a power failure.
        os.fsync(directory)
    finally:
        os.close(directory)


def _write(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)


#: How many records of ended operations are kept for an operator to read.
_MAX_ENDED = 400
#: How many records a file may have before it is rewritten without the oldest.
_MAX_LINES = 2000


class OperationJournal:
    """A begin record and an end record for each call that changes hardware, bounded in size.

    A begin record without an end record marks an operation that was in progress when the previous
    agent process stopped: it is interrupted.
    """

    def __init__(self, files: StateFiles, host: str) -> None:
        self._files = files
        self._name = f"agent-{quote(host, safe='')}.journal"
        self._lock = threading.Lock()
        self._ended: deque[dict[str, Any]] = deque(maxlen=_MAX_ENDED)
        self._open: dict[str, dict[str, Any]] = {}
        for record in files.read(self._name):
            self._add(record)
        self._interrupted = dict(self._open)
        self._lines = 0
        self._can_append = False
        self._rewrite()

    @property
    def has_interrupted(self) -> bool:
        """Return whether interrupted operations exist whose units are not repaired yet."""
        return bool(self._interrupted)

    @property
    def interrupted_units(self) -> frozenset[Unit]:
        """Return the units of interrupted operations; their state on the host is not certain."""
        with self._lock:
            records = list(self._interrupted.values())
        return frozenset(
            Unit(str(record.get("deployable")), str(record.get("handle")))
            for record in records
            if record.get("handle") is not None
        )

    def log_interrupted(self) -> None:
        """Log each interrupted operation."""
        for record in self._interrupted.values():
            LOG.warning(
                "The previous agent process stopped in the middle of %s of %s (request key %s, "
                "begun %s): the agent repeats or reverts it, as the conductor requires",
                *(record.get(name, "?") for name in ("verb", "deployable", "request_key", "at")),
            )

    def begin(self, verb: str, task: HandleTask | InstallTask | ProgramTask) -> None:
        """Write a begin record, before the driver is called."""
        values = {
            "verb": verb,
            "request_key": task.request_key,
            "driver": task.driver,
            "deployable": task.device_key if isinstance(task, InstallTask) else task.deployable,
            "handle": task.handle_key if isinstance(task, HandleTask) else None,
        }
        with self._lock:
            # The conductor repeats the operation under its id: it is this process's own now.
            self._interrupted.pop(task.request_key, None)
        self._write_record(values)

    def end(self, request_key: str, fault: str | None = None) -> None:
        """Write an end record, after the driver's call; ``fault`` is the error of the call."""
        self._write_record({"ended": request_key, "fault": fault})

    def resolve_interrupted(self) -> None:
        """End all interrupted operations: their units were compared with the conductor's state."""
        with self._lock:
            operations, self._interrupted = list(self._interrupted), {}
        for request_key in operations:
            self.end(request_key, "interrupted by a stop of the agent")

    def _write_record(self, values: dict[str, Any]) -> None:
        record = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), **values}
        with self._lock:
            self._add(record)
            if self._can_append and self._lines < _MAX_LINES:
                self._lines += 1
                self._can_append = self._files.append(self._name, record)
                if self._can_append:
                    return
            self._rewrite()

    def _add(self, record: Any) -> None:
        """Keep a record; an end record closes its begin record."""
        if not isinstance(record, dict):
            return
        if "ended" in record:
            begin = self._open.pop(record["ended"], None)
            self._ended.extend([begin, record] if begin is not None else [record])
        elif "request_key" in record:
            self._open[record["request_key"]] = record

    def _rewrite(self) -> None:
        records = [*self._ended, *self._open.values()]
        self._lines = len(records)
        self._can_append = self._files.replace(self._name, records)


class DesiredStateCache:
    """The last desired state and the last report of a host, on the disk; None if there was none.

    After a restart the agent uses it until the conductor answers.
    """

    def __init__(self, files: StateFiles, host: str) -> None:
        self._files = files
        self._name = f"agent-{quote(host, safe='')}.cache"
        self.desired: Desired | None = None
        self.report: Report | None = None
        records = files.read(self._name)
        if not records:
            return
        try:
            (record,) = records
            desired = _load(Desired, record["desired"])
            report = _load(Report, record["report"])
        except (exception.Invalid, ValueError, TypeError, KeyError):
            files.set_aside(self._name)
            return
        self.desired, self.report = desired, report

    def store(self, *, desired: Desired | None = None, report: Report | None = None) -> None:
        """Store the given values; write the file only if a value has changed."""
        values = desired or self.desired, report or self.report
        if values != (self.desired, self.report):
            self.desired, self.report = values
            record = {
                "desired": None if self.desired is None else wire.dump(self.desired),
                "report": None if self.report is None else wire.dump(self.report),
            }
            self._files.replace(self._name, [record])


def _load(kind: Any, envelope: Any) -> Any:
    return None if envelope is None else wire.load(kind, envelope)
