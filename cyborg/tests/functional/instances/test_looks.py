# SPDX-License-Identifier: Apache-2.0
"""What Nova says of instances is shown, whatever becomes of Nova, and nobody waits for it."""

from collections.abc import Callable
from typing import Any

import pytest

from cyborg.tests.functional.instances.conftest import Cloud
from cyborg.tests.functional.life import steps

UNKNOWN = ("unknown", "unknown", None)


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what takes several passes, each with its transactions."""
    steps.eventually(condition, timeout=60.0)


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


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_server_info_is_kept_while_nova_fails(cloud: Cloud, status: int) -> None:
    known = cloud.boot("blue", "known")
    becomes(cloud, known, "known", "ACTIVE")
    cloud.nova.shows.fail(status)
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


def test_server_info_is_kept_while_nova_is_unreachable(cloud: Cloud) -> None:
    known = cloud.boot("blue", "known")
    becomes(cloud, known, "known", "ACTIVE")
    cloud.nova.stop()
    fresh = cloud.boot("blue", "fresh")
    assert server_info(cloud, fresh) == UNKNOWN
    assert server_info(cloud, known)[:2] == ("known", "ACTIVE")
    cloud.delete(fresh, "blue")
    assert set(cloud.shown()) == {known}


def test_deleted_server_keeps_its_last_info(cloud: Cloud) -> None:
    """Its accelerators are the audit's business; so are names that never were a server's."""
    instance, stray = cloud.boot("blue", "web-1"), cloud.boot("blue", known=False)
    becomes(cloud, instance, "web-1", "ACTIVE")
    cloud.nova.disown(instance)
    asked = len(cloud.nova.shows.asked)
    eventually(lambda: cloud.nova.shows.asked[asked:].count(instance) > 2)
    last = server_info(cloud, instance)
    asked = len(cloud.nova.shows.asked)
    eventually(lambda: {instance, stray} <= set(cloud.nova.shows.asked[asked:]))
    assert server_info(cloud, instance) == last
    assert server_info(cloud, stray) == UNKNOWN


def test_unavailable_server_does_not_delay_others(cloud: Cloud) -> None:
    away = cloud.boot("blue", "away")
    becomes(cloud, away, "away", "ACTIVE")
    cloud.servers[away].away = True
    others = [cloud.boot("blue", f"web-{number}") for number in range(3)]
    for number, one in enumerate(others):
        becomes(cloud, one, f"web-{number}", "ACTIVE")
    assert server_info(cloud, away)[:2] == ("away", "ACTIVE")


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "\ud800", "\U0001f600 ünï"])
def test_invalid_names_do_not_delay_others(cloud: Cloud, name: str) -> None:
    odd, plain = cloud.boot("blue", name), cloud.boot("blue", "plain")
    becomes(cloud, plain, "plain", "ACTIVE")
    eventually(lambda: cloud.nova.shows.asked.count(odd) > 1)
    assert server_info(cloud, odd)[0] in (name, "unknown")


def test_info_of_deleted_instances_is_removed(cloud: Cloud) -> None:
    instance, other = cloud.boot("blue", "web-1"), cloud.boot("blue", "web-2")
    becomes(cloud, instance, "web-1", "ACTIVE")
    cloud.delete(instance, "blue")
    assert set(cloud.shown()) == {other}
    assert cloud.kept(instance) == (None, None, None, 0)
    asked = len(cloud.nova.shows.asked)
    # The pass that was going on may have had it on its list.
    eventually(lambda: cloud.nova.shows.asked[asked:].count(other) > 2)
    asked = len(cloud.nova.shows.asked)
    eventually(lambda: cloud.nova.shows.asked[asked:].count(other) > 2)
    assert instance not in cloud.nova.shows.asked[asked:]


def test_answer_after_a_delete_is_discarded(cloud: Cloud) -> None:
    cloud.nova.shows.hold()
    instance = cloud.boot("blue", "web-1")
    eventually(lambda: instance in cloud.nova.shows.asked)
    cloud.delete(instance, "blue")
    cloud.nova.shows.release()
    after = cloud.boot("blue", "after")
    becomes(cloud, after, "after", "ACTIVE")
    assert cloud.kept(instance) == (None, None, None, 0)


def test_answer_after_a_rebind_is_discarded(make_cloud: Callable[..., Cloud]) -> None:
    """Shelved and unshelved while Nova thought: its answer is of the time before."""
    cloud = make_cloud(refresh=3600.0)
    cloud.nova.shows.hold()
    instance = cloud.boot("blue", "web-1")
    eventually(lambda: instance in cloud.nova.shows.asked)
    cloud.delete(instance, "blue")
    cloud.bind("blue", instance)
    cloud.nova.shows.release()
    eventually(lambda: cloud.nova.shows.asked.count(instance) == 2)
    becomes(cloud, instance, "web-1", "ACTIVE")


def test_second_conductor_continues_the_sync(cloud: Cloud) -> None:
    cloud.start_conductor()
    some = [cloud.boot("blue", f"web-{number}") for number in range(3)]
    for number, one in enumerate(some):
        becomes(cloud, one, f"web-{number}", "ACTIVE")
    cloud.conductors[0].stop()
    late = cloud.boot("blue", "late")
    becomes(cloud, late, "late", "ACTIVE")
