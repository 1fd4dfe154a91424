# SPDX-License-Identifier: Apache-2.0
"""Links in the OpenAPI document, for sequences of generated requests.

The API serves its document without links. ``IDENTIFIERS`` says which parameters identify objects of
which resource. From it follow the links of each answer to the requests that its object identifies.
https://spec.openapis.org/oas/v3.1.1#link-object
"""

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from cyborg.api.framework import JSON


@dataclass(frozen=True)
class Identifier:
    """The collection whose objects a parameter identifies, and the members that have its value."""

    collection: str
    members: tuple[str, ...] = ("uuid",)


ARQ: Final = Identifier("accelerator_requests")
#: Nova has the instances; Cyborg shows those that it knows as the instances of ARQs.
INSTANCE: Final = Identifier("accelerator_requests", ("instance_uuid",))
DEPLOYABLE: Final = Identifier("deployables")
PROVIDER: Final = Identifier("deployables", ("rp_uuid",))
DEVICE: Final = Identifier("devices")
PROFILE: Final = Identifier("device_profiles", ("uuid", "name"))
PROFILE_NAME: Final = Identifier("device_profiles", ("name",))
DRIVER: Final = Identifier("drivers", ("uuid", "name"))
DRIVER_NAME: Final = Identifier("drivers", ("name",))

#: Operation id → parameters of its path or query, or members of its body. A parameter of a path
#: that is not here is the uuid of an object of the resource itself.
IDENTIFIERS: Final[Mapping[str, Mapping[str, Identifier]]] = {
    "get_accelerator_requests": {
        "instance": INSTANCE,
        "device_rp_uuid": PROVIDER,
        "device_profile_name": PROFILE_NAME,
    },
    "post_accelerator_requests": {"device_profile_name": PROFILE_NAME},
    "delete_accelerator_requests": {"arqs": ARQ, "instance": INSTANCE},
    "get_attributes": {"deployable_id": DEPLOYABLE},
    "post_attributes": {"deployable_id": DEPLOYABLE},
    "get_backends": {"driver": DRIVER_NAME},
    "get_device_profiles": {"name": PROFILE_NAME},
    "delete_device_profiles": {"value": PROFILE},
    "get_device_profiles_id": {"id": PROFILE},
    "patch_device_profiles_id": {"id": PROFILE},
    "delete_device_profiles_id": {"id": PROFILE},
    "get_devices": {"driver": DRIVER_NAME, "instance": INSTANCE},
    "get_drivers": {"name": DRIVER_NAME},
    "post_drivers": {"driver": DRIVER_NAME},
    "patch_drivers_id": {"id": DRIVER},
    "delete_drivers_id": {"id": DRIVER},
    "get_events": {"device": DEVICE, "instance": INSTANCE, "arq": ARQ},
    "get_hardware": {"driver": DRIVER_NAME},
    "post_instances_id_accelerators": {"id": INSTANCE},
    "delete_instances_id_accelerators": {"id": INSTANCE},
    "delete_instances_id_accelerators_other_id": {"id": INSTANCE, "other_id": ARQ},
    "get_services": {"driver": DRIVER_NAME},
    "post_services_discover": {"driver": DRIVER_NAME},
}


def linked(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with the links that follow from ``IDENTIFIERS``."""
    whole: dict[str, Any] = deepcopy(dict(document))
    operations = [
        operation for methods in whole["paths"].values() for operation in methods.values()
    ]
    for operation in operations:
        for status, answer in operation["responses"].items():
            schema = answer.get("content", {}).get(JSON, {}).get("schema")
            if schema is None or not status.startswith("2"):
                continue
            # A long verb answers an operation, other requests an object of their own resource.
            is_long = "Location" in answer["headers"]
            collection = "operations" if is_long else operation["tags"][0]
            if links := dict(_links(whole, collection, schema, operations)):
                answer["links"] = links
    return whole


def _links(
    whole: Mapping[str, Any], collection: str, schema: Any, targets: Iterable[Mapping[str, Any]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the links from an answer with an object of a collection, or with a list of them.

    The links of a list use its first object. A link gives every parameter of its target's path, or
    one parameter of its query, or one member of its body.
    """
    for target in targets:
        for place, identifiers in _ways(target):
            if {each.collection for each in identifiers.values()} != {collection}:
                continue
            for members in product(*(each.members for each in identifiers.values())):
                pointers = [_pointer(whole, schema, member) for member in members]
                if None in pointers:
                    continue
                name = "-".join([target["operationId"], *identifiers, *dict.fromkeys(members)])
                values = [f"$response.body#{pointer}" for pointer in pointers]
                given = dict(zip(identifiers, values, strict=True))
                yield name, {"operationId": target["operationId"], place: given}


def _ways(target: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Identifier]]]:
    """Yield the sets of parameters that a link to a request can give, and their place."""
    declared = IDENTIFIERS.get(target["operationId"], {})
    own = Identifier(target["tags"][0])
    path = [each["name"] for each in target["parameters"] if each["in"] == "path"]
    if path:
        yield "parameters", {name: declared.get(name, own) for name in path}
        return
    query = {each["name"] for each in target["parameters"] if each["in"] == "query"}
    for name, identifier in declared.items():
        if name in query:
            yield "parameters", {name: identifier}
        elif "requestBody" in target:
            yield "requestBody", {name: identifier}


def _pointer(whole: Mapping[str, Any], schema: Mapping[str, Any], member: str) -> str | None:
    """Return the JSON pointer of a member of the object of an answer, in its envelope or list."""
    schema = _resolved(whole, schema)
    if "anyOf" in schema:
        pointers = {_pointer(whole, kind, member) for kind in schema["anyOf"]}
        return pointers.pop() if len(pointers) == 1 else None
    if "items" in schema:
        step, inner = "/0", schema["items"]
    else:
        if member in schema.get("properties", {}):
            return f"/{member}"
        if len(schema.get("required", ())) != 1:
            return None
        (name,) = schema["required"]
        step, inner = f"/{name}", schema["properties"][name]
    pointer = _pointer(whole, inner, member)
    return None if pointer is None else step + pointer


def _resolved(whole: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    resolved: Mapping[str, Any] = whole["components"]["schemas"][name] if name else schema
    return resolved
