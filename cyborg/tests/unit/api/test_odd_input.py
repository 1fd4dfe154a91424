# SPDX-License-Identifier: Apache-2.0
"""Invalid input never answers 5xx, on any resource that takes input."""

import json
from typing import Any
from urllib.parse import quote

import pytest

from cyborg.tests.fixtures.properties import HealthCheck, given, settings, st
from cyborg.tests.unit.api.world import FACTS, Answer, Client

ONE_DATABASE = [HealthCheck.function_scoped_fixture]
CALM = settings(max_examples=40, suppress_health_check=ONE_DATABASE)
LONG = settings(max_examples=300, suppress_health_check=ONE_DATABASE)

# Words of the resources, so that odd values pass the first check.
WORDS = st.sampled_from(
    [
        *("name", "groups", "uuid", "description", "resources:FPGA", "trait:CUSTOM_A", "accel:x"),
        *("required", "device_profile_name", "gpu", "op", "path", "value", "add", "remove"),
        *("/hostname", "/instance_uuid", "/device_rp_uuid", "/program", "image_uuid"),
        *("attribute", "deployable_id", "key", "driver", "hosts", "options", "enabled"),
        *("status", "ready", "disabled", "disabled_reason", "labels", "device_profile"),
        *FACTS.values(),
    ]
)
TEXT = WORDS | st.text(max_size=20) | st.sampled_from(["\x00", "\ud800", "\U0001f600", "{0}", "%s"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)

NEWEST = "2.100"
VERSIONS = st.sampled_from([None, "2.3", NEWEST])
DOORS = [
    "POST /v2/device_profiles",
    "POST /v2/accelerator_requests",
    "PATCH /v2/accelerator_requests",
    "PATCH /v2/deployables/<deployable>/program",
    "POST /v2/attributes",
    "PATCH /v2/device_profiles/pair",
    "PATCH /v2/devices/<device>",
    "PATCH /v2/services/<random>",
    "POST /v2/services/discover",
    "POST /v2/drivers",
    "PATCH /v2/drivers/fake_driver",
    "POST /v2/instances/<instance>/accelerators",
]
NEWER_FIELDS = (
    *("name", "groups", "description", "status", "labels", "disabled_reason", "hosts"),
    *("driver", "options", "enabled", "device_profile"),
)
#: Objects with the words of the newer resources and any values.
NEWER = st.fixed_dictionaries(
    {},
    optional={
        name: VALUES | st.dictionaries(TEXT, TEXT, max_size=3) | st.lists(TEXT, max_size=3)
        for name in NEWER_FIELDS
    },
)


def is_expected(answer: Answer) -> bool:
    """Whether it is no 5xx, but for valid input that the conductor has to ask Nova about."""
    return answer.status < 500 or answer.fault.startswith("Nova is not available")


@pytest.mark.parametrize("door", DOORS)
def test_any_json_is_answered_without_500(client: Client, door: str) -> None:
    @CALM
    @given(VALUES | NEWER, VERSIONS)
    def send(value: Any, version: str | None) -> None:
        body = json.dumps(value).encode()
        answer = client.ask(door, body, service="service", version=version)
        assert is_expected(answer)

    send()


UNUSUAL = [
    b'{"driver": "a", "driver": "b"}',
    b'{"status": "ready", "status": 7}',
    b'{"labels": {"a": "1", "a": null}}',
    b'{"options": {"a": "1", "a": "2"}, "options": []}',
    b'{"a": ' * 900 + b"1" + b"}" * 900,
    b'{"hosts": ' + b"[" * 90_000 + b"]" * 90_000 + b"}",
    b'{"hosts": [1e999, -1e999, ' + b"9" * 4000 + b"]}",
    b'{"driver": "\\u0000", "labels": {"\\ud800": "x"}}',
]


def test_unusual_json_is_answered_without_500(client: Client) -> None:
    for door in DOORS:
        for body in UNUSUAL:
            answer = client.ask(door, body, service="service", version=NEWEST)
            assert answer.status < 500, (door, body[:60])


def test_any_bytes_are_refused_with_4xx(client: Client) -> None:
    @LONG
    @given(
        st.sampled_from(DOORS), st.binary(max_size=60).filter(lambda body: body.strip() != b"{}")
    )
    def send(door: str, body: bytes) -> None:
        answer = client.ask(door, body, service="service", version=NEWEST)
        assert 400 <= answer.status < 500

    send()


PARAMETERS = [
    *("limit", "marker", "sort_key", "sort_dir", "instance", "state", "bind_state", "hostname"),
    *("name", "type", "status", "deployable_id", "key", "value", "arqs", "filters.field"),
    *("filters.value", "kind", "host", "driver", "backend", "in_use", "labels", "verb", "wait"),
    *("setup_required", "drain", "project_id", "device", "request_id", "since", "group_by"),
    *("profile", "by"),
]
NOUNS = [
    *("accelerator_requests", "attributes", "deployables", "device_profiles", "devices"),
    *("services", "services/<random>", "services/discover", "drivers", "drivers/fake_driver"),
    *("backends", "hardware", "operations", "usage", "events", "capacity"),
    "instances/<instance>/accelerators",
]
METHODS = st.sampled_from(["GET", "DELETE"])


@pytest.mark.parametrize("noun", NOUNS)
def test_any_query_is_answered_without_500(client: Client, noun: str) -> None:
    pairs = st.lists(st.tuples(st.sampled_from(PARAMETERS), st.binary(max_size=12)), max_size=3)

    @CALM
    @given(METHODS, pairs, VERSIONS)
    def send(method: str, pairs: list[tuple[str, bytes]], version: str | None) -> None:
        query = "&".join(f"{name}={quote(value)}" for name, value in pairs)
        assert is_expected(client.send(method, f"/v2/{noun}?{query}", version=version))

    send()


def test_any_path_is_answered_without_500(client: Client) -> None:
    @LONG
    @given(METHODS, st.sampled_from(NOUNS), st.binary(min_size=1, max_size=20), VERSIONS)
    def send(method: str, noun: str, segment: bytes, version: str | None) -> None:
        answer = client.send(method, f"/v2/{noun}/{quote(segment)}", version=version)
        assert answer.status < 500

    send()


@given(st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=30))
@CALM
def test_any_version_header_is_answered_without_500(client: Client, header: str) -> None:
    assert client.send("GET", "/v2", as_=None, version=header).status in (200, 406)
