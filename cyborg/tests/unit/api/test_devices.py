# SPDX-License-Identifier: Apache-2.0
"""Devices from microversion 2.100 on: what is shown to whom, filters, and updates."""

from collections.abc import Mapping
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg.db import models
from cyborg.db.engine import Database
from cyborg.model.device import DeviceStatus
from cyborg.model.probation import HealthOrder
from cyborg.tests.unit.api import people
from cyborg.tests.unit.api.world import FACTS, Client

PATH = "/v2/devices"
PROFILES = "/v2/device_profiles"
NEWEST = "accelerator 2.100"


def found(client: Client, query: str = "", as_: str = "operator") -> list[str]:
    answer = client.send("GET", f"{PATH}?{query}", as_=as_, version=NEWEST)
    assert answer.status == 200
    return [device["uuid"] for device in answer.body["devices"]]


def set_device(db: Database, name: str, **values: Any) -> None:
    with db.writer() as tx:
        device = models.Device
        tx.execute(sa.update(device).where(device.uuid == FACTS[name]).values(**values))


def set_instance(db: Database, name: str, values: Mapping[str, Any]) -> None:
    with db.writer() as tx:
        instance = models.Instance
        tx.execute(sa.update(instance).where(instance.uuid == FACTS[name]).values(**values))


def user(name: str) -> dict[str, Any]:
    """An instance of which Nova has not said anything yet."""
    return {"uuid": FACTS[name], "name": "unknown", "status": "unknown", "seen_at": None}


#: Whose requests hold units of the device, in the order in which they are shown.
USERS = sorted(["instance", "busy"], key=lambda name: FACTS[name])


@pytest.mark.parametrize("as_", ["admin", "operator"])
def test_operators_see_all_fields(client: Client, db: Database, as_: str) -> None:
    set_device(db, "device", labels={"rack": "7"}, backend="left", status_reason="said")
    shown = client.send("GET", f"{PATH}/<device>", as_=as_, version=NEWEST).body
    assert shown["hostname"] == "host-1"
    news = ("status", "status_reason", "driver", "backend", "labels", "in_use", "instances")
    assert {name: shown[name] for name in news} == {
        "status": "enabled",
        "status_reason": "said",
        "driver": "fake_driver",
        "backend": "left",
        "labels": {"rack": "7"},
        "in_use": True,
        "instances": [user(name) for name in USERS],
    }
    older = client.send("GET", f"{PATH}/<device>", as_=as_, version="accelerator 2.3").body
    assert set(shown) - set(older) >= set(news[1:])
    assert found(client, as_=as_) == [FACTS["device"], FACTS["lost"]]


@pytest.mark.parametrize("as_", ["member", "reader"])
def test_users_see_their_devices_without_place(client: Client, as_: str) -> None:
    assert found(client, as_=as_) == [FACTS["device"]]
    shown = client.send("GET", f"{PATH}/<device>", as_=as_, version=NEWEST)
    assert (shown.body["driver"], shown.body["in_use"]) == ("fake_driver", True)
    assert shown.body["instances"] == [user(name) for name in USERS]
    assert b"host-1" not in shown.raw
    hidden = {"backend", "std_board_info", "vendor_board_info", "status_reason"}
    assert hidden.isdisjoint(shown.body)
    assert client.send("GET", f"{PATH}/<lost>", as_=as_, version=NEWEST).status == 404


def test_others_see_no_devices(client: Client) -> None:
    assert found(client, as_="stranger") == []
    for uuid in ("<device>", "<lost>", "<random>"):
        assert client.send("GET", f"{PATH}/{uuid}", as_="stranger", version=NEWEST).status == 404
    assert client.send("GET", PATH, as_="nobody", version=NEWEST).status == 403
    assert client.send("GET", PATH, as_="member", version="accelerator 2.3").status == 403


