# SPDX-License-Identifier: Apache-2.0
"""Upgrade checks: policy file, database, processes, accounts at Nova and Placement, signatures.

The result of a check is FAILURE if this release would not work or would do damage if it were
started now, and WARNING if it would work but an operator should look into the finding. The
docstring of each check says which result it gives, and why. If Nova or Placement does not answer,
or has no account in the configuration, the result is a WARNING that says what was not checked: this
does not prevent an upgrade.
"""

import re
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import sqlalchemy as sa
from keystoneauth1.adapter import Adapter
from oslo_config import cfg
from oslo_db import exception as db_exc
from oslo_upgradecheck import common_checks
from oslo_upgradecheck.upgradecheck import Code, Result, UpgradeCommands

from cyborg import exception, version
from cyborg.api.readiness import down_after
from cyborg.clients import permissions
from cyborg.clients.http import Sessions, account_roles
from cyborg.clients.nova import Servers
from cyborg.clients.permissions import Answer, Permission
from cyborg.clients.placement import Allocations
from cyborg.cmd.audit import audit_ages
from cyborg.conductor.audit.auditor import Auditor
from cyborg.db import audit, backfill, drivers, revisions, schema, services, units
from cyborg.db.engine import Reader
from cyborg.drivers import loader
from cyborg.model.audit_findings import Kind
from cyborg.model.device_profile import CANDIDATES, EQUAL_GROUPS, WIDE_TREES
from cyborg.model.process import CONDUCTOR
from cyborg.policy import Policy
from cyborg.rpc import keys
from cyborg.rpc.signing import Mode
from cyborg_cli.text import escaped

SUCCESS = Result(Code.SUCCESS)
_DATABASE_ERRORS = (exception.CyborgError, sa.exc.SQLAlchemyError, db_exc.DBError)
#: How long, in seconds, Placement may take for a query of five groups. With its optimisation it
#: takes a fraction of that, and otherwise several seconds.
_QUERY_LIMIT = 2.0
#: The maximum number of items in a list within a message.
_MAX_ITEMS = 20
#: A reference to another rule in a check of a policy rule.
_REFERENCE = re.compile(r"\brule:([^\s()]+)")
#: Findings about units that are held without a user, and about requests that get no unit.
_ORPHAN_KINDS = frozenset(
    {
        Kind.VANISHED_INSTANCE,
        Kind.STRANDED_RELEASE,
        Kind.NEEDLESS_HOLD,
        Kind.EMPTY_BIND,
        Kind.FORGOTTEN_BIND,
        Kind.OBSOLETE_STATE,
    }
)


class Deployment(UpgradeCommands):
    """The deployment that ``conf`` describes, for all checks of one run; ``clock`` in seconds."""

    def __init__(self, conf: cfg.ConfigOpts, clock: Callable[[], float] = time.monotonic) -> None:
        self.conf = conf
        self.clock = clock

    @cached_property
    def db(self) -> Reader:
        """Return its database; raises exception.ConfigError."""
        return Reader.from_conf(self.conf)

    @cached_property
    def sessions(self) -> Sessions:
        """Return the sessions of its accounts at other services."""
        return Sessions(self.conf)

    @cached_property
    def database_problem(self) -> str:
        """Return why the rows of the database cannot be read; empty if they can."""
        try:
            revisions.check(self.db)
        except _DATABASE_ERRORS as error:
            return first_line(error)
        return ""

    def check_rows(self, check: Callable[[Reader], Result]) -> Result:
        """Return the result of a check of the database, a warning if rows cannot be read.

        The check of the schema fails in this case; one failure for one problem is enough.
        """
        if self.database_problem:
            return warning(f"Not checked: {self.database_problem}")
        return check(self.db)


def policy_file(deployment: Deployment) -> Result:
    """Check that the policy file is YAML; FAILURE if not, as in every OpenStack service."""
    return common_checks.check_policy_json(deployment, deployment.conf)


def policy_rules(deployment: Deployment) -> Result:
    """Check that the policy file can be used and that all of its rules have an effect.

    FAILURE if it cannot be used, or refers to a rule that does not exist: the API does not start,
    or rejects requests. WARNING for rules that nothing uses, for example because of a wrong name:
    the default of the intended rule applies instead.
    """
    try:
        enforcer = Policy(deployment.conf).enforcer
    except exception.ConfigError as error:
        return failure(first_line(error))
    references = {
        name: set(_REFERENCE.findall(str(rule.check))) for name, rule in enforcer.file_rules.items()
    }
    missing = sorted(set().union(*references.values()) - (enforcer.rules or {}).keys())
    if missing:
        return failure(
            f"The policy file refers to rules that do not exist: {_listed(missing)}. Define them "
            "in the file, or refer to rules that oslopolicy-list-rules shows."
        )
    used = enforcer.registered_rules.keys() | set().union(*references.values())
    unused = sorted(references.keys() - used)
    if unused:
        return warning(
            f"The policy file has rules that nothing uses: {_listed(unused)}. Correct their names "
            "(see oslopolicy-sample-generator --namespace cyborg.api), or remove them."
        )
    return SUCCESS


