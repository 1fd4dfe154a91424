# SPDX-License-Identifier: Apache-2.0
"""The periodic audit: one conductor audits the cloud and repairs findings."""

import logging
from collections.abc import Callable

from cyborg import exception
from cyborg.conductor.audit.auditor import Auditor
from cyborg.conductor.audit.repairs import Repairs
from cyborg.conductor.leases import ConductorLease
from cyborg.model.audit_findings import Kind, Severity

LOG = logging.getLogger(__name__)


class AuditJob:
    """A periodic job of every conductor; only the first living conductor does something in it.

    For a moment several conductors may do it at once. This is harmless, since every repair checks
    its finding again under lock. ``limit`` is the largest number of changes in one pass. A
    conductor counts as alive for ``lease_ms`` milliseconds after its last heartbeat.
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
        self._make_auditor = auditor
        self._auditor: Auditor | None = None
        self._repairs = repairs
        self._lease_ms = lease_ms
        self._limit = limit
        self._logged: set[tuple[Kind, str, str]] = set()

    def run_once(self) -> None:
        """Run one pass.

        Raises exception.Unavailable, without a repair, when Placement or Nova does not answer.
        """
        if not self._lease.comes_first(self._lease_ms):
            # What an earlier turn of this conductor remembers is too old for its next turn.
            self._auditor, self._logged = None, set()
            return
        if self._auditor is None:
            self._auditor = self._make_auditor()
        verdict = self._auditor.look()
        findings = {
            finding.identity: finding
            for finding in verdict.findings
            if finding.severity > Severity.INFO
        }
        # Each finding is logged once, for as long as it stays.
        for identity in findings.keys() - self._logged:
            finding = findings[identity]
            LOG.warning(
                "Audit finding %s: %s %s: %s %s",
                *(finding.kind, finding.noun, finding.key, finding.cause, finding.remedy),
            )
        self._logged = set(findings)
        if verdict.unasked:
            raise exception.Unavailable(
                peer="A service that the audit reads", reason=" ".join(verdict.unasked)
            )
        for answer in self._repairs.repair(verdict.findings, self._limit):
            if answer.reason:
                LOG.warning(
                    "Audit finding on %s %s is not repaired: %s",
                    *(answer.finding.noun, answer.finding.key, answer.reason),
                )
