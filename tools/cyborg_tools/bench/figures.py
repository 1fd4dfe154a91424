# SPDX-License-Identifier: Apache-2.0
"""The results of a run, as values that become JSON or tables."""

import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

_EXISTING = (
    "For comparison, the existing service with 1,000 other ARQs on two cores: 1.2 s to list them, "
    "1.1 s to read those of one instance, 0.5 ARQ life cycles a second with 8 clients."
)
_FLOOR = (
    "floor: an empty pecan controller behind the same middleware on the same server (tornado, kept "
    "connections, over the loopback interface), plus the same SQL through the bare driver and "
    "json.dumps of the response; for a life cycle 4 empty requests, 3 empty RPC echoes and the "
    "time of the driver for its SQL and commits; for a report one echo and the SQL."
)
_IN_PROCESS = (
    "The in-process bus sleeps up to 50 ms in each call, so life cycles and reports mean little "
    "here and have no floor: measure them on RabbitMQ (--transport-url)."
)


@dataclass(frozen=True)
class Samples:
    """Times of one kind of request in seconds, and how long all of it took."""

    times: Sequence[float]
    elapsed: float

    @property
    def p50_ms(self) -> float:
        return statistics.median(self.times) * 1000

    @property
    def p99_ms(self) -> float:
        """What 99 of 100 stayed within (the slowest, for fewer than 100), in milliseconds."""
        ordered = sorted(self.times)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000

    @property
    def per_second(self) -> float:
        """How many there were in a second."""
        return len(self.times) / self.elapsed


@dataclass(frozen=True)
class Figure:
    """One measured thing.

    ``others`` are the unrelated requests in the database, ``rows`` how many things an answer
    holds. ``floor_ms`` is None where this run has no floor to compare with, ``aim`` is the ratio
    to it that should not be exceeded.
    """

    name: str
    others: int
    clients: int
    rows: int
    samples: int
    per_second: float
    p50_ms: float
    p99_ms: float
    floor_ms: float | None = None
    aim: float | None = None

    @classmethod
    def of(cls, name: str, found: Samples, **more: Any) -> "Figure":
        return cls(
            name=name,
            samples=len(found.times),
            per_second=found.per_second,
            p50_ms=found.p50_ms,
            p99_ms=found.p99_ms,
            **{"others": 0, "clients": 1, "rows": 1, **more},
        )

    @property
    def ratio(self) -> float | None:
        """The median as a multiple of the floor."""
        return self.p50_ms / self.floor_ms if self.floor_ms else None

    @property
    def missed(self) -> bool:
        return self.ratio is not None and self.aim is not None and self.ratio > self.aim

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio, "missed": self.missed}


@dataclass(frozen=True)
class Count:
    """What one kind of request cost among so many others, and what it may cost."""

    name: str
    others: int
    statements: int
    commits: int
    rpc: int
    allowed: tuple[int, int, int] | None

    @property
    def exceeded(self) -> bool:
        costs = (self.statements, self.commits, self.rpc)
        return self.allowed is not None and any(
            cost > most for cost, most in zip(costs, self.allowed, strict=True)
        )

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "exceeded": self.exceeded}


@dataclass(frozen=True)
class SigningFigure:
    """What signatures cost one call: HMACs, bytes of both messages, and the medians of its times.

    ``ratio`` is that of the times; it is None on the in-process bus, which has no times.
    """

    hmacs: int
    bytes: int
    calls: int
    off_ms: float
    required_ms: float
    ratio: float | None


@dataclass(frozen=True)
class AuditFigure:
    """Duration and peak memory of the process that audited a cloud with so many ARQs."""

    arqs: int
    seconds: float
    mebibytes: float
    findings: int


@dataclass(frozen=True)
class ScanFigure:
    """CPU milliseconds of an agent on a host with so many PCI functions and open files.

    ``scan_ms``: read the functions and decide which are in use (``elapsed_ms``: by the clock).
    ``round_ms``: the same, and what two drivers do with it. ``stats_ms``: ask for the statistics of
    every fourth function, apart from the commands. ``facts_ms``: read the functions, and describe
    each as an offered device, after an earlier round.
    """

    functions: int
    open_files: int
    scan_ms: float
    elapsed_ms: float
    round_ms: float
    stats_ms: float
    facts_ms: float


@dataclass(frozen=True)
class WideQuery:
    """What a query of allocation candidates took of the CPU, and how many it found."""

    seconds: float
    candidates: int


