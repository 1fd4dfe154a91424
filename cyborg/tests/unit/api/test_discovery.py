# SPDX-License-Identifier: Apache-2.0
"""Version documents, microversions, links, errors and headers: what every client meets first."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from cyborg.tests.unit.api.world import Client

MakeClient = Callable[..., Client]
VERSION_HEADERS = {
    "OpenStack-API-Minimum-Version": "2.0",
    "OpenStack-API-Maximum-Version": "2.100",
    "Vary": "OpenStack-API-Version",
}


def test_version_documents(client: Client) -> None:
    """The samples of the API reference have the documents whole."""
    root = client.send("GET", "/", as_=None)
    assert root.status == 200
    assert root.body["name"] == "OpenStack Cyborg API"
    [version] = root.body["versions"]
    assert root.body["default_version"] == version
    assert version["microversions"] == ["2.0", "2.1", "2.2", "2.3", "2.100"]
    assert version.pop("links") == [{"href": "http://localhost/v2", "rel": "self"}]
    assert "OpenStack-API-Version" not in root.headers
    for path in ("/v2", "/v2/", "/v2.json"):
        answer = client.send("GET", path, as_=None)
        assert answer.status == 200
        assert answer.body.pop("links") == [{"href": "http://localhost/v2/", "rel": "self"}]
        assert answer.body == {**version, "id": "v2.0"}
        assert answer.headers["OpenStack-API-Version"] == "accelerator 2.0"
        assert VERSION_HEADERS.items() <= dict(answer.headers).items()


LINKS = [
    ("", {}, {}, "http://localhost"),
    ("", {"Host": "cloud.example:6666"}, {}, "http://cloud.example:6666"),
    ("", {}, {"SCRIPT_NAME": "/accelerator"}, "http://localhost/accelerator"),
    ("", {}, {"wsgi.url_scheme": "https", "HTTP_HOST": "a:6666"}, "https://a:6666"),
    ("https://public:6666", {"Host": "inner"}, {}, "https://public:6666"),
    ("https://public/", {}, {"SCRIPT_NAME": "/accelerator"}, "https://public/accelerator"),
    ("https://public/x/v2", {}, {"SCRIPT_NAME": "/accelerator"}, "https://public/x"),
]


@pytest.mark.parametrize(("endpoint", "headers", "environ", "base"), LINKS)
def test_links_use_the_url_of_the_client(
    make_client: MakeClient, endpoint: str, headers: Any, environ: Any, base: str
) -> None:
    client = make_client(f"[api]\npublic_endpoint = {endpoint}\n" if endpoint else "")
    sent = {"headers": headers, "environ": environ}
    root = client.send("GET", "/", as_=None, **sent).body
    assert root["versions"][0]["links"][0]["href"] == f"{base}/v2"
    v2 = client.send("GET", "/v2", as_=None, **sent).body
    assert v2["links"][0]["href"] == f"{base}/v2/"
    [arq] = client.send("GET", "/v2/accelerator_requests?instance=<instance>", **sent).body["arqs"]
    assert arq["links"][0]["href"] == f"{base}/v2/accelerator_requests/{arq['uuid']}"


@pytest.mark.parametrize(
    "endpoint", ["https://public/accelerator", "https://public/accelerator/v2/"]
)
def test_path_of_public_endpoint_is_served(make_client: MakeClient, endpoint: str) -> None:
    client = make_client(f"[api]\nmetrics = true\npublic_endpoint = {endpoint}\n")
    for prefix in ("", "/accelerator"):
        for path in ("", "/", "/v2", "/v2/", "/healthcheck", "/metrics"):
            answer = client.send("GET", f"{prefix}{path}", as_=None)
            assert answer.status in (200, 503), path
        assert client.send("GET", f"{prefix}/v2/devices").status == 200
        assert client.send("GET", f"{prefix}/devices").status == 200
        assert client.send("GET", f"{prefix}/v2/devices", as_=None).status == 401
        links = client.send("GET", f"{prefix}/v2", as_=None).body["links"]
        assert links[0]["href"] == "https://public/accelerator/v2/"
    # Nothing is taken off twice, nor off a path that only begins alike.
    assert client.send("GET", "/accelerator/accelerator/v2/devices").status == 404
    assert client.send("GET", "/accelerators/v2/devices").status == 404


def test_public_endpoint_may_have_escapes(client: Client, make_client: MakeClient) -> None:
    escaped = make_client("[api]\npublic_endpoint = https://public/our%20cloud\n")
    answer = escaped.send("GET", "/our%20cloud/v2", as_=None)
    assert answer.body["links"][0]["href"] == "https://public/our%20cloud/v2/"
    # Without a public endpoint nothing is taken off.
    assert client.send("GET", "/accelerator/v2/devices").status == 404


def test_links_follow_proxy_headers_when_enabled(client: Client, make_client: MakeClient) -> None:
    trusting = make_client("[oslo_middleware]\nenable_proxy_headers_parsing = true\n")
    for sent in (
        {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "front"},
        {"Forwarded": "for=192.0.2.1;proto=https;host=front"},
    ):
        prefixed = {**sent, "X-Forwarded-Prefix": "/accelerator"}
        answer = trusting.send("GET", "/v2", as_=None, headers=prefixed)
        assert answer.body["links"][0]["href"] == "https://front/accelerator/v2/"
        answer = client.send("GET", "/v2", as_=None, headers=prefixed)
        assert answer.body["links"][0]["href"] == "http://localhost/v2/"


BELOW_V2: list[tuple[str, str, Any, int]] = [
    ("GET", "/v2", None, 200),
    ("GET", "/v2/devices", None, 200),
    ("GET", "/devices", None, 200),
    ("GET", "/v2/devices/nonsense", None, 400),
    ("GET", "/v2/devices/<random>", None, 404),
    ("GET", "/v2/nothing", None, 404),
    ("PUT", "/v2/devices", None, 405),
    ("POST", "/v2/accelerator_requests", [], 400),
    ("DELETE", "/v2/accelerator_requests/<arq>", None, 204),
]


def test_every_v2_response_has_version_headers(client: Client) -> None:
    for method, path, body, status in BELOW_V2:
        answer = client.send(method, path, body, version="accelerator 2.1")
        assert answer.status == status, path
        assert answer.headers["OpenStack-API-Version"] == "accelerator 2.1"
        assert VERSION_HEADERS.items() <= dict(answer.headers).items()


def test_discovery_needs_no_token(client: Client) -> None:
    for path in ("/", "/v2", "/v2/", "/v2.json", ""):
        for token in (None, "forged"):
            assert client.send("GET", path, as_=token).status == 200
            assert client.send("HEAD", path, as_=token).status == 200


def test_every_other_path_needs_a_valid_token(client: Client) -> None:
    for path in ("/v2/devices", "/devices", "/v2/nothing", "/v2/device_profiles/x", "/v1", "/v2x"):
        for token in (None, "forged", "expired-member"):
            answer = client.send("GET", path, as_=token)
            assert answer.status == 401
            assert answer.headers["WWW-Authenticate"] == 'Keystone uri="http://keystone.test:5000"'
            assert VERSION_HEADERS.items() <= dict(answer.headers).items()
            assert answer.body["error"]["code"] == 401
            assert answer.body["error_message"]


VERSIONS = [
    (None, "2.0"),
    ("accelerator 2.0", "2.0"),
    ("accelerator 2.2", "2.2"),
    ("accelerator latest", "2.100"),
    ("Accelerator LATEST", "2.100"),
    ("ACCELERATOR 2.3", "2.3"),
    ("2.1", "2.1"),
    ("latest", "2.100"),
    ("accelerator 2.100", "2.100"),
    ("accelerator 2.3, compute 2.90", "2.3"),
    ("compute 2.90,accelerator 2.3", "2.3"),
    ("compute 2.90, 2.1", "2.1"),
    # By the guideline of OpenStack, other services only mean the minimum version.
    ("compute 2.90", "2.0"),
    ("compute latest, volume 3.70", "2.0"),
]


def test_requested_microversion_is_used(client: Client) -> None:
    for header, used in VERSIONS:
        answer = client.send("GET", "/v2/devices", version=header)
        assert answer.status == 200, header
        assert answer.headers["OpenStack-API-Version"] == f"accelerator {used}"
        assert ("status" in answer.body["devices"][0]) == (used in ("2.3", "2.100"))


def test_unsupported_microversion_returns_406(client: Client) -> None:
    for header in (
        *("accelerator 2.4", "accelerator 2.9", "accelerator 2.10", "accelerator 2.99"),
        *("accelerator 2.101", "accelerator 2.1000", "accelerator 1.0", "accelerator 3.0"),
        *("accelerator abc", "accelerator 2", "accelerator 2.0.1", "accelerator -2.1"),
        *("accelerator 2.99999999999999999999", "accelerator", ""),
        "accelerator 2.٣".encode().decode("latin-1"),
    ):
        answer = client.send("GET", "/v2/devices", version=header)
        assert answer.status == 406, header
        assert "2.0, 2.1, 2.2, 2.3, 2.100" in answer.fault
        assert VERSION_HEADERS.items() <= dict(answer.headers).items()
        assert "OpenStack-API-Version" not in answer.headers


def test_unknown_path_returns_404(client: Client) -> None:
    for path in ("/v2/nothing", "/nothing", "/v1", "/v3", "/v1/devices", "/v2.1"):
        answer = client.send("GET", path)
        assert answer.status == 404, path
        assert answer.fault


ERRORS = [
    ("GET", "/v2/nothing", None, 404),
    ("PUT", "/v2/devices", None, 405),
    ("GET", "/v2/devices/%ff", None, 400),
    ("GET", "/v2/devices?type=%ff", None, 400),
    ("GET", "/v2/devices?nonsense=1", None, 400),
    ("POST", "/v2/device_profiles", {"name": "x"}, 400),
    ("GET", "/v2/accelerator_requests?instance=<busy>&bind_state=resolved", None, 423),
]


@pytest.mark.parametrize("accept", [None, "*/*", "application/json"])
def test_every_error_has_the_body_that_clients_parse(client: Client, accept: str | None) -> None:
    for method, path, body, status in ERRORS:
        answer = client.send(method, path, body, headers={"Accept": accept} if accept else {})
        assert answer.status == status, path
        assert answer.headers["Content-Type"].startswith("application/json")
        assert isinstance(answer.body["error_message"], str)
        fault = json.loads(answer.body["error_message"])
        assert fault["faultcode"] == "Client"
        assert fault["faultstring"]
        assert fault["debuginfo"] is None


def test_response_without_content_has_no_body(client: Client) -> None:
    deleted = client.send("DELETE", "/v2/accelerator_requests/<arq>")
    assert (deleted.status, deleted.raw) == (204, b"")
    assert "Content-Type" not in deleted.headers
    ops = [{"op": "remove", "path": "/hostname"}]
    patched = client.send("PATCH", "/v2/accelerator_requests", {"<bound>": ops}, service="service")
    assert (patched.status, patched.raw) == (202, b"")
    assert patched.headers["Content-Length"] == "0"


def test_list_has_one_form_at_every_spelling_of_its_path(client: Client) -> None:
    for path in ("devices", "device_profiles", "deployables", "attributes", "accelerator_requests"):
        plain = client.send("GET", f"/v2/{path}")
        for other in (f"/{path}", f"/v2/{path}/", f"/v2/{path}//"):
            assert client.send("GET", other).body == plain.body
        key = "arqs" if path == "accelerator_requests" else path
        assert next(iter(plain.body)) == key
        assert plain.body[key]
    for path in ("devices", "accelerator_requests", "devices/<device>", "deployables/<deployable>"):
        answer = client.send("GET", f"/v2/{path}?nonsense=1")
        assert (answer.status, "nonsense" in answer.fault) == (400, True)


def test_accept_header_decides_between_json_and_406(client: Client) -> None:
    for accept in (
        *(None, "*/*", "application/json", "application/json;q=0.9, text/html;q=0.1"),
        "text/html,application/xhtml+xml,*/*;q=0.8",
    ):
        answer = client.send("GET", "/v2/devices", headers={"Accept": accept} if accept else {})
        assert answer.status == 200, accept
        assert answer.headers["Content-Type"].startswith("application/json")
    for accept in ("text/html", "application/xml"):
        answer = client.send("GET", "/v2/devices", headers={"Accept": accept})
        assert (answer.status, bool(answer.fault)) == (406, True), accept


BODIES = [
    (b"{", "application/json", 400),
    (b"", "application/json", 400),
    (b"  ", "application/json", 400),
    (b"NaN", "application/json", 400),
    (b'{"device_profile_name": "gpu"', "application/json", 400),
    (b"\xff\xfe", "application/json", 400),
    (b"[" * 200_000, "application/json", 400),
    (b"1" * 100_000, "application/json", 400),
    (b'{"device_profile_name": "gpu"}', "application/json; charset=utf-8", 201),
    (b'{"device_profile_name": "gpu"}', "text/javascript", 201),
    (b'{"device_profile_name": "gpu"}', "text/plain", 415),
    (b'{"device_profile_name": "gpu"}', "application/xml", 415),
    (b"device_profile_name=gpu", "application/x-www-form-urlencoded", 400),
    (b'{"device_profile_name": "' + b"x" * (1 << 20) + b'"}', "application/json", 413),
]


def test_request_body_must_be_json(client: Client) -> None:
    for body, content_type, status in BODIES:
        headers = {"Content-Type": content_type}
        answer = client.send("POST", "/v2/accelerator_requests", body, headers=headers)
        assert answer.status == status, body[:60]
        assert status == 201 or answer.fault


def test_every_response_has_a_new_request_id(client: Client) -> None:
    ids = set()
    for path, as_ in (("/", None), ("/v2", None), ("/v2/devices", None), ("/v2/devices", "admin")):
        for _ in range(2):
            ids.add(client.send("GET", path, as_=as_).headers["x-openstack-request-id"])
    assert len([one for one in ids if one.startswith("req-")]) == 8


def test_wrong_method_returns_405_with_allowed_methods(client: Client) -> None:
    assert client.send("PUT", "/v2/devices").headers["Allow"] == "GET, HEAD, POST"
    assert client.send("POST", "/v2").headers["Allow"] == "GET, HEAD"
    assert client.send("GET", "/v2/devices/<device>/enable").headers["Allow"] == "POST"


def test_method_override_in_query_is_ignored(client: Client) -> None:
    assert client.send("GET", "/v2/accelerator_requests/<arq>?_method=DELETE").status == 400
    assert client.send("GET", "/v2/accelerator_requests/<arq>").status == 200


def test_unexpected_error_returns_only_its_request_id(
    client: Client, conductor: Any, caplog: pytest.LogCaptureFixture
) -> None:
    conductor.fault = ZeroDivisionError("secret detail")
    answer = client.send("POST", "/v2/accelerator_requests", {"device_profile_name": "gpu"})
    assert answer.status == 500
    assert json.loads(answer.body["error_message"])["faultcode"] == "Server"
    assert "secret" not in answer.raw.decode()
    assert answer.headers["x-openstack-request-id"] in answer.fault