def test_users_see_only_their_instances(client: Client, db: Database) -> None:
    with db.writer() as tx:
        arq = models.Arq
        mine = sa.update(arq).where(arq.uuid == FACTS["bound"])
        tx.execute(mine.values(project_id=people.OTHER))
    for as_, instance, other in (
        ("stranger", "instance", "busy"),
        ("member", "busy", "instance"),
        ("reader", "busy", "instance"),
    ):
        shown = client.send("GET", f"{PATH}/<device>", as_=as_, version=NEWEST).body
        assert shown["instances"] == [user(instance)]
        assert found(client, f"instance=<{instance}>", as_=as_) == [FACTS["device"]]
        assert found(client, f"instance=<{other}>", as_=as_) == []
    assert found(client, "instance=<busy>", as_="manager") == [FACTS["device"]]


@pytest.mark.parametrize("as_", ["admin", "operator", "manager", "member", "reader"])
def test_device_shows_info_of_its_instances(client: Client, db: Database, as_: str) -> None:
    said = {"name": "web-1", "status": "SHUTOFF", "seen_ms": 1_700_000_000_123}
    set_instance(db, "busy", said)
    reported = {"name": "web-1", "status": "SHUTOFF", "seen_at": "2023-11-14T22:13:20.123+00:00"}
    shown = client.send("GET", f"{PATH}/<device>", as_=as_, version=NEWEST).body
    assert shown["instances"] == [
        user(name) | (reported if name == "busy" else {}) for name in USERS
    ]
    (listed, *_) = client.send("GET", PATH, as_=as_, version=NEWEST).body["devices"]
    assert listed.items() <= shown.items()


def test_instance_with_several_arqs_is_shown_once(client: Client, db: Database) -> None:
    with db.writer() as tx:
        arq = models.Arq
        both = sa.update(arq).where(arq.uuid == FACTS["started"])
        tx.execute(both.values(instance_uuid=FACTS["instance"]))
    shown = client.send("GET", f"{PATH}/<device>", version=NEWEST).body
    assert shown["instances"] == [user("instance")]


@pytest.mark.parametrize("as_", ["operator", "member"])
def test_hidden_arq_shows_no_instance(client: Client, db: Database, as_: str) -> None:
    with db.writer() as tx:
        arq = models.Arq
        tx.execute(sa.update(arq).where(arq.uuid == FACTS["started"]).values(hidden=True))
    assert found(client, "instance=<busy>", as_=as_) == []
    shown = client.send("GET", f"{PATH}/<device>", as_=as_, version=NEWEST).body
    assert (shown["in_use"], shown["instances"]) == (True, [user("instance")])


#: Filter → the devices that match.
FILTERS = {
    **dict.fromkeys(("driver=fake_driver", "labels=rack=7"), "device lost"),
    **dict.fromkeys(("backend=left", "status=ready", "status=enabled", "in_use=true"), "device"),
    **dict.fromkeys(("status=lost", "in_use=False"), "lost"),
    **dict.fromkeys(("instance=<instance>", "labels=rack=7,tier=a%20b"), "device"),
    "in_use=true&labels=rack=7&driver=fake_driver": "device",
    **dict.fromkeys(("driver=other", "status=maintaining", "status=inactive"), ""),
    **dict.fromkeys(("instance=<random>", "labels=rack=8", "labels=none=8", "labels=rack="), ""),
}


def test_list_filters_devices(client: Client, db: Database) -> None:
    set_device(db, "device", labels={"rack": "7", "tier": "a b"}, backend="left")
    set_device(db, "lost", labels={"rack": "7"})
    for query, names in FILTERS.items():
        assert found(client, query) == [FACTS[name] for name in names.split()], query


INVALID = ("status=gone", "in_use=1", "in_use=", "instance=x", "labels=", "labels=rack")
NEWER = ("driver=x", "backend=x", "in_use=true", "instance=<instance>", "labels=a=b")


def test_invalid_and_newer_filters_are_refused(client: Client) -> None:
    for query in (*INVALID, "labels=a b=c"):
        assert client.send("GET", f"{PATH}?{query}", version=NEWEST).status == 400, query
    for query in (*NEWER, "status=lost"):
        assert client.send("GET", f"{PATH}?{query}", version="2.3").status == 400, query


