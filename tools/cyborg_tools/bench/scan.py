# SPDX-License-Identifier: Apache-2.0
"""One round of an agent on a large host: a tree of PCI functions in place of /sys, real processes.

A child process sees the tree in a mount namespace of its own, so that the agent's code reads files
of the kernel's VFS at their usual paths. It runs as ``python3 -m cyborg_tools.bench.scan``.
"""

import json
import logging
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from oslo_config import cfg

from cyborg import exception
from cyborg.conf import opts
from cyborg.drivers.base import Driver
from cyborg.drivers.generic import GenericDriver
from cyborg.drivers.host import LocalHost
from cyborg.drivers.pci import PciDriver
from cyborg.drivers.scan import Scan
from cyborg.drivers.topology import FactCache
from cyborg.model.device import Device, DeviceType
from cyborg_tools.bench.figures import ScanFigure

_PER_BUS = 8
#: Every so many functions, one is selected, and bound to vfio-pci.
_SELECTED = 4
_ROUNDS = 5
_FILES = 900
_CONFIGURATION = """\
[DEFAULT]
host = compute-1
[pci]
passthrough_whitelist = {"vendor_id": "10de"}
[generic_driver]
backends = cards
[generic_driver:cards]
resource_class = CUSTOM_CARD
pci_ids = 10de:20b5
"""
#: The begin of a configuration space: the vendor, and a Device Serial Number at offset 0x100.
_SERIAL_NUMBER = bytes.fromhex("03000100") + b"%08d"
_BOUND = "DRIVER={driver}\nPCI_CLASS={kind}\nPCI_ID={ids}\nPCI_SUBSYS_ID=10DE:1533\n"


def measure(directory: Path, functions: int, open_files: int) -> ScanFigure:
    """Measure rounds on a host with so many functions and open files.

    Raises RuntimeError where this user may not make a mount namespace.
    """
    tree = directory / "sys"
    _plant(tree, functions)
    (directory / "cyborg.conf").write_text(_CONFIGURATION)
    rights = ["--mount"] if os.geteuid() == 0 else ["--mount", "--user", "--map-root-user"]
    inside = [sys.executable, "-m", "cyborg_tools.bench.scan", str(directory), str(open_files)]
    result = subprocess.run(
        ["unshare", *rights, "sh", "-c", 'mount --bind "$0" /sys && exec "$@"', str(tree), *inside],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    if result.returncode:
        raise RuntimeError(f"the scan cannot be measured: {result.stderr.strip()[-500:]}")
    return ScanFigure(**json.loads(result.stdout))


def _plant(tree: Path, functions: int) -> None:
    """Write the files of the kernel that a round reads."""
    bus = tree / "bus/pci/devices"
    bus.mkdir(parents=True)
    for name in ("class/net", "class/block", "fs"):
        (tree / name).mkdir(parents=True)
    for number in range(functions):
        slot, function = divmod(number, _PER_BUS)
        address = f"{slot >> 8:04x}:{slot & 0xFF:02x}:00.{function}"
        path = tree / "devices/pci0000:00" / address
        path.mkdir(parents=True)
        ids, kind, driver = ("8086:159B", "20000", "ice")
        if number % _SELECTED == 0:
            ids, kind, driver = ("10DE:20B5", "30200", "vfio-pci")
            (path / f"vfio-dev/vfio{number}").mkdir(parents=True)
        (path / "uevent").write_text(_BOUND.format(driver=driver, kind=kind, ids=ids))
        config = bytes.fromhex(ids[:4])[::-1].ljust(0x100, b"\0") + _SERIAL_NUMBER % slot
        (path / "config").write_bytes(config.ljust(0x1000, b"\0"))
        for name in ("enable", "sriov_numvfs", "numa_node"):
            (path / name).write_text("0\n")
        (path / "iommu_group").symlink_to(f"../../../kernel/iommu_groups/{number}")
        (bus / address).symlink_to(f"../../../devices/pci0000:00/{address}")


@contextmanager
def _holding(open_files: int) -> Iterator[None]:
    """Have processes keep so many files open."""
    script = (
        "import os, sys\n"
        "files = [os.open('/dev/null', os.O_RDONLY) for _ in range(int(sys.argv[1]))]\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
    )
    children = []
    for first in range(0, open_files, _FILES):
        number = str(min(_FILES, open_files - first))
        child = subprocess.Popen(
            [sys.executable, "-c", script, number], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        children.append(child)
    try:
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()
        yield
    finally:
        for child in children:
            child.communicate()


def _median(call: Callable[[], object]) -> float:
    """Return the median of the milliseconds of CPU that some calls take."""
    times = []
    for _ in range(_ROUNDS):
        before = resource.getrusage(resource.RUSAGE_SELF)
        call()
        after = resource.getrusage(resource.RUSAGE_SELF)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(times) * 1000


def _round(host: LocalHost, drivers: Sequence[Driver], cache: FactCache) -> Scan:
    """Do what the agent does in a round."""
    scan = Scan(host, cache=cache)
    for driver in drivers:
        driver.discover(scan)
        driver.hardware(scan)
        driver.backends(scan)
    return scan


def main(arguments: Sequence[str]) -> None:
    """Measure in this mount namespace, and print the figure as JSON."""
    directory, open_files = Path(arguments[0]), int(arguments[1])
    logging.disable(logging.WARNING)
    conf = cfg.ConfigOpts()
    opts.register_opts(conf)
    conf([], project="cyborg", default_config_files=[str(directory / "cyborg.conf")])
    host, cache = LocalHost(), FactCache()
    drivers: list[Driver] = [PciDriver(host, conf), GenericDriver(host, conf)]
    with _holding(open_files):
        scan = _round(host, drivers, cache)
        device = Device("key", DeviceType.PCI, "vendor", "model", {}, ())
        keys = [str(address) for address in scan.functions]

        def refusals() -> None:
            fresh = Scan(host)
            for number, function in enumerate(fresh.functions.values()):
                fresh.refusal(function, managed=False, probe=number % _SELECTED == 0)

        def facts() -> None:
            fresh = Scan(host, cache=cache)
            for function in fresh.functions.values():
                fresh.with_facts(device, function)

        def stats() -> None:
            for key in keys[::_SELECTED]:
                try:
                    drivers[1].stats(scan, key)
                except exception.CyborgError:
                    # The backend has no command: the time is that of finding the device.
                    continue

        started = time.perf_counter()
        refusals()
        elapsed = (time.perf_counter() - started) * 1000
        figure = {
            "functions": len(keys),
            "open_files": open_files,
            "scan_ms": _median(refusals),
            "elapsed_ms": elapsed,
            "round_ms": _median(lambda: _round(host, drivers, cache)),
            "stats_ms": _median(stats),
            "facts_ms": _median(facts),
        }
    print(json.dumps(figure))


if __name__ == "__main__":
    main(sys.argv[1:])
