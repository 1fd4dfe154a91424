# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's library NVML says about GPUs, asked in a process of its own.

``nvml_program`` does the asking. The library may hang or crash without harm to the agent.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeGuard

from cyborg import exception
from cyborg.drivers.host import Host

#: How the program is started: isolated, so that neither its directory nor variables of the
#: environment add modules.
PROGRAM: Final = (sys.executable, "-I", str(Path(__file__).with_name("nvml_program.py")))
#: Seconds. Without persistence mode, the driver initializes each GPU for the question.
TIMEOUT: Final = 15.0
#: The GPUs that may hang the program, or crash it, before no other one is asked.
_MOST_FAILURES = 2
#: What Python says at the end of its standard error if the binding is not there.
_NO_BINDING = "No module named 'pynvml'"
_LONGEST = 200
#: NVML has 64 bits for sizes and counters.
_LARGEST = 2**64 - 1


@dataclass(frozen=True)
class VgpuType:
    """A type of vGPU that a GPU knows, created or not.

    ``memory`` is the size of its frame buffer in bytes. ``most`` is how many vGPUs of the type the
    GPU can have in its present mode. With MIG, ``profile`` is that of the GPU instance which the
    type needs, such as ``1g.10gb``, and ``most`` counts for one such instance.
    """

    number: int
    name: str
    memory: int
    most: int
    profile: str | None = None

    @classmethod
    def of(cls, facts: object) -> "VgpuType | None":
        """Return the type with these facts, None if they are not valid."""
        if not isinstance(facts, dict):
            return None
        number, memory, most = (facts.get(name) for name in ("number", "memory", "most"))
        name, profile = facts.get("name"), facts.get("profile")
        if not (_is_number(number) and _is_number(memory) and _is_number(most) and most):
            return None
        if not _is_text(name) or not (profile is None or _is_text(profile)):
            return None
        return cls(number, name, memory, most, profile)


@dataclass(frozen=True)
class Gpu:
    """The facts of one GPU; None: it does not tell.

    ``error`` is the name of the error of NVML with which the GPU answers. Memory is in bytes,
    ``utilization`` in percent, ``temperature`` in degrees Celsius, ``power`` in milliwatts.
    ``recovery`` is a value of ``nvmlDeviceGpuRecoveryAction_t``. ``mig_instances`` are their
    profiles, such as ``1g.10gb``. ``mig_profiles`` maps the profiles that the GPU knows to their
    ids. ``vgpu_mixed`` says that the GPU is in the mode in which its vGPUs may have frame buffers
    of several sizes. ``links`` are the PCI addresses at the other ends of its NVLinks, as NVML
    spells them: of GPUs, or of NVSwitches.
    """

    error: str | None = None
    uuid: str | None = None
    serial: str | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failure: bool | None = None
    recovery: int | None = None
    utilization: int | None = None
    temperature: int | None = None
    power: int | None = None
    mig: bool | None = None
    mig_pending: bool | None = None
    mig_instances: tuple[str, ...] = ()
    mig_profiles: Mapping[str, int] = field(default_factory=dict)
    vgpu_types: tuple[VgpuType, ...] = ()
    vgpu_mixed: bool | None = None
    vbios: str | None = None
    ecc: bool | None = None
    ecc_pending: bool | None = None
    links: tuple[str, ...] = ()

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "Gpu":
        """Return the valid ones of these facts; the others are not known."""
        texts = ("error", "uuid", "serial", "vbios")
        numbers = ("memory_total", "memory_used", "ecc_uncorrected", "recovery", "utilization")
        flags = (
            *("remap_pending", "remap_failure", "mig", "mig_pending", "vgpu_mixed"),
            *("ecc", "ecc_pending"),
        )
        return cls(
            **{name: facts[name] for name in texts if _is_text(facts.get(name))},
            **{
                name: facts[name]
                for name in (*numbers, "temperature", "power")
                if _is_number(facts.get(name))
            },
            **{name: facts[name] for name in flags if isinstance(facts.get(name), bool)},
            mig_instances=tuple(filter(_is_text, instances))
            if isinstance(instances := facts.get("mig_instances"), list)
            else (),
            mig_profiles={
                name: number
                for name, number in profiles.items()
                if _is_text(name) and _is_number(number)
            }
            if isinstance(profiles := facts.get("mig_profiles"), dict)
            else {},
            vgpu_types=tuple(filter(None, map(VgpuType.of, types)))
            if isinstance(types := facts.get("vgpu_types"), list)
            else (),
            links=tuple(filter(_is_text, links))
            if isinstance(links := facts.get("links"), list)
            else (),
        )


@dataclass(frozen=True)
class Answer:
    """The GPUs by PCI address, or a clause that says why NVML tells nothing.

    ``absent`` says that the binding or the library is not installed, ``died`` that the program hung
    or crashed.
    """

    gpus: Mapping[str, Gpu] = field(default_factory=dict)
    error: str | None = None
    absent: bool = False
    died: bool = False


def ask_all(host: Host, addresses: Sequence[str]) -> Answer:
    """Return what NVML says about these GPUs; see ``ask``.

    Once the program hung or crashed, it is started for each GPU alone: the others still answer.
    """
    answer = ask(host, addresses)
    if not answer.died or len(addresses) < 2:
        return answer
    gpus: dict[str, Gpu] = {}
    failures: list[str] = []
    for address in addresses:
        if len(failures) < _MOST_FAILURES:
            alone = ask(host, [address])
            gpus |= alone.gpus
            failures += [f"{address}: {alone.error}"] if alone.error is not None else []
    return Answer(gpus, error="; ".join(failures) or None)


def ask(host: Host, addresses: Sequence[str]) -> Answer:
    """Return what NVML says about these GPUs, which the driver ``nvidia`` must have."""
    try:
        result = host.run([*PROGRAM, *addresses], timeout=TIMEOUT)
    except exception.HostError as error:
        return Answer(error=f"the program that asks NVML failed: {error}", died=True)
    if result.status != 0:
        if result.stderr.rstrip().endswith(_NO_BINDING):
            return Answer(error="the Python library nvidia-ml-py is not installed", absent=True)
        died = f"by signal {-result.status}" if result.status < 0 else f"status {result.status}"
        return Answer(error=f"the program that asks NVML ended with an error: {died}", died=True)
    try:
        answer = json.loads(result.stdout)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        return Answer(error="the program that asks NVML gave no answer")
    if answer.get("error") is not None:
        name = str(answer["error"])[:_LONGEST]
        return Answer(error=f"NVML answers {name}", absent=name == "LIBRARY_NOT_FOUND")
    gpus = answer.get("gpus")
    return Answer(
        {
            address: Gpu.of(facts)
            for address, facts in (gpus.items() if isinstance(gpus, dict) else ())
            if isinstance(facts, dict)
        }
    )


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and value.isprintable() and 0 < len(value) <= _LONGEST


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST
