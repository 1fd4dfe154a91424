# SPDX-License-Identifier: Apache-2.0
"""Repairs of what an audit found, one by one, and no more in one pass than allowed."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from uuid import uuid4

from cyborg import exception
from cyborg.conductor import mending
from cyborg.conductor.releasing import Deleter
from cyborg.db.engine import Database
from cyborg.model.caller import Caller
from cyborg.model.finding import Finding, Fix

LOG = logging.getLogger(__name__)

#: In whose name ARQs are deleted: of every project, but bound ones only with their instance.
_AUDITOR = Caller(None, None, "audit", everywhere=True)


@dataclass(frozen=True)
class Repaired:
    """What became of one finding; ``reason`` says why it was not repaired, empty if it was."""

    finding: Finding
    reason: str = ""


class Repairs:
    """Repairs findings; ``wake`` is called when work waits after a commit."""

    def __init__(self, *, db: Database, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._deleter = Deleter(db=db, wake=wake)
        self._makers: Mapping[Fix, Callable[[Finding], bool]] = {
            Fix.RELEASE_HANDLE: lambda one: mending.release_handle(db, one.key),
            Fix.HOLD_HANDLE: lambda one: mending.hold_handle(db, one.key),
            Fix.DROP_HANDLE: lambda one: mending.drop_handle(db, one.key),
            Fix.FAIL_BIND: lambda one: mending.fail_bind(db, one.key),
            Fix.OPEN_INSTANCE: lambda one: mending.open_instance(db, one.key),
            Fix.GUARD_INSTANCE: lambda one: mending.guard_instance(db, one.key),
            Fix.REPUBLISH: lambda one: mending.republish(db, one.host or ""),
            Fix.DELETE_ARQS: self._delete_arqs,
            Fix.DELETE_ARQ: self._delete_arq,
        }

    def repair(self, findings: Iterable[Finding], limit: int) -> list[Repaired]:
        """Repair what can be, in the order given, with at most ``limit`` changes.

        A host whose providers differ is one change, however many they are. One repair that fails
        stops no other. Answers all findings that have a repair.
        """
        answers: list[Repaired] = []
        told: set[str | None] = set()
        changes = 0
        for finding in findings:
            if finding.fix is None:
                continue
            if finding.fix is Fix.REPUBLISH and finding.host in told:
                answers.append(Repaired(finding))
                continue
            reason = "the limit of one pass is reached" if changes >= limit else self._try(finding)
            answers.append(Repaired(finding, reason))
            if not reason:
                changes += 1
                told |= {finding.host} if finding.fix is Fix.REPUBLISH else set()
        self._wake()
        return answers

    def _try(self, finding: Finding) -> str:
        """Make one repair; answers why it was not made, nothing if it was."""
        assert finding.fix is not None
        try:
            done = self._makers[finding.fix](finding)
        except exception.CyborgError as error:
            return str(error)
        if not done:
            return "it has changed meanwhile"
        LOG.info("Repaired %s %s (%s): %s", finding.noun, finding.key, finding.fix, finding.cause)
        return ""

    def _delete_arqs(self, finding: Finding) -> bool:
        """The ARQs of an instance that Nova no longer has, as Nova would have done it."""
        self._deleter.by_instance(_AUDITOR, str(uuid4()), finding.key)
        return True

    def _delete_arq(self, finding: Finding) -> bool:
        """An ARQ that was not bound; one that has been meanwhile is refused."""
        self._deleter.by_uuid(_AUDITOR, str(uuid4()), [finding.key])
        return True
