# SPDX-License-Identifier: Apache-2.0
"""The results as tables for people."""

from collections.abc import Sequence

from cyborg_tools.bench.figures import AuditFigure, Count, Figure, Results, aligned

_EXISTING = (
    "For comparison, the existing service with 1,000 other ARQs on two cores: 1.2 s to list them, "
    "1.1 s to read those of one instance, 0.5 ARQ life cycles a second with 8 clients."
)
_FLOOR = (
    "floor: an empty pecan controller behind the same middleware on the same server (cheroot, kept "
    "connections, over the loopback interface), plus the same SQL through the bare driver and "
    "json.dumps of the response; for a life cycle 4 empty requests, 3 empty RPC echoes and the "
    "time of the driver for its SQL and commits; for a report one echo and the SQL."
)
_IN_PROCESS = (
    "The in-process bus sleeps up to 50 ms in each call, so life cycles and reports mean little "
    "here and have no floor: measure them on RabbitMQ (--transport-url)."
)


def tables(results: Results, *, in_process: bool) -> str:
    """Return all results as text."""
    title = f"Cyborg on {results.database}, bus {results.transport}, {results.seconds:.0f} s"
    audits = ["Audits, in a process of their own", _audits(results.audits)]
    if not results.counts:
        return "\n\n".join([title, *audits])
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
        *audits,
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


def _costs(count: Count) -> str:
    return _plain((count.statements, count.commits, count.rpc))


def _plain(numbers: Sequence[int] | None) -> str:
    return " / ".join(map(str, numbers or ())) or "-"
