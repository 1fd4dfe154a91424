# SPDX-License-Identifier: Apache-2.0
"""Accelerator requests over HTTP, except binding."""

from typing import Any

import pytest
import sqlalchemy as sa

from cyborg.db.engine import Database
from cyborg.db.models import AttachHandle
from cyborg.tests.unit.api import people
from cyborg.tests.unit.api.world import FACTS, Client, is_moment

PATH = "/v2/accelerator_requests"


def uuids(client: Client, query: str = "", **sent: Any) -> set[str]:
    answer = client.send("GET", f"{PATH}{query}", **sent)
    assert answer.status == 200
    return {arq["uuid"] for arq in answer.body["arqs"]}


def facts(*names: str) -> set[str]:
    return {FACTS[name] for name in names}


def test_create_returns_initial_arq(client: Client) -> None:
    answer = client.send("POST", PATH, {"device_profile_name": "gpu"}, as_="member")
    assert answer.status == 201
    [arq] = answer.body["arqs"]
    assert arq == {
        "uuid": arq["uuid"],
        "state": "Initial",
        "device_profile_name": "gpu",
        "device_profile_group_id": 0,
        "hostname": None,
        "device_rp_uuid": None,
        "instance_uuid": None,
        "project_id": people.OWN,
        "attach_handle_type": "",
        "attach_handle_uuid": None,
        "attach_handle_info": {},
        "links": [{"href": f"http://localhost{PATH}/{arq['uuid']}", "rel": "self"}],
        "created_at": arq["created_at"],
        "updated_at": None,
    }
    assert is_moment(arq["created_at"])
    assert client.send("GET", f"{PATH}/{arq['uuid']}", as_="member").body == arq


def test_create_makes_one_arq_for_each_unit_of_each_group(client: Client) -> None:
    answer = client.send("POST", PATH, {"device_profile_name": "pair"}, as_="member")
    assert [arq["device_profile_group_id"] for arq in answer.body["arqs"]] == [0, 0, 1]


NAMES = ("nothing", "", "!@#$%^&*()=-[]", "{0} {x}", "\U0001f600", "x" * 300, "gpu\n")
#: Status → bodies (lines 38 and 39).
CREATE: dict[int, list[Any]] = {
    404: [{"device_profile_name": name} for name in NAMES],
    400: [
        *(
            {"device_profile_name": name}
            for name in (None, 3, True, ["gpu"], {"a": 1}, "a\u0000", "\udfff")
        ),
        *({}, [], "gpu", 1, b"null", [{"device_profile_name": "gpu"}]),
    ],
    201: [
        {"device_profile_name": "gpu", "device_profile_group_id": group, "image_uuid": image}
        for group, image in ((None, None), (7, "x"))
    ],
}


@pytest.mark.parametrize("status", CREATE)
def test_bodies_of_create(client: Client, status: int) -> None:
    for body in CREATE[status]:
        before = uuids(client)
        assert client.send("POST", PATH, body).status == status, body
        assert len(uuids(client)) - len(before) == (status == 201)


def test_project_lists_its_own_arqs_and_admin_lists_all(client: Client) -> None:
    own = facts("arq", "arq-2", "bound", "started")
    for as_ in ("member", "reader", "manager"):
        assert uuids(client, as_=as_) == own
    assert uuids(client, as_="stranger") == facts("foreign")
    # The role service alone is not Nova.
    assert uuids(client, as_="service") == set()
    for as_ in ("admin", "bare-admin", "elsewhere-admin"):
        assert uuids(client, as_=as_) == own | facts("foreign")


