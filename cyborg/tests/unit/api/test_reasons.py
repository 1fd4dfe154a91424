# SPDX-License-Identifier: Apache-2.0
"""Microversion 2.100 over HTTP: why a bind failed, what happened to a request, why a device is out.

Below 2.100 nothing of it is seen.
"""

from typing import Any

import sqlalchemy as sa

from cyborg.db import models
from cyborg.db.engine import Database
from cyborg.tests.unit.api.world import FACTS, Client

ARQ = "/v2/accelerator_requests/<arq>"
DEVICES = "/v2/devices"
PROFILES = "/v2/device_profiles"
ATTRIBUTES = "/v2/attributes"
NEW = "accelerator 2.100"
OLDER = [None, "accelerator 2.0", "accelerator 2.3"]
FAULT = "the host did not finish the preparation in time"


def note(db: Database, action: str, *, at_ms: int = 0, **values: Any) -> None:
    """Add a line to the history of the request."""
    row = {"noun": "arq", "subject_uuid": FACTS["arq"], "action": action, "at_ms": at_ms, **values}
    with db.writer() as tx:
        tx.execute(sa.insert(models.Event).values(**row))


def set_(db: Database, table: Any, key: str, **values: Any) -> None:
    with db.writer() as tx:
        tx.execute(sa.update(table).where(table.uuid == FACTS[key]).values(**values))


def test_owner_sees_fault_of_a_failed_bind(client: Client, db: Database) -> None:
    set_(db, models.Arq, "arq", state="BindFailed", fault=FAULT)
    shown = client.send("GET", ARQ, as_="member", version=NEW).body
    assert (shown["state"], shown["fault"]) == ("BindFailed", FAULT)
    assert client.send("GET", ARQ, as_="stranger", version=NEW).status == 404


def test_arq_without_fault_shows_none(client: Client) -> None:
    path = "/v2/accelerator_requests/<bound>"
    shown = client.send("GET", path, version=NEW).body
    assert (shown["fault"], shown["events"]) == (None, [])


def test_arq_history_is_newest_first(client: Client, db: Database) -> None:
    instance = FACTS["instance"]
    note(db, "Initial", at_ms=1_772_600_767_001, user_id="user-of-member", request_id="req-1")
    note(db, "BindFailed", at_ms=1_772_600_768_000, instance_uuid=instance, reason=FAULT)
    note(db, "enabled", noun="device", user_id="user-of-member")
    note(db, "Bound", subject_uuid=FACTS["bound"], user_id="user-of-member")
    failed, made = client.send("GET", ARQ, as_="member", version=NEW).body["events"]
    nothing = dict.fromkeys(("hostname", "instance_uuid", "reason", "request_id", "user_id"))
    at = "2026-03-04T05:06"
    who = {"request_id": "req-1", "user_id": "user-of-member"}
    assert made == nothing | {"time": f"{at}:07.001+00:00", "action": "Initial"} | who
    why = {"instance_uuid": instance, "reason": FAULT}
    assert failed == nothing | {"time": f"{at}:08.000+00:00", "action": "BindFailed"} | why


def test_user_ids_are_shown_to_operators_only(client: Client, db: Database) -> None:
    nova, member = "user-of-nova", "user-of-member"
    note(db, "swept")
    note(db, "Initial", user_id=member)
    note(db, "Bound", user_id=nova)
    for as_, who in (("admin", [nova, member]), ("member", [None, member]), ("reader", [None] * 2)):
        events = client.send("GET", ARQ, as_=as_, version=NEW).body["events"]
        assert [event["user_id"] for event in events] == [*who, None]
        assert [event["action"] for event in events] == ["Bound", "Initial", "swept"]


def test_long_history_shows_newest_events_in_two_statements(
    client: Client, db: Database, statements: list[str]
) -> None:
    for number in range(60):
        note(db, f"step-{number}")
    events = client.send("GET", ARQ, version=NEW).body["events"]
    assert [event["action"] for event in events] == [f"step-{n}" for n in range(59, 9, -1)]
    assert len(statements) == 2


