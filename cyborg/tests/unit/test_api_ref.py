# SPDX-License-Identifier: Apache-2.0
"""The API reference has every request, and of each what the code says and the samples show."""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from typing import Any, Final

import pytest
import wsme.types

from cyborg.api import openapi, types
from cyborg.api.controllers import v2
from cyborg.api.controllers.v2 import arqs
from cyborg.api.expose import LEAVE_UNCLEAN, Controller, contract
from cyborg.api.microversion import BASE
from cyborg.api.readiness import PATH as HEALTH
from cyborg.metrics.meters import PATH as METRICS
from cyborg.tests.unit import api_reference
from cyborg.tests.unit.api_reference import Method, methods

OPENAPI: Final = ("GET", f"/v2/{openapi.FILE}")
#: What is answered without a resource.
PUBLIC: Final = {("GET", "/"), ("GET", "/v2"), ("GET", HEALTH), ("GET", METRICS), OPENAPI}


def handlers() -> dict[tuple[str, str], Callable[..., Any]]:
    """The handler of each method and path, except for that which only refuses."""
    modules = [
        importlib.import_module(module.name)
        for module in pkgutil.iter_modules(v2.__path__, f"{v2.__name__}.")
    ]
    return {
        (method, "/".join(filter(None, ("/v2", noun.collection, pattern)))): getattr(noun, name)
        for module in modules
        for noun in vars(module).values()
        if inspect.isclass(noun) and noun.__module__ == module.__name__
        if issubclass(noun, Controller)
        for pattern, names in noun.routes.items()
        for method, name in names.items()
        if name != "delete_none"
    }


HANDLERS: Final = handlers()
DESCRIBED: Final = {(one.method, re.sub(r"\{\w+\}", "*", one.url)): one for one in methods()}
EACH: Final = pytest.mark.parametrize("route", HANDLERS, ids=" ".join)


def versions_of(kind: type[wsme.types.Base] | None) -> dict[str, int]:
    """Return the first microversion of each attribute of a type."""
    attributes = wsme.types.list_attributes(kind) if kind else []
    return {attribute.name: types.first_version(attribute) for attribute in attributes}


def body_of(shape: types.Strict | None) -> set[str]:
    """The names of the members that a body may have."""
    if isinstance(shape, types.Items):
        return body_of(shape.item)
    if isinstance(shape, arqs.PatchBody):
        return set(versions_of(arqs.ArqOp))
    return set(versions_of(shape.declared)) if isinstance(shape, types.Object) else set()


def test_reference_has_every_route_and_no_other() -> None:
    assert DESCRIBED.keys() == HANDLERS.keys() | PUBLIC
    assert len(methods()) == len(DESCRIBED)


@EACH
def test_reference_has_policy_and_success_of_each_route(route: tuple[str, str]) -> None:
    said, method = contract(HANDLERS[route]), DESCRIBED[route]
    policy = method.text.partition("Policy: ")[2].partition("Command: ")[0]
    rules = {said.rule, *([said.own] if said.own else [])}
    if "force" in versions_of(said.query):
        rules.add(LEAVE_UNCLEAN)
    assert set(re.findall(r"cyborg:\w+:\w+", policy)) == rules
    assert method.codes[0] == said.status
    assert bool(method.response) == (said.answer is not None)
    headers = {one.name for one in method.response if one.where == "header"}
    assert headers == ({"Location"} if said.long else set())


@EACH
def test_reference_has_parameters_of_each_route(route: tuple[str, str]) -> None:
    said, method = contract(HANDLERS[route]), DESCRIBED[route]
    sent = {
        where: {one.name for one in method.request if one.where == where and "." not in one.name}
        for where in ("path", "query", "body", "header")
    }
    query = versions_of(said.query)
    assert sent["path"] == set(re.findall(r"\{(\w+)\}", method.url))
    assert sent["query"] == set(query)
    assert sent["body"] == body_of(said.body)
    assert ("Idempotency-Key" in sent["header"]) == said.long
    first = query | versions_of(getattr(said.body, "declared", None))
    for one in method.request:
        if one.name in first:
            assert max(one.since, said.since) == max(first[one.name], said.since), one
    assert method.since == (None if said.since == BASE else f"2.{said.since}")


@pytest.mark.parametrize("method", methods(), ids=lambda one: f"{one.method} {one.url}")
def test_reference_has_members_of_each_sample(method: Method) -> None:
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
        assert found == {one.name for one in body if one.since <= at}, at
