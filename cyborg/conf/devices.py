# SPDX-License-Identifier: Apache-2.0
"""Options of individual drivers: [pci], [fake_driver], [gpu_devices] and others.

The groups of drivers that are not part of this release are declared too: the configuration of an
existing deployment stays valid, and an invalid value in it is reported at start.
"""

from oslo_config import cfg


def port_options() -> list[cfg.Opt]:
    """Return new option objects of one section about the ports of network cards."""
    return [
        cfg.ListOpt(
            "device_addresses",
            default=[],
            help="Functions that are offered, by PCI address: of a physical function all of its "
            "virtual functions, or the port itself if it has none. If empty, every port that the "
            "driver knows and that nothing uses is offered.",
        ),
        cfg.ListOpt(
            "physical_device_mappings",
            default=[],
            help="Physical networks of Neutron to which ports are connected: entries "
            "NAME:PORT|PORT, where PORT is the name of an interface or the address of a physical "
            "function. Name ports that guests get whole by address, because they have no "
            "interface while a guest has them.",
        ),
        cfg.ListOpt(
            "function_device_mappings",
            default=[],
            help="Functions that are loaded into ports, such as a pipeline for GTP, in the form of "
            "physical_device_mappings. Device profiles request them by the trait CUSTOM_<NAME>.",
        ),
    ]


def clean_option(subject: str) -> cfg.Opt:
    """Return the option ``clean`` of a driver; ``subject`` is what is cleaned."""
    return cfg.StrOpt(
        "clean",
        choices=[
            ("none", "nothing is done, and the data of the guest stays"),
            ("reset", "the function is reset, which leaves the data on a disk"),
            ("full", "the function is reset, and the data on an NVMe disk is erased"),
        ],
        help=f"How the agent cleans {subject}, after its guest and before it is given out again. "
        "If unset, it is cleaned fully where a safe way is known, and device profiles can request "
        "something else with accel:clean. If set, device profiles can only request more. A unit "
        "that cannot be cleaned goes into quarantine; with full this includes devices for which "
        "no safe way is known: such a unit is given out once, until an operator frees it.",
    )


def vgpu_options() -> list[cfg.Opt]:
    """Return new option objects of one section about a type of virtual GPU."""
    return [
        cfg.ListOpt(
            "device_addresses",
            default=[],
            help="GPUs that are split into virtual GPUs of this type, by PCI address with domain, "
            "such as 0000:3b:00.0. An address can be in one section only.",
        ),
        cfg.StrOpt(
            "resource_class",
            default="VGPU",
            help="Resource class of the virtual GPUs of this type: VGPU, or a name that begins "
            "with CUSTOM_. Use the latter if flavors of Nova request VGPU themselves: such a "
            "server can be placed on a unit of this service, and boots without a virtual GPU. "
            "Device profiles must request the new class. Change it only while no server has a "
            "virtual GPU of this type.",
        ),
    ]


def mdev_options() -> list[cfg.Opt]:
    """Return new option objects of one section about a type of mediated device."""
    return [
        cfg.ListOpt(
            "device_addresses",
            default=[],
            help="Functions that the mdev_driver splits into mediated devices of this type, by PCI "
            "address with domain, such as 0000:3b:00.0. An address can be in one section only. A "
            "single * stands for every function that has the type and that no section names.",
        ),
        cfg.StrOpt(
            "resource_class",
            default="CUSTOM_MDEV",
            help="Resource class of the mediated devices of this type: VGPU, for example, or a "
            "name that begins with CUSTOM_. With VGPU, a server whose flavor requests VGPU "
            "itself can be placed on a unit of this service, and boots without it.",
        ),
        cfg.ListOpt(
            "traits",
            default=[],
            help="Further traits of the mediated devices of this type, with which device profiles "
            "can request them.",
        ),
    ]


def _mdev_driver_options() -> list[cfg.Opt]:
    """Return new option objects of the mdev_driver."""
    return [
        cfg.ListOpt(
            "enabled_types",
            default=[],
            help="Types of mediated device that the mdev_driver offers. Each type has a section "
            "[mdev_<type>], whose option device_addresses lists the functions that are split into "
            "this type. If empty, the driver offers nothing.",
        ),
        cfg.StrOpt(
            "create",
            default="nova",
            choices=[
                ("nova", "Nova creates a mediated device when it starts the instance"),
                ("prepare", "the agent creates a mediated device when its unit is bound"),
            ],
            help="Who creates a mediated device, with the UUID of its attach handle. With prepare, "
            "libvirt does not list the device until udev has told it. If Nova asks earlier, it "
            "creates a device that exists, and the server does not start. In both cases the agent "
            "removes the mediated device after its guest, because Nova never does.",
        ),
        clean_option("a mediated device, which is removed"),
    ]


