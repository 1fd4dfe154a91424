# SPDX-License-Identifier: Apache-2.0
"""Options of the generic_driver: [generic_driver], and a group [generic_driver:<name>] a backend.

The groups of backends are known only when the configuration was read; the driver registers them.
"""

from oslo_config import cfg

GROUP = "generic_driver"


def group_of(backend: str) -> str:
    """The group that describes a backend."""
    return f"{GROUP}:{backend}"


def options() -> list[cfg.Opt]:
    """Return fresh options of the driver itself."""
    return [
        cfg.ListOpt(
            "backends",
            default=[],
            help="Names of the backends that the generic_driver looks after. Each has a section "
            "[generic_driver:<name>] that says which devices belong to it and how they are "
            "offered.",
        ),
    ]


def backend_options() -> list[cfg.Opt]:
    """Return fresh options of one backend."""
    return [*_matching(), *_offering(), *_units(), *_commands(), *_files(), *_timeouts()]


def _matching() -> list[cfg.Opt]:
    return [
        cfg.ListOpt(
            "pci_ids",
            default=[],
            help="PCI functions by vendor and product, hexadecimal, for example 10de:20b5 or "
            "10de:*. Of pci_ids, pci_classes, addresses and sysfs_class all that are given must "
            "match.",
        ),
        cfg.ListOpt(
            "pci_classes",
            default=[],
            help="PCI functions by the first two, four or all six digits of the class code, "
            "for example 1200.",
        ),
        cfg.ListOpt(
            "addresses",
            default=[],
            help="PCI functions by address, each part of which may be '*', for example "
            "0000:81:*.*. The full address of a physical function means its virtual functions "
            "as well.",
        ),
        cfg.StrOpt(
            "sysfs_class",
            help="PCI functions that have an entry in this directory below /sys/class, for "
            "example accel.",
        ),
        cfg.ListOpt(
            "devices",
            default=[],
            help="A fixed list of PCI addresses instead of all other ways to choose. With "
            "attach_type TEST_PCI the devices are taken for granted; else each is offered while "
            "it is on the bus.",
        ),
    ]


def _offering() -> list[cfg.Opt]:
    return [
        cfg.StrOpt(
            "resource_class",
            help="Resource class in Placement, for example CUSTOM_CRYPTO. Must be given.",
        ),
        cfg.ListOpt("traits", default=[], help="Traits beside OWNER_CYBORG."),
        cfg.StrOpt(
            "device_type",
            default="PCI",
            help="What the API calls the devices: GPU, FPGA, AICHIP, QAT, NIC, SSD, MDEV, PCI or "
            "NVME.",
        ),
        cfg.StrOpt(
            "kind",
            help="Capability word of the devices in the list of hardware, for example CRYPTO. "
            "The device_type if not given.",
        ),
        cfg.StrOpt("vendor", help="Vendor as the API shows it. Its PCI id if not given."),
        cfg.StrOpt("model", help="Model as the API shows it. The product's name if not given."),
        cfg.ListOpt(
            "services",
            default=[],
            help="Names of the engines or functions on this backend, for the list of services. "
            "Their state is unknown unless service_file or service_command tells it.",
        ),
        cfg.StrOpt(
            "capabilities",
            default="{}",
            help="What the backend can do, as a JSON object. The lists of backends and hardware "
            "show it and filter by its members.",
        ),
        cfg.IntOpt(
            "remote_units",
            default=0,
            min=0,
            max=255,
            help="How many units of each device are not local to the host, for example because "
            "the host reaches them over a network. The list of hardware shows it. At most units.",
        ),
    ]


def _units() -> list[cfg.Opt]:
    return [
        cfg.StrOpt(
            "attach_type",
            default="PCI",
            help="How a guest gets hold of a unit. PCI: the whole function, one unit. MDEV: "
            "mediated devices of type mdev_type, which Nova makes. TEST_PCI: Nova attaches "
            "nothing.",
        ),
        cfg.IntOpt(
            "units",
            default=1,
            min=1,
            max=255,
            help="How many guests may have a unit of one device. More than one needs attach_type "
            "MDEV or TEST_PCI.",
        ),
        cfg.StrOpt("mdev_type", help="Type of the mediated devices, for example nvidia-223."),
        cfg.StrOpt(
            "physical_network",
            help="Neutron's name of the physical network that the devices are cabled to, for "
            "network cards that ports of Neutron may ask for. Needs attach_type PCI. List a trait "
            "for it in traits where a host has more than one.",
        ),
    ]