def schema_at_head(deployment: Deployment) -> Result:
    """Check that the schema is that of this release; FAILURE if not: no process would start."""
    problem = deployment.database_problem
    return failure(problem) if problem else SUCCESS


def duplicates(deployment: Deployment) -> Result:
    """Check that ``cyborg-dbsync upgrade`` can set its unique keys; FAILURE if it would fail."""
    try:
        problems = schema.preflight(deployment.db)
    except _DATABASE_ERRORS as error:
        return warning(f"Not checked: {first_line(error)}")
    if problems:
        return failure("cyborg-dbsync upgrade would fail. " + _listed(problems, " "))
    return SUCCESS


def device_states(deployment: Deployment) -> Result:
    """Check that every device has a ``device_state``; FAILURE as in the existing service."""
    try:
        waiting = backfill.stateless_devices(deployment.db)
    except _DATABASE_ERRORS as error:
        return failure(f"devices.device_state cannot be read: {first_line(error)}")
    if waiting:
        return failure(
            f"{waiting} device(s) have no device_state: run 'cyborg-dbsync online_data_migrations'."
        )
    return SUCCESS


def waiting_devices(deployment: Deployment) -> Result:
    """Check for devices that wait to be enabled while ``auto_enable`` is empty.

    WARNING, because this may be intended.
    """

    def check(db: Reader) -> Result:
        waiting = backfill.inactive_devices(db)
        if not waiting or deployment.conf.conductor.auto_enable:
            return SUCCESS
        return warning(
            f"{waiting} device(s) wait to be enabled, and [conductor] auto_enable is empty. Enable "
            "them through the API, or add the drivers whose devices the conductor should enable to "
            "auto_enable."
        )

    return deployment.check_rows(check)


def driver_options(deployment: Deployment) -> Result:
    """Check for options that were set through the API, and that only files of hosts may set.

    WARNING, because agents of this release ignore these options.
    """

    def check(db: Reader) -> Result:
        with db.reader() as tx:
            rows = drivers.with_options(tx)
        ignored = []
        for row in rows:
            accepted = loader.remote_options(row.name)
            if accepted is None:
                if row.accepts is None:
                    continue
                accepted = frozenset(option["name"] for option in row.accepts)
            ignored += [
                f"{key} of {row.name} on {row.host}"
                for key in sorted(row.options or {})
                if loader.option_name(key) not in accepted
            ]
        if not ignored:
            return SUCCESS
        return warning(
            "Agents of this release ignore options that were set through the API: "
            f"{_listed(ignored)}. Set them in the configuration files of the hosts that need them "
            "before their agents are upgraded, then remove them with 'cyborg update-driver DRIVER "
            "--unset-option OPTION'."
        )

    return deployment.check_rows(check)


def releases(deployment: Deployment) -> Result:
    """Check that all running processes and this release can exchange messages.

    WARNING for several releases, as during an upgrade. FAILURE for a release that is two or more
    releases away from this one: the two do not support each other's messages.
    """

    def check(db: Reader) -> Result:
        by_release: dict[str, list[str]] = {}
        for row in _process_rows(deployment, db):
            if row.up:
                by_release.setdefault(row.process.version, []).append(_name(row))
        installed = version.installed()
        listing = "; ".join(
            f"{release}: {_listed(names)}" for release, names in sorted(by_release.items())
        )
        if any(abs(_major(release) - _major(installed)) > 1 for release in by_release):
            return failure(
                f"Some running services are more than one release away from {installed}. "
                f"{listing}. Stop them, or upgrade to each release in between."
            )
        if len(by_release) > 1:
            return warning(
                f"Services of several releases are running. {listing}. Upgrade the older ones, "
                "and keep the pins of [upgrade_levels] until then."
            )
        return SUCCESS

    return deployment.check_rows(check)


