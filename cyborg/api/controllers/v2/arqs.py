# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests: create from a device profile, bind to an instance, list and delete."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any, ClassVar

import sqlalchemy as sa
import wsme

from cyborg import exception
from cyborg.api import microversion, parsing, types
from cyborg.api.controllers.v2 import arq_patch
from cyborg.api.expose import Call, Rules, expose
from cyborg.api.rendering import instant, link, moment
from cyborg.api.routing import Noun, Routes
from cyborg.db import arqs, events
from cyborg.db.engine import Reader
from cyborg.model.arq import Arq, State
from cyborg.model.device_profile import parse_name
from cyborg.policies import arqs as policies
from cyborg.rpc.conductor import ConductorClient

COLLECTION = "accelerator_requests"
_RESOLVED = "resolved"


class ArqQuery(types.Listing):
    """Filters of the list."""

    instance = wsme.wsattr(types.UUID_TYPE)
    state = wsme.wsattr(types.Word(*(state.value for state in State)))
    bind_state = wsme.wsattr(types.Word(_RESOLVED, ""))
    hostname = wsme.wsattr(types.NAME)
    device_rp_uuid = wsme.wsattr(types.UUID_TYPE)
    device_profile_name = wsme.wsattr(types.NAME)
    project_id = wsme.wsattr(types.NAME)


class ArqDeleteQuery(types.Declared):
    """The ARQs to delete: exactly one of the two parameters."""

    arqs = wsme.wsattr(types.Commas(types.UUID_TYPE))
    instance = wsme.wsattr(types.UUID_TYPE)


class ArqBody(types.Declared):
    """The device profile of new ARQs."""

    device_profile_name = wsme.wsattr(types.Text(types.MAX_INT), mandatory=True)


