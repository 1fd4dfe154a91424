# SPDX-License-Identifier: Apache-2.0
"""The signals in what NVML says about a GPU; pure.

Source: NVML API Reference Guide, nvmlDeviceGpuRecoveryAction_t and nvmlReturn_t.
"""

from collections.abc import Iterator
from typing import Final

from cyborg.drivers.nvml import Gpu
from cyborg.model.health import Signal

#: The values of nvmlDeviceGpuRecoveryAction_t, by number.
RECOVERY_ACTIONS: Final = (
    "NONE",
    "GPU_RESET",
    "NODE_REBOOT",
    "DRAIN_P2P",
    "DRAIN_AND_RESET",
    "RECOVER_IMEX_DOMAIN",
    "BUS_RESET",
    "SYSTEM_REBOOT",
)


def signals(gpu: Gpu) -> Iterator[Signal]:
    """Yield the signals in the facts of a GPU."""
    if gpu.error is not None:
        yield Signal("nvidia", "nvml", gpu.error, f"NVML answers {gpu.error}")
    if gpu.recovery is not None:
        action = dict(enumerate(RECOVERY_ACTIONS)).get(gpu.recovery, str(gpu.recovery))
        yield Signal(
            "nvidia",
            "recovery_action",
            action,
            f"its driver recommends the recovery action {action}",
        )
    if gpu.remap_failure:
        yield Signal(
            "nvidia", "remapped_rows", "failure", "a row of its memory could not be remapped"
        )
    if gpu.remap_pending:
        yield Signal(
            "nvidia",
            "remapped_rows",
            "pending",
            "a row of its memory is remapped at the next reset",
        )
    if gpu.ecc_uncorrected:
        count = gpu.ecc_uncorrected
        plural = "s" if count > 1 else ""
        yield Signal("nvidia", "ecc", "uncorrected", f"{count} uncorrectable memory error{plural}")


def settings(gpu: Gpu) -> dict[str, str]:
    """Return what a guest can change for good; modes that wait for a reset have a name of theirs.

    What NVML does not tell is left out. Source: nvmlDeviceSetEccMode and nvmlDeviceSetMigMode in
    nvml.h: both modes persist.
    """
    modes = {
        "ECC mode": gpu.ecc,
        "ECC mode after a reset": gpu.ecc_pending,
        "MIG mode": gpu.mig,
        "MIG mode after a reset": gpu.mig_pending,
    }
    words = {name: "on" if mode else "off" for name, mode in modes.items() if mode is not None}
    return words if gpu.vbios is None else {**words, "firmware": gpu.vbios}
