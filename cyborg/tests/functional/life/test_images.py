# SPDX-License-Identifier: Apache-2.0
"""Images that device profiles ask for: fetched, verified and loaded before a bind is Bound."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from cyborg import service
from cyborg.db.engine import Database
from cyborg.db.models import Arq, Deployable, Event
from cyborg.drivers.command import Completed
from cyborg.drivers.generic import GenericDriver
from cyborg.drivers.loader import LoadResult
from cyborg.model.provider import provider_uuid
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.glance import SimulatedGlance
from cyborg.tests.fixtures.placement import PlacementService, fresh_host
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.functional.life.http import Client, bind_body
from cyborg.tests.functional.life.steps import (
    ARQS,
    Arqs,
    bind,
    create,
    eventually,
    eventually_offered,
    of_instance,
    work_left,
)
from cyborg.tests.unit.drivers.configured import written

CARD = "0000:0b:00.0"
PLAIN = "0000:0c:00.0"
OPTIONS = """\
[generic_driver]
backends = fpga, plain
[generic_driver:fpga]
devices = 0000:0b:00.0
attach_type = TEST_PCI
units = {units}
device_type = FPGA
resource_class = {resource_class}
program_command = /usr/sbin/load --card {{address}} {{image}}
program_timeout = 77
{more}
[generic_driver:plain]
devices = 0000:0c:00.0
attach_type = TEST_PCI
resource_class = {resource_class}
"""


@dataclass
class Site:
    """A compute with one card that takes images and one that takes none."""

    name: str
    machine: FakeHost
    state_path: Path
    start: Callable[[], service.Daemon]
    agent: service.Daemon
    #: The data of the images that were loaded, in their order.
    loaded: list[bytes] = field(default_factory=list)
    #: What the program does before it ends, and how it ends.
    then: Callable[[], None] = lambda: None
    status: int = 0

    def provider(self, address: str = CARD) -> str:
        """The resource provider of a card."""
        return provider_uuid(f"{self.name}_{address}")

    def restart(self) -> None:
        """Stop the agent and start another one on the same host."""
        self.agent.stop()
        self.agent = self.start()

    def load(self, host: FakeHost, argv: tuple[str, ...]) -> Completed:
        """The operator's program: it takes the card and the image, and no other words."""
        assert argv[:3] == ("/usr/sbin/load", "--card", CARD)
        (path,) = map(Path, argv[3:])
        assert path.stat().st_mode & 0o077 == 0
        assert path.parent.stat().st_mode & 0o077 == 0
        self.then()
        if self.status == 0:
            self.loaded.append(path.read_bytes())
        return Completed(self.status, "", "CRC error" if self.status else "")

    @property
    def files(self) -> list[str]:
        """What is left of images below the state path."""
        return [str(one) for one in self.state_path.glob("images/**/*")]


@pytest.fixture
def glance() -> Iterator[SimulatedGlance]:
    with SimulatedGlance() as api:
        yield api


@pytest.fixture
def site(
    stack: Stack,
    glance: SimulatedGlance,
    placement: PlacementService,
    resource_class: str,
    tmp_path: Path,
) -> Iterator[Callable[..., Site]]:
    """Start a compute; ``units`` are those of the card that takes images."""
    times = replace(stack.times, agent_heartbeat=0.2, scan=0.2)
    peers = replace(stack.peers, glance=glance.adapter)
    own = replace(stack, times=times, peers=peers, _endings=[])

    def start(units: int = 1, more: str = "") -> Site:
        name = fresh_host("images")
        placement.make_compute(name)
        machine = FakeHost()
        text = OPTIONS.format(resource_class=resource_class, units=units, more=more)
        conf = written(tmp_path / "cyborg.conf", text, host=name)
        state = tmp_path / "state"

        def agent() -> service.Daemon:
            loaded = [LoadResult("generic_driver", GenericDriver(machine, conf))]
            return own.start_agent(name, machine=machine, drivers=loaded, state_path=state)

        made = Site(name, machine, state, agent, agent())
        machine.programs["/usr/sbin/load"] = made.load
        eventually_offered(placement, made.provider(), units)
        eventually_offered(placement, made.provider(PLAIN), 1)
        return made

    yield start
    own.stop()


@pytest.fixture
def arqs(nova: Client, profile: Callable[..., str], resource_class: str) -> Callable[..., Arqs]:
    """A new ARQ whose profile has these wishes."""

    def make(**wishes: str) -> Arqs:
        group = {f"accel:{name}": value for name, value in wishes.items()}
        return create(nova, profile({f"resources:{resource_class}": "1", **group}))

    return make


