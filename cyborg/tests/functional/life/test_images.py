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
from oslo_config import cfg

from cyborg.clients.image_signature import ImageCertificates
from cyborg.db.engine import Database
from cyborg.db.models import Arq, Deployable, Event
from cyborg.drivers.command import Completed
from cyborg.drivers.generic import GenericDriver
from cyborg.drivers.loader import LoadResult
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.compute_host import ComputeHost, compute_host
from cyborg.tests.fixtures.glance import SimulatedGlance
from cyborg.tests.fixtures.image_signer import ImageSigner
from cyborg.tests.fixtures.placement import PlacementService
from cyborg.tests.fixtures.stack import Stack
from cyborg.tests.fixtures.waiting import Gate, eventually, happened
from cyborg.tests.functional.life.http import Client, bind_body
from cyborg.tests.functional.life.steps import (
    ARQS,
    Arqs,
    bind,
    create,
    delete_arqs,
    eventually_idle,
    eventually_offered,
    of_instance,
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
#: Images that the agent refuses, and why.
UNVERIFIED: list[tuple[dict[str, Any], str]] = [
    ({"os_hash_value": "00" * 64}, "does not match its sha512"),
    ({"os_hash_algo": None, "os_hash_value": None}, "no os_hash_value"),
    ({"os_hash_algo": "md5", "os_hash_value": "00" * 16}, "md5"),
    ({"size": 3}, "3 bytes"),
    ({"size": 1 << 40}, "max_image_size"),
    ({"status": "deactivated"}, "deactivated"),
]


@dataclass(kw_only=True)
class Site(ComputeHost):
    """A compute with one card that takes images and one that takes none."""

    conf: cfg.ConfigOpts
    resource_class: str
    nova: Client
    profile: Callable[..., str]
    database: Database
    #: The data of the images that were loaded, in their order.
    loaded: list[bytes] = field(default_factory=list)
    #: What the program does before it ends, and how it ends.
    then: Callable[[], None] = lambda: None
    status: int = 0

    def provider(self, address: str = CARD) -> str:
        """The resource provider of a card."""
        return super().provider(address)

    def start(self, *_drivers: str | LoadResult) -> None:
        """Start an agent with a driver of its own, as each process has."""
        super().start(LoadResult("generic_driver", GenericDriver(self.machine, self.conf)))

    def load_image(self, host: FakeHost, argv: tuple[str, ...]) -> Completed:
        """The operator's program: it takes the card and the image, and no other words."""
        assert argv[:3] == ("/usr/sbin/load", "--card", CARD)
        (path,) = map(Path, argv[3:])
        assert path.stat().st_mode & 0o077 == 0
        assert path.parent.stat().st_mode & 0o077 == 0
        self.then()
        if self.status == 0:
            self.loaded.append(path.read_bytes())
        return Completed(self.status, "", "CRC error" if self.status else "")

    def arqs(self, **wishes: str) -> Arqs:
        """A new ARQ whose profile has these wishes."""
        group = {f"accel:{name}": value for name, value in wishes.items()}
        return create(self.nova, self.profile({f"resources:{self.resource_class}": "1", **group}))

    def bind(self, arqs: Arqs) -> str:
        """Bind them to the card that takes images; the instance."""
        return bind(self.nova, arqs, self.provider())

    def ended(self, instance: str) -> str:
        """The state of an instance's only ARQ when its bind is over."""
        eventually(lambda: of_instance(self.nova, instance)[0]["state"] != "BindStarted")
        return str(of_instance(self.nova, instance)[0]["state"])

    def refusal(self, arqs: Arqs, address: str = CARD, status: int = 409) -> str:
        """What the answer to a bind that is refused says; the ARQ is as it was."""
        body = bind_body(arqs, "c", self.provider(address), str(uuid4()))
        answer = self.nova.patch(ARQS, body, status=status)
        shown = self.nova.get(f"{ARQS}/{arqs[0]['uuid']}")
        assert (shown["state"], shown["instance_uuid"]) == ("Initial", None)
        return str(answer)

    def give_back(self, instance: str) -> None:
        """Delete an instance, and wait until its unit is clean."""
        delete_arqs(self.nova, instance)
        eventually_idle(self.database)

    def fault(self, arqs: Arqs) -> str:
        """Why a bind failed."""
        wanted = sa.select(Arq.fault).where(Arq.uuid == arqs[0]["uuid"])
        with self.database.reader() as tx:
            return str(tx.execute(wanted).scalar())

    @property
    def image(self) -> str | None:
        """The image that the card has by the database."""
        query = sa.select(Deployable.bitstream_id).where(Deployable.rp_uuid == self.provider())
        with self.database.reader() as tx:
            image: str | None = tx.execute(query).scalar_one()
        return image

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
    beside: Callable[..., Stack],
    stack: Stack,
    glance: SimulatedGlance,
    placement: PlacementService,
    *,
    resource_class: str,
    nova: Client,
    profile: Callable[..., str],
    database: Database,
    tmp_path: Path,
) -> Callable[..., Site]:
    """Start a compute; ``units`` are those of the card that takes images."""
    peers = replace(stack.peers, glance=glance.adapter)

    def start(
        units: int = 1, more: str = "", certificates: ImageCertificates | None = None
    ) -> Site:
        own = beside(
            agent_heartbeat=0.2, scan=0.2, peers=replace(peers, image_certificates=certificates)
        )
        made = compute_host(own, tmp_path / "state")
        text = OPTIONS.format(resource_class=resource_class, units=units, more=more)
        conf = written(tmp_path / "cyborg.conf", text, host=made.compute)
        host = Site(
            **vars(made),
            conf=conf,
            resource_class=resource_class,
            nova=nova,
            profile=profile,
            database=database,
        )
        host.machine.programs["/usr/sbin/load"] = host.load_image
        host.start()
        eventually_offered(placement, host.provider(), units)
        eventually_offered(placement, host.provider(PLAIN), 1)
        return host

    return start