FILTERS: dict[str, tuple[str, ...]] = {
    "instance=<instance>": ("bound",),
    "instance=<random>": (),
    "state=Initial": ("arq", "arq-2", "foreign"),
    "state=Bound": ("bound",),
    "state=Deleting": (),
    "bind_state=resolved": ("bound",),
    "bind_state=": ("arq", "arq-2", "foreign", "bound", "started"),
    "bind_state=resolved&state=Initial": (),
    "hostname=host-1": ("bound", "started"),
    "hostname=HOST-1": (),
    "device_rp_uuid=<provider>": ("bound", "started"),
    "device_rp_uuid=<provider>&state=Bound": ("bound",),
    "device_profile_name=gpu": ("arq", "arq-2", "foreign", "bound", "started"),
    "device_profile_name=nothing": (),
    "project_id=<other>": ("foreign",),
    "project_id=<own>&state=Bound": ("bound",),
}
INVALID = (
    *("instance=nonsense", "instance=", "instance=%00", "instance=<instance>&instance=<busy>"),
    *("state=initial", "bind_state=x", "bind_state=Resolved", "device_rp_uuid=1"),
    *("hostname=" + "x" * 256, "hostname=a%00", "nonsense=1"),
)


def test_list_filters_arqs(client: Client) -> None:
    for query, expected in FILTERS.items():
        assert uuids(client, f"?{query}") == facts(*expected), query
    for query in INVALID:
        answer = client.send("GET", f"{PATH}?{query}")
        assert answer.status == 400
        assert query.partition("=")[0] in answer.fault


def test_instance_filter_accepts_any_spelling_of_uuid(client: Client) -> None:
    for spelling in (FACTS["instance"].upper(), FACTS["instance"].replace("-", "")):
        assert uuids(client, f"?instance={spelling}") == facts("bound")


def test_list_of_resolved_arqs_returns_423_while_bind_is_in_progress(client: Client) -> None:
    assert uuids(client, "?instance=<instance>&bind_state=resolved") == facts("bound")
    assert uuids(client, "?instance=<random>&bind_state=resolved") == set()
    assert uuids(client, "?instance=<busy>&bind_state=resolved", as_="stranger") == set()
    waiting = client.send("GET", f"{PATH}?instance=<busy>&bind_state=resolved")
    assert waiting.status == 423
    assert FACTS["busy"] in waiting.fault


def test_show_returns_bound_arq_with_its_handle(client: Client) -> None:
    answer = client.send("GET", f"{PATH}/<bound>", as_="member")
    assert answer.status == 200
    assert answer.body["uuid"] == FACTS["bound"]
    assert answer.body["attach_handle_type"] == "TEST_PCI"
    assert answer.body["attach_handle_uuid"]
    assert answer.body["attach_handle_info"] == {
        "domain": "0000",
        "bus": "0c",
        "device": "00",
        "function": "0",
    }
    assert client.send("GET", f"{PATH}/<foreign>", as_="admin").status == 200


def test_a_handle_that_is_not_ready_is_not_shown(client: Client) -> None:
    arq = client.send("GET", f"{PATH}/<started>").body
    assert arq["state"] == "BindStarted"
    assert (arq["attach_handle_type"], arq["attach_handle_uuid"]) == ("", None)
    assert arq["attach_handle_info"] == {}


def test_bound_arq_whose_handle_is_missing_is_shown_without_one(
    client: Client, db: Database
) -> None:
    with db.writer() as tx:
        tx.execute(sa.update(AttachHandle).values(arq_id=None))
    arq = client.send("GET", f"{PATH}/<bound>").body
    assert arq["state"] == "Bound"
    assert (arq["attach_handle_type"], arq["attach_handle_uuid"]) == (None, None)
    assert arq["attach_handle_info"] == {}


def test_show_refuses_invalid_missing_and_foreign_arqs(client: Client) -> None:
    for key, as_, status in (
        ("<random>", "admin", 404),
        ("nonsense", "admin", 400),
        ("%00", "admin", 400),
        ("<foreign>", "member", 404),
        ("<arq>", "stranger", 404),
        ("<arq>/more", "admin", 404),
    ):
        assert client.send("GET", f"{PATH}/{key}", as_=as_).status == status, key


def test_delete_by_list_returns_404_when_repeated(client: Client) -> None:
    assert client.send("DELETE", f"{PATH}?arqs=<arq>,<arq-2>,<arq>", as_="member").status == 204
    answer = client.send("DELETE", f"{PATH}?arqs=<arq>,<arq-2>", as_="member")
    assert answer.status == 404
    assert FACTS["arq"] in answer.fault


