# SPDX-License-Identifier: Apache-2.0
"""Files below the state path of an agent: the cache of desired state, and the journal.

The agent works without them: a disk that fails is logged once and ignored.
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

#: A file that is longer was not written by us; reading it would fill the memory.
_LONGEST = 64 * 1024 * 1024


class StateFiles:
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


#: How many records of ended operations are kept for whoever wants to read them.
_KEPT = 400
#: How many records a file may have before it is written anew without the oldest.
_MOST_LINES = 2000


class OperationJournal:
    """Kept on a files, bounded in size; what an earlier agent left there is read at once."""

    def __init__(self, files: StateFiles, host: str) -> None:
        self._files = files
        self._name = f"agent-{quote(host, safe='')}.journal"
        self._lock = threading.Lock()
        self._ended: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._open: dict[str, dict[str, Any]] = {}
        for record in files.read(self._name):
            self._take(record)
        self._left = dict(self._open)
        self._lines = 0
        self._appending = False
        self._write_anew()

    @property
    def unsettled(self) -> bool:
        """Whether an earlier agent was at work when it ended, and that is not seen to yet."""
        return bool(self._left)

    @property
    def suspects(self) -> frozenset[Unit]:
        """The units on which an earlier agent was at work when it ended."""
        with self._lock:
            found = [(one.get("deployable"), one.get("handle")) for one in self._left.values()]
        return frozenset(
            Unit(str(deployable), str(handle)) for deployable, handle in found if handle is not None
        )

    def tell(self) -> None:
        """Log what an earlier agent was at when it ended."""
        for one in self._left.values():
            LOG.warning(
                "The agent ended in the middle of %s of %s (%s, begun %s): it is done again or "
                "undone, as the conductor wants it now",
                *(one.get(name, "?") for name in ("verb", "deployable", "operation", "at")),
            )

    def begin(self, verb: str, task: HandleTask | InstallTask | ProgramTask) -> None:
        """Before hardware is touched."""
        handle = task.handle_key if isinstance(task, HandleTask) else None
        record = {
            "at": _now(),
            "verb": verb,
            "operation": task.operation,
            "driver": task.driver,
            "deployable": (task.device_key if isinstance(task, InstallTask) else task.deployable),
            "handle": handle,
        }
        with self._lock:
            # Asked for again under the same id: from now on it is our own.
            self._left.pop(task.operation, None)
        self._note(record)

    def end(self, operation: str, fault: str | None = None) -> None:
        """When the driver has answered; ``fault`` is what went wrong."""
        self._note({"at": _now(), "ended": operation, "fault": fault})

    def settle(self) -> None:
        """What an earlier agent was at has been seen to."""
        with self._lock:
            left, self._left = list(self._left), {}
        for operation in left:
            self.end(operation, "left by an agent that ended")

    def _note(self, record: dict[str, Any]) -> None:
        with self._lock:
            self._take(record)
            if self._appending and self._lines < _MOST_LINES:
                self._lines += 1
                self._appending = self._files.append(self._name, record)
                if self._appending:
                    return
            self._write_anew()

    def _take(self, record: Any) -> None:
        """Keep a record, in the place that follows from what it says."""
        if not isinstance(record, dict):
            return
        if "ended" in record:
            begun = self._open.pop(record["ended"], None)
            self._ended.extend([begun, record] if begun is not None else [record])
        elif "operation" in record:
            self._open[record["operation"]] = record

    def _write_anew(self) -> None:
        records = [*self._ended, *self._open.values()]
        self._lines = len(records)
        self._appending = self._files.replace(self._name, records)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class DesiredStateCache:
    """Kept on a files; ``desired`` and ``report`` are None until there were any.

    It bridges the time until the conductor answers, and is believed no longer than that.
    """

    def __init__(self, files: StateFiles, host: str) -> None:
        self._files = files
        self._name = f"agent-{quote(host, safe='')}.cache"
        self.desired: Desired | None = None
        self.report: Report | None = None
        self._load()

    def keep(self, *, desired: Desired | None = None, report: Report | None = None) -> None:
        """Remember what is given; writes only what is news."""
        wanted = desired or self.desired, report or self.report
        if wanted != (self.desired, self.report):
            self.desired, self.report = wanted
            record = {
                "desired": None if self.desired is None else wire.dump(self.desired),
                "report": None if self.report is None else wire.dump(self.report),
            }
            self._files.replace(self._name, [record])

    def _load(self) -> None:
        records = self._files.read(self._name)
        if not records:
            return
        try:
            (record,) = records
            desired = _read(Desired, record["desired"])
            report = _read(Report, record["report"])
        except (exception.Invalid, ValueError, TypeError, KeyError):
            self._files.put_aside(self._name)
            return
        self.desired, self.report = desired, report


def _read(kind: Any, envelope: Any) -> Any:
    return None if envelope is None else wire.load(kind, envelope)