@pytest.mark.proves("generic_driver", "bind", "programming", by="simulated")
def test_bind_loads_image_of_its_profile(
    site: Callable[..., Site], glance: SimulatedGlance
) -> None:
    host, image = site(), glance.add(b"first", **{"accel:function_id": "f1"})
    glance.answer_calls(503)
    instance = host.bind(host.arqs(bitstream_id=image))
    assert of_instance(host.nova, instance)[0]["state"] in ("BindStarted", "Bound")
    assert host.ended(instance) == "Bound"
    assert host.loaded == [b"first"]
    assert host.machine.patience == [77]
    assert host.image == image
    assert host.files == []
    host.give_back(instance)
    # The card has the image: the next bind is Bound at once and loads nothing.
    again = host.bind(host.arqs(bitstream_id=image))
    assert of_instance(host.nova, again)[0]["state"] == "Bound"
    host.give_back(again)
    by_function = host.bind(host.arqs(function_id="f1"))
    assert host.ended(by_function) == "Bound"
    assert host.loaded == [b"first"]
    host.give_back(by_function)
    other = glance.add(b"second")
    third = host.bind(host.arqs(bitstream_id=other))
    assert host.ended(third) == "Bound"
    assert host.loaded == [b"first", b"second"]
    assert host.image == other


def test_image_that_cannot_be_loaded_fails_the_bind(
    site: Callable[..., Site], glance: SimulatedGlance
) -> None:
    host = site()

    def failed(*sentences: str, **wishes: str) -> None:
        mine = host.arqs(**wishes)
        instance = host.bind(mine)
        assert host.ended(instance) == "BindFailed"
        assert [one for one in sentences if one not in host.fault(mine)] == []
        host.give_back(instance)

    for properties, sentence in UNVERIFIED:
        image = glance.add(b"data", **properties)
        failed(sentence, image, bitstream_id=image)
    missing = str(uuid4())
    failed(f"Image {missing} could not be found", bitstream_id=missing)
    # An image without data is not active and does not count.
    glance.add(None, **{"accel:function_id": "f1"})
    failed("accel:function_id f1", "no active image", function_id="f1")
    for _ in range(2):
        glance.add(b"x", **{"accel:function_id": "f1"})
    failed("accel:function_id f1", "2 active images", function_id="f1")
    assert (host.loaded, host.files) == ([], [])
    image = glance.add(b"data")
    instance = host.bind(host.arqs(bitstream_id=image))
    assert host.ended(instance) == "Bound"
    host.give_back(instance)
    host.status = 1
    failed("CRC error", bitstream_id=glance.add(b"bad"))
    # Nobody knows what the card holds now, so that the first image is loaded once more.
    assert host.image is None
    host.status = 0
    assert host.ended(host.bind(host.arqs(bitstream_id=image))) == "Bound"
    assert host.loaded == [b"data", b"data"]


