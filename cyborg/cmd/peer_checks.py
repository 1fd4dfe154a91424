# SPDX-License-Identifier: Apache-2.0
"""Upgrade checks of Nova and Placement: permissions of our accounts, and deleted servers.

If one of them does not answer or has no account in the configuration, the result is a WARNING that
says what was not checked: this does not prevent an upgrade.
"""

from collections.abc import Callable

from keystoneauth1.adapter import Adapter
from oslo_upgradecheck.upgradecheck import Result

from cyborg import exception
from cyborg.clients import permissions
from cyborg.clients.nova import Servers
from cyborg.clients.permissions import Answer, Permission
from cyborg.cmd.audit import audit_ages
from cyborg.cmd.site_checks import SUCCESS, Deployment, failure, warning
from cyborg.db import snapshot
from cyborg.db.engine import Reader
from cyborg.model.audit_findings import Kind
from cyborg.model.audit_rules import check, confirmed
from cyborg.model.audit_snapshot import AuditViews

#: Findings about units that are held without a user, and about requests that get no unit.
_ORPHAN_KINDS = frozenset(
    {
        Kind.VANISHED_INSTANCE,
        Kind.LEAKED_HANDLE,
        Kind.STRANDED_RELEASE,
        Kind.NEEDLESS_HOLD,
        Kind.EMPTY_BIND,
        Kind.OWNERLESS_BIND,
        Kind.FORGOTTEN_BIND,
        Kind.OBSOLETE_STATE,
        Kind.CLOSED_INSTANCE,
    }
)
_MAX_FINDINGS = 20


def orphans(deployment: Deployment) -> Result:
    """Check for ARQs and units of servers that do not exist any more.

    WARNING, because the conductors repair most of these findings, and cyborg-audit on demand.
    """
    return deployment.check_rows(lambda db: _check_orphans(deployment, db))


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


def _check_orphans(deployment: Deployment, db: Reader) -> Result:
    """Check like an audit: query Nova between two snapshots, and ignore what only one shows."""
    first = snapshot.take(db)
    instances = {arq.instance_uuid for arq in first.arqs if arq.instance_uuid is not None}
    peers, not_checked = AuditViews(), ""
    try:
        peers = AuditViews(vanished=Servers(deployment.sessions.nova()).vanished(instances))
    except exception.CyborgError as error:
        not_checked = (
            f"Not checked whether Nova has all servers of {len(instances)} instance(s): {error}."
        )
    ages = audit_ages(deployment.conf)
    findings = confirmed(check(first, peers, ages), check(snapshot.take(db), peers, ages))
    lines = [
        f"{finding.noun} {finding.key}: {finding.cause} {finding.remedy}"
        for finding in findings
        if finding.kind in _ORPHAN_KINDS
    ]
    if len(lines) > _MAX_FINDINGS:
        lines[_MAX_FINDINGS:] = [f"And {len(lines) - _MAX_FINDINGS} more: see cyborg-audit."]
    if not_checked and instances:
        lines.append(not_checked)
    return warning(" ".join(lines)) if lines else SUCCESS


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
