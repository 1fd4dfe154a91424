# SPDX-License-Identifier: Apache-2.0
"""cyborg-status: the state of a deployment, and whether it may run the installed release.

``check`` asks every process and peer how it is. It ends with 0 (all well), 1 (warnings), 2 (the
service does not work as a whole) or 255 (the configuration cannot be used). ``upgrade check``
ends with 0 (go on), 1 (go on, but read the warnings), 2 (mend it first) or 255 (the checks
themselves failed), as oslo.upgradecheck has it.
"""

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TextIO

from oslo_config import cfg
from oslo_log import log
from oslo_upgradecheck import upgradecheck

from cyborg import conf as configuration
from cyborg import exception
from cyborg.api.observing import Observer
from cyborg.cmd import peer_checks, site_checks
from cyborg.cmd.site_checks import Site
from cyborg.db.engine import Reader
from cyborg.model.health_view import Component, Level, worst
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.transport import Bus

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Subparsers = object

PROG = "cyborg-status"
_FAILED = 255
_WORDS: Final = {Level.OK: "All well.", Level.WARNING: "Warnings.", Level.FAILURE: "Failures."}


#: All checks in the order in which an upgrade goes; scripts know them by these names.
CHECKS: Final[tuple[tuple[str, Callable[[Site], upgradecheck.Result]], ...]] = (
    ("Policy File JSON to YAML Migration", site_checks.policy_file),
    ("Policy rules", site_checks.policy_rules),
    ("Duplicate rows", site_checks.duplicates),
    ("Schema at head", site_checks.schema_at_head),
    ("Device state backfill", site_checks.device_states),
    ("Devices that wait", site_checks.waiting_devices),
    ("Services of one release", site_checks.releases),
    ("Services that are silent", site_checks.silent_services),
    ("Orphaned accelerator requests", peer_checks.orphans),
    ("Account at Nova", peer_checks.nova_account),
    ("Account at Placement", peer_checks.placement_account),
)


class Checks(Site):
    """The command that oslo.upgradecheck runs."""

    _upgrade_checks = CHECKS


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; answers the exit status."""
    conf = cfg.ConfigOpts()
    checks = Checks(conf)

    def add_commands(subparsers: Subparsers) -> None:
        check = subparsers.add_parser("check", help="Ask every process and peer how it is.")
        check.add_argument("--format", choices=("table", "json"), default="table")
        # The arguments of oslo.upgradecheck, beside a command of ours.
        upgrade = subparsers.add_parser("upgrade", help="Check before an upgrade.")
        upgrade.add_argument("check")
        upgrade.add_argument("--json", action="store_true", help="print the results as JSON")
        upgrade.set_defaults(action_fn=checks.check)

    command = cfg.SubCommandOpt("command", title="commands", handler=add_commands)
    conf.register_cli_opt(command)
    # Standard output is for the answer: without this, oslo.log would write there.
    log.register_options(conf)
    conf.set_default("use_stderr", True)
    try:
        configuration.prepare(sys.argv[1:] if argv is None else argv, prog=PROG, conf=conf)
        # Most checks need the database, and none of them could say so as clearly.
        _ = checks.db
        if conf.command.name == "check":
            return health(_for_messaging(conf), conf.command.format)
    except exception.ConfigError as error:
        print(f"{PROG}: {configuration.explained(error, conf)}", file=sys.stderr)
        return _FAILED
    # Its own main() would set this; --json is looked up there.
    upgradecheck.CONF = conf
    return int(upgradecheck.run(conf))


def _for_messaging(conf: cfg.ConfigOpts) -> cfg.ConfigOpts:
    """The same files, read into the global object: oslo.messaging works with no other."""
    files = [f"--config-file={name}" for name in conf.config_file or ()]
    directories = [f"--config-dir={name}" for name in conf.config_dir or ()]
    cfg.CONF.clear()
    log.register_options(cfg.CONF)
    cfg.CONF.set_default("use_stderr", True)
    return configuration.prepare([*files, *directories], prog=PROG)


def health(conf: cfg.ConfigOpts, form: str) -> int:
    """Show the state of every process and peer as ``table`` or ``json``; answers the exit status.

    Raises exception.ConfigError.
    """
    reader, bus = Reader.from_conf(conf), Bus(conf)
    conductor = ConductorClient(bus, timeout=conf.rpc_response_timeout)
    components = Observer(conf, reader=reader, conductor=conductor).components()
    conductor.close()
    if form == "json":
        document = {
            "level": worst(components).name.lower(),
            "components": [one.document for one in components],
        }
        print(json.dumps(document, indent=2))
    else:
        show(components, sys.stdout, width=shutil.get_terminal_size().columns)
    reader.close()
    return int(worst(components))


def show(components: Sequence[Component], out: TextIO, *, width: int) -> None:
    """A line for each component, with cause and remedy below it where something is wrong."""
    names = max(len(one.name) for one in components)
    for one in components:
        print(f"{one.name.ljust(names)}  {one.state}", file=out)
        for text in (one.cause, one.remedy):
            indent = "    "
            wrapped = textwrap.wrap(
                text,
                max(width - 1, 40),
                initial_indent=indent,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
            for line in wrapped:
                print(line, file=out)
    print(_WORDS[worst(components)], file=out)


if __name__ == "__main__":
    sys.exit(main())