@dataclass(frozen=True)
class WideTreeFigure:
    """A query for so many equal groups on a host with so many devices.

    Without and with the options of Placement for wide trees. A query that took more than ``limit``
    seconds of CPU is None.
    """

    groups: int
    devices: int
    limit: int
    defaults: WideQuery | None
    options: WideQuery | None


@dataclass(frozen=True)
class ExplanationFigure:
    """Seconds of an explanation in a cloud of so many hosts with so many devices each.

    For a profile that fits, and for one with a trait that no provider has: of the CPU of the
    process (with SQLite, the database's are among them), and by the clock.
    """

    hosts: int
    devices: int
    fits_cpu: float
    fits_clock: float
    never_cpu: float
    never_clock: float


@dataclass(frozen=True)
class CapacityFigure:
    """Seconds of CPU of this process for the capacity of a cloud with so many hosts and devices.

    ``whole``: one profile in the whole cloud; ``by_host``: the same with a row for each host;
    ``profiles``: so many profiles in the whole cloud. ``clock`` is the time of ``whole`` by the
    clock.
    """

    hosts: int
    devices: int
    whole: float
    clock: float
    by_host: float
    profiles: int
    of_profiles: float


@dataclass
class Results:
    """Everything of one run; ``floor`` holds the parts that the floors are made of."""

    database: str
    transport: str
    counts: list[Count] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    floor: list[Figure] = field(default_factory=list)
    audits: list[AuditFigure] = field(default_factory=list)
    scans: list[ScanFigure] = field(default_factory=list)
    signing: list[SigningFigure] = field(default_factory=list)
    wide_trees: list[WideTreeFigure] = field(default_factory=list)
    explanations: list[ExplanationFigure] = field(default_factory=list)
    capacities: list[CapacityFigure] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def exceeded(self) -> list[Count]:
        return [one for one in self.counts if one.exceeded]

    def document(self) -> dict[str, Any]:
        return {
            "database": self.database,
            "transport": self.transport,
            "python": platform.python_version(),
            "seconds": self.seconds,
            "counts": [one.document() for one in self.counts],
            "floor": [one.document() for one in self.floor],
            "figures": [one.document() for one in self.figures],
            "audits": [asdict(one) for one in self.audits],
            "scans": [asdict(one) for one in self.scans],
            "signing": [asdict(one) for one in self.signing],
            "wide_trees": [asdict(one) for one in self.wide_trees],
            "explanations": [asdict(one) for one in self.explanations],
            "capacities": [asdict(one) for one in self.capacities],
        }


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A table with a line below its head; the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in [rows[0], ["-" * width for width in widths], *rows[1:]]:
        cells = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def tables(results: Results, *, in_process: bool) -> str:
    title = f"Cyborg on {results.database}, bus {results.transport}, {results.seconds:.0f} s"
    ends = []
    if results.audits:
        ends += ["Audits, in a process of their own", _audits(results.audits)]
    if results.scans:
        ends += ["Rounds of an agent (milliseconds of CPU; scan: also by the clock)"]
        ends += [_scans(results.scans)]
    if results.signing:
        ends += ["Signed messages: one call that does nothing (times in ms, calls take turns)"]
        ends += [_signing(results.signing)]
    if results.wide_trees:
        ends += ["Queries of allocation candidates (seconds of CPU, and candidates)"]
        ends += [_wide_trees(results.wide_trees)]
    if results.explanations:
        ends += ["Explanations of profiles (seconds of the CPU of the process, and by the clock)"]
        ends += [_explanations(results.explanations)]
    if results.capacities:
        ends += [
            "Capacity of profiles (seconds of the CPU of the process; whole: also by the clock)"
        ]
        ends += [_capacities(results.capacities)]
    if not results.counts:
        return "\n\n".join([title, *ends])
    parts = [
        title,
        "Statements / commits / RPC calls of each request, among so many unrelated requests",
        _counts(results.counts),
        "The parts of the floor (times in ms)",
        _figures(results.floor),
        "Reads, one client (times in ms; ratio: p50 to its floor)",
        _figures([one for one in results.figures if _is_read(one)]),
        "Life cycles and reports",
        _figures([one for one in results.figures if not _is_read(one)]),
        *ends,
        _FLOOR,
        *([_IN_PROCESS] if in_process else []),
        _EXISTING,
        _verdict(results),
    ]
    return "\n\n".join(parts)


def _verdict(results: Results) -> str:
    missed = [one for one in results.figures if one.missed]
    lines = [f"{len(results.counts)} counts, {len(results.exceeded)} above what is allowed."]
    lines += [
        f"  {one.name} among {one.others:,}: {_costs(one)}, allowed {_plain(one.allowed)}"
        for one in results.exceeded
    ]
    lines.append(f"{len(missed)} figures above their target (marked !).")
    return "\n".join(lines)


