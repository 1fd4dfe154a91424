# SPDX-License-Identifier: Apache-2.0
"""What cyborg-status asks Nova and Placement: what our accounts may do, and which servers are gone.

A peer that does not answer, or for which no account is configured, is a WARNING that says what was
not checked: the rest of an upgrade does not wait for it.
"""

from collections.abc import Callable

from keystoneauth1.adapter import Adapter
from oslo_upgradecheck.upgradecheck import Result

from cyborg import exception
from cyborg.clients import permissions
from cyborg.clients.nova import Servers
from cyborg.clients.permissions import Answer, Permission
from cyborg.cmd.audit import ages
from cyborg.cmd.site_checks import SUCCESS, Site, failure, warning
from cyborg.db import snapshot
from cyborg.db.engine import Reader
from cyborg.model.audit_findings import Finding, Kind
from cyborg.model.audit_rules import check, confirmed
from cyborg.model.audit_views import AuditViews

#: Of all that an audit finds, what holds a unit for nobody, or a request that will not get one.
_ORPHANS = frozenset(
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
_SHOWN = 20


def orphans(site: Site) -> Result:
    """No ARQ and no unit is left of a server that is gone.

    WARNING: the conductors repair most of it by themselves, and cyborg-audit on demand.
    """
    return site.ask(lambda db: _orphans(site, db))


def nova_account(site: Site) -> Result:
    """The account of ``[nova]`` may tell Nova how binds end, and list all projects' servers.

    FAILURE without the first: each boot with an accelerator would wait for an event that never
    comes. WARNING without the second: units of servers that are gone would stay taken.
    """
    adapter = _adapter(site.sessions.nova)
    if isinstance(adapter, Result):
        return adapter
    told, listed = permissions.telling(adapter), permissions.listing(adapter)
    if told.answer is Answer.REFUSED:
        return failure(
            f"The account of [nova]{_roles(told)} may not send server external events, so no boot "
            f"with an accelerator would end well. {told.reason}. {_grant('service')}, or "
            "admin where Nova is older."
        )
    if listed.answer is Answer.REFUSED:
        return warning(
            f"The account of [nova]{_roles(listed)} may not list the servers of all projects, so "
            f"nobody notices which are gone. {listed.reason}. {_grant('admin')}, or allow "
            "os_compute_api:servers:index:get_all_tenants and os_compute_api:servers:show to it in "
            "Nova's policy file."
        )
    return _unless_known("[nova]", told, listed)


def placement_account(site: Site) -> Result:
    """The account of ``[placement]`` may write providers; FAILURE: else no device is offered."""
    adapter = _adapter(site.sessions.placement)
    if isinstance(adapter, Result):
        return adapter
    right = permissions.publishing(adapter)
    if right.answer is Answer.REFUSED:
        return failure(
            f"The account of [placement]{_roles(right)} may not write resource providers, so no "
            f"device would be offered. {right.reason}. {_grant('service')}, or admin "
            "where Placement is older."
        )
    return _unless_known("[placement]", right)


def _orphans(site: Site, db: Reader) -> Result:
    """As an audit looks: Nova is asked between two looks, and what only one shows is on its way."""
    first = snapshot.take(db)
    named = {one.instance_uuid for one in first.arqs if one.instance_uuid is not None}
    peers, unasked = AuditViews(), ""
    try:
        peers = AuditViews(vanished=Servers(site.sessions.nova()).vanished(named))
    except exception.CyborgError as error:
        unasked = f"Not checked whether Nova has all servers of {len(named)} instance(s): {error}."
    limits = ages(site.conf)
    found = confirmed(check(first, peers, limits), check(snapshot.take(db), peers, limits))
    lines = [_line(one) for one in found if one.kind in _ORPHANS]
    if len(lines) > _SHOWN:
        lines[_SHOWN:] = [f"And {len(lines) - _SHOWN} more: see cyborg-audit."]
    if unasked and named:
        lines.append(unasked)
    return warning(" ".join(lines)) if lines else SUCCESS


def _line(one: Finding) -> str:
    return f"{one.noun} {one.key}: {one.cause} {one.remedy}"


def _adapter(make: Callable[[], Adapter]) -> Adapter | Result:
    try:
        return make()
    except exception.ConfigError as error:
        return warning(f"Not checked: {error} Run this where the conductor's configuration is.")


def _unless_known(group: str, *found: Permission) -> Result:
    for one in found:
        if one.answer is Answer.UNKNOWN:
            return warning(
                f"Not checked what the account of {group} may do: {one.reason}. See that the "
                "service runs and that this group leads to it, then check again."
            )
    return SUCCESS


def _roles(right: Permission) -> str:
    return f" (its roles: {', '.join(right.roles)})" if right.roles else ""


def _grant(role: str) -> str:
    return f"Run 'openstack role add --user USER --project PROJECT {role}' for it"
