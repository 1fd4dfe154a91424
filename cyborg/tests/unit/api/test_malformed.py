# SPDX-License-Identifier: Apache-2.0
"""Requests that are nearly valid: each answer is short and no 5xx, and the lists stay readable."""

import json
import re
from typing import Any
from urllib.parse import quote

import pytest

from cyborg import exception
from cyborg.api import microversion
from cyborg.model import device_profile
from cyborg.tests.fixtures import malformed
from cyborg.tests.fixtures.properties import fuzzed, given, st
from cyborg.tests.unit.api.test_odd_input import is_expected
from cyborg.tests.unit.api.world import NEW_DEVICE, Answer, Client

GROUP = {"resources:FPGA": "1", "trait:CUSTOM_A": "required", "accel:bitstream_id": "<image>"}
PROFILE = {"name": "new", "groups": [GROUP, {"resources:PGPU": 2}], "description": "text"}
BIND = [
    {"path": "/hostname", "op": "add", "value": "host-1"},
    {"path": "/device_rp_uuid", "op": "add", "value": "<provider>"},
    {"path": "/instance_uuid", "op": "add", "value": "<fresh>"},
    {"path": "/project_id", "op": "add", "value": "<own>"},
]
#: Each request with a body, and valid bodies of it.
BODIES: dict[str, list[Any]] = {
    "POST /v2/device_profiles": [[PROFILE]],
    "PATCH /v2/device_profiles/pair": [PROFILE, {"description": None}],
    "POST /v2/accelerator_requests": [
        {"device_profile_name": "gpu", "device_profile_group_id": 0, "image_uuid": "<image>"}
    ],
    "PATCH /v2/accelerator_requests": [
        {"<arq>": BIND, "<arq-2>": BIND},
        {"<bound>": [{"path": "/instance_uuid", "op": "remove"}]},
    ],
    "PATCH /v2/deployables/<deployable>/program": [
        [{"path": "/program", "op": "replace", "value": [{"image_uuid": "<image>"}]}]
    ],
    "POST /v2/attributes": [{"deployable_id": "#deployable-id", "key": "rack", "value": "r7"}],
    "POST /v2/devices": [
        {
            **NEW_DEVICE,
            "traits": ["CUSTOM_A"],
            "handles": ["0000:0c:00.0"],
            "labels": {"rack": "r7"},
        },
        {**NEW_DEVICE, "handles": 4},
    ],
    "PATCH /v2/devices/<device>": [
        {"status": "disabled", "disabled_reason": "fan", "labels": {"rack": "r7", "row": None}}
    ],
    "PATCH /v2/services/<random>": [{"status": "disabled", "disabled_reason": "fan"}],
    "POST /v2/services/discover": [{"hosts": ["host-1", "host-2"], "driver": "card_driver"}],
    "POST /v2/drivers": [{"driver": "card_driver", "hosts": ["host-1"], "options": {"a": "1"}}],
    "PATCH /v2/drivers/card_driver": [{"enabled": False, "hosts": ["host-1"]}],
    "POST /v2/instances/<instance>/accelerators": [{"device_profile": "gpu"}],
}
#: Words of the inside of the service, which no answer has.
INSIDE = re.compile(
    "Traceback|File \"|sqlalchemy|sqlite3|INSERT |SELECT |UPDATE |/cyborg/|<class '|object at 0x"
)
#: Bytes of the answer to a refused request.
LONGEST_REFUSAL = 4096
VERSIONS = st.sampled_from(["2.0", "2.1", "2.3", "2.100"])


def check(client: Client, answer: Answer) -> None:
    """Fail for an answer that says too much, and for a stored row that cannot be listed."""
    assert is_expected(answer), answer.fault
    assert INSIDE.search(answer.raw.decode()) is None, answer.raw
    if answer.status >= 400:
        assert len(answer.raw) <= LONGEST_REFUSAL, (answer.status, answer.raw[:200])
        assert answer.fault


def check_lists(client: Client) -> None:
    for noun in QUERIES:
        for version in ("2.0", "2.100"):
            answer = client.ask(f"GET /v2/{noun}", version=version)
            assert answer.status in (200, 404), (noun, answer.raw[:300])
            # JSON as text has no control characters of the rows.
            for text in re.findall(r"\\\\u00[01][0-9a-f]|\\\\ud[89a-f]", json.dumps(answer.body)):
                assert text.endswith(("0009", "000a", "000d")), (noun, text)


