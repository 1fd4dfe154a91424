# SPDX-License-Identifier: Apache-2.0
"""The nvmf_spdk_driver with a simulated SPDK application; see ``simulated_spdk``."""

import contextlib
import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from cyborg import exception
from cyborg.agent.discover import discover
from cyborg.drivers.base import ResetLevel, clean_calls, no_progress
from cyborg.drivers.host import LocalHost
from cyborg.drivers.loader import LoadResult
from cyborg.drivers.nvmf_spdk import REASON, NvmfSpdkDriver
from cyborg.model import wire
from cyborg.model.cleaning import CleanLevel
from cyborg.model.device import Backend, BackendService, Hardware
from cyborg.model.health import Condition
from cyborg.model.report import DriverState
from cyborg.model.work import HandleTask
from cyborg.testing.driver_checks import look
from cyborg.testing.fake_host import FakeHost
from cyborg.tests.fixtures.waiting import PATIENCE
from cyborg.tests.unit.drivers.configured import written
from cyborg.tests.unit.drivers.simulated_spdk import (
    JSON,
    SimulatedDisk,
    SimulatedSpdk,
    SpdkSocket,
    in_pieces,
)

SOCKET = "/var/tmp/spdk.sock"
DISK = "0000:5e:00.0"
MALLOC: JSON = {
    "name": "Malloc0",
    "aliases": ["7a1c"],
    "product_name": "Malloc disk",
    "block_size": 512,
    "num_blocks": 2048,
    "uuid": "7a1c",
    "claimed": False,
    "driver_specific": {},
}


@pytest.fixture
def spdk() -> SimulatedSpdk:
    return SimulatedSpdk()


@pytest.fixture
def host(spdk: SimulatedSpdk) -> FakeHost:
    machine = FakeHost()
    machine.add_socket(SOCKET, spdk.answer)
    return machine


@pytest.fixture
def driver(host: FakeHost, tmp_path: Path) -> NvmfSpdkDriver:
    return driver_on(host, tmp_path)


def driver_on(host: FakeHost | LocalHost, tmp_path: Path, options: str = "") -> NvmfSpdkDriver:
    text = f"[nvmf_spdk_driver]\n{options}"
    return NvmfSpdkDriver(host, written(tmp_path / "cyborg.conf", text))


def task(key: str = DISK) -> HandleTask:
    return HandleTask("operation", "nvmf_spdk_driver", key, key, key, "")


def clean(driver: NvmfSpdkDriver, key: str = DISK) -> list[str]:
    """Run the clean steps of a disk as the agent does; return what they told."""
    told: list[str] = []
    for _, call in clean_calls(driver, task(key)):
        call(lambda done, step: told.append(step))
    return told


def changes(spdk: SimulatedSpdk) -> list[str]:
    """Return the methods that were called and that can change a disk."""
    return [name for name, _ in spdk.requests if name.startswith("bdev_nvme_reset")] + [
        str(parameters["cmd_type"]) for name, parameters in spdk.requests if name.endswith("cmd")
    ]


@pytest.mark.proves("nvmf_spdk_driver", "discover", by="simulated")
def test_nothing_is_offered_and_the_disk_says_why(driver: NvmfSpdkDriver) -> None:
    assert look(driver).discover() == []
    (entry,) = look(driver).hardware()
    assert (entry.key, entry.kind, entry.offered) == (DISK, "NVME", False)
    assert entry.reason == REASON == "Nova attaches no device of SPDK"
    assert (entry.vendor, entry.model) == ("144d", "SAMSUNG MZQL21T9HCJR")
    assert entry.capability == {
        "controller": "Nvme0",
        "transport": "PCIe",
        "state": "enabled",
        "serial_number": "S64GNE0T",
        "namespaces": [
            {
                "bdev": "Nvme0n1",
                "uuid": "7d3f6a1e-0000-4000-8000-000000000001",
                "bytes": 32768,
                "namespace": 1,
            }
        ],
        "used": [],
        "clean": ["controller reset", "NVMe erase"],
        "health": [],
    }


