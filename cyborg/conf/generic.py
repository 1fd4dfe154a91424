# SPDX-License-Identifier: Apache-2.0
"""Options of the generic_driver: [generic_driver], and [generic_driver:<name>] for each backend.

The names of the backends are in the configuration file, so the driver registers their groups.
"""

from oslo_config import cfg

from cyborg.conf.devices import clean_option

GROUP = "generic_driver"
#: The default of option devices_dir.
DEVICES_DIR = "/etc/cyborg/devices.d"


def group_of(backend: str) -> str:
    """Return the name of the option group of a backend."""
    return f"{GROUP}:{backend}"


def backend_options() -> list[cfg.Opt]:
    """Return new option objects of one backend."""
    return [*_matching(), *_offering(), *_units(), *_commands(), *_files_and_timeouts()]


def _matching() -> list[cfg.Opt]:
    return [
        cfg.ListOpt(
            "pci_ids",
            default=[],
            help="PCI functions of this backend by vendor and product id, hexadecimal, for example "
            "10de:20b5, 10de:20b0-20bf or 10de:*. A function must match every one of pci_ids, "
            "subsystem_ids, pci_classes, addresses and sysfs_class that is set.",
        ),
        cfg.ListOpt(
            "subsystem_ids",
            default=[],
            help="PCI functions of this backend by vendor and id of the board (the subsystem ids "
            "of PCI), in the form of pci_ids. Set it if boards of different kinds have the same "
            "pci_ids.",
        ),
        cfg.ListOpt(
            "pci_classes",
            default=[],
            help="PCI functions of this backend by class code, for example 1200: its first two or "
            "four digits, or all six.",
        ),
        cfg.ListOpt(
            "addresses",
            default=[],
            help="PCI functions of this backend by address, for example 0000:81:*.*. Each part of "
            "an address may be '*'. The full address of a physical function also selects its "
            "virtual functions.",
        ),
        cfg.StrOpt(
            "sysfs_class",
            help="PCI functions of this backend by device class: those with an entry in this "
            "directory below /sys/class, for example accel.",
        ),
        cfg.ListOpt(
            "devices",
            default=[],
            help="PCI functions of this backend as a fixed list of addresses, instead of all other "
            "ways to select them. With attach_type TEST_PCI the agent does not check whether the "
            "devices exist. Otherwise each device is offered while it is on the bus.",
        ),
    ]


def _offering() -> list[cfg.Opt]:
    return [
        cfg.StrOpt(
            "resource_class",
            help="Resource class of the units in Placement, for example CUSTOM_CRYPTO. Required.",
        ),
        cfg.ListOpt(
            "traits",
            default=[],
            help="Traits of the resource providers, in addition to OWNER_CYBORG.",
        ),
        cfg.StrOpt(
            "device_type",
            default="PCI",
            help="Type of the devices in the API: GPU, FPGA, AICHIP, QAT, NIC, SSD, MDEV, PCI or "
            "NVME.",
        ),
        cfg.StrOpt(
            "kind",
            help="Kind of the devices in the list of hardware, for example CRYPTO. If unset, it is "
            "the device_type.",
        ),
        cfg.StrOpt(
            "vendor",
            help="Vendor of the devices in the API. If unset, it is the PCI vendor id.",
        ),
        cfg.StrOpt(
            "model",
            help="Model of the devices in the API. If unset, it is the name of the product.",
        ),
        cfg.StrOpt(
            "reset",
            help="How the data of the last guest leaves a device. FUNCTION: the kernel resets the "
            "function when its guest ends. BUS: only a reset of the bus does it, which affects "
            "all functions of the card. NONE: the device has no reset, so set a reset_command. "
            "If unset, it is not known. The list of hardware shows it; the agent itself resets "
            "the device only with reset_after_release.",
        ),
        cfg.BoolOpt(
            "reset_after_release",
            default=False,
            help="Let the agent reset a device after its guest, in the way that option reset "
            "says, before the device is given out again. Set it if guests get the device in "
            "another way than through VFIO, or to be sure. It needs cyborg-privileged and "
            "attach_type PCI. The device is not given out while the reset fails; a BUS reset "
            "fails if the card has other functions.",
        ),
        clean_option("a unit of attach_type PCI"),
        cfg.ListOpt(
            "services",
            default=[],
            help="Names of the engines or functions on this backend, for the list of services. "
            "Their state is unknown unless service_file or service_command is set.",
        ),
        cfg.StrOpt(
            "capabilities",
            default="{}",
            help="Capabilities of the backend, as a JSON object. The lists of backends and "
            "hardware show it and can be filtered by its members.",
        ),
        cfg.IntOpt(
            "remote_units",
            default=0,
            min=0,
            max=255,
            help="Number of units of each device that are not local to the host, for example "
            "because the host reaches them over a network. The list of hardware shows it. It "
            "must not exceed units.",
        ),
    ]