def ended(nova: Client, instance: str) -> str:
    """The state of an instance's only ARQ when its bind is over."""
    eventually(lambda: of_instance(nova, instance)[0]["state"] != "BindStarted", timeout=20)
    state: str = of_instance(nova, instance)[0]["state"]
    return state


def fault(database: Database, arqs: Arqs) -> str:
    with database.reader() as tx:
        return str(tx.execute(sa.select(Arq.fault).where(Arq.uuid == arqs[0]["uuid"])).scalar())


def noted(database: Database, site: Site) -> str | None:
    """The image that the card has by the database."""
    query = sa.select(Deployable.bitstream_id).where(Deployable.rp_uuid == site.provider())
    with database.reader() as tx:
        image: str | None = tx.execute(query).scalar_one()
    return image


def give_back(nova: Client, database: Database, instance: str) -> None:
    nova.delete(f"{ARQS}?instance={instance}")
    eventually(lambda: work_left(database) == [])


def refusal(client: Client, arqs: Arqs, provider: str, status: int = 409) -> str:
    """What the answer to a bind that is refused says; the ARQ is as it was."""
    body = bind_body(arqs, "c", provider, str(uuid4()))
    answer = client.patch(ARQS, body, status=status)
    shown = client.get(f"{ARQS}/{arqs[0]['uuid']}")
    assert (shown["state"], shown["instance_uuid"]) == ("Initial", None)
    return str(answer)


def test_bind_loads_image_of_its_profile(
    site: Callable[..., Site],
    glance: SimulatedGlance,
    arqs: Callable[..., Arqs],
    nova: Client,
    database: Database,
) -> None:
    host, image = site(), glance.add(b"first")
    instance = bind(nova, arqs(bitstream_id=image), host.provider())
    assert of_instance(nova, instance)[0]["state"] in ("BindStarted", "Bound")
    assert ended(nova, instance) == "Bound"
    assert host.loaded == [b"first"]
    assert host.machine.patience == [77]
    assert noted(database, host) == image
    assert host.files == []
    give_back(nova, database, instance)
    # The card has the image: the next bind is Bound at once and loads nothing.
    again = bind(nova, arqs(bitstream_id=image), host.provider())
    assert of_instance(nova, again)[0]["state"] == "Bound"
    give_back(nova, database, again)
    other = glance.add(b"second")
    third = bind(nova, arqs(bitstream_id=other), host.provider())
    assert ended(nova, third) == "Bound"
    assert host.loaded == [b"first", b"second"]
    assert noted(database, host) == other


def test_an_image_is_found_by_its_function(
    site: Callable[..., Site],
    glance: SimulatedGlance,
    arqs: Callable[..., Arqs],
    nova: Client,
    database: Database,
) -> None:
    host = site()
    glance.add(b"other", **{"accel:function_id": "f2"})
    image = glance.add(b"mine", **{"accel:function_id": "f1"})
    for _ in range(2):
        instance = bind(nova, arqs(function_id="f1"), host.provider())
        assert ended(nova, instance) == "Bound"
        assert noted(database, host) == image
        give_back(nova, database, instance)
    assert host.loaded == [b"mine"]


@pytest.mark.parametrize("count", [0, 2])
def test_function_without_exactly_one_image_fails_the_bind(
    site: Callable[..., Site],
    glance: SimulatedGlance,
    arqs: Callable[..., Arqs],
    nova: Client,
    database: Database,
    *,
    count: int,
) -> None:
    host = site()
    for _ in range(count):
        glance.add(b"x", **{"accel:function_id": "f1"})
    # An image without data is not active and does not count.
    glance.add(None, **{"accel:function_id": "f1"})
    mine = arqs(function_id="f1")
    assert ended(nova, bind(nova, mine, host.provider())) == "BindFailed"
    assert "accel:function_id f1" in fault(database, mine)
    assert ("no active image" if count == 0 else "2 active images") in fault(database, mine)
    assert host.loaded == []


@pytest.mark.parametrize(
    ("properties", "sentence"),
    [
        ({"os_hash_value": "00" * 64}, "does not match its sha512"),
        ({"os_hash_algo": None, "os_hash_value": None}, "no os_hash_value"),
        ({"os_hash_algo": "md5", "os_hash_value": "00" * 16}, "md5"),
        ({"size": 3}, "3 bytes"),
        ({"size": 1 << 40}, "max_image_size"),
        ({"status": "deactivated"}, "deactivated"),
    ],
)
def test_image_that_cannot_be_verified_fails_the_bind(
    site: Callable[..., Site],
    glance: SimulatedGlance,
    arqs: Callable[..., Arqs],
    nova: Client,
    database: Database,
    *,
    properties: dict[str, Any],
    sentence: str,
) -> None:
    host, image = site(), glance.add(b"data", **properties)
    mine = arqs(bitstream_id=image)
    assert ended(nova, bind(nova, mine, host.provider())) == "BindFailed"
    assert sentence in fault(database, mine)
    assert image in fault(database, mine)
    assert host.loaded == []
    assert host.files == []


