# SPDX-License-Identifier: Apache-2.0
"""The command line of the benchmark."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

_DESCRIPTION = """\
Measure Cyborg: the statements, commits and RPC calls of each request against what they may be,
then requests per second and their times among 10, 1,000 and 10,000 unrelated accelerator requests,
then agents' reports; each beside its floor, measured in the same run; an audit; a round of an
agent on a large host; and signed messages. With --wide-tree, what Placement needs for many equal
groups; with --explain, what an explanation of a profile takes in a large cloud; with --capacity,
what counting further instances takes there. Ends with status 1 if a request costs more than it may.
"""


@dataclass(frozen=True)
class Plan:
    """What to measure; ``seconds`` is the duration of each measurement."""

    database_url: str | None
    transport_url: str
    others: tuple[int, ...]
    clients: tuple[int, ...]
    devices: tuple[int, ...]
    seconds: float
    as_json: bool
    audits: tuple[int, ...]
    scans: tuple[int, ...]
    signing: bool
    wide_trees: tuple[int, ...]
    explanations: tuple[int, ...]
    capacities: tuple[int, ...]
    #: The most CPU seconds of one query of allocation candidates.
    query_limit: int
    only_parts: bool

    @property
    def in_process(self) -> bool:
        return self.transport_url.startswith("fake:")


def parse(arguments: Sequence[str]) -> Plan:
    """Parse the command line; wrong usage ends the process."""
    parser = argparse.ArgumentParser(
        prog="bench", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--database-url",
        metavar="URL",
        help="server on which to make (and drop) a database, as in "
        "mysql+pymysql://root@127.0.0.1:3306/ or postgresql+psycopg2://postgres@127.0.0.1:5432/ "
        "(default: a SQLite file in a temporary directory)",
    )
    parser.add_argument(
        "--transport-url",
        metavar="URL",
        default="fake://",
        help="message bus, as in rabbit://guest:guest@127.0.0.1:5672/ (default: the in-process "
        "bus, which sleeps in each call: life cycles and reports need RabbitMQ)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="few rows and short times: checks that everything works, with inexact figures",
    )
    parser.add_argument(
        "--audit",
        metavar="N",
        type=int,
        nargs="+",
        help="measure only audits, of clouds with so many accelerator requests; a million take "
        "minutes and 2 GiB of disk (default: everything, with an audit of 1,000)",
    )
    parser.add_argument(
        "--scan",
        metavar="N",
        type=int,
        nargs="+",
        help="measure only rounds of an agent, on hosts with so many PCI functions and 20 times as "
        "many open files (default: everything, with a round on 100 functions)",
    )
    parser.add_argument(
        "--signing",
        action="store_true",
        help="measure only signed messages: HMACs and bytes of one call, and the time of a call "
        "with [DEFAULT] message_signing = required compared with off (default: everything)",
    )
    parser.add_argument(
        "--wide-tree",
        metavar="N",
        type=int,
        nargs="*",
        help="measure only queries of allocation candidates for so many equal groups, on the real "
        "Placement and a host with 8 devices, without and with the options of the installation "
        "guide; a query ends after 60 seconds of CPU (default: not measured; without N: 5 6 8)",
    )
    parser.add_argument(
        "--explain",
        metavar="N",
        type=int,
        nargs="+",
        help="measure only explanations of device profiles, in clouds of so many hosts with 16 "
        "devices each (default: not measured)",
    )
    parser.add_argument(
        "--capacity",
        metavar="N",
        type=int,
        nargs="+",
        help="measure only how many further instances of profiles fit, in clouds of so many hosts "
        "with 16 devices each (default: not measured)",
    )
    asked = parser.parse_args(arguments)
    quick: bool = asked.quick
    only_parts: bool = bool(
        asked.audit
        or asked.scan
        or asked.signing
        or asked.wide_tree is not None
        or asked.explain
        or asked.capacity
    )
    return Plan(
        database_url=asked.database_url,
        transport_url=asked.transport_url,
        others=(10,) if quick else (10, 1_000, 10_000),
        clients=(1, 2) if quick else (1, 8),
        devices=(8,) if quick else (8, 64, 256),
        seconds=0.2 if quick else 1.5,
        as_json=asked.json,
        audits=tuple(asked.audit or (() if only_parts else (1_000,))),
        scans=tuple(asked.scan or (() if only_parts else (100,))),
        signing=asked.signing or not only_parts,
        wide_trees=() if asked.wide_tree is None else tuple(asked.wide_tree or (5, 6, 8)),
        explanations=tuple(asked.explain or ()),
        capacities=tuple(asked.capacity or ()),
        query_limit=5 if quick else 60,
        only_parts=only_parts,
    )
