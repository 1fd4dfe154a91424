# SPDX-License-Identifier: Apache-2.0
"""``cyborg-agent --discover``: print what a host has and what would be offered; change nothing.

The keys of the JSON document are described in doc/source/admin/devices.rst.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TextIO

from oslo_config import cfg

from cyborg import exception
from cyborg.agent import discover
from cyborg.agent.discover import Difference, Discovery, Row
from cyborg.agent.state_store import DesiredStateCache, ReadOnlyStateStore
from cyborg.drivers import archive, catalogue, loader
from cyborg.drivers.host import Host, LocalHost
from cyborg.drivers.ownership import NO_IOMMU
from cyborg.model.report import DriverState, Report
from cyborg_cli import terminal
from cyborg_cli.text import escaped

#: The version of the JSON document.
FORMAT: Final = 1
OPTIONS: Final = (
    cfg.BoolOpt(
        "discover",
        default=False,
        help="Print the devices of this host, which of them would be offered and why the others "
        "are not, and exit. Nothing is changed, written or sent, and Placement is not asked: "
        "devices that Nova offers itself are not marked.",
    ),
    cfg.MultiStrOpt(
        "driver",
        dest="discover_drivers",
        default=[],
        metavar="NAME",
        help="With --discover: call only this driver, enabled or not. Repeat the option for more "
        "drivers. The default is the drivers of [agent] enabled_drivers and of the last desired "
        "state, and all installed drivers as not enabled. With --list-functions: list the "
        "functions of this driver, too.",
    ),
    cfg.StrOpt(
        "host",
        dest="discover_host",
        metavar="ARCHIVE",
        help="With --discover or --list-functions: read this archive of a host, a directory or "
        "tar.gz file of tools/capture-host, instead of this machine.",
    ),
    cfg.BoolOpt(
        "json",
        dest="discover_json",
        default=False,
        help="With --discover: print one JSON document instead of a table.",
    ),
    cfg.BoolOpt(
        "diff",
        dest="discover_diff",
        default=False,
        help="With --discover: also print what the next report would change, compared with the "
        "last report in the state file below [DEFAULT] state_path.",
    ),
)

_HEAD: Final = ("Address", "Kind", "Vendor", "Model", "Host driver", "Offered")
_NARROWEST: Final = 60
_WIDTH: Final = 100


def run(conf: cfg.ConfigOpts, out: TextIO) -> int:
    """Print what the options ask for; return the exit status.
    Raises exception.ConfigError when a driver's option, ``--driver`` or ``--host`` cannot be used.
    """
    path: str | None = conf.discover_host
    host: Host = LocalHost() if path is None else archive.read(Path(path))
    only = frozenset(conf.discover_drivers)
    state = ReadOnlyStateStore(Path(conf.state_path), conf.host)
    cache = DesiredStateCache(state)
    discovery = discover.discover(
        _load(conf, host),
        host,
        timeout=conf.agent.scan_timeout,
        load=lambda name, options: loader.load_with_options(name, host, conf, options=options),
        # The state file is about this machine.
        desired=cache.desired if path is None else None,
        only=only,
        traits={
            "topology_traits": conf.agent.topology_traits,
            "compat_traits": conf.agent.compat_traits,
            "read_catalogue": lambda: catalogue.read(conf),
        },
    )
    changes: list[Difference] | None = None
    problem = None
    if conf.discover_diff:
        if cache.report is not None:
            before = discover.restricted(cache.report, only)
            changes = discover.changes(before, discovery.report)
        else:
            problem = state.error or f"the state file {state.path} has no report"
    if conf.discover_json:
        document = as_json(discovery, conf.host, path)
        if conf.discover_diff:
            document["diff"] = None if changes is None else [_change(change) for change in changes]
            document["diff_error"] = problem
        print(json.dumps(document, indent=2), file=out, flush=True)
        return 0
    page = Printer(out)
    page.show(discovery)
    if changes is not None:
        page.show_changes(changes)
    elif problem is not None:
        page.say(f"The next report cannot be compared: {problem}.")
    out.flush()
    return 0


def check(conf: cfg.ConfigOpts, *, listing: bool = False) -> None:
    """Raise exception.ConfigError for options that mean something only with ``--discover``.

    ``listing`` says that functions are listed: ``--driver`` and ``--host`` mean something then.
    """
    if conf.discover:
        return
    for option in OPTIONS[1:]:
        if conf[option.dest] and not (listing and option.name in {"driver", "host"}):
            raise exception.ConfigError(reason=f"Option --{option.name} needs --discover.")


def _load(conf: cfg.ConfigOpts, host: Host) -> list[loader.LoadResult]:
    names = list(dict.fromkeys(conf.discover_drivers))
    if names:
        loaded = loader.load(names, host, conf)
        for result in loaded:
            if result.endpoint is None:
                raise exception.ConfigError(
                    reason=f"Option --driver: no driver {result.name!r} is installed."
                )
        return loaded
    enabled = loader.load(conf.agent.enabled_drivers, host, conf)
    return enabled + loader.load_disabled([result.name for result in enabled], host, conf)


def as_json(discovery: Discovery, host: str, path: str | None) -> dict[str, Any]:
    """Return the JSON document without the differences."""
    return {
        "format": FORMAT,
        "host": host,
        "archive": path,
        "drivers": [
            {
                "name": driver.driver,
                "state": driver.state.value,
                "error": driver.error,
                "devices": len(driver.devices),
            }
            for driver in discovery.report.drivers
        ],
        "devices": [
            {
                "address": row.address,
                "kind": row.kind,
                "type": row.type,
                "vendor": row.vendor,
                "model": row.model,
                "host_driver": row.host_driver,
                "numa_node": row.numa_node,
                "offered": row.offered_by is not None,
                "offered_by": row.offered_by,
                "units": row.units,
                "deployables": list(row.deployables),
                "reason": row.reason,
                "reasons": dict(row.reasons),
            }
            for row in discovery.rows
        ],
        "notes": list(discovery.notes),
    }


def _change(change: Difference) -> dict[str, Any]:
    return {**asdict(change), "details": dict(change.details)}


class Printer:
    """Print for people: as wide as the terminal, 100 columns where there is none."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._coloured = terminal.supports_colours(out)
        self._width = max(terminal.width_of(out, _WIDTH), _NARROWEST)

    def show(self, discovery: Discovery) -> None:
        """Print the table, the drivers that failed, and a summary."""
        for line in table(discovery.rows, self._width, coloured=self._coloured):
            print(line, file=self._out)
        if discovery.rows:
            print(file=self._out)
        for note in discovery.notes:
            self.say(note)
        if any(row.reason == NO_IOMMU for row in discovery.rows):
            self.say(f"{NO_IOMMU[0].upper()}{NO_IOMMU[1:]}.")
        self.say(summary(discovery.report, discovery.rows))

    def show_changes(self, changes: Sequence[Difference]) -> None:
        """Print what the next report would change."""
        if not changes:
            self.say("The next report would change nothing.")
            return
        self.say("The next report would change:")
        for change in changes:
            details = ", ".join(f"{name}: {value}" for name, value in change.details)
            text = f"{change.what} {change.key} of {change.driver} {change.change}"
            self.say(f"{text} ({details})" if details else text, indent="  ")

    def say(self, text: str, indent: str = "") -> None:
        """Print words, broken into lines."""
        hanging = f"{indent}  " if indent else ""
        for line in terminal.wrapped(escaped(text), self._width, indent=indent, hanging=hanging):
            print(line, file=self._out)


