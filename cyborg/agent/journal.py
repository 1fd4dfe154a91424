# SPDX-License-Identifier: Apache-2.0
"""The journal: every operation on hardware, when it began and how it ended."""

import logging
import threading
from collections import deque
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from cyborg.agent.shelf import Shelf
from cyborg.model.work import HandleTask, InstallTask, ProgramTask, Unit

LOG = logging.getLogger(__name__)

#: How many records of ended operations are kept for whoever wants to read them.
_KEPT = 400
#: How many records a file may have before it is written anew without the oldest.
_LONGEST = 2000


class Journal:
    """Kept on a shelf, bounded in size; what an earlier agent left there is read at once."""

    def __init__(self, shelf: Shelf, host: str) -> None:
        self._shelf = shelf
        self._name = f"agent-{quote(host, safe='')}.journal"
        self._lock = threading.Lock()
        self._ended: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._open: dict[str, dict[str, Any]] = {}
        for record in shelf.read(self._name):
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
            if self._appending and self._lines < _LONGEST:
                self._lines += 1
                self._appending = self._shelf.append(self._name, record)
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
        self._appending = self._shelf.replace(self._name, records)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
