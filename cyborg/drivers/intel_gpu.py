# SPDX-License-Identifier: Apache-2.0
"""The intel_gpu_driver: offers Intel data centre GPUs, whole or as virtual functions.

Sources: Documentation/ABI/testing/sysfs-driver-intel-xe-ras of Linux; the pages "Health" and
"Stats" of the documentation of Intel XPU Manager.
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
    unintelligible,
)
from cyborg.drivers.host import Host
from cyborg.drivers.pci_function import PciFunction
from cyborg.drivers.scan import Scan
from cyborg.model.device import DeviceType
from cyborg.model.health import Signal, legible

#: Metrics of xpu-smi, the name of the figure and the number of its units in one of xpu-smi's.
_FIGURES = (
    ("XPUM_STATS_GPU_UTILIZATION", "utilization_ratio", 0.01),
    ("XPUM_STATS_MEMORY_USED", "memory_used_bytes", 1024 * 1024),
    ("XPUM_STATS_GPU_CORE_TEMPERATURE", "temperature_celsius", 1),
    ("XPUM_STATS_POWER", "power_watts", 1),
)


class IntelGpuDriver(ListedCardDriver):
    """GPUs on the drivers xe and i915; see module."""

    name = "intel_gpu_driver"
    type = DeviceType.GPU
    #: Virtual functions have the ids of their GPU.
    kinds: ClassVar[Mapping[int, tuple[str, ...]]] = {0x8086: ("03",)}
    resource_class: ClassVar[str] = "PGPU"
    vf_resource_class: ClassVar[str] = "VGPU"
    vendor_word: ClassVar[str] = "intel"
    trait_word: ClassVar[str] = "INTEL_GPU"
    group: ClassVar[str] = "intel_gpu"

    def __init__(self, host: Host, conf: cfg.ConfigOpts) -> None:
        super().__init__(host, conf)
        self._tool = VendorTool(host, "/usr/bin/xpu-smi", "/usr/local/bin/xpu-smi")

    def refusal(self, scan: Scan, function: PciFunction) -> str | None:
        """Refuse a function that may be a virtual function of a GPU, although no link says so."""
        if function.parent is not None:
            return None
        mine = function.address
        for other in scan.functions.values():
            address = other.address
            if (
                (address.domain, address.bus) == (mine.domain, mine.bus)
                and address < mine
                and self.selects(other)
                and other.parent is None
                and self._divided(scan, other)
            ):
                return f"it may be a virtual function of {address}, whose ids it has"
        return None

    def _divided(self, scan: Scan, function: PciFunction) -> bool:
        try:
            return scan.vfs(function.address)[0] > 0
        except exception.HostError:
            # In doubt nothing is offered.
            return True

    def signals(self, scan: Scan, device_key: str) -> Iterator[Signal]:
        """See Driver; what the driver of the kernel says, else what xpu-smi says."""
        verb = "check the health"
        self.served(scan, device_key, verb)
        word = self.attribute(device_key, "gpu_health")
        if word is not None:
            text = f"its driver reports {word.lower()[:40]}"
            yield Signal("intel_gpu", "gpu_health", word.lower(), text)
            return
        answer = self._ask("health", device_key)
        components = [
            (name, part)
            for name, part in sorted((answer or {}).items())
            if isinstance(part, dict) and "status" in part
        ]
        if answer is not None and not components:
            raise unintelligible("xpu-smi", "no component with a status")
        measured = False
        for name, part in components:
            status = str(part["status"]).lower()
            # The GPU does not have the sensor, or the agent must not read it.
            if status == "unknown":
                continue
            measured = True
            text = f"{name.replace('_', ' ')} is {status[:40]}"
            if description := legible(str(part.get("description") or "")):
                text = f"{text}: {description}"
            yield Signal("intel_gpu", "component", status, text)
        if not measured:
            self._cannot(f"{verb} of {device_key}")

    def stats(self, scan: Scan, device_key: str) -> Mapping[str, float]:
        """See Driver; temperature and power by hwmon, and what xpu-smi tells."""
        self.served(scan, device_key, "measure the use")
        figures = hwmon_figures(self.host, device_key)
        answer = self._ask("stats", device_key)
        if answer is None:
            return figures
        metrics = answer.get("device_level")
        if not isinstance(metrics, list):
            raise unintelligible("xpu-smi", "no list of metrics of the device")
        values = {
            str(metric.get("metrics_type")): number(metric.get("value"))
            for metric in metrics
            if isinstance(metric, dict)
        }
        for metric_name, figure, unit in _FIGURES:
            if (value := values.get(metric_name)) is not None:
                figures[figure] = value * unit
        return figures

    def _ask(self, command: str, device_key: str) -> dict[str, Any] | None:
        """Return the answer of xpu-smi about one GPU; None without xpu-smi."""
        output = self._tool.ask(command, "-d", device_key, "-j")
        if output is None:
            return None
        answer = parse_json(output, "xpu-smi")
        if not isinstance(answer, dict):
            raise unintelligible("xpu-smi", "no JSON object")
        # Some versions answer with a list of one device.
        devices = answer.get("device_list")
        if isinstance(devices, list) and devices and isinstance(devices[0], dict):
            answer = devices[0]
        if "error" in answer:
            raise unintelligible("xpu-smi", legible(str(answer["error"])) or "an error")
        return answer