def test_delete_removes_existing_arqs_when_others_are_missing(client: Client) -> None:
    answer = client.send("DELETE", f"{PATH}?arqs=<arq>,<random>", as_="member")
    assert answer.status == 404
    assert FACTS["random"] in answer.fault
    assert FACTS["arq"] not in answer.fault
    assert client.send("GET", f"{PATH}/<arq>").status == 404


@pytest.mark.parametrize("as_", ["member", "admin", "stranger", "service"])
def test_delete_by_instance_requires_service_token_and_reaches_every_project(
    client: Client, as_: str
) -> None:
    for instance in ("<instance>", "<random>"):
        answer = client.send("DELETE", f"{PATH}?instance={instance}", as_=as_)
        assert answer.status == 403
        assert "requires a service token" in answer.fault
    assert client.calls == []
    for instance in ("<instance>", "<instance>", "<random>"):
        path = f"{PATH}?instance={instance}"
        assert client.send("DELETE", path, as_=as_, service="nova").status == 204
    assert client.send("GET", f"{PATH}/<bound>").status == 404


def test_get_by_instance_with_a_service_token_reaches_every_project(client: Client) -> None:
    query = "?instance=<instance>"
    assert uuids(client, query, as_="stranger") == set()
    assert uuids(client, query, as_="stranger", service="service") == facts("bound")
    assert uuids(client, "?state=Bound", as_="stranger", service="service") == set()


def test_invalid_delete_removes_nothing(client: Client) -> None:
    before = uuids(client)
    for query in (
        *("", "?arqs=", "?arqs=,", "?arqs=nonsense", "?arqs=<arq>,nonsense"),
        *("?arqs=<arq>&instance=<instance>", "?instance=nonsense", "?instance=", "?nonsense=1"),
        *("/<arq>?arqs=<arq-2>", "/nonsense"),
    ):
        assert client.send("DELETE", f"{PATH}{query}", service="service").status == 400, query
    assert uuids(client) == before


def test_delete_by_path_is_limited_to_visible_arqs(client: Client) -> None:
    assert client.send("DELETE", f"{PATH}/<arq>", as_="member").status == 204
    assert client.send("DELETE", f"{PATH}/<arq>", as_="member").status == 404
    assert client.send("DELETE", f"{PATH}/<foreign>", as_="member").status == 404
    assert client.send("DELETE", f"{PATH}/<foreign>", as_="admin").status == 204


@pytest.mark.parametrize("form", ["?arqs=<bound>", "/<bound>", "?arqs=<bound>,<arq>"])
def test_delete_of_bound_arq_requires_service_token(client: Client, form: str) -> None:
    for as_ in ("member", "admin"):
        refused = client.send("DELETE", f"{PATH}{form}", as_=as_)
        assert refused.status == 403
        assert "bound" in refused.fault
        assert "Compute API" in refused.fault
    assert client.send("GET", f"{PATH}/<bound>").status == 200
    again = f"{PATH}{form}".replace(",<arq>", "")
    assert client.send("DELETE", again, as_="member", service="service").status == 204
    assert client.send("GET", f"{PATH}/<bound>").status == 404


def test_service_creates_reads_and_deletes_without_other_role(client: Client) -> None:
    created = client.send("POST", PATH, {"device_profile_name": "gpu"}, as_="service")
    assert created.status == 201
    uuid = created.body["arqs"][0]["uuid"]
    assert client.send("GET", f"{PATH}/{uuid}", as_="service").status == 200
    assert client.send("DELETE", f"{PATH}?arqs={uuid}", as_="service").status == 204


def test_another_projects_requests_are_not_listed_by_name(client: Client) -> None:
    assert client.send("GET", f"{PATH}?project_id=<other>", as_="member").status == 403
    assert client.send("GET", f"{PATH}?project_id=<own>", as_="member").status == 200