def test_missing_image_fails_the_bind(
    site: Callable[..., Site], arqs: Callable[..., Arqs], nova: Client, database: Database
) -> None:
    host, image = site(), str(uuid4())
    mine = arqs(bitstream_id=image)
    assert ended(nova, bind(nova, mine, host.provider())) == "BindFailed"
    assert f"Image {image} could not be found" in fault(database, mine)


def test_failed_program_fails_the_bind(
    site: Callable[..., Site],
    glance: SimulatedGlance,
    arqs: Callable[..., Arqs],
    nova: Client,
    database: Database,
) -> None:
    host, image = site(), glance.add(b"data")
    instance = bind(nova, arqs(bitstream_id=image), host.provider())
    assert ended(nova, instance) == "Bound"
    give_back(nova, database, instance)
    host.status = 1
    mine = arqs(bitstream_id=glance.add(b"bad"))
    assert ended(nova, bind(nova, mine, host.provider())) == "BindFailed"
    assert "CRC error" in fault(database, mine)
    # Nobody knows what the card holds now, so that the first image is loaded once more.
    assert noted(database, host) is None
    host.status = 0
    eventually(lambda: work_left(database) == [])
    assert ended(nova, bind(nova, arqs(bitstream_id=image), host.provider())) == "Bound"
    assert host.loaded == [b"data", b"data"]


def test_bind_survives_an_outage_of_glance(
    site: Callable[..., Site],
    glance: SimulatedGlance,
    arqs: Callable[..., Arqs],
    nova: Client,
) -> None:
    host, image = site(), glance.add(b"data")
    glance.answer_calls(503)
    assert ended(nova, bind(nova, arqs(bitstream_id=image), host.provider())) == "Bound"
    assert host.loaded == [b"data"]


def test_bind_is_refused_when_driver_loads_no_images(
    site: Callable[..., Site],
    glance: SimulatedGlance,
    arqs: Callable[..., Arqs],
    nova: Client,
    admin: Client,
) -> None:
    host = site()
    for wish in ({"bitstream_id": glance.add(b"x")}, {"function_id": "f1"}):
        mine = arqs(**wish)
        sentence = refusal(nova, mine, host.provider(PLAIN))
        assert mine[0]["uuid"] in sentence
        assert "generic_driver" in sentence
        devices = admin.get("/devices")["devices"]
        (device,) = [one["uuid"] for one in devices if one["model"] == "plain"]
        assert device in sentence


@pytest.mark.parametrize(
    "wishes", [{"bitstream_id": "no uuid"}, {"bitstream_id": str(uuid4()), "function_id": "f"}]
)
def test_invalid_image_requests_are_refused(
    site: Callable[..., Site], arqs: Callable[..., Arqs], nova: Client, wishes: dict[str, str]
) -> None:
    host = site()
    assert "bitstream_id" in refusal(nova, arqs(**wishes), host.provider(), status=400)


def test_unit_in_use_keeps_its_image(
    site: Callable[..., Site],
    glance: SimulatedGlance,
    arqs: Callable[..., Arqs],
    nova: Client,
    database: Database,
) -> None:
    host, image = site(units=3), glance.add(b"data")
    first = bind(nova, arqs(bitstream_id=image), host.provider())
    assert ended(nova, first) == "Bound"
    second = bind(nova, arqs(bitstream_id=image), host.provider())
    assert ended(nova, second) == "Bound"
    mine = arqs(bitstream_id=glance.add(b"other"))
    sentence = refusal(nova, mine, host.provider())
    assert image in sentence
    assert of_instance(nova, first)[0]["uuid"] in sentence
    # A bind without an image takes a unit as it is.
    third = bind(nova, arqs(), host.provider())
    assert of_instance(nova, third)[0]["state"] == "Bound"
    for instance in (first, second):
        give_back(nova, database, instance)
    assert of_instance(nova, third)[0]["uuid"] in refusal(nova, mine, host.provider())
    give_back(nova, database, third)
    assert ended(nova, bind(nova, mine, host.provider())) == "Bound"
    assert host.loaded == [b"data", b"other"]


def test_units_of_one_request_share_an_image(
    site: Callable[..., Site],
    glance: SimulatedGlance,
    arqs: Callable[..., Arqs],
    nova: Client,
) -> None:
    host, image = site(units=2), glance.add(b"data")
    both = arqs(bitstream_id=image) + arqs(bitstream_id=image)
    instance = bind(nova, both, host.provider())
    eventually(lambda: {one["state"] for one in of_instance(nova, instance)} == {"Bound"})
    assert host.loaded == [b"data"]