def test_other_block_devices_and_remote_disks_are_listed(
    spdk: SimulatedSpdk, driver: NvmfSpdkDriver
) -> None:
    spdk.others = [MALLOC]
    spdk.disks["Far"] = SimulatedDisk(address="192.0.2.7", transport="TCP")
    entries = {entry.key: entry for entry in look(driver).hardware()}
    assert list(entries) == [DISK, "Far", "Malloc0"]
    assert (entries["Malloc0"].kind, entries["Malloc0"].model) == ("BDEV", "Malloc disk")
    assert entries["Malloc0"].capability == {
        "bdev": "Malloc0",
        "uuid": "7a1c",
        "bytes": 1048576,
        "used": [],
    }
    assert entries["Far"].capability["clean"] == []
    assert {entry.offered for entry in entries.values()} == {False}
    assert {entry.reason for entry in entries.values()} == {REASON}


def test_application_is_a_backend_with_its_exports(
    spdk: SimulatedSpdk, driver: NvmfSpdkDriver
) -> None:
    spdk.exports["nvmf_get_subsystems"] = [{"nqn": "nqn.2016-06.io.spdk:a", "namespaces": []}]
    spdk.exports["vhost_get_controllers"] = [{"ctrlr": "vhost.0", "backend_specific": {}}]
    assert look(driver).backends() == (
        Backend(
            name="spdk",
            state="READY",
            services=(
                BackendService("NVMe-oF subsystem nqn.2016-06.io.spdk:a", "unknown"),
                BackendService("vhost controller vhost.0", "unknown"),
            ),
            capabilities={"version": "SPDK v25.05"},
        ),
    )


def test_report_of_the_agent_has_the_disk_and_no_device(
    host: FakeHost, driver: NvmfSpdkDriver
) -> None:
    result = LoadResult(driver.name, driver, endpoint="cyborg.drivers.nvmf_spdk:NvmfSpdkDriver")
    discovery = discover([result], host, timeout=PATIENCE)
    (report,) = discovery.report.drivers
    assert (report.state, report.error, report.devices) == (DriverState.READY, None, ())
    assert [backend.name for backend in report.backends or ()] == ["spdk"]
    (row,) = discovery.rows
    assert (row.address, row.offered_by, row.reason) == (DISK, None, REASON)
    host.sockets.clear()
    (report,) = discover([result], host, timeout=PATIENCE).report.drivers
    assert (report.state, report.devices, report.hardware) == (DriverState.READY, (), None)
    assert "asking /var/tmp/spdk.sock failed: Connection refused" in str(report.error)


def test_host_without_spdk_has_nothing_and_no_error(tmp_path: Path) -> None:
    driver = driver_on(FakeHost(), tmp_path)
    assert look(driver).hardware() == []
    assert list(look(driver).backends()) == []


def test_socket_that_nobody_listens_on_is_an_error(host: FakeHost, driver: NvmfSpdkDriver) -> None:
    host.sockets.clear()
    for verb in (look(driver).hardware, look(driver).backends):
        with pytest.raises(exception.HostError, match="Connection refused"):
            verb()
    assert look(driver).discover() == []


def test_spdk_that_hangs_is_given_up_after_one_time_limit(
    spdk: SimulatedSpdk, host: FakeHost, tmp_path: Path
) -> None:
    driver = driver_on(host, tmp_path, "timeout = 2")
    host.hanging = True
    for number, verb in enumerate((look(driver).hardware, look(driver).backends), 1):
        with pytest.raises(exception.HostError, match="no complete answer within 2 seconds"):
            verb()
        assert host.clock.monotonic() == 2 * number
    # It stops to answer between two calls.
    host.hanging = False
    spdk.disks = {f"Nvme{number}": SimulatedDisk(f"0000:5e:00.{number}") for number in range(8)}

    def hang(method: str) -> None:
        host.hanging = method == "vhost_get_controllers"

    spdk.before = hang
    with pytest.raises(exception.HostError):
        look(driver).hardware()
    assert host.clock.monotonic() == 6
    assert host.patience[-1] == 2


