# SPDX-License-Identifier: Apache-2.0
"""The ``cyborg-audit`` program: report the inconsistencies of a cloud, with causes and remedies.

Exit status: 0 if there is nothing wrong, 1 for warnings, 2 for errors (or a wrong command line), 3
if the database, Placement or Nova did not answer, so that the result is incomplete. Findings that
``--fix`` repaired do not count.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TextIO

from oslo_config import cfg
from oslo_log import log

from cyborg import conf as configuration
from cyborg import exception
from cyborg.clients.http import Sessions
from cyborg.clients.nova import Servers
from cyborg.clients.placement import Placement
from cyborg.conductor.audit.auditor import Auditor, AuditResult
from cyborg.conductor.audit.repairs import Repaired, allow_units, hold_units, repair
from cyborg.conf.agent import AgentOptions
from cyborg.conf.conductor import AuditOptions, ConductorOptions
from cyborg.conf.default import DefaultOptions
from cyborg.db import revisions
from cyborg.db.engine import Database, Reader
from cyborg.model.audit_findings import Ages, Finding, Fix, Kind, Severity
from cyborg.model.process import AGENT, down_after
from cyborg.rpc import notifications
from cyborg_cli import terminal
from cyborg_cli.text import escaped

PROG = "cyborg-audit"
INCOMPLETE = 3
_COLOURS = {
    Severity.ERROR: terminal.RED,
    Severity.WARNING: terminal.YELLOW,
    Severity.INFO: terminal.CYAN,
}
_SEVERITY_NOUNS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_HEADER = ("SEVERITY", "INVARIANT", "HOST", "WHAT", "FOUND", "CAUSE", "REMEDY")


def main(argv: Sequence[str] | None = None) -> int:
    """Audit once; return the exit status."""
    parser = argparse.ArgumentParser(
        prog=PROG,
        description="Report the inconsistencies between the database, Placement and Nova, and "
        "repair them with --fix. Nothing is changed without --fix.",
        epilog="The options --config-file, --config-dir and those of oslo.log are accepted, too. "
        "Exit status: 0: nothing wrong, 1: warnings, 2: errors, 3: the database, Placement or Nova "
        "did not answer.",
        allow_abbrev=False,
    )
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument(
        "--after-restore",
        action="store_true",
        help="After a restore of the database: refuse binds on every host until this audit has "
        "compared it with Placement and Nova, and repair unknown-holder. Run it before the "
        "conductors start.",
    )
    modes.add_argument(
        "--fix",
        action="store_true",
        help="Repair the findings that have a repair, at most [audit] max_changes at a time.",
    )
    parser.add_argument(
        "--host", help="Audit this host only (the name of its provider in Placement)."
    )
    parser.add_argument(
        "--format",
        choices=("table", "json"),
        default="table",
        help="Output format (default: table). Use json for scripts.",
    )
    options, rest = parser.parse_known_args(sys.argv[1:] if argv is None else argv)
    conf = cfg.ConfigOpts()
    # Keep the log off standard output, which holds the result of the command.
    log.register_options(conf)
    conf.set_default("use_stderr", True)
    try:
        configuration.prepare(rest, prog=PROG, conf=conf)
        db = Database.from_conf(conf)
        revisions.check(db)
        db.outbox = notifications.enabled(conf)
        # Nothing follows a commit here: conductors poll for work every second, and the heartbeats
        # of agents tell them that their hosts were published.
        auditor = make_auditor(conf, db)
        if options.after_restore:
            report = audit_after_restore(auditor, db, host=options.host)
        else:
            report = audit(
                auditor,
                db if options.fix else None,
                host=options.host,
                limit=AuditOptions.read(conf).max_changes,
            )
    except exception.CyborgError as error:
        print(f"{PROG}: {configuration.explained(error, conf)}", file=sys.stderr)
        return INCOMPLETE
    print_report = print_json if options.format == "json" else print_table
    print_report(report, sys.stdout)
    for message in report.verdict.unasked:
        print(f"{PROG}: {message}", file=sys.stderr)
    if report.verdict.unasked and options.fix:
        print(f"{PROG}: Nothing was repaired.", file=sys.stderr)
    if report.verdict.unasked and options.after_restore:
        print(f"{PROG}: Binds are held. Run this command again.", file=sys.stderr)
    return report.status


def audit_ages(conf: cfg.ConfigOpts) -> Ages:
    """Return the ages after which an audit reports something as late, from the configuration."""
    audits, heartbeat = AuditOptions.read(conf), AgentOptions.read(conf).heartbeat_interval
    lease = ConductorOptions.read(conf).lease
    return Ages(
        settle=_milliseconds(2 * max(DefaultOptions.read(conf).periodic_interval, heartbeat)),
        agent_silence=down_after(heartbeat_interval=heartbeat, lease=lease)[AGENT],
        conductor_silence=_milliseconds(max(10.0, 3 * lease)),
        unbound=_milliseconds(audits.unbound_age),
        allocation=_milliseconds(audits.allocation_age),
        lost=_milliseconds(audits.lost_age),
    )


def make_auditor(conf: cfg.ConfigOpts, db: Reader) -> Auditor:
    """Return an auditor with the accounts of [placement] and [nova]; raises ConfigError."""
    sessions = Sessions(conf)
    return Auditor(
        db=db,
        placement=Placement(sessions.placement()),
        servers=Servers(sessions.nova()),
        ages=audit_ages(conf),
    )


@dataclass(frozen=True)
class Report:
    """The findings of an audit, and the results of their repairs."""

    verdict: AuditResult
    repairs: tuple[Repaired, ...] = ()

    @property
    def repaired_findings(self) -> set[Finding]:
        """Return the findings that were repaired."""
        return {answer.finding for answer in self.repairs if not answer.reason}

    @property
    def status(self) -> int:
        """Return the exit status."""
        if self.verdict.unasked:
            return INCOMPLETE
        remaining = set(self.verdict.findings) - self.repaired_findings
        return int(max((finding.severity for finding in remaining), default=Severity.INFO))

    def outcome(self, finding: Finding) -> str:
        """Return the result of a finding's repair, empty if there was no attempt."""
        for answer in self.repairs:
            if answer.finding == finding and answer.reason:
                return f"not repaired: {answer.reason}"
            if answer.finding == finding:
                # Only the agent writes to Placement. The next audit shows whether it succeeded.
                return "given to its agent" if finding.fix is Fix.REPUBLISH else "repaired"
        return ""