def _commands() -> list[cfg.Opt]:
    return [
        cfg.StrOpt(
            "install_command",
            help="Sets a device up when an operator enables it: the absolute path of a program "
            "and its arguments, without a shell; {address} is the device's PCI address. Like "
            "every command it must stand in a configuration file of this host that root alone "
            "can change, as must the program. Calling it twice must do no harm. Needs ready_file "
            "or ready_command.",
        ),
        cfg.StrOpt(
            "prepare_command",
            help="Makes a unit ready for its guest; {handle} is the key of the unit, {uuid} that "
            "of its attach handle. Calling it twice must do no harm.",
        ),
        cfg.StrOpt(
            "release_command",
            help="Takes a unit back from its guest. Calling it twice must do no harm.",
        ),
        cfg.StrOpt(
            "reset_command",
            help="Removes what the last guest left on the unit. Runs after release_command; a "
            "unit whose reset fails is given to nobody.",
        ),
        cfg.StrOpt(
            "program_command",
            help="Loads an image into a device, for operators who program it and for device "
            "profiles with accel:bitstream_id or accel:function_id; {image} is the path of the "
            "image, which the agent has fetched from Glance and verified, and which only the "
            "agent's user can read. Calling it twice must do no harm. Without it the devices "
            "cannot be programmed.",
        ),
        cfg.StrOpt(
            "ready_command",
            help="Tells whether a device is set up: status 0 means yes. It runs at every scan, "
            "so that ready_file is better where there is such a file. It must change nothing.",
        ),
        cfg.StrOpt("health_command", help="Tells whether a device works: status 0 means yes."),
        cfg.StrOpt(
            "stats_command",
            help="Prints figures of a device, one line with a name and a number each.",
        ),
        cfg.StrOpt(
            "service_command",
            help="Tells whether the service {service} of this backend runs: status 0 means READY, "
            "any other status STOPPED. It runs once per service at every scan, so service_file is "
            "better where such a file exists. It must change nothing. After a command that does "
            "not answer within check_timeout, the state of the backend's remaining services is "
            "unknown until the next scan.",
        ),
    ]


def _files() -> list[cfg.Opt]:
    return [
        cfg.StrOpt(
            "ready_file",
            help="Absolute path of a file that is there when the device {address} is set up.",
        ),
        cfg.StrOpt(
            "reboot_file",
            help="Absolute path of a file that is there while the host must be rebooted before "
            "the device {address} can be used.",
        ),
        cfg.StrOpt(
            "prepared_file",
            help="Absolute path of a file that is there while the unit {handle} of the device "
            "{address} is prepared. With it a unit is prepared again after a reboot of the "
            "host.",
        ),
        cfg.StrOpt(
            "service_file",
            help="Absolute path of a file that exists while the service {service} of this backend "
            "runs, for example its pid file or socket. The state of the service is READY while "
            "the file exists, otherwise STOPPED.",
        ),
    ]


def _timeouts() -> list[cfg.Opt]:
    return [
        cfg.FloatOpt(
            "install_timeout",
            default=1800,
            min=1,
            help="Seconds after which install_command is killed.",
        ),
        cfg.FloatOpt(
            "command_timeout",
            default=300,
            min=1,
            help="Seconds after which prepare_command, release_command and reset_command are "
            "killed.",
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
            help="Seconds after which ready_command, health_command, stats_command and "
            "service_command are killed.",
        ),
    ]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of [generic_driver] on ``conf``; calling twice does no harm."""
    conf.register_opts(options(), group=GROUP)


def register_backend(conf: cfg.ConfigOpts, backend: str) -> None:
    """Register the options of one backend on ``conf``; calling twice does no harm."""
    conf.register_opts(backend_options(), group=group_of(backend))


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by group, for the sample generator."""
    return [(GROUP, options())]