def _gpu_options() -> list[cfg.Opt]:
    """Return new option objects of the nvidia_gpu_driver."""
    return [
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
            help="Ignore SR-IOV virtual functions when the nvidia_gpu_driver discovers devices.",
        ),
        cfg.StrOpt(
            "vendor_vfio",
            default="list",
            choices=[
                ("list", "they are listed with a reason, and never offered"),
                ("offer", "each virtual function in a section [vgpu_<type>] is offered"),
            ],
            help="What the nvidia_gpu_driver does with virtual functions that get a vGPU through "
            "vendor-specific VFIO, and not as a mediated device: NVIDIA's cards on Linux 6.8 and "
            "later. The agent sets the type when a unit is bound. Nova must attach these functions "
            'as the member "managed" of their attach handles says, with managed="no": Nova up to '
            "release 34 (2026.2) does not, and its servers do not start with such a unit. Set "
            "offer only if your Nova reads the member.",
        ),
        cfg.ListOpt(
            "mig_layouts",
            default=[],
            help="GPUs whose MIG mode and instances the agent sets, for vGPUs with MIG: entries "
            "ADDRESS=PROFILE/PROFILE, such as 0000:3d:00.0=1g.12gb/1g.12gb/3g.47gb, ADDRESS=none "
            "for MIG mode without instances, or ADDRESS=off. A GPU is divided only while nobody "
            "can have it or a part of it. A GPU that is not in the list keeps its layout.",
        ),
        *_fabric_options(),
        clean_option("a GPU, or a vGPU, which is removed"),
    ]


def _fabric_options() -> list[cfg.Opt]:
    """Return new option objects about the NVSwitch fabric of a host."""
    return [
        cfg.StrOpt(
            "fabric_command",
            default="",
            help="Command with which the agent activates partitions of an NVSwitch fabric for "
            "guests: the path of NVIDIA's fmpm, or of a program with its arguments -l, -a and -d "
            "and its output, and fixed arguments such as --unix-domain-socket PATH. Only root may "
            "be able to change the program. The agent runs it as its own user. If empty, GPUs are "
            "offered one by one, and nothing is activated.",
        ),
        cfg.IntOpt(
            "fabric_partition_size",
            min=1,
            max=16,
            help="Number of GPUs that a guest gets together with fabric_command: those of one "
            "partition of this size, such as 1, 2, 4 or 8. GPUs without such a partition are not "
            "offered. Change it only while no instance has any of the GPUs.",
        ),
        cfg.ListOpt(
            "fabric_modules",
            default=[],
            help="Modules of all GPUs of the fabric: entries ADDRESS=MODULE, such as "
            "0000:18:00.0=1. The module is the number that Fabric Manager calls the physical id, "
            'and nvidia-smi -q the "GPU Module Id", while the driver nvidia has the GPU.',
        ),
    ]


def virtual_functions_option(driver: str) -> cfg.Opt:
    """Return a new option object for the number of virtual functions of a driver's cards."""
    return cfg.IntOpt(
        "virtual_functions",
        min=0,
        max=255,
        help=f"Number of virtual functions that the {driver} creates on each card. A card is "
        "divided only while nobody can have a part of it; 0 makes it whole. If unset, each card "
        "keeps the number that it has.",
    )


def group_size_option(cards: str, links: str) -> cfg.Opt:
    """Return a new option object for the number of cards that guests get together."""
    return cfg.IntOpt(
        "group_size",
        default=1,
        min=1,
        max=64,
        help=f"Number of {cards} that a guest gets together. Set it to the number of {cards} on "
        f"the host if the {links} join them: otherwise the guests of single {cards} share these "
        f"links. If the host has another number of whole {cards}, none is offered. With 1, each "
        "is a unit of its own. Change it only while no instance has any of them.",
    )


def _fpga_options() -> dict[str, list[cfg.Opt]]:
    """Return the options of the drivers for FPGA cards, by group."""
    return {
        "intel_fpga": [
            clean_option("a card or a virtual function"),
            cfg.StrOpt(
                "blank_image",
                default="",
                help="Path of a GBS image on this host that the intel_fpga_driver loads into a "
                "card without virtual functions after each guest, so that the next guest does not "
                "get the image of the last one. Only root may be able to change the file. If "
                "empty, a card keeps the image of its last guest.",
            ),
        ],
        "inspur_fpga": [clean_option("a board")],
        "xilinx_fpga": [
            clean_option("a function of a card"),
            cfg.StrOpt(
                "blank_image",
                default="",
                help="Path of an xclbin image on this host that the xilinx_fpga_driver loads into "
                "a card after each guest, so that the next guest does not get the image of the "
                "last one. Only root may be able to change the file. If empty, a card keeps the "
                "image of its last guest.",
            ),
            cfg.StrOpt(
                "guest_functions",
                default="user",
                choices=[
                    ("user", "a guest gets the function for users alone"),
                    ("all", "a guest gets the function for management as well"),
                ],
                help="Which functions of an Alveo card a guest gets. With the function for "
                "management a guest can write the flash memory of the card, and with it the shell "
                "that the next tenant gets. Set all only if you trust all tenants, or to keep the "
                "units and the device profiles of an earlier release.",
            ),
            cfg.StrOpt(
                "image_kind",
                default="user",
                choices=[
                    ("user", "the image is an xclbin for the part that users program"),
                    ("base", "the image is written to the flash memory; a cold boot loads it"),
                ],
                help="What the images are that the xilinx_fpga_driver loads into a card. With "
                "base, the driver cannot check the image that the card has afterwards.",
            ),
        ],
    }


