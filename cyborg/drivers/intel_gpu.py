# SPDX-License-Identifier: Apache-2.0
"""The intel_gpu_driver: offers Intel data centre GPUs, whole or as virtual functions.

Sources: Documentation/ABI/testing/sysfs-driver-intel-xe-ras of Linux; the pages "Health" and
"Stats" of the documentation of Intel XPU Manager.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from oslo_config import cfg

from cyborg import exception
from cyborg.drivers.base import Health
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
from cyborg.model.health import Condition, legible

#: Words of the file gpu_health, and of xpu-smi for each component, in lower case.
_WORDS: Mapping[str, Condition] = {
    "ok": Condition.OK,
    "warning": Condition.DEGRADED,
    "critical": Condition.DRAIN,
}
_ACTION = "Run xpu-smi health for the GPU; reset or replace it."
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
    vendor: ClassVar[int] = 0x8086
    #: Flex, Max, Arc B580 and Arc Pro B; virtual functions have the ids of their GPU.
    products: ClassVar[frozenset[int]] = frozenset(
        {0x56C0, 0x56C1, 0x0B69, 0x0BD0, *range(0x0BD5, 0x0BDC), 0xE20B, 0xE211, 0xE212, 0xE223}
    )
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

    def health(self, scan: Scan, device_key: str) -> Health:
        """See Driver; what the driver of the kernel says, else what xpu-smi says."""
        verb = "check the health"
        self.served(scan, device_key, verb)
        word = self.attribute(device_key, "gpu_health")
        if word is not None:
            if word.lower() not in _WORDS:
                raise unintelligible("gpu_health", f"{word[:40]!r} is no health of a GPU")
            condition = _WORDS[word.lower()]
            evidence = () if condition is Condition.OK else (f"its driver reports {word.lower()}",)
            return Health(condition, evidence, _ACTION if evidence else None)
        answer = self._ask("health", device_key)
        components = [
            (name, part)
            for name, part in sorted((answer or {}).items())
            if isinstance(part, dict) and "status" in part
        ]
        if answer is not None and not components:
            raise unintelligible("xpu-smi", "no component with a status")
        worst, reasons, measured = Condition.OK, [], False
        for name, part in components:
            status = str(part["status"]).lower()
            # "Unknown": the GPU does not have the sensor, or the agent must not read it.
            if status not in _WORDS:
                continue
            measured = True
            worst = max(worst, _WORDS[status], key=list(Condition).index)
            if status != "ok":
                text = legible(str(part.get("description") or ""))
                reason = f"{name.replace('_', ' ')} is {status}"
                reasons.append(f"{reason}: {text}" if text else reason)
        if not measured:
            self._cannot(f"{verb} of {device_key}")
        return Health(worst, tuple(reasons), _ACTION if reasons else None)

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
