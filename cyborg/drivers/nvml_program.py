# SPDX-License-Identifier: Apache-2.0
"""A program that asks NVIDIA's library NVML about GPUs: nvml_program.py ADDRESS …

It prints a JSON object: ``driver``, ``gpus`` (address → facts, or the name of an
error), or ``error`` if nothing can be asked. The library may hang or crash; so the agent starts the
program, with a limit of time, and does not load the library itself. The program imports nothing of
this package, because Python runs it isolated.

Source: nvml.h; nvidia-ml-py calls the functions by the same names.
"""

import json
import os
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pynvml as nvml

#: INVALID_GPU_INSTANCE_PROFILE_ID of nvml.h: the type needs no MIG.
_NO_PROFILE = 0xFFFFFFFF


def main(addresses: list[str]) -> None:
    """Print the answer; what the library prints goes to the standard error."""
    answer: dict[str, Any] = {}
    output = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        nvml.nvmlInit()
        answer["driver"] = _text(nvml.nvmlSystemGetDriverVersion())
        gpus: dict[str, Any] = {}
        for address in addresses:
            try:
                gpus[address] = _facts(nvml.nvmlDeviceGetHandleByPciBusId(address))
            except nvml.NVMLError as error:
                gpus[address] = {"error": _name(error)}
        answer["gpus"] = gpus
        nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        answer["error"] = _name(error)
    with open(output, "w", encoding="ascii") as file:
        file.write(f"{json.dumps(answer)}\n")


def _facts(handle: Any) -> dict[str, Any]:
    """Return what the GPU tells; facts that it does not have are left out.

    A GPU that is lost has the error of the first question as ``error``.
    """
    facts: dict[str, Any] = {}
    for ask in _QUESTIONS:
        try:
            facts |= ask(handle)
        except nvml.NVMLError as error:
            if error.value in _FATAL:
                facts.setdefault("error", _name(error))
    return facts


def _memory(handle: Any) -> Mapping[str, Any]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return {"memory_total": memory.total, "memory_used": memory.used}


def _ecc(handle: Any) -> Mapping[str, Any]:
    count = nvml.nvmlDeviceGetTotalEccErrors(
        handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    )
    return {"ecc_uncorrected": count}


def _ecc_mode(handle: Any) -> Mapping[str, Any]:
    current, pending = nvml.nvmlDeviceGetEccMode(handle)
    return {"ecc": bool(current), "ecc_pending": bool(pending)}


def _remapped(handle: Any) -> Mapping[str, Any]:
    _, _, pending, failure = nvml.nvmlDeviceGetRemappedRows(handle)
    return {"remap_pending": bool(pending), "remap_failure": bool(failure)}


def _recovery(handle: Any) -> Mapping[str, Any]:
    field = nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    [value] = nvml.nvmlDeviceGetFieldValues(handle, [field])
    return {"recovery": value.value.uiVal} if value.nvmlReturn == nvml.NVML_SUCCESS else {}


def _mig(handle: Any) -> Mapping[str, Any]:
    """Return the mode and the instances; the profile of one is the end of its name."""
    current, pending = nvml.nvmlDeviceGetMigMode(handle)
    instances = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if current else 0):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            instances.append(_text(nvml.nvmlDeviceGetName(part)).rpartition(" ")[2])
        except nvml.NVMLError:
            # The numbers of instances have gaps.
            continue
    return {
        "mig": bool(current),
        "mig_pending": bool(pending),
        "mig_instances": instances,
        "mig_profiles": {name: number for number, name in _profiles(handle).items()},
    }


def _vgpus(handle: Any) -> Mapping[str, Any]:
    """Return the types of vGPU with what the GPU can have of each, in its present mode.

    A mode that the driver of the host does not know is off.
    """
    types = nvml.nvmlDeviceGetSupportedVgpus(handle)
    try:
        mixed = bool(types and nvml.nvmlDeviceGetVgpuHeterogeneousMode(handle))
    except nvml.NVMLError:
        mixed = False
    profiles = _profiles(handle) if types else {}
    described = []
    for number in types:
        try:
            described.append(_vgpu_type(handle, number, profiles, mixed=mixed))
        except nvml.NVMLError:
            continue
    return {"vgpu_types": described, "vgpu_mixed": mixed}


def _vgpu_type(
    handle: Any, number: int, profiles: Mapping[int, str], *, mixed: bool
) -> dict[str, Any]:
    """Return the facts of a type; ``most`` is per GPU, or per instance of the GPU with MIG."""
    profile = nvml.nvmlVgpuTypeGetGpuInstanceProfileId(number)
    if profile != _NO_PROFILE:
        most = 1
    elif mixed:
        placements = nvml.nvmlDeviceGetVgpuTypeSupportedPlacements(handle, number)
        # nvmlVgpuPlacementList_v1_t of nvml.h begins with version, placementSize and count.
        # Releases of nvidia-ml-py before 13.615 name the last two the wrong way round.
        most = struct.unpack_from("III", placements)[2]
    else:
        most = nvml.nvmlVgpuTypeGetMaxInstances(handle, number)
    return {
        "number": number,
        "name": _text(nvml.nvmlVgpuTypeGetName(number)),
        "memory": nvml.nvmlVgpuTypeGetFramebufferSize(number),
        "most": most,
        "profile": None if profile == _NO_PROFILE else profiles.get(profile, str(profile)),
    }


def _profiles(handle: Any) -> dict[int, str]:
    """Return the names of the profiles of GPU instances by their ids; none without MIG."""
    names = {}
    for profile in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, profile)
        except nvml.NVMLError:
            continue
        names[info.id] = _text(info.name).rpartition(" ")[2]
    return names


def _links(handle: Any) -> Mapping[str, Any]:
    """Return the PCI addresses of what is at the other ends of the NVLinks that work."""
    ends = set()
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED:
                ends.add(_text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId).lower())
        except nvml.NVMLError:
            # The GPU has fewer links, or the other end is not on the bus of the host.
            continue
    return {"links": sorted(ends)}


_QUESTIONS: tuple[Callable[[Any], Mapping[str, Any]], ...] = (
    lambda handle: {"uuid": _text(nvml.nvmlDeviceGetUUID(handle))},
    lambda handle: {"serial": _text(nvml.nvmlDeviceGetSerial(handle))},
    _memory,
    lambda handle: {"vbios": _text(nvml.nvmlDeviceGetVbiosVersion(handle))},
    _ecc,
    _ecc_mode,
    _remapped,
    _recovery,
    lambda handle: {"utilization": nvml.nvmlDeviceGetUtilizationRates(handle).gpu},
    lambda handle: {
        "temperature": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
    },
    lambda handle: {"power": nvml.nvmlDeviceGetPowerUsage(handle)},
    _mig,
    _vgpus,
    _links,
)
_FATAL = frozenset({nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED})


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _name(error: Any) -> str:
    """Return the name of an error in nvml.h without its prefix, such as GPU_IS_LOST."""
    prefix = "NVML_ERROR_"
    for name in dir(nvml):
        if name.startswith(prefix) and getattr(nvml, name) == error.value:
            return name.removeprefix(prefix)
    return f"error {error.value}"


if __name__ == "__main__":
    main(sys.argv[1:])