def test_arq_is_unchanged_below_2_100(client: Client, db: Database, statements: list[str]) -> None:
    before = client.send("GET", ARQ).body
    set_(db, models.Arq, "arq", fault=FAULT)
    note(db, "BindFailed", reason=FAULT)
    for number, version in enumerate(OLDER):
        # Its other values say when it was changed.
        after = {**client.send("GET", ARQ, version=version).body, "updated_at": None}
        assert list(after.items()) == list(before.items())
        assert len(statements) == number + 2


def test_lists_and_created_arqs_have_their_health_besides_at_2_100(client: Client) -> None:
    path = "/v2/accelerator_requests"
    before = client.send("GET", path).body["arqs"]
    assert client.send("GET", path, version=NEW).body["arqs"] == [
        {**arq, "health": None} for arq in before
    ]
    body = {"device_profile_name": "gpu"}
    made = [
        client.send("POST", path, body, version=version).body["arqs"][0] for version in (NEW, None)
    ]
    assert list(made[0]) == [*made[1], "health"]


def reasons(client: Client) -> list[str | None]:
    """Of all devices, as listed; shown, each says the same."""
    listed = client.send("GET", DEVICES, version=NEW).body["devices"]
    for device in listed:
        shown = client.send("GET", f"{DEVICES}/{device['uuid']}", version=NEW).body
        assert device.items() <= shown.items()
    return [device["status_reason"] for device in listed]


def test_devices_show_their_status_reason(client: Client, db: Database) -> None:
    lost = "Its host has not shown it since 1970-01-01T00:00:00.001+00:00."
    assert reasons(client) == [None, lost]
    set_(db, models.Device, "device", status="maintaining", status_reason="new firmware")
    set_(db, models.Device, "lost", status_reason="stolen")
    assert reasons(client) == ["new firmware", "stolen"]


def test_devices_show_no_status_reason_below_2_100(client: Client, db: Database) -> None:
    set_(db, models.Device, "device", status_reason="new firmware")
    for version in OLDER:
        shown = client.send("GET", f"{DEVICES}/<device>", version=version).body
        listed = client.send("GET", DEVICES, version=version).body["devices"]
        assert not [one for one in (shown, *listed) if "status_reason" in one]


PROFILE = {"name": "new", "groups": [{"resources:FPGA": "1"}]}
ATTRIBUTE = {"deployable_id": "<deployable>", "key": "k", "value": "v"}
#: path, body, the place of the key that nobody knows
ODD: list[tuple[str, Any, str]] = [
    (PROFILES, [{**PROFILE, "colour": "red"}], "[0].colour"),
    (PROFILES, [{**PROFILE, "Name": "x"}], "[0].Name"),
    (ATTRIBUTES, {**ATTRIBUTE, "colour": "red"}, "colour"),
    (ATTRIBUTES, {"attribute": {**ATTRIBUTE, "colour": "red"}}, "attribute.colour"),
    (ATTRIBUTES, {**ATTRIBUTE, "created_at": None}, "created_at"),
]
KNOWN: list[tuple[str, Any]] = [
    (PROFILES, [{**PROFILE, "description": "d", "uuid": "<random>"}]),
    (ATTRIBUTES, {**ATTRIBUTE, "uuid": "<random>"}),
    (ATTRIBUTES, {"attribute": ATTRIBUTE}),
]


def test_unknown_key_is_refused_at_2_100_and_ignored_below(client: Client, conductor: Any) -> None:
    for path, body, place in ODD:
        answer = client.send("POST", path, body, version=NEW)
        assert answer.status == 400
        assert f"Invalid value for {place}:" in answer.fault
    assert conductor.calls == []
    for version in OLDER:
        for path, body, _ in ODD:
            answer = client.send("POST", path, body, version=version)
            assert answer.status == 201, body
            client.send("DELETE", f"{path}/{answer.body['uuid']}")


def test_known_keys_are_accepted_at_2_100(client: Client) -> None:
    for path, body in KNOWN:
        assert client.send("POST", path, body, version=NEW).status == 201
