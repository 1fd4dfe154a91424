# SPDX-License-Identifier: Apache-2.0
"""The cache: what the conductor last wanted of this host, and what it last was told."""

from typing import Any
from urllib.parse import quote

from cyborg import exception
from cyborg.agent.shelf import Shelf
from cyborg.model import wire
from cyborg.model.report import Desired, Report


class Cache:
    """Kept on a shelf; ``desired`` and ``report`` are None until there were any.

    It bridges the time until the conductor answers, and is believed no longer than that.
    """

    def __init__(self, shelf: Shelf, host: str) -> None:
        self._shelf = shelf
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
            self._shelf.replace(self._name, [record])

    def _load(self) -> None:
        records = self._shelf.read(self._name)
        if not records:
            return
        try:
            (record,) = records
            desired = _read(Desired, record["desired"])
            report = _read(Report, record["report"])
        except (exception.Invalid, ValueError, TypeError, KeyError):
            self._shelf.put_aside(self._name)
            return
        self.desired, self.report = desired, report


def _read(kind: Any, envelope: Any) -> Any:
    return None if envelope is None else wire.load(kind, envelope)
