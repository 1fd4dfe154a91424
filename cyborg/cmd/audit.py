# SPDX-License-Identifier: Apache-2.0
"""cyborg-audit: what does not hold in this cloud, why, and what to do about it.

Ends with 0 when nothing is wrong, 1 for warnings, 2 for errors (or a wrong command line), 3 when
the database, Placement or Nova could not be asked, so that nobody knows. What ``--fix`` repaired
does not count.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from oslo_config import cfg
from oslo_log import log

from cyborg import conf as configuration
from cyborg import exception
from cyborg.clients.keystone import Sessions
from cyborg.clients.nova import Servers
from cyborg.clients.placement import Placement
from cyborg.conductor.audit.auditor import Auditor, Verdict
from cyborg.conductor.audit.repairs import Repaired, Repairs
from cyborg.db import schema
from cyborg.db.engine import Database, Reader
from cyborg.model.audit_findings import Finding, Fix, Severity
from cyborg.model.audit_rules import Ages

PROG = "cyborg-audit"
UNKNOWN = 3
_COLOURS = {Severity.ERROR: "31", Severity.WARNING: "33", Severity.INFO: "36"}
_NAMES = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_HEAD = ("SEVERITY", "INVARIANT", "HOST", "WHAT", "FOUND", "CAUSE", "REMEDY")


def main(argv: Sequence[str] | None = None) -> int:
    """Audit once; answers the exit status."""
    parser = argparse.ArgumentParser(
        prog=PROG,
        description="Find, and with --fix repair, what does not hold between the database, "
        "Placement and Nova. Changes nothing without --fix.",
        epilog="Takes --config-file, --config-dir and oslo.log's options, too. Ends with 0: "
        "nothing wrong, 1: warnings, 2: errors, 3: somebody could not be asked.",
        allow_abbrev=False,
    )
    parser.add_argument("--fix", action="store_true", help="repair what can be repaired")
    parser.add_argument("--host", help="look at this host only (the name of its provider)")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    wanted, rest = parser.parse_known_args(sys.argv[1:] if argv is None else argv)
    conf = cfg.ConfigOpts()
    # Standard output is for the answer: without this, oslo.log would write there.
    log.register_options(conf)
    conf.set_default("use_stderr", True)
    try:
        configuration.prepare(rest, prog=PROG, conf=conf)
        db = Database.from_conf(conf)
        schema.check(db)
        report = audit(
            make_auditor(conf, db),
            # Conductors look for work by themselves, every second.
            Repairs(db=db, wake=lambda: None) if wanted.fix else None,
            host=wanted.host,
            limit=conf.audit.max_changes,
        )
    except exception.CyborgError as error:
        print(f"{PROG}: {configuration.explained(error, conf)}", file=sys.stderr)
        return UNKNOWN
    show = show_json if wanted.format == "json" else show_table
    show(report, sys.stdout)
    for sentence in report.verdict.unasked:
        print(f"{PROG}: {sentence}", file=sys.stderr)
    if report.verdict.unasked and wanted.fix:
        print(f"{PROG}: Nothing was repaired.", file=sys.stderr)
    return report.status


def ages(conf: cfg.ConfigOpts) -> Ages:
    """From when on something counts as late, as this configuration has it."""
    return Ages(
        settle=_ms(2 * max(conf.periodic_interval, conf.agent.heartbeat_interval)),
        agent_silence=_ms(3 * conf.agent.heartbeat_interval),
        conductor_silence=_ms(max(10.0, 3 * conf.conductor.lease)),
        unbound=_ms(conf.audit.unbound_age),
        allocation=_ms(conf.audit.allocation_age),
        lost=_ms(conf.audit.lost_age),
    )


def make_auditor(conf: cfg.ConfigOpts, db: Reader) -> Auditor:
    """An auditor with the accounts of [placement] and [nova]; raises exception.ConfigError."""
    sessions = Sessions(conf)
    return Auditor(
        db=db,
        placement=Placement(sessions.placement()),
        servers=Servers(sessions.nova()),
        ages=ages(conf),
    )


@dataclass(frozen=True)
class Report:
    """What was found and what became of it."""

    verdict: Verdict
    repaired: tuple[Repaired, ...] = ()

    @property
    def done(self) -> set[Finding]:
        """What does not hold no more."""
        return {one.finding for one in self.repaired if not one.reason}

    @property
    def status(self) -> int:
        """The exit status."""
        if self.verdict.unasked:
            return UNKNOWN
        left = set(self.verdict.findings) - self.done
        return int(max((one.severity for one in left), default=Severity.INFO))

    def outcome(self, finding: Finding) -> str:
        """What ``--fix`` made of a finding, empty if it did not try."""
        for one in self.repaired:
            if one.finding == finding and one.reason:
                return f"not repaired: {one.reason}"
            if one.finding == finding:
                # Placement is the agent's to write; whether it did shows the next audit.
                return "given to its agent" if finding.fix is Fix.REPUBLISH else "repaired"
        return ""


def audit(auditor: Auditor, repairs: Repairs | None, *, host: str | None, limit: int) -> Report:
    """Look, and repair if there is somebody to do it and everybody could be asked."""
    verdict = auditor.look(host)
    if repairs is None or verdict.unasked:
        return Report(verdict)
    return Report(verdict, tuple(repairs.repair(verdict.findings, limit)))


def show_json(report: Report, out: TextIO) -> None:
    """One document, for programs."""
    findings = [
        {
            "severity": one.severity.name.lower(),
            "invariant": one.invariant.value,
            "kind": one.kind.value,
            "host": one.host,
            "noun": one.noun,
            "key": one.key,
            "cause": one.cause,
            "remedy": one.remedy,
            "fix": one.fix.value if one.fix else None,
            "outcome": report.outcome(one) or None,
        }
        for one in report.verdict.findings
    ]
    document: dict[str, Any] = {"findings": findings, "unasked": list(report.verdict.unasked)}
    print(json.dumps(document, indent=2), file=out)


def show_table(report: Report, out: TextIO) -> None:
    """A line for each finding; in colours where ``out`` is a terminal and NO_COLOR is not set."""
    findings = report.verdict.findings
    if findings:
        rows = [_HEAD, *(_row(report, one) for one in findings)]
        # The last column is as wide as it likes.
        widths = [max(len(row[index]) for row in rows) for index in range(len(_HEAD) - 1)]
        coloured = out.isatty() and not os.environ.get("NO_COLOR")
        for row, finding in zip(rows, [None, *findings], strict=True):
            first, *cells = (
                text.ljust(width) for text, width in zip(row, [*widths, 0], strict=True)
            )
            if coloured:
                colour = _COLOURS[finding.severity] if finding else "1"
                first = f"\033[{colour}m{first}\033[0m"
            print("  ".join([first, *cells]).rstrip(), file=out)
    print(_summary(report, findings), file=out)


def _row(report: Report, one: Finding) -> tuple[str, ...]:
    remedy = report.outcome(one) or one.remedy
    what = f"{one.noun} {one.key}"
    return (
        one.severity.name.lower(),
        one.invariant.value,
        one.host or "-",
        what,
        one.kind.value,
        one.cause,
        remedy,
    )


def _summary(report: Report, findings: Iterable[Finding]) -> str:
    known = list(findings)
    if not known:
        return "Nothing found." if not report.verdict.unasked else "Nothing found so far."
    parts = [
        f"{count} {_NAMES[severity]}{'s' if count > 1 else ''}"
        for severity in (Severity.ERROR, Severity.WARNING, Severity.INFO)
        if (count := sum(1 for one in known if one.severity is severity))
    ]
    text = f"{', '.join(parts)} found"
    if report.repaired:
        return f"{text}, {len(report.done)} repaired."
    fixable = sum(1 for one in known if one.fix)
    return f"{text}; {fixable} can be repaired with --fix." if fixable else f"{text}."


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


if __name__ == "__main__":
    sys.exit(main())
