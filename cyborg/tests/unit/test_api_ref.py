# SPDX-License-Identifier: Apache-2.0
"""The API reference has every method, and of each what the code says and the samples show."""

import importlib.metadata
import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import wsme.types

from cyborg.api import types
from cyborg.api.controllers.v2 import (
    arqs,
    attributes,
    deployables,
    device_profiles,
    devices,
    events,
    host_drivers,
    instances,
    operations,
    services,
    usage,
)
from cyborg.api.expose import Controller
from cyborg.api.health import PATH as HEALTH
from cyborg.api.microversion import BASE, LATEST
from cyborg.cli.shell import COMMANDS
from cyborg.db import arqs as db_arqs
from cyborg.db import attributes as db_attributes
from cyborg.db import deployables as db_deployables
from cyborg.db import device_profiles as db_device_profiles
from cyborg.db import devices as db_devices
from cyborg.db import drivers as db_drivers
from cyborg.db import events as db_events
from cyborg.db import operations as db_operations
from cyborg.metrics.meters import PATH as METRICS
from cyborg.tests.unit import api_reference
from cyborg.tests.unit.api_reference import SAMPLES, SOURCE, Method, methods

#: Every noun of the API.
NOUNS: Final[Sequence[type[Controller]]] = (
    arqs.Arqs,
    attributes.Attributes,
    deployables.Deployables,
    device_profiles.DeviceProfiles,
    devices.Devices,
    events.Events,
    host_drivers.Backends,
    host_drivers.Drivers,
    host_drivers.Hardware,
    instances.Instances,
    operations.Operations,
    services.Services,
    usage.Usage,
)
#: What each list may be sorted by.
SORTED: Final[Mapping[str, set[str]]] = {
    "accelerator_requests": set(db_arqs.SORTABLE.columns),
    "attributes": set(db_attributes.SORTABLE.columns),
    "backends": set(db_drivers.BACKENDS.sortable.columns),
    "deployables": set(db_deployables.SORTABLE.columns),
    "device_profiles": set(db_device_profiles.SORTABLE.columns),
    "devices": set(db_devices.SORTABLE.columns),
    "drivers": set(db_drivers.DRIVERS.sortable.columns),
    "events": set(db_events.SORTABLE.columns),
    "hardware": set(db_drivers.HARDWARE.sortable.columns),
    "operations": set(db_operations.SORTABLE.columns),
    "services": set(services.SORT_KEYS),
}
#: What is answered without a noun.
PUBLIC: Final = {("GET", "/"), ("GET", "/v2"), ("GET", HEALTH), ("GET", METRICS)}
#: Paths of ``openstack`` that come with the client itself.
_OWN_COMMANDS: Final = {"versions show"}


def normal(url: str) -> str:
    """A path with ``*`` for what is named in it."""
    return re.sub(r"\{\w+\}", "*", url)


def routes() -> dict[tuple[str, str], Callable[..., Any]]:
    """The handler of each method and path, but for that which only refuses."""
    return {
        (method, "/".join(filter(None, ("/v2", noun.collection, pattern)))): getattr(noun, name)
        for noun in NOUNS
        for pattern, handlers in noun.routes.items()
        for method, name in handlers.items()
        if name != "delete_none"
    }


def described() -> dict[tuple[str, str], Method]:
    """What the reference says of each method and path."""
    return {(one.method, normal(one.url)): one for one in methods()}


HANDLERS: Final = routes()
DESCRIBED: Final = described()
EACH: Final = pytest.mark.parametrize("route", HANDLERS, ids=" ".join)


def declared(route: tuple[str, str]) -> Mapping[str, Any]:
    """What the handler of a route was exposed with."""
    return inspect.getclosurevars(HANDLERS[route]).nonlocals


def attributes_of(kind: type[wsme.types.Base]) -> set[str]:
    return {attribute.name for attribute in wsme.types.list_attributes(kind)}


def versions_of(kind: type[wsme.types.Base] | None) -> dict[str, str]:
    """Return the first microversion of each attribute of a type."""
    found = wsme.types.list_attributes(kind) if kind else []
    return {attribute.name: f"2.{types.first_version(attribute)}" for attribute in found}


def later(version: str, minor: int) -> int:
    """Return the later one of two minor microversions."""
    return max(int(version.removeprefix("2.")), minor)


def body_of(shape: types.Strict | None) -> set[str]:
    """The names of the members that a body may have."""
    if isinstance(shape, types.Items):
        return body_of(shape.item)
    if isinstance(shape, arqs.PatchBody):
        return attributes_of(arqs.ArqOp)
    return attributes_of(shape.declared) if isinstance(shape, types.Object) else set()


def test_reference_has_every_route_and_no_other() -> None:
    assert DESCRIBED.keys() == HANDLERS.keys() | PUBLIC
    assert len(methods()) == len(DESCRIBED)


def test_reference_tests_cover_every_resource() -> None:
    place = Path(inspect.getfile(Controller)).parent / "controllers/v2"
    classes = [
        name
        for file in place.glob("*.py")
        for name in re.findall(r"^class (\w+)\(Controller\):", file.read_text(), re.MULTILINE)
    ]
    assert sorted(classes) == sorted(noun.__name__ for noun in NOUNS)


@EACH
def test_reference_has_policy_of_each_route(route: tuple[str, str]) -> None:
    said = declared(route)
    rules = {said["rule"], *([said["own"]] if said["own"] else [])}
    policy = re.search(r"Policy: (.+?)(?=Command: |\.\. rest_status_code)", DESCRIBED[route].flat)
    assert policy is not None
    assert set(re.findall(r"cyborg:\w+:\w+", policy[1])) == rules