def _units() -> list[cfg.Opt]:
    return [
        cfg.StrOpt(
            "attach_type",
            default="PCI",
            help="How a unit is attached to a guest. PCI: the whole function, as one unit. MDEV: "
            "mediated devices of type mdev_type, which Nova creates. TEST_PCI: Nova attaches "
            "nothing.",
        ),
        cfg.IntOpt(
            "units",
            default=1,
            min=1,
            max=255,
            help="Number of units of each device, which is the maximum number of guests that can "
            "use it at the same time. More than one unit requires attach_type MDEV or TEST_PCI.",
        ),
        cfg.StrOpt(
            "unit",
            default="FUNCTION",
            help="What a guest gets. FUNCTION: one function, or one of its units. CARD: the "
            "functions of one card, which are those with the same domain, bus and device number. "
            "ALL: all functions of this backend on the host. With CARD and ALL, guests get all "
            "these functions or none, and a device profile requests their number. A unit is not "
            "offered if one of its functions is missing or must not be offered. Both require "
            "attach_type PCI, and exclude sysfs_class, stats_command and physical_network.",
        ),
        cfg.IntOpt(
            "unit_functions",
            min=2,
            max=255,
            help="Number of functions of a unit. Required with unit ALL. With unit CARD the "
            "default is 2, for both functions of a card with two ports, and the maximum is 8. A "
            "unit with another number of functions is not offered.",
        ),
        cfg.StrOpt(
            "layout",
            help="Layout of the cards that this section selects: vfs=N divides each card into N "
            "virtual functions (SR-IOV), from 0 to 255. The agent creates them through "
            "cyborg-privileged when it starts, so also after each reboot of the host. vfs=0 keeps "
            "a card whole. If unset, the agent leaves the cards as they are. A card is not offered "
            "while it has another layout than this one. The agent never changes the layout of a "
            "card that is in use, or that the conductor keeps a device of; drain the card first. "
            "The virtual functions are offered by the section that selects them, which can be "
            "this one. It requires attach_type PCI and unit FUNCTION.",
        ),
        cfg.StrOpt(
            "mdev_type",
            help="Type of the mediated devices, for example nvidia-223. Used with attach_type "
            "MDEV.",
        ),
        cfg.StrOpt(
            "physical_network",
            help="Name in Neutron of the physical network that the devices are connected to. Set "
            "it for network cards that Neutron ports can request. It requires attach_type PCI. If "
            "a host has more than one physical network, list a trait for each in traits.",
        ),
    ]


