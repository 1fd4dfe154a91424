# SPDX-License-Identifier: Apache-2.0
"""Options of [agent]: the drivers of a compute host's agent and the intervals of its tasks."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from oslo_config import cfg

from cyborg.conf.default import metrics_listen
from cyborg.conf.group import OptionGroup, computed_option, option

#: The socket of cyborg-privileged, as in etc/systemd/cyborg-privileged.socket.
PRIVILEGED_SOCKET: Final = "/run/cyborg-privileged.sock"
#: The list of the functions that cyborg-privileged may change.
PRIVILEGED_FUNCTIONS: Final = "/etc/cyborg-privileged/functions"


@dataclass(frozen=True)
class AgentOptions(OptionGroup):
    """Options of an agent; times are in seconds."""

    GROUP: ClassVar[str] = "agent"

    enabled_drivers: Sequence[str] = option(
        cfg.ListOpt,
        default=[],
        help="Drivers that discover devices on this host: names of entry points in the group "
        "'cyborg.accelerator.driver', or '*' for all installed drivers. Name the drivers "
        "whose devices the host offers, for example pci_driver. By default there is none, and "
        "the host offers no device until an operator loads a driver through the API. A driver "
        "that cannot be loaded is shown as failed and does not stop the agent. Installed "
        "drivers that are not named here list the hardware that they recognise when the agent "
        "starts and when an operator requests a discovery; this hardware is not offered.",
    )
    resource_provider_name: str = computed_option(
        cfg.StrOpt,
        default=socket.getfqdn,
        sample_default="compute-1.example.com",
        help="Name of this compute host's own resource provider in Placement, which is the "
        "parent of the providers of its devices. It must equal the hypervisor hostname in "
        "Nova. Set it when that differs from the fully qualified name of the host: with a "
        "wrong name the agent does not publish any device.",
    )
    heartbeat_interval: float = option(
        cfg.FloatOpt,
        default=10,
        min=0.1,
        help="Interval, in seconds, between two heartbeats of the agent. Changes by an "
        "operator reach the host within this time even if the direct message to the agent "
        "was lost. Conductors, APIs and cyborg-audit treat an agent as down after three "
        "intervals of their own configuration, so set the same value on all hosts. A small "
        "value detects a failed agent sooner and adds one commit per heartbeat to the load on "
        "the database; raise it if the database is too slow for the number of hosts.",
    )
    full_check_interval: float = option(
        cfg.FloatOpt,
        default=600,
        min=1,
        help="Interval, in seconds, between two full comparisons of this host's providers in "
        "Placement with their expected state. Each comparison corrects manual changes in "
        "Placement. A small value corrects them sooner and sends more requests to Placement.",
    )
    scan_timeout: float = option(
        cfg.FloatOpt,
        default=60,
        min=1,
        help="How long, in seconds, a scan waits for each driver to list its devices. A driver "
        "that has not answered by then counts as failed, its devices stay as they were and are "
        "reserved, and the devices of the other drivers are reported. Raise it if a driver "
        "runs slow commands while it discovers.",
    )
    usage_interval: float = option(
        cfg.FloatOpt,
        default=60,
        min=0,
        help="Interval, in seconds, between polls of device utilisation, temperature and "
        "power draw. The agent publishes the readings as accelerator.usage notifications, "
        "unless [oslo_messaging_notifications] driver names only noop, and sends them to a "
        "conductor for its metrics and for cyborg top. A small value gives finer readings and "
        "calls the drivers more often. Keep it below 300 if Prometheus collects the metrics, "
        "because Prometheus shows no value that is older than five minutes. 0 turns polling off.",
    )
    health_interval: float = option(
        cfg.FloatOpt,
        default=60,
        min=0,
        help="Interval, in seconds, between polls of the health of the devices. Each driver is "
        "polled in a thread of its own. A device that its driver reports as faulty is reserved "
        "in Placement within seconds, and is offered again when the driver reports it as "
        "healthy. A small value finds faults sooner and runs the health checks of drivers more "
        "often. 0 turns polling off: the health of all devices is unknown, and no device is "
        "reserved because of it. The agent also reads the state of the PCI Express functions "
        "at this interval, for devices of every driver, and at once after an event of the "
        "kernel about a device.",
    )
    failed_prepares: int = option(
        cfg.IntOpt,
        default=3,
        min=0,
        help="How many prepares of a device must fail in a row until the device counts as "
        "faulty, and its units are reserved. A prepare that also loads an image does not "
        "count, because the image may be the cause. A success starts the count again. 0: "
        "failed prepares have no effect on the health.",
    )
    health_policy_dirs: Sequence[str] = option(
        cfg.ListOpt,
        default=[],
        help="Directories whose files with the suffix .yaml say which fault means which "
        "condition of a device, and what to do about it. Their entries replace those of this "
        "package (cyborg/drivers/health.d), and those of later directories replace those of "
        "earlier ones, code by code. Each directory must exist. Set it to reserve the devices "
        "of a fault that is only shown by default, or to ignore a fault.",
    )
    topology_traits: bool = option(
        cfg.BoolOpt,
        default=False,
        help="Publish traits that tell where the devices of this host are: "
        "CUSTOM_NUMA_NODE_1, and CUSTOM_PCI_SWITCH_0000_41_00_0 and "
        "CUSTOM_PCI_ROOT_PORT_0000_40_01_0 with the PCI address of the nearest switch and of "
        "the root port above the device. The addresses differ from host to host, and can change "
        "when cards are added. Others mean the same on all hosts: "
        "CUSTOM_PCI_SWITCH_WITH_NIC_15B3_1021 for a device that shares a switch with such a "
        "network card, by vendor and product id, and for GPUs that NVLink joins "
        "CUSTOM_LINK_ISLAND_0 with the number of the island on the host, and "
        "CUSTOM_LINK_ISLAND_OF_8 with the number of its GPUs. Turn it on if device profiles "
        "request devices by their place.",
    )
    compat_traits: bool = option(
        cfg.BoolOpt,
        default=False,
        help="Publish for each device also the traits that the existing service published for it, "
        "and that this service does not. They are the rules with 'compat: true' of the device "
        "catalogue: CUSTOM_FPGA_INTEL_PAC_ARRIA10 for all cards of the intel_fpga_driver, which "
        "the existing service did not tell apart, and what files in [generic_driver] devices_dir "
        "add. Turn it on while device profiles from an earlier deployment request devices by these "
        "traits.",
    )
    privileged_socket: str = option(
        cfg.StrOpt,
        default=PRIVILEGED_SOCKET,
        help="Path of the socket of cyborg-privileged, the process that runs the actions of "
        "drivers that need privileges, such as a reset. Change it together with the socket of "
        "that process. The agent connects for the first such action. A process for one kind of "
        "action has this path with a dot and the kind, as cyborg-observer.socket does with "
        "'.observe'. If the socket does not exist, the agent uses [cyborg_sys_admin] "
        "helper_command, and without that option these actions fail.",
    )
    metrics_listen: str | None = metrics_listen()


@dataclass(frozen=True)
class PrivilegeOptions(OptionGroup):
    """Options of the helper program for privileged actions."""

    GROUP: ClassVar[str] = "cyborg_sys_admin"

    helper_command: str | None = option(
        cfg.StrOpt,
        default=None,
        help="Command that starts a process with privileges, for hosts without the socket "
        "[agent] privileged_socket: privsep-helper of oslo.privsep, for example 'sudo "
        "privsep-helper --config-file /etc/cyborg/cyborg.conf'. The agent adds --privsep_context "
        "and --privsep_sock_path, and runs the command once for each kind of privileged action. "
        "While the socket exists, this option has no effect.",
    )


def options() -> dict[str, list[cfg.Opt]]:
    """Return new option objects by group; looks up the fully qualified name of this host."""
    return {group.GROUP: group.options() for group in (AgentOptions, PrivilegeOptions)}
