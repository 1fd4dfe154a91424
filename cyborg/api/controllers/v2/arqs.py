# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests: create from a device profile, bind to an instance, list and delete."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Final

import wsme

from cyborg import exception
from cyborg.api import answers, microversion, parsing, types
from cyborg.api.answers import Answer, Member, Source
from cyborg.api.expose import Call, Controller, expose
from cyborg.api.framework import Routes
from cyborg.db import arqs, events
from cyborg.db.arqs import VisibleArq
from cyborg.model.arq import Arq, Binding, State
from cyborg.model.device_profile import parse_name
from cyborg.model.health import CONDITIONS
from cyborg.model.scope import EVERYWHERE
from cyborg.rpc.verbs import CreateArqs, DeleteArqs, DeleteInstanceArqs, PatchArqs

_RESOLVED = "resolved"
_PROJECT: Final = "/project_id"
#: The name that the specification of the v2 API has for the same path.
_PROJECT_ALIAS: Final = "/instance_project_id"
#: The paths that a bind requires, with the types of their values.
_NEEDED: Final[Mapping[str, types.Strict]] = {
    "/hostname": types.Text(255, minimum=1),
    "/device_rp_uuid": types.UUID_TYPE,
    "/instance_uuid": types.UUID_TYPE,
}
_VALUES: Final[Mapping[str, types.Strict]] = {**_NEEDED, _PROJECT: types.Text(255, minimum=1)}


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

    device_profile_name = wsme.wsattr(types.Text(types.MAX_INT, lines=True), mandatory=True)


class ArqOp(types.Declared):
    """One operation on one ARQ; the value of a ``remove`` is ignored."""

    path = wsme.wsattr(types.Word(*_VALUES, _PROJECT_ALIAS), mandatory=True)
    op = wsme.wsattr(types.Word("add", "remove"), mandatory=True)
    value = wsme.wsattr(types.ANYTHING)


ARQ_VIEW = Answer[VisibleArq | Arq](
    "ArqView",
    "An accelerator request; the members about place and handle are null until it is bound.",
    uuid=Member(types.UUID_TYPE),
    state=Member(types.Word(*State)),
    device_profile_name=Member(answers.STRING),
    device_profile_group_id=Member(types.INTEGER),
    hostname=Member(answers.HOST_OR_NULL),
    device_rp_uuid=Member(answers.PLACED_UUID),
    instance_uuid=Member(answers.UUID_OR_NULL),
    project_id=Member(answers.TEXT_OR_NULL),
    attach_handle_type=Member(answers.TEXT_OR_NULL),
    attach_handle_uuid=Member(answers.UUID_OR_NULL),
    attach_handle_info=Member(answers.PLACED_OBJECT, lambda arq: _handle_info(arq)),
    links=Member(answers.Links("accelerator_requests"), lambda arq: arq.uuid),
    created_at=Member(answers.TIME_OR_NULL),
    updated_at=Member(answers.TIME_OR_NULL),
    # A new one has no unit yet.
    health=Member(
        answers.Nullable(types.Word(*CONDITIONS)),
        lambda arq: getattr(arq, "health", None),
        since=microversion.EXTENDED,
    ),
)


@dataclass(frozen=True)
class Explained:
    """An ARQ with its history."""

    arq: VisibleArq
    events: Sequence["HistoryEvent"]

    @property
    def hosts(self) -> set[str | None]:
        """Return the hosts on which the ARQ is or was."""
        return {self.arq.hostname, *(event.row.hostname for event in self.events)}


@dataclass(frozen=True)
class HistoryEvent:
    """An event of an ARQ; ``user_id`` is None if the caller must not see who caused it."""

    row: events.VisibleEvent
    user_id: str | None


ARQ_EVENT = Answer[HistoryEvent](
    "ArqEvent",
    "An event in the history of an accelerator request.",
    Source(row=lambda event: event.row),
    time=Member(answers.TIME, lambda event: event.row.at_ms),
    action=Member(answers.STRING),
    hostname=Member(answers.HOST_OR_NULL),
    instance_uuid=Member(answers.UUID_OR_NULL),
    reason=Member(answers.SAID_OR_NULL),
    request_id=Member(answers.TEXT_OR_NULL),
    user_id=Member(answers.TEXT_OR_NULL, lambda event: event.user_id),
)


