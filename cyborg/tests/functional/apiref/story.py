# SPDX-License-Identifier: Apache-2.0
"""A cloud's life in the order in which the samples come about, from the first look to the end."""

from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

from cyborg.model.provider import provider_uuid
from cyborg.tests.fixtures.glance import SimulatedGlance
from cyborg.tests.fixtures.nova import SimulatedNova
from cyborg.tests.fixtures.placement import PlacementService, suffix
from cyborg.tests.functional.apiref.recorder import Recorder
from cyborg.tests.functional.apiref.site import GPU, GPUS, OTHER_GPU, Site
from cyborg.tests.functional.life.http import Client, bind_body, unbind_body

PROJECT: Final = "5d2c1a9e0f8b4c67a3e1d4b59f7086c2"
#: Who asks, by the names that clients of these projects have, and what the samples call them.
USERS: Final = {
    "user-of-5d2c1a9e0f8b4c67a3e1d4b5": "8f3b61d7a25c49e0b4d8f19a6c7e2053",
    "user-of-c0a1f3e5b7d94286a4c8e2f0": "27e9d0c4b1f84a6f93a5d86e0b7c1f42",
}
OPERATORS: Final = "c0a1f3e5b7d94286a4c8e2f06b1d3957"
_ARQS = "/accelerator_requests"
#: What a graphics card has measured.
_FIGURES: Final = {
    "memory_total_bytes": 85899345920.0,
    "memory_used_bytes": 21474836480.0,
    "power_watts": 187.5,
    "temperature_celsius": 54.0,
    "utilization_ratio": 0.62,
}
_PROFILE = "a100"