def test_answer_above_the_limit_is_an_error(host: FakeHost, tmp_path: Path) -> None:
    driver = driver_on(host, tmp_path, "answer_limit = 65536")
    host.sockets[SOCKET] = lambda request: b" " * 65537
    with pytest.raises(exception.HostError, match="more than 65536 bytes"):
        look(driver).hardware()


@pytest.mark.parametrize("path", ["spdk.sock", "", "127.0.0.1:5260"])
def test_socket_must_be_an_absolute_path(tmp_path: Path, path: str) -> None:
    with pytest.raises(exception.ConfigError, match=r"\[nvmf_spdk_driver\] socket"):
        driver_on(FakeHost(), tmp_path, f"socket = {path}")


def test_no_option_can_be_set_over_the_api() -> None:
    assert NvmfSpdkDriver.remote_options == frozenset()


def test_options_of_earlier_releases_do_not_stop_the_start(tmp_path: Path) -> None:
    old = (
        "spdk_conf_file = /etc/cyborg/spdk.conf\naccelerator_servers = vhost,nvmf,iscsi\n"
        "spdk_dir = /opt/spdk\ndevice_type = NVMe\nremoteable = false\n"
    )
    conf = written(tmp_path / "cyborg.conf", f"{old}[backend_defaults]\n{old}")
    assert conf.backend_defaults.accelerator_servers == ["vhost", "nvmf", "iscsi"]
    assert conf.spdk_conf_file == "/etc/cyborg/spdk.conf"
    assert look(NvmfSpdkDriver(FakeHost(), conf)).hardware() == []


# Health


@pytest.mark.parametrize(
    ("state", "log", "condition", "evidence"),
    [
        ("enabled", {}, Condition.OK, []),
        ("resetting", {}, Condition.OK, []),
        ("enabled", {"temperature_celsius": 2**64 - 273}, Condition.OK, []),
        (
            "enabled",
            {"available_spare_percentage": 9, "media_errors": 1},
            Condition.DRAIN,
            ["9 % of its spare blocks are left", "1 error of its media"],
        ),
        (
            "enabled",
            {"percentage_used": 101, "media_errors": 17},
            Condition.DEGRADED,
            ["101 % of its life have passed", "17 errors of its media"],
        ),
        ("failed", {}, Condition.DEAD, ["its controller has failed"]),
    ],
)
@pytest.mark.proves("nvmf_spdk_driver", "health", by="simulated")
def test_health_is_that_of_controller_and_log(
    spdk: SimulatedSpdk,
    driver: NvmfSpdkDriver,
    state: str,
    log: JSON,
    condition: Condition,
    evidence: list[str],
) -> None:
    disk = spdk.disks["Nvme0"]
    disk.state = state
    disk.health |= log
    health = look(driver).health(DISK)
    assert (health.condition, [*health.evidence]) == (condition, evidence)
    assert all(finding.action for finding in health.findings)
    (entry,) = look(driver).hardware()
    assert entry.capability["health"] == evidence


def test_disk_whose_log_spdk_refuses_is_listed(
    spdk: SimulatedSpdk, host: FakeHost, driver: NvmfSpdkDriver
) -> None:
    def answer(request: bytes) -> bytes:
        if b"health_info" in request:
            number = json.loads(request)["id"]
            error = {"code": -32603, "message": "No log"}
            return json.dumps({"jsonrpc": "2.0", "id": number, "error": error}).encode()
        return spdk.answer(request)

    host.add_socket(SOCKET, answer)
    (entry,) = look(driver).hardware()
    error = "SPDK method bdev_nvme_get_controller_health_info failed: No log (code -32603)"
    assert entry.capability["health"] == [f"its health is not known: {error}"]


@pytest.mark.parametrize("log", [{}, {"percentage_used": 3, "media_errors": 0}, [], None])
def test_log_without_the_numbers_tells_no_health(
    spdk: SimulatedSpdk, driver: NvmfSpdkDriver, log: Any
) -> None:
    spdk.disks["Nvme0"].health = log
    with pytest.raises(exception.DriverCannot):
        look(driver).signals(DISK)
    (entry,) = look(driver).hardware()
    assert entry.capability["health"][0].startswith("its health is not known: ")


