# SPDX-License-Identifier: Apache-2.0
"""What holds for everything that a driver says, as assertions."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from cyborg import exception
from cyborg.drivers import health_policy
from cyborg.drivers.base import CardLayouts, Driver, Progress, clean_calls, no_progress
from cyborg.drivers.scan import Scan
from cyborg.model import creation
from cyborg.model.creation import Creation
from cyborg.model.device import (
    AttachHandle,
    AttachType,
    Backend,
    Confidence,
    Deployable,
    Device,
    DeviceType,
    Hardware,
    IdentityKind,
)
from cyborg.model.health import Judgement, Signal
from cyborg.model.pci import PciAddress
from cyborg.model.work import HandleTask, Unit

Item = TypeVar("Item")
#: Widths of the columns that keep what a driver says.
WIDE = 255
DRIVER_NAME = 100


class Look:
    """The methods of a driver that only read, each with a scan of its own."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def discover(self) -> list[Device]:
        """See Driver."""
        return self._driver.discover(Scan(self._driver.host))

    def hardware(self) -> list[Hardware]:
        """See Driver."""
        return self._driver.hardware(Scan(self._driver.host))

    def backends(self) -> Sequence[Backend]:
        """See Driver."""
        return self._driver.backends(Scan(self._driver.host))

    def prepared(self) -> Sequence[Unit]:
        """See Driver."""
        return self._driver.prepared(Scan(self._driver.host, all_managed=True))

    def layouts(self) -> Sequence[CardLayouts]:
        """See Driver."""
        return self._driver.layouts(Scan(self._driver.host))

    def signals(self, device_key: str) -> list[Signal]:
        """See Driver."""
        return list(self._driver.signals(Scan(self._driver.host, all_managed=True), device_key))

    def health(self, device_key: str) -> Judgement:
        """Return what the signals of a device mean: by the shipped entries and the driver's own."""
        policy = health_policy.shipped().with_entries(self._driver.health_entries)
        return policy.judge(self.signals(device_key))

    def stats(self, device_key: str) -> Mapping[str, float]:
        """See Driver."""
        return self._driver.stats(Scan(self._driver.host, all_managed=True), device_key)


def look(driver: Driver) -> Look:
    """Return the methods of a driver that only read."""
    return Look(driver)


def check_device(device: Device) -> None:
    """Assert that one device can be kept, published and handed to Nova."""
    where = f"device {device.key}"
    assert device.deployables, f"{where} must have a deployable"
    assert device.control_path, f"{where}: control_path must tell where the device is"
    addresses = [fact.value for fact in device.identity if fact.kind is IdentityKind.ADDRESS]
    if {"domain", "bus", "device", "function"} <= device.control_path.keys():
        address = str(PciAddress.from_info(device.control_path))
        assert addresses in ([], [address]), (
            f"{where}: the address in identity must be that in control_path, {address}"
        )
    else:
        assert not addresses, f"{where}: a device without a PCI address must not have one"
    assert 0 < len(device.vendor) <= WIDE, f"{where}: vendor must have 1 to {WIDE} characters"
    assert 0 < len(device.model) <= WIDE, f"{where}: model must have 1 to {WIDE} characters"
    assert device.numa_node is None or device.numa_node >= 0, (
        f"{where}: numa_node must be None or at least 0, not {device.numa_node}"
    )
    for deployable in device.deployables:
        where = f"deployable {deployable.name}"
        assert deployable.handles, f"{where} must have an attach handle"
        assert 0 < len(deployable.driver_name) <= DRIVER_NAME, (
            f"{where}: driver_name must have 1 to {DRIVER_NAME} characters"
        )
        facts = [(attribute.key, attribute.value) for attribute in deployable.attributes]
        assert len(dict(facts)) == len(facts), f"{where}: keys of attributes must be unique"
        assert dict(facts).get("rc") == deployable.resource_class, (
            f"{where}: the attribute rc must be the resource class {deployable.resource_class}"
        )
        traits = [value for key, value in facts if key.startswith("trait")]
        assert traits == list(deployable.traits), (
            f"{where}: the attributes trait* must be the traits in their order; attributes: "
            f"{traits}, traits: {list(deployable.traits)}"
        )
        for handle in deployable.handles:
            check_handle(handle)


def check_handle(handle: AttachHandle) -> None:
    """Assert that Nova can paste the handle into a guest, and that the key says which it is.

    The parent of a mediated device need not be a PCI function: then its handle has no address.
    """
    for key, value in handle.info.items():
        assert isinstance(key, str), f"handle {handle.key}: keys of info must be strings"
        assert isinstance(value, str), f"handle {handle.key}: info[{key!r}] must be a string"
    if handle.type is AttachType.MDEV and "bus" not in handle.info:
        return
    address = str(PciAddress.from_info(handle.info))
    if handle.type is AttachType.MDEV:
        assert handle.key.startswith(f"{address}/"), (
            f"handle {handle.key}: the key of an MDEV handle must begin with {address}/"
        )
    else:
        assert handle.key == address, f"handle {handle.key}: the key must be the address {address}"


def made_on(backend: Backend) -> Device:
    """Return the order for an accelerator that an operator creates on a backend."""
    assert backend.creates is not None
    place = "fffe:00:00.0"
    wanted = Creation(
        host="compute-1",
        driver="driver",
        backend=backend.name,
        model="made",
        type=DeviceType.PCI,
        resource_class="CUSTOM_MADE",
        units=None,
        addresses=(place,),
    )
    return creation.device(wanted, creation.handles(wanted, backend.creates, ()), "compute-1")