def silent_services(deployment: Deployment) -> Result:
    """Check for processes without a heartbeat; WARNING, because a host may be off on purpose.

    Several rows of one program on one host count as one process. If all processes are silent, the
    services are stopped for an upgrade, and the check succeeds.
    """

    def check(db: Reader) -> Result:
        rows = _process_rows(deployment, db)
        up = {_name(row) for row in rows if row.up}
        silent = {
            name: row.silent_ms // 60_000 for row in rows if (name := _name(row)) and name not in up
        }
        if not up or not silent:
            return SUCCESS
        listing = _listed([f"{name} (for {minutes} minutes)" for name, minutes in silent.items()])
        return warning(
            f"No heartbeat of {listing}. Run 'cyborg-status check' for the likely cause, then "
            "start the processes that are down. Remove a process that will not return with "
            "'openstack accelerator service delete' (its uuid: 'openstack accelerator service "
            "list')."
        )

    return deployment.check_rows(check)


def orphans(deployment: Deployment) -> Result:
    """Check for ARQs and units of servers that do not exist any more.

    WARNING, because the conductors repair most of these findings, and cyborg-audit on demand.
    """

    def check(db: Reader) -> Result:
        servers, unasked = None, ""
        try:
            servers = Servers(deployment.sessions.nova())
        except exception.ConfigError as error:
            unasked = str(error)
        auditor = Auditor(db=db, placement=None, servers=servers, ages=audit_ages(deployment.conf))
        result = auditor.look()
        lines = [
            f"{finding.noun} {finding.key}: {finding.cause} {finding.remedy}"
            for finding in result.findings
            if finding.kind in _ORPHAN_KINDS
        ]
        if len(lines) > _MAX_ITEMS:
            lines[_MAX_ITEMS:] = [f"And {len(lines) - _MAX_ITEMS} more: see cyborg-audit."]
        unasked = unasked or next(iter(result.unasked), "")
        instances = audit.instance_count(db) if unasked else 0
        if instances:
            lines.append(
                f"Not checked whether Nova has all servers of {instances} instance(s): {unasked}."
            )
        return warning(" ".join(lines)) if lines else SUCCESS

    return deployment.check_rows(check)


def nova_account(deployment: Deployment) -> Result:
    """Check that the account of ``[nova]`` may send events to Nova and list all projects' servers.

    FAILURE without the first permission: each boot with an accelerator would wait for an event that
    never comes. WARNING without the second: units of deleted servers would stay in use.
    """
    adapter = _adapter(deployment.sessions.nova)
    if isinstance(adapter, Result):
        return adapter
    send_events = permissions.to_send_events(adapter)
    list_servers = permissions.to_list_servers(adapter)
    if send_events.answer is Answer.REFUSED:
        return failure(
            f"The account of [nova]{_roles(send_events)} may not send server external events, so "
            "no instance with an accelerator could boot. "
            f"{send_events.reason}. {_grant('service')}, or role admin for an older Nova."
        )
    if list_servers.answer is Answer.REFUSED:
        return warning(
            f"The account of [nova]{_roles(list_servers)} may not list the servers of all "
            "projects, so deleted servers are not detected. "
            f"{list_servers.reason}. {_grant('admin')}, or allow the account "
            "os_compute_api:servers:index:get_all_tenants and os_compute_api:servers:show in "
            "Nova's policy file."
        )
    return _warn_if_unknown("[nova]", send_events, list_servers)


def agent_account(deployment: Deployment) -> Result:
    """Check that the account of a compute host may do no more than the agent needs.

    WARNING if it has the role admin: who takes over the host would get the cloud.
    """
    adapter = _adapter(deployment.sessions.placement)
    if isinstance(adapter, Result):
        return adapter
    if permissions.ADMIN not in account_roles(adapter):
        return SUCCESS
    return warning(
        "The account of [placement] has the role admin, and this is the configuration of a compute "
        "host: who takes over the host gets the cloud. Create an account for the agents that has "
        "the role service alone, for example cyborg-agent, and write it into the configuration of "
        "every compute host."
    )


def is_compute_host(conf: cfg.ConfigOpts) -> bool:
    """Return whether the configuration is that of an agent alone: without database and Nova."""
    return (
        conf.database.connection is None
        and conf.nova.auth_type is None
        and conf.placement.auth_type is not None
    )


def placement_account(deployment: Deployment) -> Result:
    """Check that the account of ``[placement]`` may write resource providers.

    FAILURE if not: no device would be offered.
    """
    adapter = _adapter(deployment.sessions.placement)
    if isinstance(adapter, Result):
        return adapter
    write_providers = permissions.to_write_providers(adapter)
    if write_providers.answer is Answer.REFUSED:
        return failure(
            f"The account of [placement]{_roles(write_providers)} may not write resource "
            "providers, so no device would be offered. "
            f"{write_providers.reason}. {_grant('service')}, or role admin for an older Placement."
        )
    return _warn_if_unknown("[placement]", write_providers)