def test_unknown_disk_has_no_health(driver: NvmfSpdkDriver) -> None:
    with pytest.raises(exception.DriverFailed, match=r"SPDK has no disk 0000:99:00\.0"):
        look(driver).signals("0000:99:00.0")


# Cleaning


def test_steps_are_reset_and_erasure(driver: NvmfSpdkDriver) -> None:
    reset, erase = driver.clean_steps(task())
    assert (reset.name, reset.work, reset.level) == (
        "controller reset",
        ResetLevel.FUNCTION,
        CleanLevel.RESET,
    )
    assert (erase.name, erase.level) == ("NVMe erase", CleanLevel.FULL)
    assert reset.priority > erase.priority


@pytest.mark.parametrize("crypto", [True, False])
@pytest.mark.proves("nvmf_spdk_driver", "cleaning", by="simulated")
def test_clean_erases_all_namespaces_and_keeps_their_format(
    spdk: SimulatedSpdk, driver: NvmfSpdkDriver, crypto: bool
) -> None:
    disk = spdk.disks["Nvme0"]
    disk.crypto = crypto
    disk.namespaces[2] = [b"secret" + bytes(506)] * 3
    told = clean(driver)
    assert spdk.called("bdev_nvme_reset_controller") == 1
    assert {block for blocks in disk.namespaces.values() for block in blocks} == {bytes(512)}
    word = "crypto" if crypto else "user-data"
    assert told == [
        "controller reset",
        f"format of namespace 1 ({word})",
        f"format of namespace 2 ({word})",
        "verification",
    ]


def test_clean_can_be_repeated(spdk: SimulatedSpdk, driver: NvmfSpdkDriver) -> None:
    clean(driver)
    clean(driver)
    assert spdk.disks["Nvme0"].namespaces[1][0] == bytes(512)


def use(spdk: SimulatedSpdk, method: str, entry: JSON) -> None:
    spdk.exports[method] = [*spdk.exports.get(method, []), entry]


USERS: list[tuple[str, JSON, str]] = [
    (
        "nvmf_get_subsystems",
        {"nqn": "nqn.x", "namespaces": [{"nsid": 1, "bdev_name": "Nvme0n1", "name": "Nvme0n1"}]},
        "NVMe-oF subsystem nqn.x",
    ),
    (
        "vhost_get_controllers",
        {"ctrlr": "vhost.0", "backend_specific": {"block": {"bdev": "Nvme0n1"}}},
        "vhost controller vhost.0",
    ),
    (
        "vhost_get_controllers",
        {
            "ctrlr": "vhost.1",
            "backend_specific": {"scsi": [{"luns": [{"id": 0, "bdev_name": "Nvme0n1"}]}]},
        },
        "vhost controller vhost.1",
    ),
    (
        "iscsi_get_target_nodes",
        {"name": "iqn.x", "luns": [{"bdev_name": "alias-Nvme0n1", "lun_id": 0}]},
        "iSCSI target iqn.x",
    ),
    (
        "ublk_get_disks",
        {"ublk_device": "/dev/ublkb1", "bdev_name": "Nvme0n1"},
        "ublk disk /dev/ublkb1",
    ),
    (
        "nbd_get_disks",
        {"nbd_device": "/dev/nbd0", "bdev_name": "7d3f6a1e-0000-4000-8000-000000000001"},
        "NBD device /dev/nbd0",
    ),
]


@pytest.mark.parametrize(("method", "entry", "user"), USERS)
def test_disk_that_is_given_out_is_not_cleaned(
    spdk: SimulatedSpdk, driver: NvmfSpdkDriver, method: str, entry: JSON, user: str
) -> None:
    use(spdk, method, entry)
    reason = f"its block device Nvme0n1 is given out by {user}"
    (shown,) = look(driver).hardware()
    assert shown.capability["used"] == [reason]
    for _, call in clean_calls(driver, task()):
        with pytest.raises(exception.DriverFailed, match=reason):
            call(no_progress)
    assert changes(spdk) == []
    assert spdk.disks["Nvme0"] == SimulatedDisk()