class Arqs(Noun):
    """``/v2/accelerator_requests``."""

    routes: ClassVar[Routes] = {
        "": {"GET": "index", "POST": "create", "PATCH": "patch", "DELETE": "delete_some"},
        "*": {"GET": "show", "PATCH": "patch_one", "DELETE": "delete"},
    }

    def __init__(self, rules: Rules, reader: Reader, conductor: ConductorClient) -> None:
        self.rules = rules
        self._reader = reader
        self._conductor = conductor

    @expose(policies.GET_ALL, query=ArqQuery)
    def index(self, call: Call, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of ARQs; 423 with ``bind_state`` while the instance has unresolved ARQs."""
        instance = query.get("instance")
        project = _scope(call, query)
        resolved = query.get("bind_state") == _RESOLVED
        equal = {name: query[name] for name in arqs.FILTERS if name in query}
        with self._reader.reader() as tx:
            if resolved and instance and not arqs.all_resolved(tx, instance, project):
                raise exception.Locked(instance=instance)
            rows = arqs.page(tx, parsing.page(query), project, equal, resolved=resolved)
        return {"arqs": render_all(rows, call)}

    @expose(policies.GET_ONE, types.UUID_TYPE)
    def show(self, call: Call, uuid: str) -> dict[str, Any]:
        """Return an ARQ; from microversion 2.4 on with its fault and its history."""
        project = None if call.caller.all_projects else call.caller.project_id
        explain = call.minor >= microversion.REASONS
        history: Sequence[sa.Row[Any]] = ()
        with self._reader.reader() as tx:
            row = (arqs.explained if explain else arqs.show)(tx, uuid, project)
            if explain and row is not None:
                history = events.of_subject(tx, "arq", uuid)
        if row is None:
            raise exception.NotFound(noun="Accelerator request", key=uuid)
        if not explain:
            return render_all([row], call)[0]
        *values, fault = row
        (rendered,) = render_all([values], call)
        rendered_events = [_render_event(event, call) for event in history]
        return {**rendered, "fault": fault, "events": rendered_events}

    @expose(policies.CREATE, body=types.Object(ArqBody), status=201)
    def create(self, call: Call, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create all ARQs of a device profile, or none."""
        name = body["device_profile_name"]
        try:
            parse_name(name)
        except exception.Invalid:
            # No profile can have this name, so clients get the answer for an absent profile.
            raise exception.NotFound(noun="Device profile", key=name[:255]) from None
        created = self._conductor.create_arqs(call.caller, call.request_key, name)
        prefix = call.links.self_of(COLLECTION)
        return {"arqs": [_render(_values(arq), prefix) for arq in created]}

    @expose(policies.UPDATE, body=arq_patch.PatchBody(), status=202)
    def patch(self, call: Call, body: arq_patch.Patch) -> None:
        """Bind and unbind ARQs, all or none; needs a service token, as Nova sends."""
        self._patch(call, body)

    @expose(policies.UPDATE, types.Anything(), body=arq_patch.PatchBody(), status=202)
    def patch_one(self, call: Call, _anything: str, body: arq_patch.Patch) -> None:
        """Bind and unbind the ARQs that the body names; the identifier of the path is ignored."""
        self._patch(call, body)

    @expose(policies.DELETE, query=ArqDeleteQuery, status=204)
    def delete_some(self, call: Call, query: Mapping[str, Any]) -> None:
        """Delete ARQs by uuid, or all ARQs of an instance, which may have none (used by Nova)."""
        if ("arqs" in query) == ("instance" in query):
            raise exception.Invalid(
                field="arqs", reason="either arqs or instance must be given, and not both"
            )
        if "instance" in query:
            _need_service(call, "Deleting the accelerator requests of an instance")
            # After an evacuation by an administrator, the ARQs may not belong to the caller's
            # project.
            caller = replace(call.caller, all_projects=True)
            self._conductor.delete_instance_arqs(caller, call.request_key, query["instance"])
        else:
            self._delete(call, query["arqs"])

    @expose(policies.DELETE, types.UUID_TYPE, status=204)
    def delete(self, call: Call, uuid: str) -> None:
        """Delete an ARQ."""
        self._delete(call, [uuid])

    def _patch(self, call: Call, body: arq_patch.Patch) -> None:
        arq_patch.check_project(body, call.minor, call.caller.all_projects)
        _need_service(call, "Binding and unbinding accelerator requests")
        self._conductor.patch_arqs(call.caller, call.request_key, body.bindings, body.unbindings)

    def _delete(self, call: Call, uuids: Sequence[str]) -> None:
        if not uuids:
            raise exception.Invalid(field="arqs", reason="it names no accelerator request")
        self._conductor.delete_arqs(call.caller, call.request_key, list(uuids))


def _scope(call: Call, query: Mapping[str, Any]) -> str | None:
    """Return the project whose ARQs the caller may list; None: all projects."""
    caller = call.caller
    if caller.all_projects or (caller.service and "instance" in query):
        return None
    if query.get("project_id", caller.project_id) != caller.project_id:
        raise exception.Forbidden(reason="Only administrators may list another project's requests.")
    return caller.project_id


def _need_service(call: Call, action: str) -> None:
    if not call.caller.service:
        raise exception.ServiceTokenRequired(action=action)


_values = attrgetter(*(field.name for field in fields(Arq)))


def render_all(rows: Iterable[Sequence[Any]], call: Call) -> list[dict[str, Any]]:
    """Return the JSON of ARQ rows."""
    prefix = call.links.self_of(COLLECTION)
    return [
        _render((*values, {} if info is None else json.loads(info)), prefix)
        for *values, info in rows
    ]


def _render(values: tuple[Any, ...], prefix: str) -> dict[str, Any]:
    # For speed with a thousand ARQs: values by position, without an object for each ARQ.
    uuid, state, profile, group, project, created, updated, *bind = values
    hostname, provider, instance, handle_type, handle_uuid, handle_info = bind
    return {
        "uuid": uuid,
        "state": state,
        "device_profile_name": profile,
        "device_profile_group_id": group,
        "hostname": hostname,
        "device_rp_uuid": provider,
        "instance_uuid": instance,
        "project_id": project,
        "attach_handle_type": handle_type,
        "attach_handle_uuid": handle_uuid,
        "attach_handle_info": handle_info,
        "links": [link(prefix, uuid)],
        "created_at": moment(created),
        "updated_at": moment(updated),
    }


def _render_event(event: sa.Row[Any], call: Call) -> dict[str, Any]:
    # An administrator may have caused the event; the owner of the ARQ must not see who.
    visible = call.caller.all_projects or event.user_id == call.caller.user_id
    return {
        "time": instant(event.at_ms),
        "action": event.action,
        "hostname": event.hostname,
        "instance_uuid": event.instance_uuid,
        "reason": event.reason,
        "request_id": event.request_id,
        "user_id": event.user_id if visible else None,
    }
