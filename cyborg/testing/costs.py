# SPDX-License-Identifier: Apache-2.0
"""What each request may cost at most, and how to bring it about: for the tests and the benchmark.

All requests are made of a ``CountedService``; everything that a request needs is there before the
counting begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from cyborg.model.report import Hello, Report
from cyborg.testing.counted import CountedService
from cyborg.testing.counting import Tally
from cyborg.testing.machines import RESOURCE_CLASS, provider_of, report_of

_ROWS_PER_INSERT = 1000
#: What a report must not write when it brings nothing new.
DEVICE_TABLES = (
    "devices",
    "controlpath_ids",
    "deployables",
    "attributes",
    "attach_handles",
    "drivers",
    "backends",
    "hardware",
)


@dataclass(frozen=True)
class Allowance:
    """The most that a request may cost."""

    statements: int
    commits: int
    rpc: int

    def covers(self, tally: Tally) -> bool:
        """Whether the request stayed within it."""
        return tally.sql <= self.statements and (tally.commits, len(tally.rpc)) == (
            self.commits,
            self.rpc,
        )


SHOW = Allowance(2, 0, 0)
LIST = Allowance(3, 0, 0)
#: Devices from microversion 2.5 on: units, traits and, of a single device, events are read as well.
DEVICES = Allowance(5, 0, 0)
CREATE = Allowance(4, 1, 1)
DELETE_BY_INSTANCE = Allowance(7, 1, 1)
UNCHANGED_REPORT = Allowance(2, 1, 1)
SIGN_OF_LIFE = Allowance(1, 1, 1)


def bind_allowance(providers: int) -> Allowance:
    """For a bind on so many providers whose devices need no preparation."""
    return Allowance(8 + providers, 1, 1)


def first_report_allowance(report: Report) -> Allowance:
    """For a report of devices that are all new: one more per further 1,000 rows of a table."""
    devices = [device for one in report.drivers for device in one.devices]
    deployables = [one for device in devices for one in device.deployables]
    tables = (
        len(devices),
        len(deployables),
        sum(len(one.attributes) for one in deployables),
        sum(len(one.handles) for one in deployables),
        sum(len(one.hardware or ()) for one in report.drivers),
    )
    # Each device has one control path and one line of history as well.
    further = sum(max(0, rows - 1) // _ROWS_PER_INSERT for rows in (*tables, *tables[:1] * 2))
    return Allowance(12 + further, 1, 1)


@dataclass(frozen=True)
class Bindable:
    """Requests that are about to be bound, and the body that does it."""

    instance: str
    arqs: tuple[str, ...]
    body: dict[str, Any]


class Scenes:
    """Brings about the requests; ``devices`` of one host offer eight units each.

    ``prepare`` makes them of the kind that needs the host's work at a bind.
    """

    def __init__(self, house: CountedService, *, devices: int = 2, prepare: bool = False) -> None:
        self._house = house
        self.host = f"scene-{uuid4().hex[:12]}"
        hello = house.agent.hello(_hello(self.host))
        report = report_of(self.host, devices, handles=8, prepare=prepare)
        house.agent.report(self.host, hello.epoch, report)

    def profile(self, units: int) -> str:
        """The name of a new profile that asks for so many units."""
        name = f"profile-{uuid4().hex[:12]}"
        groups = [{f"resources:{RESOURCE_CLASS}": str(units)}]
        self._house.send("POST", "/device_profiles", [{"name": name, "groups": groups}])
        return name

    def create(self, profile: str) -> tuple[Tally, list[dict[str, Any]]]:
        """Make the requests of a profile."""
        tally, answer = self._house.counted(
            "POST", "/accelerator_requests", {"device_profile_name": profile}
        )
        return tally, answer["arqs"]

    def bindable(self, units: int, providers: int, instance: str | None = None) -> Bindable:
        """New requests, to be bound in turn to the first so many providers."""
        return self.bindable_of(self.profile(units), providers, instance)

    def bindable_of(
        self, profile: str, providers: int = 1, instance: str | None = None
    ) -> Bindable:
        """The same for a profile that is there already."""
        _, arqs = self.create(profile)
        instance = instance or str(uuid4())
        body = {
            one["uuid"]: [
                {"path": "/hostname", "op": "add", "value": self.host},
                {
                    "path": "/device_rp_uuid",
                    "op": "add",
                    "value": provider_of(self.host, index % providers),
                },
                {"path": "/instance_uuid", "op": "add", "value": instance},
            ]
            for index, one in enumerate(arqs)
        }
        return Bindable(instance, tuple(body), body)

    def bind(self, wanted: Bindable) -> Tally:
        """Bind them."""
        return self._house.counted("PATCH", "/accelerator_requests", wanted.body)[0]

    def delete(self, instance: str) -> Tally:
        """Delete the requests of an instance."""
        return self._house.counted("DELETE", f"/accelerator_requests?instance={instance}")[0]

    def first_report(self, report: Report, host: str) -> Tally:
        """Hand in the first report of a host."""
        hello = self._house.agent.hello(_hello(host))
        with self._house.meter.tally() as tally:
            self._house.agent.report(host, hello.epoch, report)
        return tally

    def unchanged_report(self, report: Report, host: str) -> Tally:
        """What an agent does when its host is as it was reported last: the heartbeat, no more."""
        agent = self._house.agent
        hello = _hello(host)
        epoch = agent.hello(hello).epoch
        with self._house.meter.tally() as tally:
            welcome = agent.hello(replace(hello, epoch=epoch))
            if welcome.digest != report.digest():
                raise RuntimeError(f"the report of {host} is not the one that was taken in")
        return tally


def listings(marker_of: dict[str, str], instance: str) -> Sequence[str]:
    """Every list, plain, filtered, and behind a marker (the uuid of a row, by collection)."""
    filters = {
        "device_profiles": ("name=nobody",),
        "accelerator_requests": (
            f"instance={instance}",
            f"instance={instance}&bind_state=resolved",
            "state=Bound",
            "hostname=nowhere",
        ),
        "devices": (
            "type=FPGA",
            "status=enabled",
            f"instance={instance}",
            "in_use=true&driver=nobody&backend=none&labels=a=b",
        ),
        "deployables": (),
        "attributes": ("key=rc",),
        "drivers": ("host=nowhere", "state=READY"),
        "backends": ("host=nowhere", "driver=nobody"),
        "hardware": ("type=FPGA", "setup_required=true", "host=nowhere&driver=nobody"),
        "services": ("kind=process", "kind=backend", "host=nowhere", "driver=nobody"),
    }
    return [
        f"/{noun}?{query}"
        for noun, marker in marker_of.items()
        for query in ("", *filters[noun], f"limit=5&marker={marker}&sort_key=uuid&sort_dir=desc")
    ]


def _hello(host: str) -> Hello:
    return Hello(host, (host,), "0", f"agent@{host}", None)
