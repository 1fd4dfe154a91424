# SPDX-License-Identifier: Apache-2.0
"""The ``cyborg-status`` program: the health of a deployment, and its readiness for an upgrade.

``check`` shows the health of every process and of the services that Cyborg uses. Its exit status
is 0 (no problem), 1 (warnings), 2 (failures: the service as a whole does not work) or 255 (the
configuration cannot be used). The exit status of ``upgrade check`` is, as oslo.upgradecheck
defines it, 0 (continue), 1 (continue, but read the warnings), 2 (solve the failures first) or 255
(a check could not run).
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TextIO

from oslo_config import cfg
from oslo_log import log
from oslo_upgradecheck import upgradecheck

from cyborg import conf as configuration
from cyborg import exception
from cyborg.api.readiness import Observer
from cyborg.cmd import checks
from cyborg.cmd.checks import Deployment
from cyborg.db.engine import Reader
from cyborg.model.readiness import Component, Level, worst
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.transport import Bus
from cyborg_cli import terminal
from cyborg_cli.text import escaped

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Subparsers = object

PROG = "cyborg-status"
_UNUSABLE = 255
#: The width of the output where it is no terminal, in characters.
_WIDTH: Final = 80
_SUMMARIES: Final = {Level.OK: "All well.", Level.WARNING: "Warnings.", Level.FAILURE: "Failures."}

#: All checks in the order of the steps of an upgrade. Scripts use these names.
CHECKS: Final[tuple[tuple[str, Callable[[Deployment], upgradecheck.Result]], ...]] = (
    ("Policy File JSON to YAML Migration", checks.policy_file),
    ("Policy rules", checks.policy_rules),
    ("Duplicate rows", checks.duplicates),
    ("Schema at head", checks.schema_at_head),
    ("Device state backfill", checks.device_states),
    ("Devices that wait", checks.waiting_devices),
    ("Options of drivers", checks.driver_options),
    ("Services of one release", checks.releases),
    ("Services that are silent", checks.silent_services),
    ("Orphaned accelerator requests", checks.orphans),
    ("Account at Nova", checks.nova_account),
    ("Account at Placement", checks.placement_account),
    ("Five devices for one server", checks.wide_trees),
    ("Message signing", checks.message_signing),
)


#: The checks on a compute host, whose configuration has neither a database nor Nova.
HOST_CHECKS: Final = (
    ("Account at Placement", checks.placement_account),
    ("Account of the agent", checks.agent_account),
)


class Checks(Deployment):
    """The command that oslo.upgradecheck runs."""

    _upgrade_checks = CHECKS


class HostChecks(Deployment):
    """The command on a compute host."""

    _upgrade_checks = HOST_CHECKS


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    conf = cfg.ConfigOpts()
    deployment_checks, host_checks = Checks(conf), HostChecks(conf)

    def chosen() -> Deployment:
        return host_checks if checks.is_compute_host(conf) else deployment_checks

    def add_commands(subparsers: Subparsers) -> None:
        check = subparsers.add_parser(
            "check", help="Show the health of every process and of the services that Cyborg uses."
        )
        check.add_argument(
            "--format",
            choices=("table", "json"),
            default="table",
            help="Output format (default: table). Use json for scripts.",
        )
        # oslo.upgradecheck adds these arguments in its own main(), which has no other command.
        upgrade = subparsers.add_parser(
            "upgrade", help="Check whether this release can run on this deployment."
        )
        upgrade.add_argument("check")
        upgrade.add_argument(
            "--json", action="store_true", help="Print the results as JSON. Use it in scripts."
        )
        upgrade.set_defaults(action_fn=lambda: chosen().check())

    command = cfg.SubCommandOpt("command", title="commands", handler=add_commands)
    conf.register_cli_opt(command)
    # Keep the log off standard output, which holds the result of the command.
    log.register_options(conf)
    conf.set_default("use_stderr", True)
    try:
        configuration.prepare(sys.argv[1:] if argv is None else argv, prog=PROG, conf=conf)
        if conf.command.name == "check" or chosen() is deployment_checks:
            # Most checks need the database; report here if its configuration cannot be used.
            _ = deployment_checks.db
        if conf.command.name == "check":
            # Read the same files into the global object, the only one that oslo.messaging can use.
            files = [f"--config-file={name}" for name in conf.config_file or ()]
            directories = [f"--config-dir={name}" for name in conf.config_dir or ()]
            cfg.CONF.clear()
            log.register_options(cfg.CONF)
            cfg.CONF.set_default("use_stderr", True)
            configuration.prepare([*files, *directories], prog=PROG)
            return print_health(cfg.CONF, conf.command.format)
    except exception.ConfigError as error:
        print(f"{PROG}: {configuration.explained(error, conf)}", file=sys.stderr)
        return _UNUSABLE
    # oslo.upgradecheck's own main() would set this; its run() reads --json there.
    upgradecheck.CONF = conf
    return int(upgradecheck.run(conf))


def print_health(conf: cfg.ConfigOpts, output_format: str) -> int:
    """Print the health of every component as ``table`` or ``json``; return the exit status.

    Raises exception.ConfigError.
    """
    reader, bus = Reader.from_conf(conf), Bus(conf)
    conductor = ConductorClient(bus, timeout=conf.rpc_response_timeout)
    components = Observer(conf, reader=reader, conductor=conductor).components()
    conductor.close()
    if output_format == "json":
        document = {
            "level": worst(components).name.lower(),
            "components": [component.document for component in components],
        }
        print(json.dumps(document, indent=2))
    else:
        print_table(components, sys.stdout, width=terminal.width_of(sys.stdout, _WIDTH))
    reader.close()
    return int(worst(components))


def print_table(components: Sequence[Component], out: TextIO, *, width: int) -> None:
    """Print a line for each component, with cause and remedy below it if there is a problem."""
    rows = [(escaped(component.name), component.state) for component in components]
    for line, component in zip(terminal.table(rows), components, strict=True):
        print(line, file=out)
        for text in (component.cause, component.remedy):
            for detail in terminal.wrapped(escaped(text), max(width - 1, 40), indent="    "):
                print(detail, file=out)
    print(_SUMMARIES[worst(components)], file=out)


if __name__ == "__main__":
    sys.exit(main())
