# SPDX-License-Identifier: Apache-2.0
"""The agent's SQLite file below its state path: the journal of tasks, and the cache of its state.

The agent works without the file: a disk that fails is logged once and then ignored.
"""

import contextlib
import json
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

from cyborg import exception
from cyborg.drivers.pcie_health import Baseline
from cyborg.model import wire
from cyborg.model.health import Signal, legible
from cyborg.model.report import Desired, Report
from cyborg.model.work import HandleTask, InstallTask, PartitionTask, ProgramTask, Unit

LOG = logging.getLogger(__name__)
T = TypeVar("T")

#: How long a transaction waits for another agent that has the same file open, in seconds.
_BUSY_TIMEOUT: Final = 1.0
#: The primary result codes of SQLite (https://sqlite.org/rescode.html) for a file that is damaged,
#: is no database, or has other tables.
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})
#: How many ended tasks, and how many privileged actions, are kept for an operator to read.
_MAX_ENDED: Final = 400
#: The columns of the journal. ``ended_at`` is null while the task is in progress.
_COLUMNS: Final = "request_key, verb, driver, deployable, handle, began_at, ended_at, fault"
_INSERT: Final = f"INTO tasks VALUES (:{_COLUMNS.replace(', ', ', :')})"
_SETUP: Final = (
    # A write-ahead log could not be read from a read-only disk. EXTRA: a commit, which removes the
    # rollback journal, survives a power failure.
    "PRAGMA synchronous = EXTRA",
    f"CREATE TABLE IF NOT EXISTS tasks ({_COLUMNS}, PRIMARY KEY (request_key))",
    "CREATE TABLE IF NOT EXISTS actions (began_at, action)",
    "CREATE TABLE IF NOT EXISTS cache (name PRIMARY KEY, value)",
)


class StateStore:
    """Transactions on the SQLite file of a host; any thread may call it.

    Each transaction opens the file, so a file that was removed is created again, and two agents
    with one host can share it.
    """

    def __init__(self, directory: Path, host: str) -> None:
        self.path = directory / f"agent-{quote(host, safe='')}.sqlite"
        self._lock = threading.Lock()
        self._failing = False

    def run(self, job: Callable[[sqlite3.Connection], T]) -> T | None:
        """Return the result of ``job`` after its changes are on the disk; None if that failed.

        The first failure is logged, and the first success after it. A damaged file is renamed to
        ``<name>.damaged``, with a warning, and ``job`` gets a new file.
        """
        with self._lock:
            try:
                try:
                    result = self._transaction(job)
                except sqlite3.Error as error:
                    # Python's own errors, such as text that is not UTF-8, have no code.
                    if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in (
                        _DAMAGED
                    ):
                        raise
                    self._set_aside()
                    result = self._transaction(job)
            except (OSError, sqlite3.Error) as error:
                if not self._failing:
                    self._failing = True
                    LOG.warning(
                        "State directory %s cannot be used, the agent works without it: %s",
                        self.path.parent,
                        error,
                    )
                return None
            if self._failing:
                self._failing = False
                LOG.info("State directory %s can be written again", self.path.parent)
        return result

    def _transaction(self, job: Callable[[sqlite3.Connection], T]) -> T:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.exists():
            self.path.touch(mode=0o600)
        with contextlib.closing(sqlite3.connect(self.path, timeout=_BUSY_TIMEOUT)) as connection:
            for statement in _SETUP:
                connection.execute(statement)
            with connection:
                return job(connection)

    def _set_aside(self) -> None:
        """Rename a file that cannot be read, so that an operator can look at it."""
        damaged = self.path.with_name(f"{self.path.name}.damaged")
        self.path.replace(damaged)
        LOG.warning(
            "State file %s is damaged or not written by an agent: it is kept as %s",
            *(self.path, damaged.name),
        )


class ReadOnlyStateStore(StateStore):
    """The state file of an agent that may be running; reading it changes and creates nothing.

    ``error`` says why the file cannot be read, as a clause; None while it could.
    """

    def __init__(self, directory: Path, host: str) -> None:
        super().__init__(directory, host)
        self.error: str | None = None

    def run(self, job: Callable[[sqlite3.Connection], T]) -> T | None:
        """Return the result of ``job``, which must only read; None if that failed."""
        try:
            if not self.path.exists():
                self.error = f"there is no state file {self.path}"
                return None
            uri = f"file:{quote(str(self.path))}?mode=ro"
            with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT)) as file:
                return job(file)
        except (OSError, sqlite3.Error) as error:
            self.error = f"the state file {self.path} cannot be read: {error}"
            return None


