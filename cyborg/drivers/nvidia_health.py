# SPDX-License-Identifier: Apache-2.0
"""The health of NVIDIA GPUs: what the facts of NVML mean; pure."""

from collections.abc import Iterator
from typing import Final

from cyborg.drivers.base import Health
from cyborg.drivers.nvml import Gpu
from cyborg.model.health import Condition

_RESET = "Reset the GPU as soon as no instance uses it."
_REBOOT = "Move the instances away from the host and reboot it."
_RMA = "Run the field diagnostic of NVIDIA, and replace the GPU if it fails."
_POWER = "Power-cycle the host, and replace the GPU if the error returns."

#: Signal and code → condition (None: nothing to say) and action. Sources: "XID Errors",
#: https://docs.nvidia.com/deploy/xid-errors/, of which the ignored ones are faults of applications,
#: which NVIDIA's device plugin for Kubernetes ignores, too; 154 only says that the recovery action
#: changed. NVML API Reference Guide: NVML_FI_DEV_GET_GPU_RECOVERY_ACTION and
#: nvmlDeviceGpuRecoveryAction_t, nvmlDeviceGetRemappedRows, nvmlDeviceGetTotalEccErrors and
#: nvmlReturn_t.
MEANINGS: Final[dict[tuple[str, str], tuple[Condition | None, str | None]]] = {
    **{("xid", str(code)): (None, None) for code in (13, 31, 43, 45, 68, 109, 154)},
    **{
        ("xid", str(code)): (Condition.DEGRADED, _RESET)
        for code in (48, 63, 64, 94, 119, 120, 122, 123)
    },
    **{("xid", str(code)): (Condition.DRAIN, _RMA) for code in (62, 74, 92)},
    **{("xid", str(code)): (Condition.DEAD, _POWER) for code in (79, 95, 140)},
    ("recovery_action", "NONE"): (None, None),
    **{
        ("recovery_action", code): (Condition.DRAIN, _RESET)
        for code in ("GPU_RESET", "BUS_RESET", "DRAIN_P2P", "DRAIN_AND_RESET")
    },
    ("recovery_action", "RECOVER_IMEX_DOMAIN"): (Condition.DRAIN, "Recover the IMEX domain."),
    ("recovery_action", "NODE_REBOOT"): (Condition.DRAIN, _REBOOT),
    ("recovery_action", "SYSTEM_REBOOT"): (Condition.DRAIN, _REBOOT),
    ("remapped_rows", "pending"): (Condition.DEGRADED, _RESET),
    ("remapped_rows", "failure"): (Condition.DRAIN, "Replace the GPU."),
    ("ecc", "uncorrected"): (Condition.DEGRADED, _RESET),
    ("nvml", "GPU_IS_LOST"): (Condition.DEAD, _POWER),
    # The driver has a GPU whose initialization failed, and NVML does not list it.
    ("nvml", "NOT_FOUND"): (Condition.DEAD, _POWER),
    ("nvml", "GPU_NOT_FOUND"): (Condition.DEAD, _POWER),
    ("nvml", "RESET_REQUIRED"): (Condition.DRAIN, _RESET),
}
#: Of a code without an entry.
_OTHER: Final = (Condition.DEGRADED, None)
#: The values of nvmlDeviceGpuRecoveryAction_t, by number.
_RECOVERY: Final = (
    "NONE",
    "GPU_RESET",
    "NODE_REBOOT",
    "DRAIN_P2P",
    "DRAIN_AND_RESET",
    "RECOVER_IMEX_DOMAIN",
    "BUS_RESET",
    "SYSTEM_REBOOT",
)


def judge(gpu: Gpu) -> Health:
    """Return the health of a GPU; the worst condition decides, and its evidence comes first."""
    order = list(Condition)
    faults = []
    for signal, code, evidence in _signals(gpu):
        condition, action = MEANINGS.get((signal, code), _OTHER)
        if condition is not None:
            faults.append((condition, evidence, action))
    if not faults:
        return Health(Condition.OK)
    faults.sort(key=lambda fault: -order.index(fault[0]))
    texts = dict.fromkeys(text for _, text, _ in faults)
    return Health(faults[0][0], tuple(texts), faults[0][2])


def _signals(gpu: Gpu) -> Iterator[tuple[str, str, str]]:
    """Yield signal, code and evidence of what the facts of a GPU say."""
    if gpu.error is not None:
        yield "nvml", gpu.error, f"NVML answers {gpu.error}"
    for xid in gpu.xids:
        yield "xid", str(xid), f"Xid {xid}"
    if gpu.recovery is not None:
        action = dict(enumerate(_RECOVERY)).get(gpu.recovery, str(gpu.recovery))
        yield "recovery_action", action, f"its driver recommends the recovery action {action}"
    if gpu.remap_failure:
        yield "remapped_rows", "failure", "a row of its memory could not be remapped"
    if gpu.remap_pending:
        yield "remapped_rows", "pending", "a row of its memory is remapped at the next reset"
    if gpu.ecc_uncorrected:
        count = gpu.ecc_uncorrected
        plural = "s" if count > 1 else ""
        yield "ecc", "uncorrected", f"{count} uncorrectable memory error{plural}"
