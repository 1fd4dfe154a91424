# SPDX-License-Identifier: Apache-2.0
"""What operators ask for and cannot have: a precise answer, and nothing has changed anywhere."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from cyborg.clients.placement import Placement
from cyborg.db.engine import Database
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.life.conftest import RackedCompute
from cyborg.tests.functional.life.http import Client
from cyborg.tests.functional.life.steps import bind, create, everything, work_left

#: There is nothing of this uuid.
NONE = str(uuid4())
#: Changes of services that mean nothing.
SERVICE_BODIES: tuple[Any, ...] = (
    None,
    [],
    {},
    {"status": "up"},
    {"status": None},
    {"status": "disabled", "disabled_reason": 7},
    {"status": "disabled", "disabled_reason": "x" * 256},
    {"status": "enabled", "disabled_reason": "why"},
    {"status": "disabled", "color": "red"},
)
#: An accelerator to be created.
CREATION = {
    "host": "<host>",
    "driver": "card_driver",
    "backend": "left",
    "model": "soft",
    "type": "FPGA",
    "resource_class": "FPGA",
}
#: Method, path, body, status, and what the answer names. What is in angle brackets is there.
UP: list[tuple[str, str, Any, int, str]] = [
    ("POST", "/drivers", {"driver": "card_driver", "hosts": ["nowhere"]}, 404, "nowhere"),
    ("POST", "/drivers", {"driver": NONE}, 404, NONE),
    ("POST", "/drivers", {"driver": "d", "hosts": ["<host>", "nowhere"]}, 404, "nowhere"),
    ("POST", "/drivers", {"driver": "card_driver", "option": {}}, 400, "option"),
    ("PATCH", "/drivers/no_driver", {"enabled": False}, 404, "no_driver"),
    ("PATCH", "/drivers/card_driver", {"enabled": False}, 409, "<arq>"),
    ("PATCH", "/drivers/card_driver", {"options": {"speed": 7}}, 400, "options.speed"),
    ("DELETE", "/drivers/no_driver", None, 404, "no_driver"),
    ("DELETE", "/drivers/no_driver?drain=true", None, 404, "no_driver"),
    ("DELETE", "/drivers/card_driver", None, 409, "<arq>"),
    ("GET", f"/drivers/{NONE}", None, 404, NONE),
    ("POST", "/services/discover", {"hosts": ["nowhere"]}, 404, "nowhere"),
    ("POST", "/services/discover", {"driver": "no_driver"}, 404, "no_driver"),
    ("GET", f"/services/{NONE}", None, 404, NONE),
    ("PATCH", f"/services/{NONE}", {"status": "disabled"}, 404, NONE),
    ("PATCH", "/services/<agent>", {"status": "gone"}, 400, "status"),
    ("PATCH", "/services/<conductor>", {"status": "disabled"}, 409, "cyborg-conductor"),
    *(("PATCH", "/services/<agent>", body, 400, "Invalid value") for body in SERVICE_BODIES),
    ("DELETE", f"/services/{NONE}", None, 404, NONE),
    ("DELETE", "/services/<agent>", None, 409, "is up"),
    ("GET", f"/backends/{NONE}", None, 404, NONE),
    ("GET", f"/hardware/{NONE}", None, 404, NONE),
    ("GET", f"/operations/{NONE}", None, 404, NONE),
    ("GET", f"/devices/{NONE}", None, 404, NONE),
    ("POST", "/devices", CREATION, 409, "Driver card_driver has no backend on"),
    ("PATCH", f"/devices/{NONE}", {"status": "ready"}, 404, NONE),
    ("PATCH", "/devices/<device>", {"status": "lost"}, 400, "status"),
    ("PATCH", "/devices/<device>", {"status": "ready", "labels": {"k": 7}}, 400, "labels"),
    ("DELETE", f"/devices/{NONE}", None, 404, NONE),
    ("DELETE", "/devices/<device>", None, 409, "<device>"),
    ("PATCH", f"/device_profiles/{NONE}", {"description": "d"}, 404, NONE),
    ("PATCH", "/device_profiles/<profile>", {"name": "<other>"}, 409, "<other>"),
    ("PATCH", "/device_profiles/<profile>", {"groups": []}, 400, "groups"),
    ("POST", f"/instances/{NONE}/accelerators", {}, 404, NONE),
    ("DELETE", f"/instances/{NONE}/accelerators", None, 404, NONE),
    ("DELETE", f"/instances/{NONE}/accelerators/{NONE}", None, 404, NONE),
]
DOWN: list[tuple[str, str, Any, int, str]] = [
    ("POST", "/drivers", {"driver": "card_driver", "hosts": ["<host>"]}, 503, "<host>"),
    ("POST", "/drivers", {"driver": "<driver>"}, 503, "<host>"),
    ("POST", "/drivers", {"driver": "card_driver"}, 409, "no host whose agent is up"),
    ("PATCH", "/drivers/card_driver", {"options": {"speed": "1"}}, 503, "<host>"),
    ("PATCH", "/drivers/<driver>", {}, 503, "<host>"),
    ("DELETE", "/drivers/card_driver", None, 503, "<host>"),
    ("DELETE", "/drivers/card_driver?drain=true", None, 503, "<host>"),
    ("POST", "/services/discover", {"hosts": ["<host>"]}, 503, "<host>"),
    ("POST", "/services/discover", {}, 409, "no host whose agent is up"),
    ("DELETE", "/services/<agent>", None, 409, "<arq>"),
]


def filled(value: Any, facts: dict[str, str]) -> Any:
    """The value with what there is in the place of its names."""
    if isinstance(value, str):
        for name, fact in facts.items():
            value = value.replace(f"<{name}>", fact)
        return value
    if isinstance(value, dict):
        return {key: filled(one, facts) for key, one in value.items()}
    return [filled(one, facts) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("state", ["up", "down"])
def test_refused_request_changes_nothing(
    operator: Client,
    nova: Client,
    profile: Callable[..., str],
    racked: Callable[..., RackedCompute],
    database: Database,
    *,
    placement: PlacementService,
    resource_class: str,
    state: str,
) -> None:
    rack = racked()
    group = {f"resources:{resource_class}": "1"}
    mine, other = profile(group), profile(group)
    (arq,) = create(nova, mine)
    bind(nova, [arq], rack.provider(), host=rack.compute)
    (agent,) = operator.get("/services", kind="process", host=rack.compute)["services"]
    processes = operator.get("/services", kind="process")["services"]
    conductor = next(one for one in processes if one["binary"] == "cyborg-conductor")
    facts = {
        "host": rack.compute,
        "conductor": conductor["uuid"],
        "arq": arq["uuid"],
        "agent": agent["uuid"],
        "driver": operator.get("/drivers", name="card_driver")["drivers"][0]["uuid"],
        "device": operator.get("/devices")["devices"][0]["uuid"],
        "profile": mine,
        "other": other,
    }
    if state == "down":
        rack.kill(database)

    # Nova has been told of the bind; nothing else moves by itself now.
    eventually(lambda: work_left(database) == [])

    def seen() -> Any:
        inventories = Placement(placement.adapter()).inventories(rack.provider())
        return everything(database), inventories

    before = seen()
    for method, path, body, status, named in UP if state == "up" else DOWN:
        place = filled(path, facts)
        answer = operator.send(method, place, filled(body, facts), status)
        assert filled(named, facts) in answer["error_message"], (method, place)
        assert seen() == before, (method, place)
