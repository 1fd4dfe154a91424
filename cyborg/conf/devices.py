# SPDX-License-Identifier: Apache-2.0
"""Options of individual drivers: [pci], [fake_driver], [gpu_devices] and others.

The groups of drivers that are not part of this release are declared too: the configuration of an
existing deployment stays valid, and an invalid value in it is reported at start.
"""

from oslo_config import cfg


def options() -> dict[str, list[cfg.Opt]]:
    """Return new option objects by group."""
    return {
        "pci": [
            cfg.MultiStrOpt(
                "passthrough_whitelist",
                default=[],
                help="PCI functions of this host that the pci_driver offers: a JSON object, or a "
                "list of JSON objects, with the keys vendor_id, product_id, address and devname. "
                'The option may be given more than once. Example: {"vendor_id": "10de", '
                '"address": "0000:81:*.*"}. An SR-IOV physical function selects its virtual '
                "functions. A function that the host itself uses is rejected with a reason unless "
                'the entry contains "force": true. Network cards for Neutron ports also need '
                '"physical_network", the name of the network in Neutron. If unset, the pci_driver '
                "offers no function.",
            ),
        ],
        "fake_driver": [
            cfg.StrOpt(
                "fault",
                default="",
                help="Reason with which the fake_driver reports its device as faulty. Set it to "
                "see how the service treats an unhealthy device. If empty, the device is healthy. "
                "An operator can set the option for one host with 'cyborg install-driver "
                "fake_driver --host HOST --option fault=REASON'.",
            ),
        ],
        "gpu_devices": [
            cfg.ListOpt(
                "enabled_vgpu_types",
                default=[],
                help="Types of virtual GPU that the nvidia_gpu_driver offers. Each type has a "
                "section [vgpu_<type>] with the option device_addresses, which lists the GPUs "
                "that are split into this type.",
            ),
            cfg.BoolOpt(
                "filter_sriov_vfs",
                default=False,
                help="Ignore SR-IOV virtual functions when the nvidia_gpu_driver discovers "
                "devices.",
            ),
        ],
        "nic_devices": [
            cfg.ListOpt(
                "enabled_nic_types",
                default=[],
                help="Types of network card that the intel_nic_driver offers. Each type has a "
                "section with its name, which maps its ports to physical networks and functions.",
            ),
        ],
        "nvme": [
            cfg.MultiStrOpt(
                "device_spec",
                default=[],
                help="NVMe controllers that are offered, and how they are cleaned: a JSON object "
                "with the keys vendor_id, product_id, address, clear_action and clear_strategy. "
                "The option may be given more than once.",
            ),
            cfg.IntOpt(
                "cleanup_timeout",
                default=900,
                min=60,
                help="Time, in seconds, that cleaning one NVMe device may take.",
            ),
        ],
    }
