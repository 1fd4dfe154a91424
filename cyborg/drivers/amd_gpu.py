# SPDX-License-Identifier: Apache-2.0
"""The amd_gpu_driver: offers AMD Instinct and Radeon Pro GPUs, whole or as virtual functions.

Sources: the sections "AMDGPU RAS sysfs Error Count Interface", "AMDGPU RAS sysfs gpu_vram_bad_pages
Interface" and "GPU sysfs" of Documentation/gpu/amdgpu of Linux; output of ``amd-smi metric``.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers.card_driver import ListedCardDriver
from cyborg.drivers.card_readings import (
    VendorTool,
    hwmon_figures,
    number,
    parse_json,
    read_number,
    unintelligible,
)
from cyborg.drivers.files import is_missing
from cyborg.drivers.host import Host
from cyborg.drivers.scan import Scan
from cyborg.model.device import DeviceType
from cyborg.model.health import Signal

#: The flags of the file gpu_vram_bad_pages, and what the driver does with such a page.
_PAGES = (("F", "still in use"), ("P", "to be reserved"))


class AmdGpuDriver(ListedCardDriver):
    """GPUs on the driver amdgpu, or on gim with virtual functions; see module."""

    name = "amd_gpu_driver"
    type = DeviceType.GPU
    kinds: ClassVar[Mapping[int, tuple[str, ...]]] = {0x1002: ("03", "1200")}
    resource_class: ClassVar[str] = "PGPU"
    vf_resource_class: ClassVar[str] = "VGPU"
    vendor_word: ClassVar[str] = "amd"
    trait_word: ClassVar[str] = "AMD"
    group: ClassVar[str] = "amd_gpu"
    joinable: ClassVar[bool] = True

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        super().__init__(host, conf)
        self._tool = VendorTool(host, "/opt/rocm/bin/amd-smi", "/usr/bin/amd-smi")

    def signals(self, scan: Scan, device_key: str) -> Iterator[Signal]:
        return self.each_card(scan, device_key, lambda key: self._signals(scan, key))

    def _signals(self, scan: Scan, device_key: str) -> Iterator[Signal]:
        """Yield the uncorrectable errors of one GPU by block, and its bad pages of memory."""
        verb = "check the health"
        self.served(scan, device_key, verb)
        errors = self._errors(device_key)
        if errors is None:
            errors = self._errors_by_tool(device_key)
        pages = self.attribute(device_key, "ras/gpu_vram_bad_pages")
        if errors is None and pages is None:
            self._cannot(f"{verb} of {device_key}")
        for block, count in sorted((errors or {}).items()):
            if count:
                plural = "s" if count > 1 else ""
                text = f"{count} uncorrectable error{plural} in block {block}"
                yield Signal("amd", "ras_uncorrectable", block, text)
        flags = [line.rpartition(":")[2].strip() for line in (pages or "").splitlines()]
        if not {"R", "P", "F"}.issuperset(flags):
            raise unintelligible("gpu_vram_bad_pages", "a line without a flag R, P or F")
        for flag, state in _PAGES:
            if count := flags.count(flag):
                text = f"{count} bad page{'s' if count > 1 else ''} of memory {state}"
                yield Signal("amd", "bad_pages", flag, text)

    def stats(self, scan: Scan, device_key: str) -> Mapping[str, float]:
        """See Driver; files of amdgpu, and temperature and power by hwmon."""
        if self.card(device_key, "stats", scan).unit is not None:
            self._cannot(f"measure {device_key}, which is several cards")
        self.served(scan, device_key, "measure the use")
        figures = hwmon_figures(self.host, device_key)
        for file, figure, divisor in (
            ("gpu_busy_percent", "utilization_ratio", 100),
            ("mem_info_vram_used", "memory_used_bytes", 1),
            ("mem_info_vram_total", "memory_total_bytes", 1),
        ):
            value = read_number(self.host, f"/sys/bus/pci/devices/{device_key}/{file}")
            if value is not None:
                figures[figure] = value / divisor
        return figures

    def _errors(self, device_key: str) -> dict[str, int] | None:
        """Return the uncorrectable errors by block; None for a GPU without these counters."""
        directory = f"/sys/bus/pci/devices/{device_key}/ras"
        try:
            names = self.host.list_dir(directory)
        except exception.HostError as error:
            if is_missing(error):
                return None
            raise
        counts = {}
        for name in names:
            block, suffix, rest = name.partition("_err_count")
            if not suffix or rest:
                continue
            text = self.attribute(device_key, f"ras/{name}") or ""
            lines = (line.partition(":") for line in text.splitlines())
            count = next((number(value) for key, _, value in lines if key.strip() == "ue"), None)
            if count is None:
                raise unintelligible(f"ras/{name}", "no number of uncorrectable errors (ue)")
            counts[block] = int(count)
        return counts or None

    def _errors_by_tool(self, device_key: str) -> dict[str, int] | None:
        """Return the uncorrectable errors that amd-smi knows; None if it cannot tell them."""
        output = self._tool.ask("metric", "--gpu", device_key, "--ecc", "--json")
        if output is None:
            return None
        answer: Any = parse_json(output, "amd-smi")
        try:
            # ROCm 6 printed the list alone.
            gpus = answer["gpu_data"] if isinstance(answer, dict) else answer
            count = number(gpus[0]["ecc"]["total_uncorrectable_count"])
        except (KeyError, IndexError, TypeError) as error:
            raise unintelligible("amd-smi", "no count of uncorrectable errors") from error
        # amd-smi prints N/A for a GPU without error correction.
        return None if count is None else {"any": int(count)}