def test_disk_with_a_claimed_block_device_is_not_cleaned(
    spdk: SimulatedSpdk, driver: NvmfSpdkDriver
) -> None:
    spdk.disks["Nvme0"].namespaces[2] = [bytes(512)]
    spdk.claimed = {"Nvme0n2"}
    with pytest.raises(exception.DriverFailed, match=r"Nvme0n2 is claimed \(exclusive_write\)"):
        clean(driver)
    assert changes(spdk) == []


def test_disk_whose_claim_is_not_told_is_not_cleaned(
    spdk: SimulatedSpdk, driver: NvmfSpdkDriver
) -> None:
    bdevs = [
        {key: value for key, value in bdev.items() if key != "claimed"} for bdev in spdk.bdevs()
    ]
    spdk.exports["bdev_get_bdevs"] = bdevs
    with pytest.raises(exception.DriverFailed, match="is claimed"):
        clean(driver)
    assert changes(spdk) == []


def test_user_of_another_disk_does_not_matter(spdk: SimulatedSpdk, driver: NvmfSpdkDriver) -> None:
    spdk.disks["Nvme1"] = SimulatedDisk(address="0000:5f:00.0")
    spdk.claimed = {"Nvme1n1"}
    clean(driver)
    assert spdk.disks["Nvme0"].namespaces[1][0] == bytes(512)
    assert spdk.disks["Nvme1"].namespaces == SimulatedDisk().namespaces


def test_disk_that_is_given_out_between_two_formats_is_left_alone(
    spdk: SimulatedSpdk, driver: NvmfSpdkDriver
) -> None:
    disk = spdk.disks["Nvme0"]
    disk.namespaces[2] = [b"secret" + bytes(506)]
    method, entry, _ = USERS[0]

    def give_out(_: str) -> None:
        if disk.namespaces[1][0] == bytes(512):
            spdk.exports[method] = [json.loads(json.dumps(entry).replace("Nvme0n1", "Nvme0n2"))]

    spdk.before = give_out
    with pytest.raises(exception.DriverFailed, match="is given out by NVMe-oF subsystem"):
        clean(driver)
    assert disk.namespaces[2] == [b"secret" + bytes(506)]


def test_disk_that_gets_another_name_meanwhile_is_left_alone(
    spdk: SimulatedSpdk, driver: NvmfSpdkDriver
) -> None:
    disk = spdk.disks["Nvme0"]
    disk.namespaces[2] = [b"secret" + bytes(506)]

    def swap(_: str) -> None:
        if disk.namespaces[1][0] == bytes(512):
            spdk.disks = {"Nvme9": disk, "Nvme0": SimulatedDisk(address="0000:5f:00.0")}

    spdk.before = swap
    with pytest.raises(exception.DriverFailed, match="it has changed meanwhile"):
        clean(driver)
    assert spdk.disks["Nvme0"].namespaces == SimulatedDisk().namespaces
    assert disk.namespaces[2] == [b"secret" + bytes(506)]


def test_namespace_without_a_block_device_keeps_the_disk_from_being_erased(
    spdk: SimulatedSpdk, driver: NvmfSpdkDriver
) -> None:
    spdk.disks["Nvme0"].namespaces[2] = [b"secret" + bytes(506)]
    spdk.hidden = {"Nvme0n2"}
    with pytest.raises(exception.DriverFailed, match=r"namespaces \[1, 2\], but .* of \[1\]"):
        clean(driver)
    assert spdk.disks["Nvme0"].namespaces[2] == [b"secret" + bytes(506)]