def audit(auditor: Auditor, db: Database | None, *, host: str | None, limit: int) -> Report:
    """Audit, and repair the findings in ``db``, unless Placement or Nova did not answer.

    Without ``db`` nothing is repaired.
    """
    verdict = auditor.look(host)
    if db is None or verdict.unasked:
        return Report(verdict)
    return Report(verdict, tuple(repair(db, verdict.findings, limit)))


def audit_after_restore(auditor: Auditor, db: Database, *, host: str | None) -> Report:
    """Hold binds, audit, set the units of unknown holders aside, and allow binds again.

    Binds stay held everywhere if Placement or Nova did not answer, and on each host whose unknown
    holders could not be repaired.
    """
    hold_units(db, host)
    verdict = auditor.look(host)
    if verdict.unasked:
        return Report(verdict)
    unknown = [finding for finding in verdict.findings if finding.kind is Kind.UNKNOWN_HOLDER]
    repaired = tuple(repair(db, unknown, limit=len(unknown)))
    held = [answer.finding.host for answer in repaired if answer.reason]
    allow_units(db, host, held)
    left = tuple(
        finding
        for finding in verdict.findings
        if finding.kind is not Kind.UNCHECKED_HOST or finding.host in held
    )
    return Report(replace(verdict, findings=left), repaired)


def print_json(report: Report, out: TextIO) -> None:
    """Print the report as one JSON document."""
    findings = [
        {
            "severity": finding.severity.name.lower(),
            "invariant": finding.invariant.value,
            "kind": finding.kind.value,
            "host": finding.host,
            "noun": finding.noun,
            "key": finding.key,
            "cause": finding.cause,
            "remedy": finding.remedy,
            "fix": finding.fix.value if finding.fix else None,
            "outcome": report.outcome(finding) or None,
        }
        for finding in report.verdict.findings
    ]
    document: dict[str, Any] = {"findings": findings, "unasked": list(report.verdict.unasked)}
    print(json.dumps(document, indent=2), file=out)


def print_table(report: Report, out: TextIO) -> None:
    """Print a line for each finding, in colours on a terminal unless NO_COLOR is set."""
    findings = report.verdict.findings
    if findings:
        rows = [_HEADER]
        rows.extend(
            (
                finding.severity.name.lower(),
                finding.invariant.value,
                escaped(finding.host or "-"),
                escaped(f"{finding.noun} {finding.key}"),
                finding.kind.value,
                escaped(finding.cause),
                escaped(report.outcome(finding) or finding.remedy),
            )
            for finding in findings
        )
        colours = [terminal.BOLD, *(_COLOURS[finding.severity] for finding in findings)]
        for line in terminal.table(
            rows, colours=colours if terminal.supports_colours(out) else (), column=0
        ):
            print(line, file=out)
    print(_summary(report), file=out)


def _summary(report: Report) -> str:
    findings = report.verdict.findings
    if not findings:
        return "Nothing found." if not report.verdict.unasked else "Nothing found so far."
    parts = [
        f"{count} {_SEVERITY_NOUNS[severity]}{'s' if count > 1 else ''}"
        for severity in (Severity.ERROR, Severity.WARNING, Severity.INFO)
        if (count := sum(1 for finding in findings if finding.severity is severity))
    ]
    text = f"{', '.join(parts)} found"
    if report.repairs:
        return f"{text}, {len(report.repaired_findings)} repaired."
    fixable = sum(1 for finding in findings if finding.fix)
    return f"{text}; {fixable} can be repaired with --fix." if fixable else f"{text}."


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


if __name__ == "__main__":
    sys.exit(main())