def _is_read(figure: Figure) -> bool:
    return figure.name.startswith(("show", "list"))


def _counts(counts: Sequence[Count]) -> str:
    sizes = sorted({one.others for one in counts})
    names = list(dict.fromkeys(one.name for one in counts))
    found = {(one.name, one.others): one for one in counts}
    rows = [["request", "allowed", *(f"{size:,}" for size in sizes)]]
    for name in names:
        row = [found[name, size] for size in sizes if (name, size) in found]
        costs = (_costs(one) + (" !" if one.exceeded else "") for one in row)
        rows.append([name, _plain(row[0].allowed), *costs])
    return aligned(rows)


def _figures(figures: Sequence[Figure]) -> str:
    rows = [["", "unrelated", "clients", "rows", "per s", "p50", "p99", "floor", "ratio", "aim"]]
    rows += [
        [
            one.name,
            f"{one.others:,}",
            str(one.clients),
            f"{one.rows:,}",
            f"{one.per_second:,.1f}",
            f"{one.p50_ms:,.2f}",
            f"{one.p99_ms:,.2f}",
            "-" if one.floor_ms is None else f"{one.floor_ms:,.2f}",
            "-" if one.ratio is None else f"{one.ratio:.2f}" + (" !" if one.missed else ""),
            "-" if one.aim is None or one.ratio is None else f"{one.aim:.0f}",
        ]
        for one in figures
    ]
    return aligned(rows)


def _audits(audits: Sequence[AuditFigure]) -> str:
    rows = [["ARQs", "seconds", "peak MiB", "findings"]]
    rows += [
        [f"{one.arqs:,}", f"{one.seconds:.1f}", f"{one.mebibytes:.0f}", f"{one.findings:,}"]
        for one in audits
    ]
    return aligned(rows)


def _scans(scans: Sequence[ScanFigure]) -> str:
    rows = [["PCI functions", "open files", "scan", "clock", "round", "statistics", "facts"]]
    rows += [
        [
            f"{one.functions:,}",
            f"{one.open_files:,}",
            *(
                f"{value:.0f}"
                for value in (
                    one.scan_ms,
                    one.elapsed_ms,
                    one.round_ms,
                    one.stats_ms,
                    one.facts_ms,
                )
            ),
        ]
        for one in scans
    ]
    return aligned(rows)


def _signing(figures: Sequence[SigningFigure]) -> str:
    rows = [["HMACs", "bytes", "calls", "off", "required", "ratio"]]
    rows += [
        [
            str(one.hmacs),
            str(one.bytes),
            f"{one.calls:,}",
            *(f"{one.off_ms:.3f}", f"{one.required_ms:.3f}"),
            "-" if one.ratio is None else f"{one.ratio:.3f}",
        ]
        for one in figures
    ]
    return aligned(rows)


def _wide_trees(figures: Sequence[WideTreeFigure]) -> str:
    rows = [["groups", "devices", "defaults", "candidates", "options", "candidates"]]
    for one in figures:
        row = [str(one.groups), str(one.devices)]
        for query in (one.defaults, one.options):
            row += (
                [f"> {one.limit}", "-"]
                if query is None
                else [f"{query.seconds:.2f}", f"{query.candidates:,}"]
            )
        rows.append(row)
    return aligned(rows)


def _explanations(figures: Sequence[ExplanationFigure]) -> str:
    rows = [["hosts", "devices each", "fits", "clock", "never", "clock"]]
    rows += [
        [
            f"{one.hosts:,}",
            str(one.devices),
            *(f"{one.fits_cpu:.2f}", f"{one.fits_clock:.2f}"),
            *(f"{one.never_cpu:.2f}", f"{one.never_clock:.2f}"),
        ]
        for one in figures
    ]
    return aligned(rows)


def _capacities(figures: Sequence[CapacityFigure]) -> str:
    rows = [["hosts", "devices each", "whole", "clock", "by host", "profiles", "all of them"]]
    rows += [
        [
            f"{one.hosts:,}",
            str(one.devices),
            *(f"{one.whole:.2f}", f"{one.clock:.2f}", f"{one.by_host:.2f}"),
            *(str(one.profiles), f"{one.of_profiles:.2f}"),
        ]
        for one in figures
    ]
    return aligned(rows)


def _costs(count: Count) -> str:
    return _plain((count.statements, count.commits, count.rpc))


def _plain(numbers: Sequence[int] | None) -> str:
    return " / ".join(map(str, numbers or ())) or "-"