@pytest.mark.parametrize(
    ("disk", "reason"),
    [
        (SimulatedDisk(shared=True), "its NVMe subsystem may have other controllers"),
        (SimulatedDisk(formats=False), "its controller has no format command"),
        (SimulatedDisk(namespaces={}), "it has no namespace"),
        (SimulatedDisk(erases=False), "it still has data after the format"),
        (SimulatedDisk(resets=False), "SPDK could not reset 0000:5e:00.0"),
    ],
)
def test_disk_that_cannot_be_cleaned_is_an_error(
    host: FakeHost, driver: NvmfSpdkDriver, disk: SimulatedDisk, reason: str
) -> None:
    host.add_socket(SOCKET, SimulatedSpdk(Nvme0=disk).answer)
    with pytest.raises(exception.DriverFailed, match=reason):
        clean(driver)


def test_refusal_of_the_disk_is_an_error_with_its_status(
    spdk: SimulatedSpdk, driver: NvmfSpdkDriver
) -> None:
    disk = spdk.disks["Nvme0"]
    disk.crypto = True
    # It loses the function after it has told it.
    spdk.before = lambda method: setattr(disk, "crypto", spdk.called("bdev_nvme_send_cmd") < 2)
    with pytest.raises(exception.HostError, match="the disk answered status 0x0a of type 1"):
        clean(driver)


@pytest.mark.parametrize("transport", ["TCP", "RDMA"])
def test_disk_of_another_machine_has_no_clean_steps(
    host: FakeHost, driver: NvmfSpdkDriver, transport: str
) -> None:
    spdk = SimulatedSpdk(Far=SimulatedDisk(address="192.0.2.7", transport=transport))
    host.add_socket(SOCKET, spdk.answer)
    assert list(driver.clean_steps(task("Far"))) == []
    with pytest.raises(exception.DriverFailed, match=f"connected by {transport}"):
        driver.reset("Far", ResetLevel.FUNCTION)
    assert changes(spdk) == []


def test_disk_with_several_paths_has_no_clean_steps(
    spdk: SimulatedSpdk, driver: NvmfSpdkDriver
) -> None:
    place = {"trtype": "PCIe", "traddr": DISK}
    paths = [{"trid": place}, {"trid": place | {"traddr": "0000:5f:00.0"}}]
    spdk.exports["bdev_nvme_get_controllers"] = [{"name": "Nvme0", "ctrlrs": paths}]
    assert list(driver.clean_steps(task())) == []
    with pytest.raises(exception.DriverFailed, match="several paths"):
        driver.reset(DISK, ResetLevel.FUNCTION)
    assert changes(spdk) == []


def test_card_cannot_be_reset(spdk: SimulatedSpdk, driver: NvmfSpdkDriver) -> None:
    with pytest.raises(exception.DriverCannot):
        driver.reset(DISK, ResetLevel.CARD)
    assert changes(spdk) == []


def test_clean_works_on_a_real_socket_in_pieces(spdk: SimulatedSpdk, tmp_path: Path) -> None:
    with SpdkSocket(tmp_path, in_pieces(spdk.answer, 100)) as server:
        driver = driver_on(LocalHost(), tmp_path, f"socket = {server.path}")
        (entry,) = look(driver).hardware()
        assert entry.key == DISK
        clean(driver)
    assert spdk.disks["Nvme0"].namespaces[1][0] == bytes(512)


# Answers that are anything


def corrupted(value: Any, rng: random.Random) -> Any:
    """Return a value of JSON with some parts replaced or left out."""
    odd: list[Any] = [
        *(None, True, -1, 2**70, 1e308, "", "\0\ud800", "x" * 3000, '"\\' * 200),
        *([], {}, [[]], [None], {"name": 3}),
    ]
    if rng.random() < 0.06:
        return copy.deepcopy(rng.choice(odd))
    if isinstance(value, dict):
        items = [(key, corrupted(item, rng)) for key, item in value.items()]
        return {key: item for key, item in items if rng.random() > 0.03}
    if isinstance(value, list):
        return [corrupted(item, rng) for item in value for _ in range(rng.choice((1, 1, 1, 2)))]
    return value