class TaskJournal:
    """A row for each call that changes hardware: its begin, its end, and its fault.

    A row without an end marks a task that was in progress when the previous agent process
    stopped: it is interrupted, which is logged at the start.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        rows = store.run(_open_tasks) or []
        #: The tasks without an end, by request key.
        self._open = {row["request_key"]: row for row in rows}
        self._interrupted = dict(self._open)
        for row in rows:
            LOG.warning(
                "The previous agent process stopped in the middle of %s of %s (request key %s, "
                "begun %s): the agent repeats or reverts it, as the conductor requires",
                *(row[name] for name in ("verb", "deployable", "request_key", "began_at")),
            )

    @property
    def has_interrupted(self) -> bool:
        """Return whether interrupted tasks exist whose units are not repaired yet."""
        return bool(self._interrupted)

    @property
    def interrupted_units(self) -> frozenset[Unit]:
        """Return the units of interrupted tasks; their state on the host is not certain."""
        with self._lock:
            rows = list(self._interrupted.values())
        return frozenset(
            Unit(row["deployable"], row["handle"]) for row in rows if row["handle"] is not None
        )

    def begin(
        self, verb: str, task: HandleTask | InstallTask | PartitionTask | ProgramTask
    ) -> None:
        """Write the begin of a task to the disk, before the driver is called."""
        row = {
            "request_key": task.request_key,
            "verb": verb,
            "driver": task.driver,
            "deployable": task.deployable
            if isinstance(task, HandleTask | ProgramTask)
            else task.device_key,
            "handle": task.handle_key if isinstance(task, HandleTask) else None,
            "began_at": _now(),
            "ended_at": None,
            "fault": None,
        }
        with self._lock:
            # The conductor repeats the task under its request key: it is this process's own now.
            self._interrupted.pop(task.request_key, None)
            self._open[task.request_key] = row
            self._write(row)

    def end(self, request_key: str, fault: str | None = None) -> None:
        """Write the end of a task; ``fault`` is the error of the driver's call."""
        with self._lock:
            row = self._open.pop(request_key, None)
            if row is not None:
                # Drivers may raise errors with characters that SQLite refuses.
                self._write({**row, "ended_at": _now(), "fault": legible(fault)})

    def resolve_interrupted(self) -> None:
        """End all interrupted tasks: their units were compared with the conductor's state."""
        with self._lock:
            interrupted, self._interrupted = list(self._interrupted), {}
        for request_key in interrupted:
            self.end(request_key, "interrupted by a stop of the agent")

    def _write(self, row: Mapping[str, str | None]) -> None:
        """Write a row, and the other open ones, which a file that was lost does not have."""

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany(f"INSERT OR IGNORE {_INSERT}", self._open.values())
            connection.execute(f"INSERT OR REPLACE {_INSERT}", row)
            connection.execute(
                "DELETE FROM tasks WHERE rowid IN (SELECT rowid FROM tasks"
                " WHERE ended_at IS NOT NULL ORDER BY rowid DESC LIMIT -1 OFFSET ?)",
                (_MAX_ENDED,),
            )

        self._store.run(write)