def test_users_cannot_filter_by_place(client: Client) -> None:
    for query in ("hostname=host-1", "backend=left", "sort_key=hostname"):
        for as_, status in (("member", 403), ("manager", 403), ("operator", 200)):
            answer = client.send("GET", f"{PATH}?{query}", as_=as_, version=NEWEST)
            assert answer.status == status, query


def test_a_list_costs_five_statements(client: Client, db: Database, statements: list[str]) -> None:
    set_device(db, "device", labels={"rack": "7"})
    found(client)
    assert len(statements) == 5
    found(client, "labels=rack=7&in_use=true&limit=9")
    assert len(statements) == 10


ENABLED, MAINTAINING = DeviceStatus.ENABLED, DeviceStatus.MAINTAINING
CHANGES: list[tuple[Any, Any]] = [
    (
        {"model": "m", "traits": ["CUSTOM_B", "CUSTOM_A", "CUSTOM_B"]},
        {"facts": {"model": "m", "traits": ["CUSTOM_B", "CUSTOM_A"]}},
    ),
    ({"status": "ready"}, {"status": ENABLED}),
    ({"status": "enabled"}, {"status": ENABLED}),
    ({"status": "maintaining"}, {"status": MAINTAINING}),
    ({"labels": {"a.b-c_d": "", "z": None}}, {"labels": {"a.b-c_d": "", "z": None}}),
    ({"labels": {}}, {}),
]


def test_update_changes_device(client: Client) -> None:
    nothing: dict[str, Any] = {
        "project": None,
        "status": None,
        "labels": {},
        "facts": {},
        "reason": None,
        "free_unit": None,
        "health": None,
    }
    for body, arguments in CHANGES:
        answer = client.send("PATCH", f"{PATH}/<device>", body, as_="operator", version=NEWEST)
        # Only accelerators that operators created have facts to change.
        assert answer.status == (409 if "facts" in arguments else 200), answer.body
        verb, caller, sent = client.calls[-1]
        assert (verb, caller.all_projects) == ("update_device", True)
        assert sent == {"uuid": FACTS["device"], **nothing, **arguments}


def test_users_change_labels_and_no_status(client: Client) -> None:
    label, order = {"labels": {"mine": "yes"}}, {"status": "maintaining"}
    for as_, body, uuid, status in (
        ("member", label, "<device>", 200),
        ("member", order, "<device>", 403),
        ("member", label, "<lost>", 404),
        ("member", order, "<lost>", 404),
        ("stranger", label, "<device>", 404),
        ("stranger", order, "<device>", 404),
        ("reader", label, "<device>", 403),
    ):
        answer = client.send("PATCH", f"{PATH}/{uuid}", body, as_=as_, version=NEWEST)
        assert answer.status == status, (as_, body, uuid)
        assert b"host-1" not in answer.raw
    scopes = {(caller.all_projects, sent["project"]) for _, caller, sent in client.calls}
    assert scopes == {(False, people.OWN), (False, people.OTHER)}


RECORD = {
    "result": "failed",
    "level": "full",
    "steps": [{"name": "function reset", "seconds": 0.4}],
    "reason": "its sanitize has failed; replace the disk",
}


@pytest.mark.parametrize(("as_", "seen"), [("operator", True), ("member", False)])
def test_operators_see_the_last_cleaning_of_each_unit(
    client: Client, db: Database, as_: str, seen: bool
) -> None:
    handle = models.AttachHandle
    own = (
        sa.select(models.Deployable.id)
        .join(models.Device, models.Device.id == models.Deployable.device_id)
        .where(models.Device.uuid == FACTS["device"])
    )
    with db.writer() as tx:
        key = (
            tx.execute(
                sa.select(handle.handle_key)
                .where(handle.deployable_id.in_(own))
                .order_by(handle.id)
            )
            .scalars()
            .first()
        )
        tx.execute(
            sa.update(handle)
            .where(handle.deployable_id.in_(own), handle.handle_key == key)
            .values(clean_record=RECORD, clean_ms=1_763_890_000_000)
        )
    shown = client.send("GET", f"{PATH}/<device>", as_=as_, version=NEWEST).body
    if seen:
        (cleaning,) = shown["cleaning"]
        at = cleaning.pop("at")
        assert cleaning == {"unit": key, **RECORD}
        assert at.startswith("2025-11-23T09:26:40")
    else:
        assert "cleaning" not in shown