def _commands() -> list[cfg.Opt]:
    return [
        cfg.StrOpt(
            "install_command",
            help="Command that sets up a device when an operator enables it: the absolute path of "
            "a program and its arguments, without a shell. {address} is the PCI address of the "
            "device. Like every command it must be in a configuration file of this host; only "
            "root may have write permission for this file and for the program. The command must "
            "be idempotent. It requires ready_file or ready_command.",
        ),
        cfg.StrOpt(
            "prepare_command",
            help="Command that prepares a unit for its guest. {handle} is the key of the unit, "
            "{uuid} is the UUID of its attach handle. The command must be idempotent.",
        ),
        cfg.StrOpt(
            "release_command",
            help="Command that releases a unit after its guest. The command must be idempotent.",
        ),
        cfg.StrOpt(
            "reset_command",
            help="Command that removes the data of the last guest from a unit. It runs after "
            "release_command and the reset of reset_after_release. A unit whose reset fails is not "
            "bound again.",
        ),
        cfg.StrOpt(
            "program_command",
            help="Command that loads an image into a device, for operators who program it and for "
            "device profiles with accel:bitstream_id or accel:function_id. {image} is the path of "
            "the image, which the agent has downloaded from Glance and verified; only the user of "
            "the agent can read it. The command must be idempotent. If unset, the devices cannot "
            "be programmed.",
        ),
        cfg.StrOpt(
            "ready_command",
            help="Command that checks whether a device is set up: exit status 0 means yes. It runs "
            "at every scan, so prefer ready_file if such a file exists. The command must not "
            "change anything.",
        ),
        cfg.StrOpt(
            "health_command",
            help="Command that checks the health of a device: exit status 0 means healthy.",
        ),
        cfg.StrOpt(
            "stats_command",
            help="Command that prints the statistics of a device: one line with a name and a "
            "number for each value.",
        ),
        cfg.StrOpt(
            "service_command",
            help="Command that checks whether the service {service} of this backend runs: exit "
            "status 0 means READY, any other status STOPPED. It runs once per service at every "
            "scan, so prefer service_file if such a file exists. The command must not change "
            "anything. If it does not end within check_timeout, the state of the remaining "
            "services of the backend is unknown until the next scan.",
        ),
    ]


def _files_and_timeouts() -> list[cfg.Opt]:
    return [
        cfg.StrOpt(
            "ready_file",
            help="Absolute path of a file that exists when the device {address} is set up.",
        ),
        cfg.StrOpt(
            "reboot_file",
            help="Absolute path of a file that exists while the host must be rebooted before the "
            "device {address} can be used.",
        ),
        cfg.StrOpt(
            "prepared_file",
            help="Absolute path of a file that exists while the unit {handle} of the device "
            "{address} is prepared. Set it if a reboot of the host undoes the preparation: the "
            "agent then prepares the unit again.",
        ),
        cfg.StrOpt(
            "service_file",
            help="Absolute path of a file that exists while the service {service} of this backend "
            "runs, for example its pid file or socket. The state of the service is READY while "
            "the file exists, otherwise STOPPED.",
        ),
        cfg.FloatOpt(
            "install_timeout",
            default=1800,
            min=1,
            help="Time, in seconds, after which install_command is killed and the installation "
            "fails.",
        ),
        cfg.FloatOpt(
            "command_timeout",
            default=300,
            min=1,
            help="Time, in seconds, after which prepare_command, release_command and reset_command "
            "are killed. A bind fails sooner when [DEFAULT] bind_timeout passes; raise both for "
            "devices that take long.",
        ),
        cfg.FloatOpt(
            "program_timeout",
            default=600,
            min=1,
            help="Time, in seconds, after which program_command is killed. A bind fails sooner "
            "when [DEFAULT] bind_timeout passes; raise both for devices that take long.",
        ),
        cfg.FloatOpt(
            "check_timeout",
            default=10,
            min=0.1,
            max=30,
            help="Time, in seconds, after which ready_command, health_command, stats_command and "
            "service_command are killed.",
        ),
    ]


def options() -> dict[str, list[cfg.Opt]]:
    """Return new option objects of the driver itself."""
    backends = cfg.ListOpt(
        "backends",
        default=[],
        help="Names of the backends that the generic_driver manages. Each backend has a "
        "section [generic_driver:<name>] that selects its devices and describes how they are "
        "offered, or is an entry of the device catalogue with this name. If both exist, the "
        "options of the section have precedence.",
    )
    devices_dir = cfg.StrOpt(
        "devices_dir",
        default=DEVICES_DIR,
        help="Directory whose files, with names that end in .yaml, extend the device catalogue: "
        "they name the type and the model of devices by their PCI ids, and can offer them without "
        "a section of the configuration. Its rules give traits to the devices of all drivers. "
        "The agent and its drivers read it when the agent starts and after SIGHUP. "
        "The default directory need not exist. Only the configuration files of the host can set "
        "this option.",
    )
    return {GROUP: [backends, devices_dir]}
