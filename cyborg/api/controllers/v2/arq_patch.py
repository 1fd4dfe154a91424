# SPDX-License-Identifier: Apache-2.0
"""Parse the body that binds and unbinds: a map of ARQ uuids to patch operations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import wsme

from cyborg import exception
from cyborg.api import microversion, types
from cyborg.model.arq import Binding

_PROJECT: Final = "/project_id"
#: The paths that a bind requires, with the types of their values.
_NEEDED: Final[Mapping[str, types.Strict]] = {
    "/hostname": types.Text(255, minimum=1),
    "/device_rp_uuid": types.UUID_TYPE,
    "/instance_uuid": types.UUID_TYPE,
}
_VALUES: Final[Mapping[str, types.Strict]] = {**_NEEDED, _PROJECT: types.Text(255, minimum=1)}


class ArqOp(types.Declared):
    """One operation on one ARQ; the value of a ``remove`` is ignored."""

    path = wsme.wsattr(types.Word(*_VALUES), mandatory=True)
    op = wsme.wsattr(types.Word("add", "remove"), mandatory=True)
    value = wsme.wsattr(types.ANYTHING)


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
            paths.update(op["path"] for op in ops)
            if types.located(key, _verb, ops) == "remove":
                unbindings.append(uuid)
            else:
                bindings.append(types.located(key, partial(_bind, uuid), ops))
        return Patch(bindings, unbindings, _PROJECT in paths)


def check_project(patch: Patch, minor: int, all_projects: bool) -> None:
    """Raise NotAcceptable or Forbidden for a ``/project_id`` that the request may not have."""
    if not patch.names_project:
        return
    if minor < microversion.PROJECT_ID:
        raise exception.NotAcceptable(
            reason=f"{_PROJECT} can be patched from microversion 2.{microversion.PROJECT_ID} on."
        )
    if not all_projects:
        raise exception.Forbidden(reason=f"Only administrators may patch {_PROJECT}.")


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
