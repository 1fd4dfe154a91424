# SPDX-License-Identifier: Apache-2.0
"""Options of the groups that single drivers read: [pci], [fake_driver], [gpu_devices] and others.

The groups of drivers that this release does not have stand here too, so that the configuration
of an existing deployment stays valid and a bad value in it is reported at start.
"""

from oslo_config import cfg


def _pci() -> list[cfg.Opt]:
    return [
        cfg.MultiStrOpt(
            "passthrough_whitelist",
            default=[],
            help="Which PCI functions of this host the pci_driver offers: a JSON object, or a "
            "list of them, with the keys vendor_id, product_id, address and devname; the option "
            'may stand more than once. For example {"vendor_id": "10de", "address": '
            '"0000:81:*.*"}. An SR-IOV physical function stands for its virtual functions. A '
            "function that the host itself needs is refused with its reason unless the entry "
            'says "force": true. Network cards for ports of Neutron need "physical_network", '
            "the network's name in Neutron, besides.",
        ),
    ]


def _fake() -> list[cfg.Opt]:
    return [
        cfg.StrOpt(
            "fault",
            default="",
            help="Reason with which the fake_driver reports its device as faulty, to show what "
            "becomes of a device that is not healthy. Empty: the device is healthy. An operator "
            "can set the option for one host with 'cyborg install-driver fake_driver --host HOST "
            "--option fault=REASON'.",
        ),
    ]


def _gpu() -> list[cfg.Opt]:
    return [
        cfg.ListOpt(
            "enabled_vgpu_types",
            default=[],
            help="Types of virtual GPU to offer, for the nvidia_gpu_driver. Each type has a "
            "section [vgpu_<type>] with device_addresses, the GPUs that are split so.",
        ),
        cfg.BoolOpt(
            "filter_sriov_vfs",
            default=False,
            help="Leave SR-IOV virtual functions out of what the nvidia_gpu_driver finds.",
        ),
    ]


def _nic() -> list[cfg.Opt]:
    return [
        cfg.ListOpt(
            "enabled_nic_types",
            default=[],
            help="Types of network card for the intel_nic_driver. Each type has a section of "
            "its name with the mappings of its ports to physical networks and functions.",
        ),
    ]


def _nvme() -> list[cfg.Opt]:
    return [
        cfg.MultiStrOpt(
            "device_spec",
            default=[],
            help="Which NVMe controllers are offered and how they are cleaned: a JSON object "
            "with vendor_id, product_id, address, clear_action and clear_strategy; the option "
            "may stand more than once.",
        ),
        cfg.IntOpt(
            "cleanup_timeout",
            default=900,
            min=60,
            help="Seconds that cleaning one NVMe device may take.",
        ),
    ]


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return fresh option objects by group."""
    return [
        ("pci", _pci()),
        ("fake_driver", _fake()),
        ("gpu_devices", _gpu()),
        ("nic_devices", _nic()),
        ("nvme", _nvme()),
    ]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of all these groups on ``conf``; calling twice does no harm."""
    for group, options in list_opts():
        conf.register_opts(options, group=group)