@pytest.mark.parametrize("seed", range(150))
def test_corrupted_answers_do_no_harm(host: FakeHost, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    spdk = SimulatedSpdk()
    spdk.others = [MALLOC]
    use(spdk, USERS[0][0], USERS[0][1])

    def answer(request: bytes) -> bytes:
        text = json.loads(spdk.answer(request))
        text["result"] = corrupted(text.get("result"), rng)
        return json.dumps(text).encode()

    host.add_socket(SOCKET, answer)
    driver = driver_on(host, tmp_path)
    kinds: list[Hardware | Backend] = []
    for read in (look(driver).hardware, look(driver).backends):
        try:
            kinds += read()
        except exception.CyborgError:
            continue
    for entry in kinds:
        assert entry.validate() is None
        sent = json.loads(json.dumps(wire.dump(entry)))
        assert wire.load(type(entry), sent) == entry
    keys = [entry.key for entry in kinds if isinstance(entry, Hardware)]
    assert keys == sorted(set(keys))
    with contextlib.suppress(exception.CyborgError):
        look(driver).signals(DISK)
    with contextlib.suppress(exception.CyborgError):
        clean(driver)


@pytest.mark.parametrize("size", [-1, 2**63, 1.5, "512", True, None])
def test_size_that_is_no_number_of_bytes_counts_as_none(
    spdk: SimulatedSpdk, driver: NvmfSpdkDriver, size: object
) -> None:
    spdk.others = [MALLOC | {"block_size": size, "num_blocks": 8}]
    entries = {entry.key: entry for entry in look(driver).hardware()}
    assert entries["Malloc0"].capability["bytes"] == 0


def test_longest_names_of_everything_can_be_stored(
    spdk: SimulatedSpdk, driver: NvmfSpdkDriver
) -> None:
    long = '"\\' * 400 + "\u00e9\0" * 100 + "x" * 400
    disk = spdk.disks.pop("Nvme0")
    disk.namespaces = {number: [bytes(512)] for number in range(1, 40)}
    disk.state = long
    spdk.disks[long] = disk
    spdk.claimed = {f"{long}n{number}" for number in disk.namespaces}
    spdk.exports["ublk_get_disks"] = [
        {"ublk_device": long, "bdev_name": f"{long}n{number}"} for number in disk.namespaces
    ]
    spdk.exports["bdev_get_bdevs"] = [bdev | {"uuid": long} for bdev in spdk.bdevs()]
    (entry,) = look(driver).hardware()
    assert entry.validate() is None
    assert len(entry.capability["namespaces"]) == len(entry.capability["used"]) == 8
    (backend,) = look(driver).backends()
    assert backend.validate() is None


@pytest.mark.parametrize("seed", range(60))
def test_disk_in_use_is_left_alone_whatever_is_said_of_controllers(
    host: FakeHost, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    spdk = SimulatedSpdk(Nvme0=SimulatedDisk(), Nvme1=SimulatedDisk(address="0000:5f:00.0"))
    spdk.claimed = {"Nvme0n1", "Nvme1n1"}

    def answer(request: bytes) -> bytes:
        text = json.loads(spdk.answer(request))
        if b"bdev_nvme_get_controllers" in request:
            text["result"] = corrupted(text["result"], rng)
        return json.dumps(text).encode()

    host.add_socket(SOCKET, answer)
    driver = driver_on(host, tmp_path)
    for key in (DISK, "0000:5f:00.0", "Nvme0", "Nvme1"):
        with pytest.raises(exception.CyborgError):
            driver.reset(key, ResetLevel.FUNCTION)
        with contextlib.suppress(exception.CyborgError):
            clean(driver, key)
    assert changes(spdk) == []


def test_namespace_of_an_unknown_controller_keeps_disks_from_being_cleaned(
    spdk: SimulatedSpdk, driver: NvmfSpdkDriver
) -> None:
    place = {"trtype": "PCIe", "traddr": DISK, "subnqn": "nqn.other"}
    spdk.exports["bdev_nvme_get_controllers"] = [{"name": "Nvme0", "ctrlrs": [{"trid": place}]}]
    with pytest.raises(exception.DriverFailed, match="Nvme0n1 belongs to no controller"):
        driver.reset(DISK, ResetLevel.FUNCTION)
    assert changes(spdk) == []