ARQ_DETAIL = Answer[Explained](
    "ArqDetail",
    "An accelerator request with its fault and its history.",
    Source(hosts=lambda explained: explained.hosts),
    **ARQ_VIEW.members(lambda explained: explained.arq),
    fault=Member(
        answers.SAID_OR_NULL, lambda explained: explained.arq.fault, since=microversion.EXTENDED
    ),
    events=Member(types.Items(ARQ_EVENT), since=microversion.EXTENDED),
)


@dataclass(frozen=True)
class Patch:
    """The binds and unbinds of one body."""

    bindings: list[Binding]
    unbindings: list[str]
    names_project: bool


class PatchBody(types.Strict):
    """``{arq_uuid: [op, …], …}``; the operations of one ARQ all add or all remove."""

    name = "patch"
    _ops = types.Items(types.Object(ArqOp), minimum=1, maximum=len(_VALUES))

    def read(self, value: Any) -> Patch:
        """Return the binds and unbinds; raises ValidationError with ARQ and operation."""
        if not isinstance(value, Mapping) or not value:
            raise types.ValidationError("an object with accelerator requests is needed")
        bindings: list[Binding] = []
        unbindings: list[str] = []
        paths: set[str] = set()
        seen: set[str] = set()
        for key, raw in value.items():
            uuid = types.located(key, types.UUID_TYPE.read, key)
            if uuid in seen:
                raise types.ValidationError("it is given twice", key)
            seen.add(uuid)
            ops = types.located(key, self._ops.read, raw)
            for op in ops:
                if op["path"] == _PROJECT_ALIAS:
                    op["path"] = _PROJECT
            paths.update(op["path"] for op in ops)
            if types.located(key, _verb, ops) == "remove":
                unbindings.append(uuid)
            else:
                bindings.append(types.located(key, partial(_bind, uuid), ops))
        return Patch(bindings, unbindings, _PROJECT in paths)

    @property
    def schema(self) -> types.Schema:
        """See the parent."""
        return {
            "type": "object",
            "minProperties": 1,
            "propertyNames": types.UUID_TYPE.schema,
            "additionalProperties": self._ops.schema,
        }