def test_one_request_with_two_images_on_a_device_is_refused(
    site: Callable[..., Site],
    glance: SimulatedGlance,
    arqs: Callable[..., Arqs],
    nova: Client,
) -> None:
    host = site(units=2)
    both = arqs(bitstream_id=glance.add(b"1")) + arqs(bitstream_id=glance.add(b"2"))
    refusal(nova, both, host.provider())


def test_bind_waits_while_an_image_is_loading(
    site: Callable[..., Site],
    glance: SimulatedGlance,
    arqs: Callable[..., Arqs],
    nova: Client,
    database: Database,
) -> None:
    """A bind was called off, and its image is still being loaded: no other guest gets a unit."""
    host, image = site(units=2), glance.add(b"data")
    begun, gate = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        gate.wait(20)

    host.then = hold
    instance = bind(nova, arqs(bitstream_id=image), host.provider())
    assert begun.wait(10)
    nova.delete(f"{ARQS}?instance={instance}")
    plain = bind(nova, arqs(), host.provider())
    assert of_instance(nova, plain)[0]["state"] == "BindStarted"
    gate.set()
    assert ended(nova, plain) == "Bound"
    assert noted(database, host) is None


def program(admin: Client, host: Site, image: str, status: int = 200) -> Any:
    """Ask for an image in the card."""
    (uuid,) = [
        one["uuid"]
        for one in admin.get("/deployables")["deployables"]
        if one["rp_uuid"] == host.provider()
    ]
    body = [{"path": "/program", "op": "replace", "value": [{"image_uuid": image}]}]
    return admin.patch(f"/deployables/{uuid}/program", body, status=status)


def test_operator_loads_an_image(
    site: Callable[..., Site],
    glance: SimulatedGlance,
    arqs: Callable[..., Arqs],
    admin: Client,
    nova: Client,
    *,
    database: Database,
) -> None:
    host, image = site(), glance.add(b"data")
    assert program(admin, host, image)["uuid"]
    eventually(lambda: noted(database, host) == image)
    assert host.loaded == [b"data"]
    instance = bind(nova, arqs(bitstream_id=image), host.provider())
    assert of_instance(nova, instance)[0]["state"] == "Bound"
    # What a guest has is not touched.
    sentence = str(program(admin, host, glance.add(b"other"), status=409))
    assert of_instance(nova, instance)[0]["uuid"] in sentence
    assert noted(database, host) == image
    give_back(nova, database, instance)
    program(admin, host, glance.add(b"bad", os_hash_value="00" * 64))
    eventually(lambda: work_left(database) == [])
    with database.reader() as tx:
        query = sa.select(Event.reason).where(Event.action == "program failed")
        assert "sha512" in str(tx.execute(query).scalar_one())
    assert host.loaded == [b"data"]


def test_restarted_agent_removes_leftover_image_files(site: Callable[..., Site]) -> None:
    host = site()
    left = host.state_path / "images" / "left" / "image"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half of an image")
    host.restart()
    assert host.files == []


def test_restarted_agent_does_not_trust_images_of_unused_devices(
    site: Callable[..., Site],
    glance: SimulatedGlance,
    arqs: Callable[..., Arqs],
    nova: Client,
    database: Database,
) -> None:
    """The host may have been booted while its agent was away: the image is loaded again."""
    host, image = site(), glance.add(b"data")
    instance = bind(nova, arqs(bitstream_id=image), host.provider())
    assert ended(nova, instance) == "Bound"
    give_back(nova, database, instance)
    host.restart()
    eventually(lambda: noted(database, host) is None)
    assert ended(nova, bind(nova, arqs(bitstream_id=image), host.provider())) == "Bound"
    assert host.loaded == [b"data", b"data"]


def test_image_is_loaded_again_after_a_reset(
    site: Callable[..., Site],
    glance: SimulatedGlance,
    arqs: Callable[..., Arqs],
    nova: Client,
    database: Database,
) -> None:
    """A command that cleans up after a guest may remove the image: it is loaded again."""
    host, image = (
        site(more="reset_command = /usr/sbin/wipe {handle}"),
        glance.add(b"data"),
    )
    host.machine.programs["/usr/sbin/wipe"] = lambda _host, _argv: Completed(0, "", "")
    for _ in range(2):
        instance = bind(nova, arqs(bitstream_id=image), host.provider())
        assert ended(nova, instance) == "Bound"
        give_back(nova, database, instance)
    assert host.loaded == [b"data", b"data"]