@EACH
def test_reference_has_status_codes_of_each_route(route: tuple[str, str]) -> None:
    said, method = declared(route), DESCRIBED[route]
    success, *errors = method.codes
    assert success == (202 if said["long"] else said["status"])
    assert errors
    assert all(400 <= code < 600 for code in errors)
    assert bool(method.response) == said_back(said)
    headers = {one.name for one in method.response if one.where == "header"}
    assert headers == ({"Location"} if said["long"] else set())


def said_back(said: Mapping[str, Any]) -> bool:
    """Whether a handler answers with a body."""
    return said["long"] or inspect.signature(said["method"]).return_annotation is not None


@EACH
def test_reference_has_parameters_of_each_route(route: tuple[str, str]) -> None:
    said, method = declared(route), DESCRIBED[route]
    sent = {
        where: {one.name for one in method.request if one.where == where and "." not in one.name}
        for where in ("path", "query", "body", "header")
    }
    assert sent["path"] == set(re.findall(r"\{(\w+)\}", method.url))
    assert sent["query"] == attributes_of(said["query"])
    first = versions_of(said["query"]) | versions_of(getattr(said["body"], "declared", None))
    for one in method.request:
        if one.name in first:
            assert later(one.since, said["since"]) == later(first[one.name], said["since"]), one
    assert sent["body"] == body_of(said["body"])
    assert ("Idempotency-Key" in sent["header"]) == said["long"]
    since = None if said["since"] == BASE else f"2.{said['since']}"
    assert method.since == since


@pytest.mark.parametrize("collection", SORTED)
def test_reference_has_sort_keys_of_each_list(collection: str) -> None:
    keys = re.search(r"Sort keys: ([^.]+)\.", DESCRIBED["GET", f"/v2/{collection}"].flat)
    assert keys is not None
    assert set(re.findall(r"``(\w+)``", keys[1])) == SORTED[collection]


def test_commands_in_reference_exist() -> None:
    known = {
        f"openstack {entry.name.replace('_', ' ')}"
        for group in ("openstack.accelerator.v2", "openstack.cyborg.v2")
        for entry in importlib.metadata.entry_points(group=group)
    }
    known |= {f"openstack {name}" for name in _OWN_COMMANDS} | {f"cyborg {one}" for one in COMMANDS}
    for method in methods():
        _, _, line = method.flat.partition("Command: ")
        for command in re.findall(r"``((?:openstack|cyborg) [a-z -]+?)(?: --.*?)?``", line):
            assert command in known, f"{method.method} {method.url}"


def test_samples_are_shown_in_reference() -> None:
    shown = [
        name
        for file in SOURCE.glob("*.inc")
        for name in re.findall(r"literalinclude:: samples/(\S+)\.json", file.read_text())
    ]
    there = {str(one.relative_to(SAMPLES).with_suffix("")) for one in SAMPLES.glob("**/*.json")}
    assert set(shown) == there


@pytest.mark.parametrize("method", methods(), ids=lambda one: f"{one.method} {one.url}")
def test_samples_and_parameters_have_the_same_members(method: Method) -> None:
    answers = [name for name in method.samples if name.endswith("-resp")]
    body = [one for one in method.response if one.where == "body"]
    assert bool(answers) == bool(body)
    for at in {api_reference.version(name) for name in answers}:
        found = {
            member
            for name in answers
            if api_reference.version(name) == at
            for member in api_reference.members(api_reference.sample(name))
        }
        assert found == {one.name for one in body if one.since <= at <= one.until}, at
    sent = {one.name for one in method.request if one.where == "body"}
    for name in method.samples:
        if name.endswith("-req"):
            assert keys_of_request(api_reference.sample(name)) <= sent


def keys_of_request(content: Any) -> set[str]:
    """The names of the members that a request sends; in a bind they are below uuids."""
    if isinstance(content, list):
        return {key for one in content for key in keys_of_request(one)}
    if all(isinstance(one, list) and re.match("[0-9a-f]{8}-", key) for key, one in content.items()):
        return {key for ops in content.values() for key in keys_of_request(ops)}
    return set(content)


def test_parameters_are_used_and_complete() -> None:
    used = {
        key
        for file in SOURCE.glob("*.inc")
        for _, key in re.findall(r"^   - ([\w.-]+): ([\w-]+)$", file.read_text(), re.MULTILINE)
    }
    known = api_reference.parameters()
    assert known.keys() <= used
    for key, said in known.items():
        assert {"description", "in", "required", "type"} <= said.keys(), key
        versions = {"min_version", "max_version"}
        assert said.keys() <= {"description", "in", "required", "type", *versions}, key


def test_every_error_code_has_a_sample() -> None:
    codes = {code for method in methods() for code in method.codes if code >= 400}
    samples = {int(one.stem[:3]) for one in SAMPLES.glob("errors/*-resp.json")}
    assert codes <= samples


def test_microversion_history_is_complete() -> None:
    text = (SOURCE / "microversions.inc").read_text()
    found = re.findall(r"^2\.(\d+)\n---$", text, re.MULTILINE)
    assert [int(minor) for minor in found] == list(range(LATEST + 1))


def test_known_failing_tests_exist_in_the_plugin() -> None:
    spec = importlib.util.find_spec("cyborg_tempest_plugin")
    assert spec is not None
    assert spec.origin is not None
    suite = Path(spec.origin).parent / "tests" / "api" / "test_device_profile_negative.py"
    text = (SOURCE / "deviations.inc").read_text()
    named = re.findall(r"``((?:test_|DeviceProfile)\w+)``", text)
    assert len(named) == 4
    assert all(f"{name}(" in suite.read_text() for name in named)