class ActionJournal:
    """A row for each privileged action, written before the action changes the host."""

    def __init__(self, store: StateStore) -> None:
        self._store = store

    def record(self, action: str) -> None:
        """Write an action to the disk."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO actions VALUES (?, ?)", (_now(), action))
            connection.execute(
                "DELETE FROM actions WHERE rowid IN"
                " (SELECT rowid FROM actions ORDER BY rowid DESC LIMIT -1 OFFSET ?)",
                (_MAX_ENDED,),
            )

        self._store.run(write)


def _open_tasks(connection: sqlite3.Connection) -> list[dict[str, Any]]:
    # The agent reads these rows only at its start, so it looks for damage of the file here.
    (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if result != "ok":
        raise sqlite3.DatabaseError(result)
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM tasks WHERE ended_at IS NULL ORDER BY rowid"  # noqa: S608 - a constant
    )
    return [dict(zip(_COLUMNS.split(", "), row, strict=True)) for row in rows]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class DesiredStateCache:
    """The last desired state and the last report of a host, on the disk; None if there was none.

    After a restart the agent uses it until the conductor answers.
    """

    _HISTORY: Final = "history"

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self.desired: Desired | None = None
        self.report: Report | None = None
        #: See ``HeartbeatReply``.
        self.history = ""
        rows = store.run(lambda file: file.execute("SELECT name, value FROM cache").fetchall())
        try:
            values = {name: json.loads(value) for name, value in rows or ()}
            if Desired.KIND in values:
                self.desired = wire.load(Desired, values[Desired.KIND])
            if Report.KIND in values:
                self.report = wire.load(Report, values[Report.KIND])
            self.history = str(values.get(self._HISTORY, ""))
        except (exception.Invalid, ValueError, TypeError) as error:
            LOG.warning(
                "The desired state and the report in %s cannot be read, the agent waits for the "
                "conductor: %s",
                store.path,
                error,
            )

    def store(self, *, desired: Desired | None = None, report: Report | None = None) -> None:
        """Store the given values, and write both to the disk if one has changed."""
        values = desired or self.desired, report or self.report
        if values != (self.desired, self.report):
            self.desired, self.report = values
            # Both, because the file may have been lost.
            rows: list[Any] = [
                (value.KIND, json.dumps(wire.dump(value))) for value in values if value is not None
            ]
            self._store.run(
                lambda file: file.executemany("INSERT OR REPLACE INTO cache VALUES (?, ?)", rows)
            )

    def store_history(self, history: str) -> None:
        """Store the history of a reply to a heartbeat, if it is another one."""
        if history != self.history:
            self.history = history
            row = (self._HISTORY, json.dumps(history))
            self._store.run(
                lambda file: file.execute("INSERT OR REPLACE INTO cache VALUES (?, ?)", row)
            )


class HealthBaselines:
    """What the health of the host's devices is compared with, on the disk.

    The keys are names of drivers and keys of devices. A new agent process compares with what the
    previous one has stored, so that it finds the errors in between.
    """

    _NAME: Final = "HealthBaselines"

    def __init__(self, store: StateStore) -> None:
        self._store = store

    def load(self) -> dict[tuple[str, str], Baseline]:
        """Return what was stored last; what cannot be read is left out."""
        query = "SELECT value FROM cache WHERE name = ?"
        row = self._store.run(lambda file: file.execute(query, (self._NAME,)).fetchone())
        try:
            return {
                (driver, key): Baseline.load(data)
                for driver, key, data in (json.loads(row[0]) if row else ())
            }
        except (KeyError, TypeError, ValueError) as error:
            LOG.warning(
                "The error counters in %s cannot be read, errors before the start of this agent "
                "are not noticed: %s",
                self._store.path,
                error,
            )
            return {}

    def store(self, baselines: Mapping[tuple[str, str], Baseline]) -> None:
        """Write all baselines to the disk."""
        rows = [[*place, baseline.dump()] for place, baseline in sorted(baselines.items())]
        value = self._NAME, json.dumps(rows)
        self._store.run(
            lambda file: file.execute("INSERT OR REPLACE INTO cache VALUES (?, ?)", value)
        )


class LastingFaults:
    """The faults of devices that stay until their recovery is seen, on the disk.

    The keys are names of drivers and keys of devices. A boot of the host recovers all devices. With
    them is the number of the first record of the kernel's log that was not read yet.
    """

    _NAME: Final = "LastingFaults"
    #: Before the name of a driver and the key of a device that an operator has recovered.
    _RECOVERED: Final = "Recovered "

    def __init__(self, store: StateStore) -> None:
        self._store = store

    def load(self, boot: str) -> tuple[int, list[tuple[tuple[str, str], Signal]]]:
        """Return what was stored in this boot; what cannot be read is left out."""
        query = "SELECT value FROM cache WHERE name = ?"
        row = self._store.run(lambda file: file.execute(query, (self._NAME,)).fetchone())
        try:
            stored_boot, unread, rows = json.loads(row[0]) if row else (boot, 0, ())
            faults = [((str(row[0]), str(row[1])), Signal(*map(str, row[2:]))) for row in rows]
        except (KeyError, TypeError, ValueError) as error:
            LOG.warning("The lasting faults in %s cannot be read: %s", self._store.path, error)
            return 0, []
        return (int(unread), faults) if stored_boot == boot else (0, [])

    def store(
        self, boot: str, unread: int, faults: Iterable[tuple[tuple[str, str], Signal]]
    ) -> bool:
        """Write all faults and the number of the first unread record; return whether it worked."""
        rows = [
            (*place, signal.kind, signal.name, str(signal.code), signal.evidence)
            for place, signal in faults
        ]
        value = self._NAME, json.dumps((boot, unread, rows))
        return self._write(value)

    def _write(self, value: tuple[str, str]) -> bool:
        done = self._store.run(
            lambda file: file.execute("INSERT OR REPLACE INTO cache VALUES (?, ?)", value).rowcount
        )
        return done == 1

    def mark_recovered(self, place: tuple[str, str]) -> bool:
        """Have the running agent forget the faults of a device; return whether it is written."""
        return self._write((self._RECOVERED + json.dumps(place), ""))

    def take_recovered(self) -> set[tuple[str, str]]:
        """Return the devices that an operator has recovered since the last call."""
        start = len(self._RECOVERED)

        def take(file: sqlite3.Connection) -> list[str]:
            names = [str(name) for (name,) in file.execute("SELECT name FROM cache")]
            marks = [name for name in names if name.startswith(self._RECOVERED)]
            file.executemany("DELETE FROM cache WHERE name = ?", [(name,) for name in marks])
            return [name[start:] for name in marks]

        places = (json.loads(text) for text in self._store.run(take) or ())
        return {(str(driver), str(key)) for driver, key in places}