def wide_trees(deployment: Deployment) -> Result:
    """Check that Placement can combine five equal groups on one host.

    The check sends one query about the host with the most free devices of one resource class.
    WARNING if Placement makes more candidates than Nova reads, takes more than two seconds, or
    fails: servers with more than four such devices may not boot.
    """

    def check(db: Reader) -> Result:
        with db.reader() as tx:
            tree = units.widest_tree(tx)
        if tree is None or tree.providers <= EQUAL_GROUPS:
            return SUCCESS
        adapter = _adapter(deployment.sessions.placement)
        if isinstance(adapter, Result):
            return adapter
        groups = [{f"resources:{tree.resource_class}": "1"}] * (EQUAL_GROUPS + 1)
        begin = deployment.clock()
        try:
            ways = Allocations(adapter).candidates(tree.provider, groups, CANDIDATES + 1)
        except exception.CyborgError as error:
            took = f"failed: {error}"
        else:
            seconds = deployment.clock() - begin
            if len(ways) <= CANDIDATES and seconds <= _QUERY_LIMIT:
                return SUCCESS
            count = f"{len(ways)}" if len(ways) <= CANDIDATES else f"more than {CANDIDATES}"
            took = f"took {seconds:.1f} s for {count} candidates."
        return warning(
            f"A query of {len(groups)} equal groups of {tree.resource_class} on host "
            f"{tree.hostname}, which has {tree.providers} free devices of this class, {took} "
            f"Servers with more than {EQUAL_GROUPS} such devices may not boot. Set {WIDE_TREES} "
            "in the configuration of Placement, restart it, then check again."
        )

    return deployment.check_rows(check)


def message_signing(deployment: Deployment) -> Result:
    """Check that messages without a valid signature are refused.

    WARNING if they are accepted: everyone with the transport_url of one host then controls the
    service. FAILURE if the file of keys cannot be used: the processes of this host do not start.
    """
    mode, path = deployment.conf.message_signing, deployment.conf.message_signing_key_file
    if path:
        try:
            keys.read(Path(path))
            keys.read_revoked(Path(path))
        except exception.ConfigError as error:
            return failure(first_line(error))
    elif mode == Mode.REQUIRED.value:
        return failure(
            "[DEFAULT] message_signing is required, but message_signing_key_file is not set. "
            "Create the file with cyborg-signing-key."
        )
    if mode == Mode.REQUIRED.value:
        return SUCCESS
    return warning(
        f"[DEFAULT] message_signing is {mode}: messages without a valid signature are accepted, "
        "so everyone with the transport_url of one host controls the service. Give every process "
        "its keys (cyborg-signing-key), then set it to required."
    )


def _process_rows(deployment: Deployment, db: Reader) -> list[services.ProcessStatus]:
    conf = deployment.conf
    limits = {**down_after(conf), CONDUCTOR: audit_ages(conf).conductor_silence}
    with db.reader() as tx:
        return services.statuses(tx, limits)


def _adapter(make: Callable[[], Adapter]) -> Adapter | Result:
    try:
        return make()
    except exception.ConfigError as error:
        return warning(
            f"Not checked: {error} Run the check on a host with the conductor's configuration."
        )


def _warn_if_unknown(group: str, *permissions: Permission) -> Result:
    for permission in permissions:
        if permission.answer is Answer.UNKNOWN:
            return warning(
                f"The permissions of the account of {group} were not checked: {permission.reason}. "
                "Make sure that the service runs and that this group points to it, then check "
                "again."
            )
    return SUCCESS


def _roles(permission: Permission) -> str:
    return f" (its roles: {', '.join(permission.roles)})" if permission.roles else ""


def _grant(role: str) -> str:
    return f"Run 'openstack role add --user USER --project PROJECT {role}' for it"


def _name(row: services.ProcessStatus) -> str:
    return f"{row.process.binary} on {row.process.host}"


def _major(release: str) -> int:
    number = re.match(r"\d+", release)
    return int(number[0]) if number else 0


def _listed(items: list[str], separator: str = ", ") -> str:
    """Return the items in one string, at most _MAX_ITEMS of them."""
    rest = len(items) - _MAX_ITEMS
    more = [f"and {rest} more"] if rest > 0 else []
    return separator.join([*items[:_MAX_ITEMS], *more])


def failure(details: str) -> Result:
    """Return the result for a problem that must be solved before the upgrade."""
    return Result(Code.FAILURE, escaped(details))


def warning(details: str) -> Result:
    """Return the result for a finding that an operator should look into."""
    return Result(Code.WARNING, escaped(details))


def first_line(error: Exception) -> str:
    """Return the first line of an error: its message without the SQL statement and parameters."""
    return str(error).split("\n", maxsplit=1)[0]