class Story:
    """What happens; each request that is a sample is asked through the recorder."""

    def __init__(
        self,
        site: Site,
        recorder: Recorder,
        placement: PlacementService,
        nova: SimulatedNova,
        glance: SimulatedGlance,
    ) -> None:
        self._site = site
        self._ask = recorder.ask
        self._placement = placement
        self._nova = nova
        self._image = glance.add(b"an image for an FPGA", name="fir-filter")
        self._instance = str(uuid4())
        self._operator = Client(site.http, role="operator", project=OPERATORS, version="2.100")
        self._admin = Client(site.http, role="admin", project=OPERATORS)
        self._user = Client(site.http, role="member", project=PROJECT).with_service_token()
        self._root = ""

    def tell(self) -> None:
        """Live it through."""
        self._root = self._placement.make_compute(self._site.compute)
        self._site.begin()
        self._hosts()
        self._drivers()
        self._profiles()
        self._in_service()
        self._former_guest()
        self._bind()
        self._deployables()
        self._attach()
        self._create()
        self._profiles_end()
        self._processes_end()

    def _at(self, version: str | None) -> Client:
        return Client(self._site.http, role="admin", project=OPERATORS, version=version)

    def _hosts(self) -> None:
        """An operator has the host look, and sees what is there."""
        compute = {"hosts": [self._site.compute]}
        begun = self._ask(
            "services/discover-2.100",
            self._operator,
            "POST /services/discover",
            compute,
            status=202,
        )
        self._site.work()
        self._ask("operations/show-2.100", self._operator, f"GET /operations/{begun['uuid']}")
        self._ask("operations/list-2.100", self._operator, "GET /operations?verb=discover")
        self._ask("drivers/list-2.100", self._operator, "GET /drivers")
        for noun in ("services", "backends", "hardware"):
            listed = self._ask(f"{noun}/list-2.100", self._operator, f"GET /{noun}")[noun]
            self._ask(f"{noun}/show-2.100", self._operator, f"GET /{noun}/{listed[0]['uuid']}")
        (driver,) = self._operator.get("/drivers", name="generic_driver")["drivers"]
        self._ask("drivers/show-2.100", self._operator, f"GET /drivers/{driver['uuid']}")
        (found, *_) = self._operator.get("/services", kind="backend")["services"]
        self._ask("services/show-backend-2.100", self._operator, f"GET /services/{found['uuid']}")
        agent = self._service("cyborg-agent")
        reason = {"status": "disabled", "disabled_reason": "new firmware"}
        self._ask("services/update-2.100", self._operator, f"PATCH /services/{agent}", reason)
        self._operator.patch(f"/services/{agent}", {"status": "enabled"}, status=200)
        self._site.work()

    def _service(self, binary: str, host: str | None = None) -> str:
        """The uuid of a process."""
        found = self._operator.get("/services", kind="process")["services"]
        (one,) = (one for one in found if one["binary"] == binary and host in (None, one["host"]))
        return str(one["uuid"])

    def _drivers(self) -> None:
        """A driver comes, is changed, and goes."""
        wish = {"driver": "fake_driver", "hosts": [self._site.compute]}
        self._ask("drivers/install-2.100", self._operator, "POST /drivers", wish, status=202)
        self._site.work()
        change = {"enabled": False}
        path = "/drivers/fake_driver"
        self._ask("drivers/update-2.100", self._operator, f"PATCH {path}", change, status=202)
        self._site.work()
        self._ask("drivers/uninstall-2.100", self._operator, f"DELETE {path}", status=202)
        self._site.work()

    def _profiles(self) -> None:
        """An administrator says what may be wished for."""
        path = "/device_profiles"
        profile = {
            "name": _PROFILE,
            "description": "one whole card",
            "groups": [{f"resources:{GPUS}": "1", "trait:CUSTOM_CUDA_8": "required"}],
        }
        self._ask("device-profiles/create", self._admin, f"POST {path}", [profile], status=201)
        self._ask("device-profiles/list", self._admin, f"GET {path}")
        self._ask("device-profiles/show", self._admin, f"GET {path}/{_PROFILE}")
        explain = f"GET {path}/{_PROFILE}/explain"
        self._ask("device-profiles/explain-2.100", self._operator, explain)
        groups = {"groups": profile["groups"]}
        explain = f"POST {path}/explain"
        self._ask("device-profiles/explain-groups-2.100", self._operator, explain, groups)
        change = {"description": "one whole A100 card with 80 GiB"}
        self._ask(
            "device-profiles/update-2.100", self._operator, f"PATCH {path}/{_PROFILE}", change
        )
        image = {"accel:bitstream_id": self._image}
        profile = {"name": "fir-filter", "groups": [{f"resources:{GPUS}": "1", **image}]}
        newest = self._at("2.100")
        self._ask("device-profiles/create-2.100", newest, f"POST {path}", [profile], status=201)
        groups = {"groups": [{"resources:FPGA": "1", **image}], "projects": [PROJECT]}
        self._ask(
            "device-profiles/update-private-2.100", newest, f"PATCH {path}/fir-filter", groups
        )
        self._ask("device-profiles/list-2.100", replace(self._user, version="2.100"), f"GET {path}")
        newest.delete(f"{path}/fir-filter")

    def _in_service(self) -> None:
        """The graphics cards are enabled, and set up by their host."""
        for one in self._operator.get("/devices", type="GPU")["devices"]:
            self._operator.post(f"/devices/{one['uuid']}/enable", status=204)
        self._site.work()

    def _former_guest(self) -> None:
        """Another server had the graphics card, which was cleaned after it."""
        instance = str(uuid4())
        made = self._user.post(_ARQS, {"device_profile_name": _PROFILE}, status=201)["arqs"]
        provider = self._allocate(instance)
        self._nova.own(instance, PROJECT, self._site.compute, _PROFILE)
        body = bind_body(made, self._site.compute, provider, instance)
        self._user.patch(_ARQS, body, status=202)
        self._site.work()
        self._user.delete(f"{_ARQS}?instance={instance}")
        self._placement.free(instance)
        self._site.work()

    def _allocate(self, instance: str) -> str:
        """Claim a graphics card for a server, as Nova does; gives its provider."""
        group = {f"resources:{GPUS}": "1", "trait:CUSTOM_CUDA_8": "required"}
        provider = provider_uuid(f"{self._site.compute}_{GPU}")
        found = next(
            one
            for one in self._placement.candidates({suffix(0): group}, in_tree=self._root)
            if provider in one.allocations
        )
        self._placement.allocate(instance, found, PROJECT)
        return provider

    def _bind(self) -> None:
        """A server boots: what Nova asks for, and what others see then."""
        profile = {"device_profile_name": _PROFILE}
        made = self._ask(
            "accelerator-requests/create", self._user, f"POST {_ARQS}", profile, status=201
        )["arqs"]
        provider = self._allocate(self._instance)
        guest = self._nova.own(self._instance, PROJECT, self._site.compute, _PROFILE)
        guest.lasts, guest.name = 0, "web-1"
        self._nova.guests.listed = self._listed
        body = bind_body(made, self._site.compute, provider, self._instance)
        self._ask("accelerator-requests/bind", self._user, f"PATCH {_ARQS}", body, status=202)
        asked = f"{_ARQS}?instance={self._instance}&bind_state=resolved"
        self._ask("errors/423", self._user, f"GET {asked}", status=423)
        self._site.work()
        self._ask("accelerator-requests/list", self._user, f"GET {asked}")
        service = Client(self._site.http, role="service", version="2.100").with_service_token()
        guest_id = {"instance-id": self._instance}
        self._ask("vendordata/show-2.100", service, "POST /vendordata", guest_id)
        self._requests(made, body)
        self._site.ask_nova()
        self._site.check(OTHER_GPU, faulty=True)
        self._site.measure(GPU, _FIGURES)
        for version in (None, "2.3", "2.100"):
            mark = f"-{version}" if version else ""
            reader, here = self._at(version), "GET /devices?type=GPU"
            listed = self._ask(f"devices/list{mark}", reader, here)["devices"]
            self._ask(f"devices/show{mark}", reader, f"GET /devices/{listed[0]['uuid']}")
        held = next(device["uuid"] for device in listed if device["in_use"])
        self._ask("devices/drain-2.100", self._operator, f"GET /devices/{held}/drain")
        drain = f"GET /services/{self._service('cyborg-agent')}/drain"
        self._ask("services/drain-2.100", self._operator, drain)
        self._update(f"/devices/{listed[0]['uuid']}")
        self._site.check(OTHER_GPU, faulty=False)
        member = Client(self._site.http, role="member", project=PROJECT, version="2.100")
        self._ask("devices/list-own-2.100", member, "GET /devices")
        self._ask("limits/show-2.100", member, "GET /limits")
        self._ask("usage/show-2.100", self._operator, "GET /usage")
        self._ask("usage/show-by-2.100", self._operator, "GET /usage?group_by=host,project_id")
        self._ask("capacity/list-2.100", self._operator, f"GET /capacity?profile={_PROFILE}")
        self._site.pass_time(2.25)
        self._ask(
            "usage/show-range-2.100",
            self._operator,
            "GET /usage?group_by=project,type&start=2023-11-14",
        )
        self._ask("events/list-2.100", self._operator, f"GET /events?instance={self._instance}")

    def _listed(self, instance: str) -> list[str]:
        """What Nova gives to a guest."""
        found = self._user.get(_ARQS, instance=instance)["arqs"]
        return [one["uuid"] for one in found]

    def _requests(self, made: list[dict[str, Any]], bound: Any) -> None:
        """The same request at two microversions, and others that are only asked for."""
        path = f"{_ARQS}/{made[0]['uuid']}"
        self._ask("accelerator-requests/show", self._user, f"GET {path}")
        newest = Client(self._site.http, role="member", project=PROJECT, version="2.100")
        self._ask("accelerator-requests/show-2.100", newest, f"GET {path}")
        other = self._user.post(_ARQS, {"device_profile_name": _PROFILE})["arqs"]
        nova = Client(self._site.http, role="service", version="2.1").with_service_token()
        server = str(uuid4())
        free = provider_uuid(f"{self._site.compute}_{GPU}".replace("3b:", "86:"))
        named = bind_body(other, self._site.compute, free, server)
        owner = {"path": "/project_id", "op": "add", "value": PROJECT}
        named[other[0]["uuid"]].append(owner)
        self._ask("accelerator-requests/bind-2.1", nova, f"PATCH {_ARQS}", named, status=202)
        self._site.work()
        body = unbind_body(other)
        newest = replace(self._user, version="2.100")
        self._ask("accelerator-requests/unbind-2.100", newest, f"PATCH {_ARQS}", body, status=202)
        self._site.work()
        self._user.delete(f"{_ARQS}/{other[0]['uuid']}")
        assert bound.keys() == {one["uuid"] for one in made}

    def _deployables(self) -> None:
        """Facts of a card, an operator's own among them, and an image for another one."""
        path = "/deployables"
        listed = self._ask("deployables/list", self._admin, f"GET {path}")[path[1:]]
        (fpga,) = (one for one in listed if one["driver_name"] == "card")
        self._ask("deployables/show", self._admin, f"GET {path}/{fpga['uuid']}")
        image = [{"path": "/program", "op": "replace", "value": [{"image_uuid": self._image}]}]
        order = f"PATCH {path}/{fpga['uuid']}/program"
        self._ask("deployables/program", self._admin, order, image)
        self._site.work()
        label = {"deployable_id": listed[0]["uuid"], "key": "rack", "value": "7"}
        made = self._ask("attributes/create", self._admin, "POST /attributes", label, status=201)
        where = f"deployable_id={listed[0]['uuid']}"
        self._ask("attributes/list", self._admin, f"GET /attributes?{where}")
        self._ask("attributes/show", self._admin, f"GET /attributes/{made['uuid']}")
        self._admin.delete(f"/attributes/{made['uuid']}")

    def _attach(self) -> None:
        """The server is given one more card, and that is taken away again."""
        path = f"/instances/{self._instance}/accelerators"
        wish = {"device_profile": _PROFILE}
        begun = self._ask(
            "instances/attach-2.100", self._operator, f"POST {path}", wish, status=202
        )
        self._site.work()
        over = f"GET /operations/{begun['uuid']}"
        self._ask("operations/attached-2.100", self._operator, over)
        attached = self._listed(self._instance)[-1]
        self._ask("instances/detach-2.100", self._operator, f"DELETE {path}/{attached}", status=202)
        self._site.work()
        assert attached not in self._listed(self._instance)
        self._operator.post(path, wish, status=202)
        self._site.work()
        self._ask("instances/detach-all-2.100", self._operator, f"DELETE {path}", status=202)
        self._site.work()

    def _create(self) -> None:
        """An operator creates an accelerator, labels it, and does without it again."""
        wish = {
            "host": self._site.compute,
            "driver": "generic_driver",
            "backend": "soft",
            "model": "emulated FPGA",
            "type": "FPGA",
            "resource_class": "FPGA",
            "traits": ["CUSTOM_EMULATED"],
            "handles": 2,
            "labels": {"team": "vision"},
        }
        self._ask("devices/create-2.100", self._operator, "POST /devices", wish, status=202)
        self._site.work()
        (made,) = (
            one
            for one in self._operator.get("/devices")["devices"]
            if one["model"] == "emulated FPGA"
        )
        path = f"/devices/{made['uuid']}"
        self._operator.patch(path, {"status": "enabled"}, status=200)
        self._operator.delete(path)
        self._site.work()

    def _update(self, path: str) -> None:
        """Enable and label a device; have its faults ignored, and counted again."""
        change = {"status": "enabled", "labels": {"team": None, "use": "tests"}}
        self._ask("devices/update-2.100", self._operator, f"PATCH {path}", change)
        order = {"health": "ignore", "ignore_for": 14_400}
        self._ask("devices/update-health-2.100", self._operator, f"PATCH {path}", order)
        self._operator.patch(path, {"health": "auto"}, status=200)

    def _profiles_end(self) -> None:
        """What is in use stays."""
        path = f"/device_profiles/{_PROFILE}"
        self._ask("errors/409", self._admin, f"DELETE {path}", status=409)
        self._user.delete(f"{_ARQS}?instance={self._instance}")
        self._site.work()
        self._admin.delete(path)

    def _processes_end(self) -> None:
        """An API process that is no more is forgotten."""
        self._site.signal("control-2")
        self._site.pass_time(60)
        gone = self._service("cyborg-api", "control-2")
        self._ask("services/forget-2.100", self._operator, f"DELETE /services/{gone}", status=202)