def _card_options() -> dict[str, list[cfg.Opt]]:
    """Return the options of the drivers for cards of one kind, by group."""
    return {
        "gpu_devices": _gpu_options(),
        "nic_devices": [
            clean_option("a port or a virtual function"),
            cfg.ListOpt(
                "enabled_nic_types",
                default=[],
                help="Types of network card that the intel_nic_driver offers. Each type has a "
                "section with its name, which names its ports and maps them to physical networks "
                "and functions. If empty, the driver offers all ports that it knows.",
            ),
        ],
        "intel_qat": [
            clean_option("a function of a QuickAssist card"),
            cfg.StrOpt(
                "services",
                default="",
                help="Services that the intel_qat_driver sets on cards of generations 4 and 6: up "
                "to two (generation 4) or three (generation 6) of sym, asym, dc, dcc and decomp, "
                'separated by semicolons, for example "sym;dc". The services of a card change only '
                "while nobody can have a part of it. If empty, each card keeps its services.",
            ),
            virtual_functions_option("intel_qat_driver"),
        ],
        "amd_gpu": [
            clean_option("a GPU or a part of it"),
            virtual_functions_option("amd_gpu_driver"),
            group_size_option("GPUs", "Infinity Fabric"),
        ],
        "habana": [clean_option("a card"), group_size_option("cards", "links of their board")],
        "intel_gpu": [
            clean_option("a GPU or a part of it"),
            virtual_functions_option("intel_gpu_driver"),
        ],
        "huawei_ascend": [
            clean_option("a processor or a part of it"),
            virtual_functions_option("huawei_ascend_driver"),
        ],
        "mdev_driver": _mdev_driver_options(),
        "mlx5": [*port_options(), clean_option("a port or a virtual function")],
    }


def _spdk_options() -> list[cfg.Opt]:
    """Return new option objects of the nvmf_spdk_driver."""
    return [
        cfg.StrOpt(
            "socket",
            default="/var/tmp/spdk.sock",  # noqa: S108 - the default of SPDK
            help="Path of the UNIX socket on which the SPDK application of this host takes "
            "JSON-RPC requests. The agent needs the permission to write to it. Who can use the "
            "socket controls the application and its disks.",
        ),
        cfg.IntOpt(
            "timeout",
            default=5,
            min=1,
            max=60,
            help="Time, in seconds, that SPDK may take for one answer. After that the request has "
            "failed, and so has the scan that needs it. The format of a disk may take 30 minutes "
            "longer.",
        ),
        cfg.IntOpt(
            "answer_limit",
            default=4 * 1024 * 1024,
            min=64 * 1024,
            max=64 * 1024 * 1024,
            help="Maximum size of one answer of SPDK, in bytes. A longer answer is a failure. An "
            "application with thousands of block devices may need more than the default.",
        ),
    ]


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
                'the entry contains "force": true and only root can change the configuration '
                "files. Network cards for Neutron ports also need "
                '"physical_network", the name of the network in Neutron. If unset, the pci_driver '
                "offers no function. No request over the API can set this option.",
            ),
            clean_option("a function that the pci_driver offers"),
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
        **_card_options(),
        **_fpga_options(),
        "nvme": [
            cfg.MultiStrOpt(
                "device_spec",
                default=[],
                help="NVMe disks of this host that the nvme_driver offers: a JSON object with the "
                "keys vendor_id, product_id and address, or a list of them. The option may be "
                'given more than once. Example: {"vendor_id": "144d", "address": "0000:81:*.*"}. '
                "Two more keys restrict how the disk is erased: clear_action (auto or sanitize) "
                "and clear_strategy (auto, crypto or block). The driver is not started with other "
                "values. The first entry that matches a disk decides. "
                "A disk that the host itself uses is rejected with a reason. If unset, the "
                "nvme_driver offers no disk. No request over the API can set this option.",
            ),
            cfg.IntOpt(
                "cleanup_timeout",
                min=60,
                help="Time, in seconds, that the erasure of one NVMe disk may take. A disk that "
                "takes longer goes into quarantine, until a later attempt finds it erased. If "
                "unset, the limit is six hours, because the disk itself tells when it is erased.",
            ),
            clean_option("an NVMe disk"),
            cfg.IntOpt(
                "virtual_functions",
                min=0,
                max=127,
                help="Number of virtual functions that the nvme_driver and the "
                "inspur_nvme_ssd_driver create on each disk with SR-IOV. They get equal shares of "
                "its queues and interrupts. A disk is divided only while nobody can have it or a "
                "part of it, and is reset for that; 0 makes it whole. If unset, each disk keeps "
                "the number that it has, and those whose controller is online are offered.",
            ),
        ],
        "nvmf_spdk_driver": _spdk_options(),
    }
