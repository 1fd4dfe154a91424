# SPDX-License-Identifier: Apache-2.0
"""What cyborg-status looks at here: policy file, database, and the rows of running processes.

A check is a FAILURE when this release could not work, or would harm, if it were started now; a
WARNING when it would work and somebody should look all the same. Which and why stands with each.
"""

import re
from collections.abc import Callable
from functools import cached_property

import sqlalchemy as sa
from oslo_config import cfg
from oslo_db import exception as db_exc
from oslo_upgradecheck import common_checks
from oslo_upgradecheck.upgradecheck import Code, Result, UpgradeCommands

from cyborg import exception, version
from cyborg.api.middleware import heartbeat
from cyborg.clients.keystone import Sessions
from cyborg.cmd.audit import ages
from cyborg.db import backfill, schema, services
from cyborg.db.engine import Reader
from cyborg.model.names import AGENT, API, CONDUCTOR
from cyborg.policy import Policy

SUCCESS = Result(Code.SUCCESS)
_MISSING = (exception.CyborgError, sa.exc.SQLAlchemyError, db_exc.DBError)
_LISTED = 20


class Site(UpgradeCommands):
    """The deployment that ``conf`` describes, for all checks of one run."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self.conf = conf

    @cached_property
    def db(self) -> Reader:
        """Its database; raises exception.ConfigError."""
        return Reader.from_conf(self.conf)

    @cached_property
    def sessions(self) -> Sessions:
        """Its accounts at other services."""
        return Sessions(self.conf)

    @cached_property
    def trouble(self) -> str:
        """What keeps the database from being asked about its rows, a sentence; empty if nothing."""
        try:
            schema.check(self.db)
        except _MISSING as error:
            return sentence(error)
        return ""

    def ask(self, look: Callable[[Reader], Result]) -> Result:
        """What ``look`` finds in the database, a warning when it cannot be asked.

        (The check of the schema fails then: one failure for one fault is enough.)
        """
        return warning(f"Not checked: {self.trouble}") if self.trouble else look(self.db)


def policy_file(site: Site) -> Result:
    """The policy file is YAML; FAILURE, as in every OpenStack service."""
    return common_checks.check_policy_json(site, site.conf)


def policy_rules(site: Site) -> Result:
    """The policy file says what its author means.

    FAILURE when it cannot be used, or refers to a rule that is not there: the API does not start,
    or refuses people. WARNING for rules that nothing asks for: what they should allow or forbid
    goes by the defaults instead.
    """
    try:
        enforcer = Policy(site.conf).enforcer
    except exception.ConfigError as error:
        return failure(sentence(error))
    named = {name: _references(rule.check) for name, rule in enforcer.file_rules.items()}
    missing = sorted(set().union(*named.values()) - (enforcer.rules or {}).keys())
    if missing:
        return failure(
            f"The policy file refers to rules that there are not: {_listed(missing)}. Define them "
            "there, or use those that oslopolicy-list-rules shows."
        )
    asked = enforcer.registered_rules.keys() | set().union(*named.values())
    unknown = sorted(named.keys() - asked)
    if unknown:
        return warning(
            f"The policy file has rules that nothing asks for: {_listed(unknown)}. Correct their "
            "names (see oslopolicy-sample-generator --namespace cyborg.api), or remove them."
        )
    return SUCCESS


def schema_at_head(site: Site) -> Result:
    """The schema is the one that this release works on; FAILURE, nothing starts on another."""
    return failure(site.trouble) if site.trouble else SUCCESS


def duplicates(site: Site) -> Result:
    """No row keeps ``cyborg-dbsync upgrade`` from setting its unique keys; FAILURE: it refuses."""
    try:
        problems = schema.preflight(site.db)
    except _MISSING as error:
        return warning(f"Not checked: {sentence(error)}")
    if problems:
        return failure("cyborg-dbsync upgrade would refuse. " + _listed(problems, " "))
    return SUCCESS


def device_states(site: Site) -> Result:
    """No device waits for its ``device_state``; FAILURE as in the existing service."""
    try:
        waiting = backfill.stateless_devices(site.db)
    except _MISSING as error:
        return failure(f"devices.device_state cannot be read: {sentence(error)}")
    if waiting:
        return failure(
            f"{waiting} device(s) have no device_state: run 'cyborg-dbsync online_data_migrations'."
        )
    return SUCCESS


def waiting_devices(site: Site) -> Result:
    """No device waits for an operator while none is enabled by itself; WARNING: it may be meant."""

    def look(db: Reader) -> Result:
        waiting = backfill.inactive_devices(db)
        if not waiting or site.conf.conductor.auto_enable:
            return SUCCESS
        return warning(
            f"{waiting} device(s) wait to be enabled, and [conductor] auto_enable is empty: enable "
            "them by the API, and name the drivers there whose devices need no operator's word."
        )

    return site.ask(look)


def releases(site: Site) -> Result:
    """The processes that live understand each other.

    WARNING for several releases, as in the middle of an upgrade. FAILURE for one that is two
    releases or more from this one: their words on the bus are not known to each other.
    """
    return site.ask(lambda db: _releases(_seen(site, db)))


def silent_services(site: Site) -> Result:
    """Every process that was there is there, while any is; WARNING, a host may be off on purpose.

    A process counts with those of its kind on its host. That all are silent is how an upgrade
    with stopped services looks.
    """
    return site.ask(lambda db: _silent(_seen(site, db)))


def _releases(seen: list[services.Seen]) -> Result:
    found: dict[str, list[str]] = {}
    for one in seen:
        if one.up:
            found.setdefault(one.process.version, []).append(_name(one))
    here = version.installed()
    listing = "; ".join(f"{release}: {_listed(found[release])}" for release in sorted(found))
    if any(abs(_major(release) - _major(here)) > 1 for release in found):
        return failure(
            f"Services run that are more than one release away from {here}. {listing}. Stop them, "
            "or upgrade by each release in between."
        )
    if len(found) > 1:
        return warning(
            f"Services of several releases are running. {listing}. Upgrade those that are behind; "
            "until then keep the pins of [upgrade_levels]."
        )
    return SUCCESS


def _silent(seen: list[services.Seen]) -> Result:
    alive = {_name(one) for one in seen if one.up}
    silent = {
        name: one.silent_ms // 60_000 for one in seen if (name := _name(one)) and name not in alive
    }
    if not alive or not silent:
        return SUCCESS
    listing = _listed([f"{name} (for {minutes} minutes)" for name, minutes in silent.items()])
    return warning(
        f"No heartbeat of {listing}. Run 'cyborg-status check' for the likely cause, then start "
        "what is down. A process that will not come back is removed with "
        "'openstack accelerator service delete' (its uuid: 'openstack accelerator service list')."
    )


def _seen(site: Site, db: Reader) -> list[services.Seen]:
    known = ages(site.conf)
    down_after = {
        AGENT: known.agent_silence,
        API: int(3 * heartbeat.INTERVAL * 1000),
        CONDUCTOR: known.conductor_silence,
    }
    with db.reader() as tx:
        return services.listed(tx, db.now, down_after)


def _name(one: services.Seen) -> str:
    return f"{one.process.binary} on {one.process.host}"


def _major(release: str) -> int:
    found = re.match(r"\d+", release)
    return int(found[0]) if found else 0


def _references(check: object) -> set[str]:
    return set(re.findall(r"\brule:([^\s()]+)", str(check)))


def _listed(words: list[str], separator: str = ", ") -> str:
    """All of them, or as many as a screen takes."""
    rest = len(words) - _LISTED
    more = [f"and {rest} more"] if rest > 0 else []
    return separator.join([*words[:_LISTED], *more])


def failure(details: str) -> Result:
    """It has to be mended first."""
    return Result(Code.FAILURE, details)


def warning(details: str) -> Result:
    """Somebody should look at it."""
    return Result(Code.WARNING, details)


def sentence(error: Exception) -> str:
    """What an error says, without the statement and its parameters, which say nothing here."""
    return str(error).split("\n", maxsplit=1)[0]