def test_only_signed_images_are_loaded_if_signatures_are_verified(
    site: Callable[..., Site], glance: SimulatedGlance, admin: Client, tmp_path: Path
) -> None:
    directory = tmp_path / "certificates"
    directory.mkdir()
    signer = ImageSigner(directory)
    host = site(certificates=ImageCertificates(directory, lambda path: None))
    # Glance's own properties of each image are right: only the signature tells the difference.
    refused = {
        "it has no property img_signature": glance.add(b"data"),
        "img_signature does not match": glance.add(b"other", **signer.properties(b"data")),
        "cannot be read": glance.add(
            b"data", **signer.properties(b"data", img_signature_certificate_uuid=str(uuid4()))
        ),
    }
    for sentence, image in refused.items():
        mine = host.arqs(bitstream_id=image)
        instance = host.bind(mine)
        assert host.ended(instance) == "BindFailed"
        assert sentence in host.fault(mine)
        assert image in host.fault(mine)
        host.give_back(instance)
        # Nor can an operator load it.
        program(admin, host, image)
        eventually_idle(host.database)
    with host.database.reader() as tx:
        query = sa.select(Event.reason).where(Event.action == "program failed")
        reasons = tx.execute(query).scalars().all()
    assert [any(one in str(reason) for reason in reasons) for one in refused] == [True] * 3
    assert (host.loaded, host.files, host.image) == ([], [], None)
    image = glance.add(b"data", **signer.properties(b"data"))
    assert host.ended(host.bind(host.arqs(bitstream_id=image))) == "Bound"
    assert (host.loaded, host.image) == ([b"data"], image)


def test_impossible_images_are_refused(
    site: Callable[..., Site], glance: SimulatedGlance, admin: Client
) -> None:
    host, image = site(units=2), glance.add(b"1")
    devices = admin.get("/devices")["devices"]
    (device,) = [one["uuid"] for one in devices if one["model"] == "plain"]
    for wish in ({"bitstream_id": image}, {"function_id": "f1"}):
        mine = host.arqs(**wish)
        sentence = host.refusal(mine, PLAIN)
        for word in (mine[0]["uuid"], "generic_driver", device):
            assert word in sentence
    both = {"bitstream_id": image, "function_id": "f"}
    for wishes in ({"bitstream_id": "no uuid"}, both):
        assert "bitstream_id" in host.refusal(host.arqs(**wishes), status=400)
    # Two images do not fit in one card; one does, for two units, and is loaded once.
    pair = host.arqs(bitstream_id=image)
    host.refusal(pair + host.arqs(bitstream_id=glance.add(b"2")))
    instance = host.bind(pair + host.arqs(bitstream_id=image))
    eventually(lambda: {one["state"] for one in of_instance(host.nova, instance)} == {"Bound"})
    assert host.loaded == [b"1"]


