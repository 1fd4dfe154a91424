# SPDX-License-Identifier: Apache-2.0
"""Cards as files: a driver whose hardware a test plugs, pulls, breaks and holds back at will."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from oslo_config import cfg

from cyborg.drivers.base import Driver, ImageFile, Progress, no_progress
from cyborg.drivers.loader import LoadResult
from cyborg.drivers.scan import Scan
from cyborg.model.device import (
    AttachHandle,
    AttachType,
    Attribute,
    Deployable,
    Device,
    DeviceType,
    Hardware,
)
from cyborg.model.pci import PciAddress
from cyborg.model.provider import provider_uuid
from cyborg.model.work import HandleTask, ProgramTask, Unit
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.waiting import Gate

CARD = "0000:81:00.0"
OTHER = "0000:82:00.0"
#: Something that a driver knows of and does not offer.
IDLE = Hardware(
    "0000:91:00.0",
    "CRYPTO",
    "v",
    "m",
    offered=False,
    reason="its firmware is missing",
    setup_required=True,
    num=4,
    remote=1,
    capability={"num": 2, "ipsec": {"aes": {"3des": 50, "num": 1}}},
)
_PLACE = "/cards"
_PREPARED = "/prepared"


@dataclass
class Traits:
    """What kind of cards a driver offers; ``network`` makes handles fit for ports."""

    resource_class: str
    prepare: bool = False
    programmable: bool = False
    network: str | None = None
    #: Kinds of slices by name, with what each takes of the units of a card, which they share.
    slices: Mapping[str, int] = field(default_factory=dict)
    #: How many units of a card a guest takes at a time.
    group_size: int = 1


@dataclass
class Behaviour:
    """What a test wants the driver to do from now on."""

    #: What ``discover`` throws.
    broken: Exception | None = None
    #: What ``prepare`` throws; what is no Exception ends the process in the middle of it.
    fault: BaseException | None = None
    #: Whether it shows already what ``fault`` ends.
    half_done: bool = False
    #: What ``release`` throws.
    stuck: Exception | None = None
    #: What ``settings`` shows of each unit.
    settings: dict[str, str] = field(default_factory=dict)
    #: Closed, it keeps ``discover``, ``prepare`` or ``release`` from ending.
    scanning: Gate = field(default_factory=Gate)
    preparing: Gate = field(default_factory=Gate)
    releasing: Gate = field(default_factory=Gate)

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        """Let everything go on."""
        self.scanning.set()
        self.preparing.set()
        self.releasing.set()


class CardDriver(Driver):
    """Every file below ``/cards``, named by a PCI address, is a card of as many units as it says.

    What it prepared is a file below ``/prepared``, named by the handle's key, until the machine
    is booted. ``calls`` are the verbs that were carried out, with their handles; ``specs`` what
    was wished of those that were prepared; ``tasks`` all that was asked for; ``loaded`` the images
    by deployable. ``scans`` and
    ``looks`` count how often it was asked what there is, and what is prepared.
    """

    name = "card_driver"
    can_program = True

    def __init__(self, host: FakeHost, compute: str, traits: Traits) -> None:
        super().__init__(host, cfg.ConfigOpts())
        self._machine = host
        self._compute = compute
        self.traits = traits
        self.behaviour = Behaviour()
        self.calls: list[tuple[str, str]] = []
        self.loaded: dict[str, bytes] = {}
        self.specs: list[dict[str, str]] = []
        self.tasks: list[HandleTask] = []
        self.scans = 0
        self.looks = 0

    def discover(self, scan: Scan) -> list[Device]:
        """See Driver."""
        self.scans += 1
        self.behaviour.scanning.hold()
        if self.behaviour.broken is not None:
            raise self.behaviour.broken
        return [self._device(PciAddress.parse(one)) for one in self.host.list_dir(_PLACE)]

    def prepare(
        self, task: HandleTask, image: ImageFile | None = None, *, progress: Progress = no_progress
    ) -> None:
        """See Driver."""
        super().prepare(task, image, progress=progress)
        self.tasks.append(task)
        self.behaviour.preparing.hold()
        place = f"{_PREPARED}/{task.handle_key}"
        if self.behaviour.fault is not None:
            if self.behaviour.half_done:
                self._machine.add_file(place, task.deployable)
            raise self.behaviour.fault
        self.calls.append(("prepare", task.handle_key))
        self.specs.append(task.spec)
        self._machine.add_file(place, task.deployable)

    def release(self, task: HandleTask, *, progress: Progress = no_progress) -> None:
        """See Driver."""
        self.tasks.append(task)
        self.behaviour.releasing.hold()
        if self.behaviour.stuck is not None:
            raise self.behaviour.stuck
        self.calls.append(("release", task.handle_key))
        self._machine.remove(f"{_PREPARED}/{task.handle_key}")

    def settings(self, scan: Scan, device_key: str, handle_key: str) -> Mapping[str, str]:
        """See Driver."""
        return dict(self.behaviour.settings)

    def prepared(self, scan: Scan) -> Sequence[Unit]:
        """See Driver."""
        self.looks += 1
        return [Unit(self.host.read_text(f"{_PREPARED}/{key}"), key) for key in self.ready]

    @property
    def ready(self) -> set[str]:
        """The keys of the handles that are prepared now."""
        there = self.host.exists(_PREPARED)
        return set(self.host.list_dir(_PREPARED)) if there else set()

    def program(
        self, task: ProgramTask, image_path: str, *, progress: Progress = no_progress
    ) -> None:
        """See Driver."""
        self.calls.append(("program", task.deployable))
        self.loaded[task.deployable] = Path(image_path).read_bytes()

    def _device(self, address: PciAddress) -> Device:
        units = int(self.host.read_text(f"{_PLACE}/{address}"))
        if self.traits.slices:
            return self._sliced(address, units)
        deployable = Deployable(
            name=f"{self._compute}_{address}",
            resource_class=self.traits.resource_class,
            driver_name="card",
            handles=tuple(self._handles(address, units)),
            traits=("CUSTOM_CARD",),
            attributes=(
                Attribute("rc", self.traits.resource_class),
                Attribute("trait0", "CUSTOM_CARD"),
            ),
            prepare=self.traits.prepare,
            programmable=self.traits.programmable,
            group_size=self.traits.group_size,
        )
        return Device(
            key=str(address),
            type=DeviceType.FPGA,
            vendor="1d22",
            model="card",
            control_path=address.info(),
            deployables=(deployable,),
        )

    def _sliced(self, address: PciAddress, units: int) -> Device:
        """A card of one pool, which is taken in slices of several sizes."""
        deployables = tuple(
            Deployable(
                name=f"{self._compute}_{address}_{name}",
                resource_class=self.traits.resource_class,
                driver_name="card",
                handles=tuple(
                    AttachHandle(f"{name}-{index}", AttachType.PCI, address.info())
                    for index in range(units // size)
                ),
                attributes=(Attribute("rc", self.traits.resource_class),),
                prepare=True,
                cost={"memory": size},
            )
            for name, size in self.traits.slices.items()
        )
        return Device(
            key=str(address),
            type=DeviceType.GPU,
            vendor="1d22",
            model="sliced card",
            control_path=address.info(),
            deployables=deployables,
            pools={"memory": units},
        )

    def _handles(self, address: PciAddress, units: int) -> Iterator[AttachHandle]:
        for unit in range(units):
            place = PciAddress(address.domain, address.bus, *divmod(unit + 1, 8))
            info = place.info()
            if self.traits.network is not None:
                info["physical_network"] = self.traits.network
            yield AttachHandle(key=str(place), type=AttachType.PCI, info=info)


class SecondDriver(CardDriver):
    """The same for cards of another make."""

    name = "second_driver"


@dataclass(eq=False)
class Rack:
    """A compute's simulated machine with its cards."""

    compute: str
    machine: FakeHost
    driver: CardDriver

    @classmethod
    def build(cls, compute: str, traits: Traits, cards: Mapping[str, int]) -> "Rack":
        """A machine with cards, by address, of these many units."""
        machine = FakeHost()
        machine.add_dir(_PLACE)
        rack = cls(compute, machine, CardDriver(machine, compute, traits))
        for address, units in cards.items():
            rack.plug(address, units)
        return rack

    @property
    def resource_class(self) -> str:
        """What its cards are to Placement."""
        return self.driver.traits.resource_class

    @property
    def one_unit(self) -> dict[str, str]:
        """What a device profile says for one unit of its cards."""
        return {f"resources:{self.resource_class}": "1"}

    @property
    def loaded(self) -> LoadResult:
        """The driver as the agent's loader would hand it over."""
        return LoadResult(self.driver.name, self.driver)

    def plug(self, address: str, units: int) -> None:
        """Put a card in, or change its units."""
        self.machine.add_file(f"{_PLACE}/{address}", str(units))

    def pull(self, address: str) -> None:
        """Take a card out."""
        self.machine.remove(f"{_PLACE}/{address}")

    def boot(self) -> None:
        """Start the machine anew: the cards are there, what was prepared on them is not."""
        self.machine.remove(_PREPARED)

    def leak(self, handle_key: str, address: str = CARD) -> None:
        """Prepare a unit behind everybody's back."""
        self.machine.add_file(f"{_PREPARED}/{handle_key}", f"{self.compute}_{address}")

    def unprepare(self, handle_key: str) -> None:
        """Take a prepared unit away behind everybody's back."""
        self.machine.remove(f"{_PREPARED}/{handle_key}")

    def provider(self, address: str = CARD) -> str:
        """The uuid of a card's provider."""
        return provider_uuid(f"{self.compute}_{address}")