class Arqs(Controller):
    """``/v2/accelerator_requests``."""

    collection = "accelerator_requests"
    routes: ClassVar[Routes] = {
        "": {"GET": "index", "POST": "create", "PATCH": "patch", "DELETE": "delete_some"},
        "*": {"GET": "show", "PATCH": "patch", "DELETE": "delete"},
    }

    @expose(
        "cyborg:arq:get_all",
        query=ArqQuery,
        answer=answers.listing("arqs", ARQ_VIEW),
        errors={"423": "With bind_state, the instance has unresolved requests."},
    )
    def index(self, call: Call, query: Mapping[str, Any]) -> Sequence[VisibleArq]:
        """Return a page of ARQs; 423 with ``bind_state`` while the instance has unresolved ARQs."""
        instance, scope = query.get("instance"), call.scope
        if call.caller.service and instance:
            scope = EVERYWHERE
        if not scope.everywhere and query.get("project_id", scope.project_id) != scope.project_id:
            raise exception.Forbidden(
                reason="Only administrators may list another project's requests."
            )
        call.check_places(query, "hostname", "device_rp_uuid")
        resolved = query.get("bind_state") == _RESOLVED
        equal = {name: query[name] for name in arqs.FILTERS if name in query}
        with self.reader.reader() as tx:
            if resolved and instance and not arqs.all_resolved(tx, instance, scope):
                raise exception.Locked(instance=instance)
            return arqs.page(tx, parsing.page(query), scope, equal, resolved=resolved)

    @expose("cyborg:arq:get_one", types.UUID_TYPE, answer=ARQ_DETAIL)
    def show(self, call: Call, uuid: str) -> Explained:
        """Return an ARQ; from microversion 2.100 on with its fault and its history."""
        history: Sequence[events.VisibleEvent] = ()
        with self.reader.reader() as tx:
            arq = arqs.show(tx, uuid, call.scope)
            if call.minor >= microversion.EXTENDED and arq is not None:
                history = events.of_subject(tx, "arq", uuid, call.scope)
        if arq is None:
            raise exception.NotFound(noun="Accelerator request", key=uuid)
        return Explained(arq, [_history_event(row, call) for row in history])

    @expose(
        "cyborg:arq:create",
        body=types.Object(ArqBody),
        status=201,
        answer=answers.listing("arqs", ARQ_VIEW),
    )
    def create(self, call: Call, body: Mapping[str, Any]) -> Sequence[Arq]:
        """Create all ARQs of a device profile, or none."""
        name = body["device_profile_name"]
        try:
            parse_name(name)
        except exception.Invalid:
            # No profile can have this name, so clients get the answer for an absent profile.
            raise exception.NotFound(noun="Device profile", key=name[:255]) from None
        return self.conductor.write(CreateArqs(*call.origin, name))

    @expose(
        "cyborg:arq:update",
        body=PatchBody(),
        status=202,
        answer=answers.Envelope(types.Items(ARQ_VIEW), "arqs"),
        answered=microversion.EXTENDED,
    )
    def patch(self, call: Call, body: Patch) -> Sequence[VisibleArq]:
        """Bind and unbind ARQs, all or none; needs a service token, as Nova sends.

        The body names the ARQs; the identifier of the path, if there is one, is ignored. From
        microversion 2.100 on the ARQs are returned.
        """
        if body.names_project:
            if call.minor < microversion.PROJECT_ID:
                raise exception.NotAcceptable(
                    reason=f"{_PROJECT} can be patched from microversion "
                    f"2.{microversion.PROJECT_ID} on."
                )
            if not call.scope.everywhere:
                raise exception.Forbidden(reason=f"Only administrators may patch {_PROJECT}.")
        _need_service(call, "Binding and unbinding accelerator requests")
        self.conductor.write(PatchArqs(*call.origin, body.bindings, body.unbindings))
        if call.minor < microversion.EXTENDED:
            return ()
        uuids = [*(binding.arq_uuid for binding in body.bindings), *body.unbindings]
        with self.reader.reader() as tx:
            return arqs.named(tx, uuids, call.scope)

    @expose("cyborg:arq:delete", query=ArqDeleteQuery, status=204)
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
            self.conductor.write(DeleteInstanceArqs(caller, call.request_key, query["instance"]))
            return
        if not query["arqs"]:
            raise exception.Invalid(field="arqs", reason="it names no accelerator request")
        self.conductor.write(DeleteArqs(*call.origin, query["arqs"]))

    @expose("cyborg:arq:delete", types.UUID_TYPE, status=204)
    def delete(self, call: Call, uuid: str) -> None:
        """Delete an ARQ."""
        self.conductor.write(DeleteArqs(*call.origin, [uuid]))


def _verb(ops: Sequence[Mapping[str, Any]]) -> str:
    verbs = {op["op"] for op in ops}
    if len(verbs) != 1:
        raise types.ValidationError("operations of one request must all add or all remove")
    if len({op["path"] for op in ops}) != len(ops):
        raise types.ValidationError("a path is given twice")
    return str(verbs.pop())


def _bind(uuid: str, ops: Sequence[Mapping[str, Any]]) -> Binding:
    given = {op["path"]: op.get("value") for op in ops}
    missing = [path for path in _NEEDED if path not in given]
    if missing:
        raise types.ValidationError("a bind needs this path", missing[0])
    values = {path: types.located(path, _VALUES[path].read, raw) for path, raw in given.items()}
    return Binding(
        arq_uuid=uuid,
        hostname=values["/hostname"],
        device_rp_uuid=values["/device_rp_uuid"],
        instance_uuid=values["/instance_uuid"],
        project_id=values.get(_PROJECT),
    )


def _need_service(call: Call, action: str) -> None:
    if not call.caller.service:
        raise exception.ServiceTokenRequired(action=action)


def _handle_info(arq: VisibleArq | Arq) -> dict[str, Any]:
    """Return the attach handle; a row has it as JSON, or None without a handle."""
    info = arq.attach_handle_info or "{}"
    parsed: dict[str, Any] = json.loads(info) if isinstance(info, str) else info
    return parsed


def _history_event(row: events.VisibleEvent, call: Call) -> HistoryEvent:
    # An administrator may have caused the event; the owner of the ARQ must not see who.
    visible = call.scope.everywhere or row.user_id == call.caller.user_id
    return HistoryEvent(row, row.user_id if visible else None)
