# SPDX-License-Identifier: Apache-2.0
"""cyborg-status upgrade check: whether this deployment may run the installed release.

Ends with 0 (go on), 1 (go on, but read the warnings), 2 (mend it first) or 255 (the checks
themselves failed), as oslo.upgradecheck has it.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Final

from oslo_config import cfg
from oslo_log import log
from oslo_upgradecheck import upgradecheck

from cyborg import conf as configuration
from cyborg import exception
from cyborg.cmd import peer_checks, site_checks
from cyborg.cmd.site_checks import Site

PROG = "cyborg-status"


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
    """Run the checks; answers the exit status."""
    conf = cfg.ConfigOpts()
    upgradecheck.register_cli_options(conf, Checks(conf))
    # Standard output is for the answer: without this, oslo.log would write there.
    log.register_options(conf)
    conf.set_default("use_stderr", True)
    try:
        configuration.prepare(sys.argv[1:] if argv is None else argv, prog=PROG, conf=conf)
    except exception.ConfigError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 255
    # Its own main() would set this; --json is looked up there.
    upgradecheck.CONF = conf
    return int(upgradecheck.run(conf))


if __name__ == "__main__":
    sys.exit(main())