def test_unit_in_use_keeps_its_image(site: Callable[..., Site], glance: SimulatedGlance) -> None:
    host, image = site(units=3), glance.add(b"data")
    first = host.bind(host.arqs(bitstream_id=image))
    assert host.ended(first) == "Bound"
    second = host.bind(host.arqs(bitstream_id=image))
    assert host.ended(second) == "Bound"
    mine = host.arqs(bitstream_id=glance.add(b"other"))
    sentence = host.refusal(mine)
    assert image in sentence
    assert of_instance(host.nova, first)[0]["uuid"] in sentence
    # A bind without an image takes a unit as it is.
    third = host.bind(host.arqs())
    assert of_instance(host.nova, third)[0]["state"] == "Bound"
    for instance in (first, second):
        host.give_back(instance)
    assert of_instance(host.nova, third)[0]["uuid"] in host.refusal(mine)
    host.give_back(third)
    assert host.ended(host.bind(mine)) == "Bound"
    assert host.loaded == [b"data", b"other"]


def test_bind_waits_while_an_image_is_loading(
    site: Callable[..., Site], glance: SimulatedGlance
) -> None:
    """A bind was called off, and its image is still being loaded: no other guest gets a unit."""
    host, image = site(units=2), glance.add(b"data")
    begun, gate = threading.Event(), Gate()

    def hold() -> None:
        begun.set()
        gate.hold()

    host.then = hold
    instance = host.bind(host.arqs(bitstream_id=image))
    happened(begun)
    delete_arqs(host.nova, instance)
    plain = host.bind(host.arqs())
    assert of_instance(host.nova, plain)[0]["state"] == "BindStarted"
    gate.set()
    assert host.ended(plain) == "Bound"
    assert host.image is None


def program(admin: Client, host: Site, image: str, status: int = 200) -> Any:
    """Ask for an image in the card."""
    (uuid,) = [
        one["uuid"]
        for one in admin.get("/deployables")["deployables"]
        if one["rp_uuid"] == host.provider()
    ]
    body = [{"path": "/program", "op": "replace", "value": [{"image_uuid": image}]}]
    return admin.patch(f"/deployables/{uuid}/program", body, status=status)


@pytest.mark.proves("generic_driver", "programming", by="simulated")
def test_operator_loads_an_image(
    site: Callable[..., Site], glance: SimulatedGlance, admin: Client
) -> None:
    host, image = site(), glance.add(b"data")
    assert program(admin, host, image)["uuid"]
    eventually(lambda: host.image == image)
    assert host.loaded == [b"data"]
    instance = host.bind(host.arqs(bitstream_id=image))
    assert of_instance(host.nova, instance)[0]["state"] == "Bound"
    # What a guest has is not touched.
    sentence = str(program(admin, host, glance.add(b"other"), status=409))
    assert of_instance(host.nova, instance)[0]["uuid"] in sentence
    assert host.image == image
    host.give_back(instance)
    program(admin, host, glance.add(b"bad", os_hash_value="00" * 64))
    eventually_idle(host.database)
    with host.database.reader() as tx:
        query = sa.select(Event.reason).where(Event.action == "program failed")
        assert "sha512" in str(tx.execute(query).scalar_one())
    assert host.loaded == [b"data"]


def test_restarted_agent_does_not_trust_images_of_unused_devices(
    site: Callable[..., Site], glance: SimulatedGlance
) -> None:
    """The host may have been booted while its agent was away: the image is loaded again."""
    host, image = site(), glance.add(b"data")
    instance = host.bind(host.arqs(bitstream_id=image))
    assert host.ended(instance) == "Bound"
    host.give_back(instance)
    host.restart()
    eventually(lambda: host.image is None)
    assert host.ended(host.bind(host.arqs(bitstream_id=image))) == "Bound"
    assert host.loaded == [b"data", b"data"]


def test_image_is_loaded_again_after_a_reset(
    site: Callable[..., Site], glance: SimulatedGlance
) -> None:
    """A command that cleans up after a guest may remove the image: it is loaded again."""
    host, image = (
        site(more="reset_command = /usr/sbin/wipe {handle}"),
        glance.add(b"data"),
    )
    host.machine.programs["/usr/sbin/wipe"] = lambda _host, _argv: Completed(0, "", "")
    for _ in range(2):
        instance = host.bind(host.arqs(bitstream_id=image))
        assert host.ended(instance) == "Bound"
        host.give_back(instance)
    assert host.loaded == [b"data", b"data"]
