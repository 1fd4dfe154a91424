# SPDX-License-Identifier: Apache-2.0
"""A client's mistake is never a 5xx: whatever is sent, to every door that takes something."""

import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cyborg.tests.unit.api.world import FACTS, Client

CALM = settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

# Words that the doors know, so that odd values reach further in than the first check.
WORDS = st.sampled_from(
    [
        "name",
        "groups",
        "uuid",
        "description",
        "resources:FPGA",
        "trait:CUSTOM_A",
        "accel:x",
        "required",
        "device_profile_name",
        "gpu",
        "op",
        "path",
        "value",
        "add",
        "remove",
        "/hostname",
        "/instance_uuid",
        "/device_rp_uuid",
        "/program",
        "image_uuid",
        "attribute",
        "deployable_id",
        "key",
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

DOORS = [
    ("POST", "/v2/device_profiles"),
    ("POST", "/v2/accelerator_requests"),
    ("PATCH", "/v2/accelerator_requests"),
    ("PATCH", "/v2/deployables/<deployable>/program"),
    ("POST", "/v2/attributes"),
]


@pytest.mark.parametrize(("method", "path"), DOORS)
def test_any_json(client: Client, method: str, path: str) -> None:
    @CALM
    @given(VALUES)
    def send(value: Any) -> None:
        answer = client.send(method, path, json.dumps(value).encode(), service="service")
        assert answer.status < 500

    send()


@pytest.mark.parametrize(("method", "path"), DOORS)
def test_any_bytes(client: Client, method: str, path: str) -> None:
    @CALM
    @given(st.binary(max_size=60))
    def send(body: bytes) -> None:
        answer = client.send(method, path, body, service="service")
        assert 400 <= answer.status < 500

    send()


PARAMETERS = [
    "limit",
    "marker",
    "sort_key",
    "sort_dir",
    "instance",
    "state",
    "bind_state",
    "hostname",
    "name",
    "type",
    "status",
    "deployable_id",
    "key",
    "value",
    "arqs",
    "filters.field",
    "filters.value",
]
NOUNS = ["accelerator_requests", "attributes", "deployables", "device_profiles", "devices"]


@pytest.mark.parametrize("noun", NOUNS)
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_any_query(client: Client, method: str, noun: str) -> None:
    @CALM
    @given(st.lists(st.tuples(st.sampled_from(PARAMETERS), st.binary(max_size=12)), max_size=3))
    def send(pairs: list[tuple[str, bytes]]) -> None:
        query = "&".join(f"{name}={quote(value)}" for name, value in pairs)
        assert client.send(method, f"/v2/{noun}?{query}").status < 500

    send()


@pytest.mark.parametrize("noun", NOUNS)
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_any_path(client: Client, method: str, noun: str) -> None:
    @CALM
    @given(st.binary(min_size=1, max_size=20))
    def send(segment: bytes) -> None:
        assert client.send(method, f"/v2/{noun}/{quote(segment)}").status < 500

    send()


@given(st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=30))
@CALM
def test_any_version_header(client: Client, header: str) -> None:
    assert client.send("GET", "/v2", as_=None, version=header).status in (200, 406)
