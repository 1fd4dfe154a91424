# SPDX-License-Identifier: Apache-2.0
"""The reconciler: one conductor audits the cloud from time to time and repairs what it may."""

import logging
from collections.abc import Callable

from cyborg import exception
from cyborg.conductor.audit.auditor import Auditor
from cyborg.conductor.audit.repairs import Repairs
from cyborg.conductor.leases import ConductorLease
from cyborg.model.audit_findings import Finding, Kind, Severity

LOG = logging.getLogger(__name__)


class AuditJob:
    """A periodic job of every conductor; only the longest-known living one does it.

    That several would do it at once, for a moment, does no harm: every repair looks again under
    lock. ``limit`` bounds the changes of one pass, ``lease_ms`` is how long a silent conductor
    counts as living.
    """

    def __init__(
        self,
        *,
        lease: ConductorLease,
        auditor: Callable[[], Auditor],
        repairs: Repairs,
        lease_ms: int,
        limit: int,
    ) -> None:
        self._lease = lease
        self._make = auditor
        self._auditor: Auditor | None = None
        self._repairs = repairs
        self._lease_ms = lease_ms
        self._limit = limit
        self._told: set[tuple[Kind, str, str]] = set()

    def run_once(self) -> None:
        """One pass; raises exception.Unavailable, having repaired nothing, without its peers."""
        if not self._lease.comes_first(self._lease_ms):
            # Whoever takes over has looked at nothing yet: neither shall we when it is our turn.
            self._auditor, self._told = None, set()
            return
        if self._auditor is None:
            self._auditor = self._make()
        verdict = self._auditor.look()
        self._tell(verdict.findings)
        if verdict.unasked:
            raise exception.Unavailable(
                peer="What the reconciler compares with", reason=" ".join(verdict.unasked)
            )
        for one in self._repairs.repair(verdict.findings, self._limit):
            if one.reason:
                LOG.warning(
                    "%s %s is not repaired: %s", one.finding.noun, one.finding.key, one.reason
                )

    def _tell(self, findings: tuple[Finding, ...]) -> None:
        """Log what is news, once."""
        now = {one.identity: one for one in findings if one.severity > Severity.INFO}
        for identity in now.keys() - self._told:
            one = now[identity]
            LOG.warning("%s: %s %s: %s %s", one.kind, one.noun, one.key, one.cause, one.remedy)
        self._told = set(now)
