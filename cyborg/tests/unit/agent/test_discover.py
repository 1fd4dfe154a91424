# SPDX-License-Identifier: Apache-2.0
"""What a host has and would offer: rows of all drivers, failures, and changes of the report."""

from collections.abc import Callable
from dataclasses import replace

from cyborg import exception
from cyborg.agent.discover import Difference, Row, changes, discover, restricted
from cyborg.drivers.base import Driver
from cyborg.drivers.fake import FakeDriver
from cyborg.drivers.loader import LoadResult
from cyborg.drivers.pci import PciDriver
from cyborg.drivers.scan import Scan
from cyborg.drivers.worker import Worker
from cyborg.model.device import Device, Hardware
from cyborg.model.provider import Provider, ProviderTree
from cyborg.model.report import Desired, DriverReport, DriverState, Report
from cyborg.testing import servers
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.waiting import PATIENCE, Gate
from cyborg.tests.unit.agent.fake_peers import report_of
from cyborg.tests.unit.drivers.configured import configured


class Scripted(Driver):
    """A driver whose hardware a test gives."""

    name = "scripted"

    def __init__(self, list_hardware: Callable[[Scan], list[Hardware]]) -> None:
        super().__init__(FakeHost(), configured())
        self._list = list_hardware

    def discover(self, scan: Scan) -> list[Device]:
        return []

    def hardware(self, scan: Scan) -> list[Hardware]:
        return self._list(scan)


def pci(host: FakeHost, *whitelist: str, enabled: bool = True) -> LoadResult:
    return LoadResult("pci_driver", PciDriver(host, configured(*whitelist)), enabled=enabled)


def fake(host: FakeHost) -> LoadResult:
    return LoadResult("fake_driver", FakeDriver(host, configured()))


def scripted(list_hardware: Callable[[Scan], list[Hardware]]) -> LoadResult:
    return LoadResult("scripted", Scripted(list_hardware))


def by_address(rows: tuple[Row, ...]) -> dict[str, Row]:
    return {row.address: row for row in rows}


def test_row_has_the_driver_that_offers_the_device_and_the_driver_of_the_host() -> None:
    host = servers.server()
    rows = by_address(discover([pci(host, '{"vendor_id": "10de"}')], host, timeout=PATIENCE).rows)
    gpu, disk = rows[servers.GPU], rows[servers.NVME_MOUNTED]
    assert (gpu.offered_by, gpu.type, gpu.host_driver) == ("pci_driver", "GPU", "nvidia")
    assert (gpu.units, gpu.numa_node, gpu.reason) == (1, 0, None)
    assert gpu.deployables == (f"compute-1_{servers.GPU}",)
    assert gpu.model == "GA100 [A100 PCIe 80GB]"
    assert (disk.offered_by, disk.type, disk.units, disk.deployables) == (None, None, 0, ())
    assert disk.reason == "its disk nvme0n1p1 is mounted at /"
    assert len(rows) == len(host.list_dir("/sys/bus/pci/devices"))


def test_devices_of_the_drivers_share_a_row_for_each_function() -> None:
    host = servers.server()
    reason = "it has not been set up yet"
    entry = Hardware(servers.GPU, "GPU", "NVIDIA", "A100", offered=False, reason=reason)
    loaded = [pci(host), scripted(lambda scan: [entry])]
    row = by_address(discover(loaded, host, timeout=PATIENCE).rows)[servers.GPU]
    assert row.reasons == {"pci_driver": "not on the whitelist", "scripted": reason}
    assert row.reason == f"pci_driver: not on the whitelist; scripted: {reason}"


def test_reason_of_an_idle_driver_counts_only_without_another_one() -> None:
    host = servers.server()
    entry = Hardware(servers.GPU, "GPU", "NVIDIA", "A100", offered=False, reason="it is broken")
    loaded = [pci(host, '{"vendor_id": "10de"}', enabled=False), scripted(lambda scan: [entry])]
    rows = by_address(discover(loaded, host, timeout=PATIENCE).rows)
    assert rows[servers.GPU].reason == "it is broken"
    assert rows[servers.GPU].reasons["pci_driver"] == "pci_driver is not enabled"
    assert rows[servers.GPU_ON_VFIO].reason == "pci_driver is not enabled"


def test_simulated_device_at_the_address_of_a_function_has_its_own_row() -> None:
    host = servers.server()
    servers.add_function(host, "0000:0c:00.0", "8086:37c8:0b4000")
    rows = discover([pci(host), fake(host)], host, timeout=PATIENCE).rows
    units = [(row.vendor, row.units) for row in rows if row.address == "0000:0c:00.0"]
    assert units == [("Intel Corporation", 0), ("0xABCD", 16)]


def test_driver_that_fails_costs_its_own_rows_only() -> None:
    def failing(scan: Scan) -> list[Hardware]:
        raise exception.HostError(action="asking the tool", reason="No such file")

    host = servers.server()
    discovery = discover([pci(host), scripted(failing)], host, timeout=PATIENCE)
    assert len(discovery.rows) == len(host.list_dir("/sys/bus/pci/devices"))
    (note,) = discovery.notes
    assert note.startswith("Driver scripted: ")
    assert "asking the tool" in note