@pytest.mark.parametrize("request_", BODIES)
@pytest.mark.usefixtures("agent")
def test_nearly_valid_body_is_answered(client: Client, request_: str) -> None:
    @given(st.sampled_from(BODIES[request_]).flatmap(malformed.changed), VERSIONS)
    @fuzzed(60)
    def send(body: Any, version: str) -> None:
        text = client.fill(malformed.encode(body)).encode()
        with malformed.bounded():
            answer = client.ask(request_, text, service="service", version=version)
        check(client, answer)

    send()
    check_lists(client)


QUERIES: dict[str, dict[str, str]] = {
    "accelerator_requests": {"instance": "<instance>", "bind_state": "resolved", "arqs": "<arq>"},
    "attributes": {"deployable_id": "<deployable>", "key": "rc"},
    "deployables": {"root_uuid": "<random>", "name": "host-1_FakeDevice"},
    "device_profiles": {"name": "gpu,pair"},
    "devices": {"type": "FPGA", "vendor": "0xABCD", "hostname": "host-1", "labels": "rack=r7"},
    "services": {"host": "host-1", "binary": "cyborg-agent"},
    "drivers": {"host": "host-1", "status": "READY"},
    "hardware": {"driver": "fake_driver", "kind": "FPGA"},
    "operations": {"verb": "discover", "status": "running"},
    "events": {"since": "2026-11-22T13:05:00Z", "kind": "device", "request_id": "req-1"},
    "usage": {"group_by": "project_id"},
    "capacity": {"profile": "gpu,pair", "by": "numa", "host": "host-1"},
}
PAGE = {"limit": "1", "marker": "<device>", "sort_key": "uuid", "sort_dir": "desc"}


@pytest.mark.parametrize("noun", QUERIES)
def test_nearly_valid_query_is_answered(client: Client, noun: str) -> None:
    @given(malformed.changed(QUERIES[noun] | PAGE), VERSIONS, st.booleans())
    @fuzzed(40)
    def send(query: Any, version: str, pairs: bool) -> None:
        given_ = query.items() if isinstance(query, dict) else [("limit", query)]
        parts = []
        for name, value in given_:
            word = quote(client.fill(str(value)[:10_000]), errors="surrogatepass")
            key = quote(str(name)[:10_000], errors="surrogatepass")
            parts.append(f"filters.field={key}&filters.value={word}" if pairs else f"{key}={word}")
        with malformed.bounded():
            answer = client.ask(f"GET /v2/{noun}?{'&'.join(parts)}", version=version)
        check(client, answer)

    send()


#: What a header can have: webtest refuses other characters, and no web server passes them on.
HEADERS = malformed.texts("compute 2.90, accelerator 2.100").map(
    lambda text: re.sub(r"[^\x20-\x7e\xa0-\xff]", "", text)[:8000]
)


@given(HEADERS, HEADERS, st.sampled_from(["/v2", "/v2/devices", "/v2/accelerator_requests"]))
@fuzzed(150)
def test_nearly_valid_headers_are_answered(
    client: Client, version: str, other: str, path: str
) -> None:
    names = ("Idempotency-Key", "Accept", "X-Openstack-Request-Id", "If-Match", "X-Forwarded-Host")
    with malformed.bounded():
        answer = client.send("GET", path, version=version, headers=dict.fromkeys(names, other))
    check(client, answer)
    assert answer.status in (200, 300, 406)
    assert answer.headers.get("OpenStack-API-Maximum-Version") == microversion.MAXIMUM


@given(malformed.texts("compute 2.90, accelerator 2.100") | malformed.texts("latest"))
@fuzzed(500)
def test_any_header_is_negotiated_or_not_acceptable(header: str) -> None:
    with malformed.bounded():
        try:
            minor = microversion.negotiate(header)
        except exception.NotAcceptable as error:
            malformed.check_refusal(error, most=300)
            return
    assert minor in microversion.MINORS


LIMITS = device_profile.Limits(groups=10, units=64)


@given(malformed.changed([GROUP, {"resources:PGPU": 2}]).map(malformed.encode))
@fuzzed(300)
def test_groups_are_stored_in_one_form_or_refused(text: str) -> None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return
    with malformed.bounded():
        try:
            groups = device_profile.parse_groups(value, frozenset({"FPGA", "PGPU"}), LIMITS)
        except exception.Invalid as error:
            malformed.check_refusal(error, "Invalid value for groups")
            return
    assert device_profile.parse_groups(groups, frozenset({"FPGA", "PGPU"}), LIMITS) == groups
    assert all(isinstance(word, str) for group in groups for word in (*group, *group.values()))
