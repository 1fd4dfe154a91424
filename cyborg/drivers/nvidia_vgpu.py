# SPDX-License-Identifier: Apache-2.0
"""vGPUs of NVIDIA: which GPUs have which type, and the names of the types in Placement.

Source: "Virtual GPU Software User Guide" of NVIDIA; Documentation/driver-api/vfio-mediated-device.
"""

import re
from collections.abc import Collection, Mapping

from oslo_config import cfg

from cyborg import exception
from cyborg.conf import devices as options
from cyborg.drivers import mediated, pci_scan
from cyborg.drivers.device_options import parse_resource_class
from cyborg.drivers.host import Host
from cyborg.drivers.pci_function import PciFunction
from cyborg.model.pci import PciAddress


def read_types(conf: cfg.ConfigOpts) -> Mapping[PciAddress, str]:
    """Return the type of the vGPUs of each function that the configuration divides.

    Raises exception.ConfigError for a type without addresses, and for an address that is not valid
    or is there twice.
    """
    option = "gpu_devices", "enabled_vgpu_types"
    types, others = mediated.read_types(conf, option, "vgpu_", options.vgpu_options)
    for kind in others:
        reason = f"Option [vgpu_{kind}] device_addresses: {mediated.ANY!r} is not a PCI address."
        raise exception.ConfigError(reason=reason)
    return types


def read_classes(conf: cfg.ConfigOpts, kinds: Collection[str]) -> Mapping[str, str]:
    """Return the resource class of each type that ``read_types`` has returned.

    Raises exception.ConfigError for a name that no resource class can have.
    """
    classes = {}
    for kind in kinds:
        try:
            classes[kind] = parse_resource_class(conf[f"vgpu_{kind}"].resource_class)
        except ValueError as error:
            reason = f"Option [vgpu_{kind}] resource_class: {error}."
            raise exception.ConfigError(reason=reason) from error
    return classes


def type_name(host: Host, function: PciFunction, kind: str) -> str:
    """Return the name of a type of mediated device, such as ``GRID T4-2B``; "" without one.

    Raises exception.HostError when the function has left the bus.
    """
    file = f"mdev_supported_types/{kind}/name"
    return pci_scan.attribute(host, str(function.address), file) or ""


def profile_of(name: str, kind: str) -> str:
    """Return the profile in the name of a type of mediated device, its second word."""
    words = name.split()
    return words[1] if len(words) > 1 else kind


def trait(function: PciFunction, profile: str) -> str:
    """Return the trait of the vGPUs of a type with this profile, such as ``T4-2B``."""
    return f"CUSTOM_NVIDIA_{function.product:04X}_{re.sub(r'[^A-Z0-9_]', '_', profile.upper())}"