def facts_of(device: Device) -> tuple[object, ...]:
    """Return what a device says about its card, its numbers included, without its place."""
    numbers = (fact for fact in device.identity if fact.confidence is not Confidence.PLACE)
    return device.type, device.vendor, device.model, device.numa_node, *numbers


def apart(devices: Iterable[Device]) -> list[Device]:
    """Return devices without their topology, which changes when another device moves or goes."""
    return [replace(device, topology=None) for device in devices]


def functions_of(devices: Sequence[Device]) -> dict[str, bool]:
    """Return the PCI functions that guests get, and whether they get them as a whole."""
    return {
        str(PciAddress.from_info(handle.info)): handle.type is AttachType.PCI
        for deployable in deployables_of(devices)
        for handle in deployable.handles
        if handle.type is not AttachType.TEST_PCI and "bus" in handle.info
    }


def mates_of(devices: Sequence[Device], address: str) -> list[str]:
    """Return the functions that a guest gets together with this one, itself among them, in order.

    A deployable with several groups has no function that goes with another: any of them do.
    """
    for deployable in deployables_of(devices):
        if deployable.group_size == len(deployable.handles):
            mates = [str(PciAddress.from_info(handle.info)) for handle in deployable.handles]
            if address in mates:
                return sorted(mates)
    return [address]


def moves(devices: Sequence[Device], addresses: Mapping[str, str]) -> dict[str, str]:
    """Return the addresses of whole cards after a move: old → new, for all functions of a unit.

    ``addresses`` is the move of the functions that name the devices. The functions of a unit with
    the same device number are one card.
    """
    moved = {}
    for old, new in addresses.items():
        slot, target = old.rpartition(".")[0], new.rpartition(".")[0]
        mates = [mate for mate in mates_of(devices, old) if mate.rpartition(".")[0] == slot]
        if len(mates) == 1:
            moved[old] = new
        else:
            moved |= {mate: f"{target}.{mate.rpartition('.')[2]}" for mate in mates}
    return moved


def sample(items: Sequence[Item], most: int) -> list[Item]:
    """Return up to ``most`` of the items, evenly spaced, the first among them."""
    step = max(1, -(-len(items) // most))
    return list(items[::step])


def deployables_of(devices: Sequence[Device]) -> list[Deployable]:
    """Return the deployables of these devices."""
    return [one for device in devices for one in device.deployables]


def handles_of(devices: Sequence[Device]) -> dict[str, dict[str, list[str]]]:
    """Return the keys of the handles by device and deployable."""
    return {
        device.key: {part.name: [one.key for one in part.handles] for part in device.deployables}
        for device in devices
    }


def tasks_for(driver: str, devices: Sequence[Device]) -> Iterator[HandleTask]:
    """Return a task for the first unit of each deployable."""
    for device in devices:
        for deployable in device.deployables:
            yield HandleTask(
                request_key=f"operation-{deployable.name}",
                driver=driver,
                device_key=device.key,
                deployable=deployable.name,
                handle_key=deployable.handles[0].key,
                handle_uuid="6d2f7a7e-3c0e-4a0b-8f0e-0a6a1d7c5b11",
            )


def change(
    driver: Driver, verb: str, task: HandleTask, *, progress: Progress | None = None
) -> None:
    """Prepare a unit, or release it and run its clean steps, as the agent does."""
    # Without progress: a driver that does not take it fails the check for it, and no other.
    methods: dict[str, Callable[..., None]] = {"prepare": driver.prepare, "release": driver.release}
    methods[verb](task, **({} if progress is None else {"progress": progress}))
    if verb == "prepare":
        return
    for _, call in clean_calls(driver, task):
        call(progress or no_progress)


def units_of(driver: Driver) -> set[Unit] | None:
    """Return the units that the driver shows as prepared; None when it cannot tell."""
    try:
        return set(look(driver).prepared())
    except exception.DriverCannot:
        return None


def verbs(driver: Driver, devices: Sequence[Device]) -> Iterator[Callable[[], object]]:
    """Return a call for each verb that may access the host; no call has been made yet."""
    yield from readers(driver, [])
    for task in tasks_for(driver.name, devices):
        yield functools.partial(driver.install, task.device_key, task.request_key)
        yield functools.partial(change, driver, "prepare", task)
        yield functools.partial(change, driver, "release", task)
        yield functools.partial(look(driver).signals, task.device_key)
        yield functools.partial(look(driver).stats, task.device_key)


def name_of(verb: Callable[..., object]) -> str:
    """Return the name of the method that a call of ``verbs`` or ``readers`` stands for."""
    return str(getattr(getattr(verb, "func", verb), "__name__", verb))


def readers(driver: Driver, devices: Sequence[Device]) -> Iterator[Callable[[], object]]:
    """Return a call for each verb that only reads; no call has been made yet."""
    yield look(driver).discover
    yield look(driver).hardware
    yield look(driver).backends
    yield look(driver).prepared
    yield look(driver).layouts
    for device in devices:
        yield functools.partial(look(driver).signals, device.key)
        yield functools.partial(look(driver).stats, device.key)


def results_of(driver: Driver, devices: Sequence[Device]) -> dict[str, object]:
    """Return the health of devices and the names of their statistics, for a later comparison."""
    results: dict[str, object] = {}
    for device in devices:
        for text, verb in (
            ("signals", look(driver).health),
            ("stats", lambda key: sorted(look(driver).stats(key))),
        ):
            try:
                results[f"{text}({device.key})"] = verb(device.key)
            except exception.CyborgError as error:
                results[f"{text}({device.key})"] = type(error)
    return results
