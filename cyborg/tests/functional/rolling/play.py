# SPDX-License-Identifier: Apache-2.0
"""A play in which every verb of the bus is asked for at least once, on the real service.

Two computes: on one operators have the driver of its card loaded, which prepares, programs and
measures; on the other the generic_driver sets a device up, and creates another.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from cyborg import service
from cyborg.api.microversion import LATEST
from cyborg.db.engine import Database
from cyborg.db.models import Service
from cyborg.drivers.host import INITIAL_PROCESSES
from cyborg.drivers.loader import LoadResult
from cyborg.drivers.scan import Scan
from cyborg.rpc.conductor import ConductorClient
from cyborg.rpc.transport import AGENT_TOPIC, CONDUCTOR_TOPIC
from cyborg.rpc.verbs import ApiHeartbeat
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.glance import SimulatedGlance
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService, fresh_host, suffix
from cyborg.tests.fixtures.waiting import eventually
from cyborg.tests.functional.life import made
from cyborg.tests.functional.life.cards import CARD, OTHER, CardDriver, Rack, Traits
from cyborg.tests.functional.life.http import Client, unbind_body
from cyborg.tests.functional.life.steps import (
    ARQS,
    bind,
    create,
    ended,
    eventually_offered,
    handle_states,
    of_instance,
)
from cyborg.tests.functional.rolling.tape import Tape, TapedStack

_CARDS = "card_driver"
#: The guest of the compute that comes after the upgrade, its unit, and the boot of the compute.
GUEST, UNIT = "77dcf3f4-6a0e-4b0c-8d10-2a5f2a1a6a01", "0000:81:00.1"
BOOT = "f2a35d5c-0a3c-4a6b-9d0e-3f0a8a5f3b02"
COLLECTIONS = (
    ARQS,
    "/attributes",
    "/backends",
    "/deployables",
    "/device_profiles",
    "/devices",
    "/drivers",
    "/hardware",
    "/operations",
    "/services",
    "/usage",
)


class MeasuringDriver(CardDriver):
    """One whose cards have a temperature."""

    def stats(self, scan: Scan, device_key: str) -> Mapping[str, float]:
        """See Driver."""
        return {"temperature_celsius": 61.5}


@dataclass
class Play:
    """The stage; ``http`` is the API's application, ``files`` a directory of its own."""

    stack: TapedStack
    http: Any
    conductor: ConductorClient
    database: Database
    placement: PlacementService
    nova: SimulatedNova
    glance: SimulatedGlance
    files: Path
    #: The names that are new in each run, and what they are called on record.
    names: dict[str, str] = field(default_factory=dict)
    #: Microversion, method and path → the keys of what is answered, or the status of a refusal.
    shown: dict[str, str] = field(default_factory=dict)

    #: What passed the bus after the upgrade.
    alone: Tape = field(default_factory=Tape)

    def __post_init__(self) -> None:
        self.mixed = self.stack.tape
        self.racked, self.bench = fresh_host("racked"), fresh_host("bench")
        self.upgraded = fresh_host("upgraded")
        self.resource_class = f"CUSTOM_CARD_{uuid4().hex[:12].upper()}"
        self.names |= {
            self.racked: "compute-1",
            self.bench: "compute-2",
            self.upgraded: "compute-3",
            self.resource_class: "CUSTOM_CARD",
        }
        self.operator = Client(self.http, role="operator", version="2.4")
        self.admin = Client(self.http, role="admin", version="2.4")
        self.user = Client(self.http, role="member", version="2.4").with_service_token()
        traits = Traits(self.resource_class, prepare=True, programmable=True)
        rack = Rack.build(self.racked, traits, {CARD: 2})
        driver = MeasuringDriver(rack.machine, self.racked, traits)
        self.rack = Rack(self.racked, rack.machine, driver)

    def perform(self) -> None:
        """All acts, in their order."""
        self.conductor.request(
            ApiHeartbeat("api-1", version="18.0.0", endpoint="http://api-1:6666")
        )
        self._set_up()
        self._manage_drivers()
        self._manage_devices()
        self._meet_a_stranger()
        profile = self._write_profiles()
        self._bind(profile)
        self._attach(profile)
        self._create_a_device()
        self._be_refused()
        self._look_at_everything()
        self._leave()

    def upgrade(self) -> None:
        """The last act, after the upgrade: nothing is held back from a new compute with a guest.

        All that the others say is still as before.
        """
        self.stack.tape = self.alone
        self.placement.make_compute(self.upgraded)
        rack = Rack.build(self.upgraded, Traits(self.resource_class), {CARD: 1})
        device = f"-device\0vfio-pci,host={UNIT}\0"
        rack.machine.add_link("/proc/self/ns/pid", INITIAL_PROCESSES)
        rack.machine.add_file("/proc/sys/kernel/random/boot_id", f"{BOOT}\n")
        rack.machine.add_file("/proc/17/cmdline", f"/usr/bin/qemu\0-uuid\0{GUEST}\0{device}")
        rack.machine.add_dir("/proc/17/fd")
        self.stack.start_agent(
            self.upgraded,
            machine=rack.machine,
            drivers=[rack.loaded],
            state_path=self.files / "upgraded",
        )
        self._soon(lambda: {"guests", "published"} <= self.alone.verbs(CONDUCTOR_TOPIC))

    def _set_up(self) -> None:
        for one in (self.racked, self.bench):
            self.placement.make_compute(one)
        self.agent = self._start_racked()
        machine = servers.server()
        machine.programs["/usr/sbin/card"] = made.card
        bench = self._bench_of(machine)
        bench.run("right")
        self._soon(lambda: self._device(self.bench).get("status") == "enabled")
        self._soon(lambda: self._asked(AGENT_TOPIC, "install"))

    def _bench_of(self, machine: FakeHost) -> made.Bench:
        return made.Bench(
            compute=self.bench,
            machine=machine,
            stack=self.stack,
            state_path=self.files / "state",
            path=self.files,
            resource_class=self.resource_class,
        )

    def _start_racked(self) -> service.Daemon:
        return self.stack.start_agent(
            self.racked,
            machine=self.rack.machine,
            drivers=[],
            state_path=self.files / "racked",
            load=lambda name, options: LoadResult(name, self.rack.driver),
        )

    def _manage_drivers(self) -> None:
        self._soon(lambda: bool(self._agent_of(self.racked)))
        wish = {"driver": _CARDS, "hosts": [self.racked], "options": {"speed": "3"}}
        self._do("POST", "/drivers", wish)
        self._do("POST", "/services/discover", {"hosts": [self.racked], "driver": _CARDS})
        eventually_offered(self.placement, self.rack.provider(), 2)
        self._do("PATCH", f"/drivers/{_CARDS}", {"options": {"speed": None}})
        begun = self.operator.patch(f"/drivers/{_CARDS}", {}, status=202)
        self._soon(lambda: self.agent.restarting)
        self.agent.stop()
        self.agent = self._start_racked()
        assert ended(self.operator, begun)["state"] == "succeeded"
        self._soon(lambda: self._asked(CONDUCTOR_TOPIC, "readings"))

    def _manage_devices(self) -> None:
        path = f"/devices/{self._device(self.racked)['uuid']}"
        self.operator.patch(path, {"labels": {"rack": "17"}}, status=200)
        self.operator.post(f"{path}/disable", status=204)
        self.operator.post(f"{path}/enable", status=204)
        (deployable,) = [
            one
            for one in self.admin.get("/deployables")["deployables"]
            if one["name"] == f"{self.racked}_{CARD}"
        ]
        image = self.glance.add(b"bitstream")
        body = [{"path": "/program", "op": "replace", "value": [{"image_uuid": image}]}]
        self.admin.patch(f"/deployables/{deployable['uuid']}/program", body, status=200)
        self._soon(lambda: self.rack.driver.loaded != {})
        told = {"deployable_id": deployable["uuid"], "key": "note", "value": "seen to"}
        attribute = self.admin.post("/attributes", told)
        self.admin.delete(f"/attributes/{attribute['uuid']}")
        eventually_offered(self.placement, self.rack.provider(), 2)

    def _meet_a_stranger(self) -> None:
        """Somebody else's provider has the name that a new card's would have."""
        self.placement.call("POST", "/resource_providers", {"name": f"{self.racked}_{OTHER}"})
        self.rack.plug(OTHER, 1)
        self._soon(lambda: self._asked(CONDUCTOR_TOPIC, "published"))

    def _write_profiles(self) -> str:
        group = {f"resources:{self.resource_class}": "1", "trait:CUSTOM_CARD": "required"}
        body = {"name": "draft", "description": "One card", "groups": [group]}
        profile = self.admin.post("/device_profiles", [body])
        self.admin.patch(f"/device_profiles/{profile['uuid']}", {"name": "card"}, status=200)
        spare = self.admin.post("/device_profiles", [{**body, "name": "spare"}])
        self.admin.delete(f"/device_profiles/{spare['uuid']}")
        return "card"

    def _bind(self, profile: str) -> None:
        """A server's boot with its end, and requests that nobody wants after all."""
        instance = str(uuid4())
        arqs = create(self.user, profile)
        bind(self.user, arqs, self.rack.provider(), host=self.racked, instance=instance)
        self._soon(lambda: self._bound(instance))
        self.user.patch(ARQS, unbind_body(arqs))
        self.user.delete(f"{ARQS}?arqs={arqs[0]['uuid']}")
        again = create(self.user, profile)
        other = bind(self.user, again, self.rack.provider(), host=self.racked)
        self.user.delete(f"{ARQS}?instance={other}")

    def _attach(self, profile: str) -> None:
        """A server that exists gets a unit and gives it back."""
        instance, project = str(uuid4()), self.user.project
        arqs = create(self.user, profile)
        group = {f"resources:{self.resource_class}": "1", "trait:CUSTOM_CARD": "required"}
        # Both units are clean again.
        self._soon(lambda: set(handle_states(self.database).values()) == {"free"})
        eventually_offered(self.placement, self.rack.provider(), 2)
        found = self.placement.candidates({suffix(0): group})[0]
        self.placement.allocate(instance, found, project)
        self.nova.own(instance, project, self.racked, profile).lasts = 0
        self.nova.guests.listed = lambda server: [
            one["uuid"] for one in of_instance(self.user, server)
        ]
        bind(self.user, arqs, self.rack.provider(), host=self.racked, instance=instance)
        self._soon(lambda: self._bound(instance))
        path = f"/instances/{instance}/accelerators"
        self._do_as(self.operator, "POST", path, {})
        self._do_as(self.operator, "DELETE", path, None)
        self.user.delete(f"{ARQS}?instance={instance}")
        self.placement.free(instance)
        self._soon(lambda: set(handle_states(self.database).values()) == {"free"})

    def _create_a_device(self) -> None:
        wish = self._bench_of(FakeHost()).wish(
            backend="right", traits=["CUSTOM_SOFT"], labels={"use": "tests"}
        )
        over = self._do("POST", "/devices", wish)
        created = over["results"][0]["result"]["device"]
        self.operator.delete(f"/devices/{created}", status=204)
        self._soon(lambda: self.operator.answer("GET", f"/devices/{created}") == 404)

    def _be_refused(self) -> None:
        """Errors cross the bus, too."""
        nobody = str(uuid4())
        self.user.post(ARQS, {"device_profile_name": "nobody's"}, status=404)
        self.user.delete(f"{ARQS}?arqs={nobody}", status=404)
        self.operator.delete(f"/devices/{nobody}", status=404)
        self.operator.delete(f"/services/{self._agent_of(self.bench)['uuid']}", status=409)

    def _look_at_everything(self) -> None:
        """Through each microversion: what is shown of what there is."""
        (arq,) = create(self.user, "card")
        (deployable, *_) = self.admin.get("/deployables")["deployables"]
        told = {"deployable_id": deployable["uuid"], "key": "seen", "value": "to"}
        self.admin.post("/attributes", told)
        for minor in range(LATEST + 1):
            for path in COLLECTIONS:
                who = self.user if path == ARQS else self.admin
                self._note(replace(who, version=f"2.{minor}"), path)
        self.user.delete(f"{ARQS}?arqs={arq['uuid']}")

    def _note(self, who: Client, path: str) -> None:
        status = who.answer("GET", path)
        if status != 200:
            self.shown[f"{who.version} GET {path}"] = str(status)
            return
        listed = who.get(path)["arqs" if path == ARQS else path[1:]]
        self.shown[f"{who.version} GET {path}"] = _keys(*listed)
        one = f"{path}/{listed[0].get('uuid')}"
        if who.answer("GET", one) == 200:
            self.shown[f"{who.version} GET {path}/{{uuid}}"] = _keys(who.get(one))

    def _leave(self) -> None:
        path = f"/services/{self._agent_of(self.racked)['uuid']}"
        off = {"status": "disabled", "disabled_reason": "its fan is noisy"}
        self.operator.patch(path, off, status=200)
        self._do("DELETE", f"/drivers/{_CARDS}", None)
        self.agent.stop()
        with self.database.writer() as tx:
            mine = sa.update(Service).where(Service.host == self.racked)
            tx.execute(mine.values(last_seen_ms=0))
        self._do("DELETE", path, None)

    def _do(self, method: str, path: str, body: Any) -> Any:
        return self._do_as(self.operator, method, path, body)

    def _do_as(self, who: Client, method: str, path: str, body: Any) -> Any:
        over = ended(self.operator, who.send(method, path, body, 202))
        assert over["state"] == "succeeded", over
        return over

    def _bound(self, instance: str) -> bool:
        return [one["state"] for one in of_instance(self.user, instance)] == ["Bound"]

    def _device(self, host: str) -> dict[str, Any]:
        found = self.admin.get("/devices", hostname=host)["devices"]
        return found[0] if found else {}

    def _agent_of(self, host: str) -> dict[str, Any]:
        found = self.operator.get("/services", kind="process", host=host)["services"]
        return found[0] if found else {}

    def _asked(self, topic: str, verb: str) -> bool:
        return verb in self.mixed.verbs(topic)

    def _soon(self, condition: Any) -> None:
        eventually(condition)


def _keys(*things: dict[str, Any]) -> str:
    return " ".join(sorted({key for one in things for key in one}))
