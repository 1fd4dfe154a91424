# SPDX-License-Identifier: Apache-2.0
"""What Nova says of instances is shown, whatever becomes of Nova, and nobody waits for it."""

from typing import Any

from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.instances.conftest import Cloud

UNKNOWN = ("unknown", "unknown", None)


def server_info(cloud: Cloud, instance: str) -> tuple[Any, ...]:
    """Name, status and moment, as an administrator sees them."""
    user = cloud.shown()[instance]
    return user["name"], user["status"], user["seen_at"]


def becomes(cloud: Cloud, instance: str, name: str, status: str) -> None:
    eventually(lambda: server_info(cloud, instance)[:2] == (name, status))


def test_server_info_follows_changes_in_nova(cloud: Cloud) -> None:
    instance = cloud.boot("blue", "web-1")
    becomes(cloud, instance, "web-1", "ACTIVE")
    first = server_info(cloud, instance)[2]
    cloud.servers[instance].name, cloud.servers[instance].status = "web-2", "SHUTOFF"
    becomes(cloud, instance, "web-2", "SHUTOFF")
    assert server_info(cloud, instance)[2] > first


def test_requests_do_not_wait_for_nova(cloud: Cloud) -> None:
    cloud.nova.shows.hold()
    one, two = cloud.boot("blue", "one"), cloud.boot("blue", "two", device=1)
    eventually(lambda: one in cloud.nova.shows.asked or two in cloud.nova.shows.asked)
    assert server_info(cloud, one) == UNKNOWN
    (device, _) = cloud.admin.get("/devices")["devices"]
    shown = cloud.admin.get(f"/devices/{device['uuid']}")["instances"]
    assert shown == [{"uuid": one, "name": "unknown", "status": "unknown", "seen_at": None}]
    cloud.delete(two, "blue")
    assert set(cloud.shown()) == {one}
    cloud.nova.shows.release()
    becomes(cloud, one, "one", "ACTIVE")


def test_server_info_is_kept_while_nova_fails(cloud: Cloud) -> None:
    known = cloud.boot("blue", "known")
    becomes(cloud, known, "known", "ACTIVE")
    cloud.nova.shows.fail(503)
    asked = len(cloud.nova.shows.asked)
    fresh = cloud.boot("blue", "fresh")
    # It has been asked in vain about both.
    eventually(lambda: {known, fresh} <= set(cloud.nova.shows.asked[asked:]))
    assert server_info(cloud, fresh) == UNKNOWN
    assert server_info(cloud, known)[:2] == ("known", "ACTIVE")
    seen = server_info(cloud, known)[2]
    assert seen is not None
    cloud.nova.shows.fail(None)
    becomes(cloud, fresh, "fresh", "ACTIVE")
    eventually(lambda: server_info(cloud, known)[2] > seen)


def test_strange_servers_do_not_delay_others(cloud: Cloud) -> None:
    """Deleted, in a lost cell, never known to Nova, or of a name that the database refuses.

    What a deleted server holds is the audit's business; so are names that never were a server's.
    """
    gone, away, stray = (
        cloud.boot("blue", "gone"),
        cloud.boot("blue", "away"),
        cloud.boot("blue", known=False),
    )
    becomes(cloud, gone, "gone", "ACTIVE")
    becomes(cloud, away, "away", "ACTIVE")
    names = ["x" * 300, "a\0b", "\ud800", "\U0001f600 ünï"]
    odd = {cloud.boot("blue", name): name for name in names}
    cloud.nova.disown(gone)
    cloud.servers[away].away = True
    cloud.stack.start_conductor("control-1")
    plain = cloud.boot("blue", "plain")
    becomes(cloud, plain, "plain", "ACTIVE")
    eventually(lambda: all(cloud.nova.shows.asked.count(one) > 1 for one in (*odd, stray)))
    for instance, name in odd.items():
        assert server_info(cloud, instance)[0] in (name, "unknown")
    assert server_info(cloud, stray) == UNKNOWN
    last = server_info(cloud, gone)
    assert last[:2] == ("gone", "ACTIVE")
    assert server_info(cloud, away)[:2] == ("away", "ACTIVE")
    # Another conductor goes on with it.
    cloud.conductor.stop()
    late = cloud.boot("blue", "late")
    becomes(cloud, late, "late", "ACTIVE")
    assert server_info(cloud, gone) == last
