# SPDX-License-Identifier: Apache-2.0
"""cyborg-status upgrade check: whether this deployment may run the installed release.

Ends with 0 (go on), 1 (go on, but read the warnings), 2 (mend it first) or 255 (the checks
themselves failed), as oslo.upgradecheck has it.
"""

import sys
from collections.abc import Sequence

import sqlalchemy as sa
from oslo_config import cfg
from oslo_db import exception as db_exc
from oslo_log import log
from oslo_upgradecheck import common_checks, upgradecheck

from cyborg import conf as configuration
from cyborg import exception
from cyborg.api import presence
from cyborg.cmd.audit import ages
from cyborg.db import backfill, schema, services
from cyborg.db.engine import Reader
from cyborg.model.names import AGENT, API, CONDUCTOR

PROG = "cyborg-status"

_MISSING = (exception.CyborgError, sa.exc.SQLAlchemyError, db_exc.DBError)


class Checks(upgradecheck.UpgradeCommands):
    """The checks, in the order in which an upgrade goes."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf

    def at_head(self) -> upgradecheck.Result:
        """The schema is the one that this release works on."""
        wanted = schema.head()
        try:
            db = Reader.from_conf(self._conf)
            current, problems = schema.version(db), schema.preflight(db)
        except _MISSING as error:
            return _failure(f"The database cannot be read: {_sentence(error)}")
        if problems:
            return _failure("cyborg-dbsync upgrade would refuse: " + " ".join(problems))
        if current != wanted:
            return _failure(
                f"The schema stands at {current}, this release needs {wanted}: run "
                "'cyborg-dbsync upgrade'."
            )
        return upgradecheck.Result(upgradecheck.Code.SUCCESS)

    def policy_file(self) -> upgradecheck.Result:
        """The policy file is YAML."""
        return common_checks.check_policy_json(self, self._conf)

    def device_states(self) -> upgradecheck.Result:
        """No device waits for its ``device_state``."""
        try:
            waiting = backfill.stateless_devices(Reader.from_conf(self._conf))
        except _MISSING as error:
            return _failure(f"devices.device_state cannot be read: {_sentence(error)}")
        if waiting:
            return _failure(
                f"{waiting} device(s) have no device_state: run "
                "'cyborg-dbsync online_data_migrations'."
            )
        return upgradecheck.Result(upgradecheck.Code.SUCCESS)

    def waiting_devices(self) -> upgradecheck.Result:
        """No device waits for an operator while none is enabled by itself."""
        try:
            waiting = backfill.inactive_devices(Reader.from_conf(self._conf))
        except _MISSING as error:
            return _failure(f"The table devices cannot be read: {_sentence(error)}")
        if not waiting or self._conf.conductor.auto_enable:
            return upgradecheck.Result(upgradecheck.Code.SUCCESS)
        return upgradecheck.Result(
            upgradecheck.Code.WARNING,
            f"{waiting} device(s) wait to be enabled, and [conductor] auto_enable is empty: enable "
            "them by the API, and name the drivers there whose devices need no operator's word.",
        )

    def one_release(self) -> upgradecheck.Result:
        """All processes that live are of one release."""
        try:
            db = Reader.from_conf(self._conf)
            with db.reader() as tx:
                seen = services.listed(tx, db.now, _down_after(self._conf))
        except _MISSING as error:
            return _failure(f"The table services cannot be read: {_sentence(error)}")
        hosts: dict[str, list[str]] = {}
        for one in seen:
            if one.up:
                name = f"{one.process.binary} on {one.process.host}"
                hosts.setdefault(one.process.version, []).append(name)
        if len(hosts) < 2:
            return upgradecheck.Result(upgradecheck.Code.SUCCESS)
        listing = "; ".join(f"{release}: {', '.join(hosts[release])}" for release in sorted(hosts))
        return upgradecheck.Result(
            upgradecheck.Code.WARNING, f"Services of several releases are running. {listing}."
        )

    _upgrade_checks = (
        ("Policy File JSON to YAML Migration", policy_file),
        ("Schema at head", at_head),
        ("Device state backfill", device_states),
        ("Devices that wait", waiting_devices),
        ("Services of one release", one_release),
    )


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


def _down_after(conf: cfg.ConfigOpts) -> dict[str, int]:
    """After which silence, in milliseconds, a process of each kind counts as down."""
    known = ages(conf)
    return {
        AGENT: known.agent_silence,
        API: int(3 * presence.INTERVAL * 1000),
        CONDUCTOR: known.conductor_silence,
    }


def _failure(details: str) -> upgradecheck.Result:
    return upgradecheck.Result(upgradecheck.Code.FAILURE, details)


def _sentence(error: Exception) -> str:
    # The statement and its parameters say nothing to an operator.
    return str(error).split("\n", maxsplit=1)[0]


if __name__ == "__main__":
    sys.exit(main())