@pytest.mark.parametrize("as_", ["admin", "operator", "manager", "member", "reader"])
def test_device_shows_the_profiles_of_the_caller_that_it_satisfies(
    client: Client, as_: str
) -> None:
    fits = {"resources:FPGA": "2", "trait:CUSTOM_FAKE_DEVICE": "required"}
    profiles: list[dict[str, Any]] = [
        {"name": "z-both", "groups": [{"resources:PGPU": "1"}, fits, {"resources:FPGA": "1"}]},
        {"name": "y-theirs", "groups": [fits], "projects": [people.OTHER]},
        {"name": "x-many", "groups": [{"resources:FPGA": "5"}]},
        {"name": "w-forbidden", "groups": [fits | {"trait:CUSTOM_FAKE_DEVICE": "forbidden"}]},
    ]
    before = client.send("GET", f"{PATH}/<device>", as_=as_, version=NEWEST).body["profiles"]
    for body in profiles:
        assert client.send("POST", PROFILES, [body], version=NEWEST).status == 201
    shown = client.send("GET", f"{PATH}/<device>", as_=as_, version=NEWEST).body["profiles"]
    added = [(profile["name"], profile["groups"]) for profile in shown if profile not in before]
    everywhere = as_ in ("admin", "operator")
    assert added == [*([("y-theirs", [0])] if everywhere else []), ("z-both", [1, 2])]
    listed = client.send("GET", PROFILES, as_=as_, version=NEWEST).body["device_profiles"]
    assert {profile["uuid"] for profile in shown} <= {profile["uuid"] for profile in listed}
    older = client.send("GET", f"{PATH}/<device>", as_="admin", version="accelerator 2.3").body
    assert "profiles" not in older


def test_operators_see_which_traits_name_the_product(client: Client, db: Database) -> None:
    with db.writer() as tx:
        part = models.Deployable
        tx.execute(sa.update(part).values(product_traits=["CUSTOM_B", "CUSTOM_A"], group_size=2))
    (provider, *_) = client.send("GET", f"{PATH}/<device>", as_="operator", version=NEWEST).body[
        "providers"
    ]
    assert (provider["product_traits"], provider["group_size"]) == (["CUSTOM_B", "CUSTOM_A"], 2)
    with db.writer() as tx:
        tx.execute(sa.update(part).values(product_traits=None, group_size=None))
    (provider, *_) = client.send("GET", f"{PATH}/<device>", as_="operator", version=NEWEST).body[
        "providers"
    ]
    assert (provider["product_traits"], provider["group_size"]) == ([], 1)


def test_unit_in_quarantine_is_freed_by_its_key(client: Client) -> None:
    body = {"free_unit": "0000:0c:00.1"}
    answer = client.send("PATCH", f"{PATH}/<device>", body, as_="operator", version=NEWEST)
    # The simulated device has no unit in quarantine.
    assert answer.status == 409
    assert "has no unit 0000:0c:00.1 in quarantine" in answer.fault
    empty = client.send(
        "PATCH",
        f"{PATH}/<device>",
        {"free_unit": None},
        as_="operator",
        version=NEWEST,
    )
    assert empty.status == 400


@pytest.mark.parametrize(
    ("body", "order"),
    [
        ({"health": "auto"}, HealthOrder()),
        ({"health": "ignore", "ignore_for": 3600}, HealthOrder(3600)),
    ],
)
def test_operator_orders_health(client: Client, body: dict[str, Any], order: HealthOrder) -> None:
    answer = client.send("PATCH", f"{PATH}/<device>", body, as_="operator", version=NEWEST)
    assert answer.status == 200, answer.body
    verb, _, sent = client.calls[-1]
    assert (verb, sent["health"]) == ("update_device", order)


def test_member_of_a_project_does_not_order_health(client: Client) -> None:
    body = {"health": "auto"}
    answer = client.send("PATCH", f"{PATH}/<device>", body, as_="member", version=NEWEST)
    assert answer.status in (403, 404)