def test_driver_that_hangs_costs_its_own_rows_only() -> None:
    gate = Gate()

    def hang(scan: Scan) -> list[Hardware]:
        gate.hold()
        return []

    host, worker = FakeHost(), Worker(wait=gate.limit)
    discovery = discover([fake(host), scripted(hang)], host, timeout=PATIENCE, worker=worker)
    gate.set()
    assert [row.offered_by for row in discovery.rows] == ["fake_driver"]
    assert "hardware" in discovery.notes[0]
    assert f"has not answered within {PATIENCE:g} seconds" in discovery.notes[0]


def test_bus_that_hangs_costs_the_rows_of_its_functions_only() -> None:
    gate = Gate()

    class Hanging(FakeHost):
        def list_dir(self, path: str) -> list[str]:
            gate.hold()
            return super().list_dir(path)

    host, worker = Hanging(), Worker(patience=0.2, wait=gate.limit)
    discovery = discover([fake(host), pci(host)], host, timeout=PATIENCE, worker=worker)
    gate.set()
    assert [row.offered_by for row in discovery.rows] == ["fake_driver"]
    assert any("it did not answer within 0.2 seconds" in note for note in discovery.notes)


def test_unreadable_bus_is_a_note() -> None:
    host = servers.server()
    host.faults["/sys/bus/pci/devices"] = 13
    discovery = discover([pci(host, "{}")], host, timeout=PATIENCE)
    assert discovery.rows == ()
    assert any(note.startswith("The PCI functions of the host") for note in discovery.notes)


def test_only_the_named_drivers_are_called() -> None:
    host = servers.server()
    loaded = [pci(host), fake(host), LoadResult("broken", error="it is broken")]
    discovery = discover(loaded, host, timeout=PATIENCE, only={"fake_driver"})
    assert [driver.driver for driver in discovery.report.drivers] == ["fake_driver"]
    assert len(discovery.rows) == 1


def test_card_that_the_conductor_keeps_is_offered_while_a_guest_has_it() -> None:
    host = servers.server()
    servers.open_vfio(host, "4", 7, "qemu")
    host.add_link(f"{servers.place(servers.GPU_ON_VFIO)}/iommu_group", "/sys/kernel/iommu_groups/4")
    loaded = [pci(host, '{"vendor_id": "10de", "product_id": "20f1"}')]
    held = by_address(discover(loaded, host, timeout=PATIENCE).rows)[servers.GPU_ON_VFIO]
    assert held.reason == "held through VFIO by qemu (process 7)"
    provider = Provider("uuid", f"compute-1_{servers.GPU_ON_VFIO}", "PGPU", 1, 0, frozenset())
    desired = Desired(1, ProviderTree("compute-1", (provider,)), {})
    again = discover(loaded, host, timeout=PATIENCE, desired=desired)
    assert by_address(again.rows)[servers.GPU_ON_VFIO].offered_by == "pci_driver"


def report(*devices: Device, state: DriverState = DriverState.READY, **facts: object) -> Report:
    return Report((replace(DriverReport("driver", state, devices), **facts),))  # type: ignore[arg-type]


def test_changes_name_what_is_added_lost_and_changed() -> None:
    (device,) = report_of("a").drivers[0].devices
    more = replace(device, model="new model", deployables=device.deployables * 2)
    other = replace(device, key="0000:02:00.0")
    assert changes(report(device), report(device)) == []
    assert changes(report(device), report(other)) == [
        Difference("driver", "device", device.key, "lost"),
        Difference("driver", "device", other.key, "added"),
    ]
    details = (("model", "new model"), ("deployables", "2 of them"))
    assert changes(report(device), report(more)) == [
        Difference("driver", "device", device.key, "changed", details)
    ]


def test_changes_of_the_reason_are_shown() -> None:
    entry = Hardware("k", "GPU", "v", "m", offered=True)
    refused = replace(entry, offered=False, reason="it is mounted")
    details = (("offered", "False"), ("reason", "it is mounted"))
    assert changes(report(hardware=(entry,)), report(hardware=(refused,))) == [
        Difference("driver", "hardware", "k", "changed", details)
    ]


def test_driver_that_failed_loses_no_device() -> None:
    (device,) = report_of("a").drivers[0].devices
    failed = report(state=DriverState.FAILED, error="no answer")
    assert changes(report(device), failed) == [
        Difference("driver", "driver", "driver", "changed", (("state", "FAILED"),))
    ]


def test_drivers_of_one_report_only_are_named() -> None:
    added, lost = changes(Report(()), report()), changes(report(), Report(()))
    assert [(change.what, change.change) for change in (*added, *lost)] == [
        ("driver", "added"),
        ("driver", "lost"),
    ]
    assert restricted(report(), {"other"}) == Report(())
    assert restricted(report(), frozenset()) == report()