def summary(report: Report, rows: Sequence[Row]) -> str:
    """Return one sentence with the number of devices and of the drivers that are called."""
    enabled = [
        driver.driver for driver in report.drivers if driver.state is not DriverState.STOPPED
    ]
    offered = sum(row.offered_by is not None for row in rows)
    names = ", ".join(enabled) or "none"
    return f"{len(rows)} device(s), {offered} offered. Enabled drivers: {names}."


def table(rows: Sequence[Row], width: int, *, coloured: bool = False) -> Iterator[str]:
    """Yield the lines of the table, none longer than ``width``; long cells have several lines."""
    if not rows:
        return iter(())
    colours = [terminal.GREEN if row.offered_by else terminal.YELLOW for row in rows]
    return terminal.table(
        [_HEAD, *map(_cells, rows)],
        width=width,
        ruled=True,
        colours=["", *colours] if coloured else (),
        column=_HEAD.index("Offered"),
    )


def _cells(row: Row) -> tuple[str, ...]:
    kind = row.kind if row.type in {None, row.kind} else f"{row.kind} ({row.type})"
    # This reason is a sentence below the table, because it often concerns every function.
    reason = "the host has no IOMMU" if row.reason == NO_IOMMU else row.reason
    offered = f"no: {reason}" if row.offered_by is None else f"yes, by {row.offered_by}"
    if row.units > 1:
        offered += f" ({row.units} units)"
    cells = (row.address, kind, row.vendor, row.model, row.host_driver or "-", offered)
    return tuple(map(escaped, cells))
