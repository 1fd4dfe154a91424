# SPDX-License-Identifier: Apache-2.0
"""Options of [agent]: what the process on each compute host looks for, and how often it reports."""

import socket

from oslo_config import cfg

from cyborg.conf.listening import metrics_listen

GROUP = "agent"


def options() -> list[cfg.Opt]:
    """Return fresh option objects; asks the resolver once for this machine's full name."""
    return [
        cfg.ListOpt(
            "enabled_drivers",
            default=["fake_driver"],
            help="Drivers that look for devices on this host, by their names among the entry "
            "points 'cyborg.accelerator.driver'; '*' stands for all that are installed. A name "
            "that cannot be loaded is shown as a failed driver and does not stop the agent. "
            "Drivers that are installed and not named here are asked when the agent starts, and "
            "when an operator has it discover, which hardware they know; none of it is offered.",
        ),
        cfg.StrOpt(
            "resource_provider_name",
            default=socket.getfqdn(),
            sample_default="compute-1.example.com",
            help="Name of this compute host's own resource provider in Placement, under which "
            "the providers of its devices are placed. It must be what Nova calls the "
            "hypervisor's hostname.",
        ),
        cfg.IntOpt(
            "resource_provider_startup_retries",
            default=3,
            min=0,
            help="How many times the agent looks for the compute host's resource provider.",
            deprecated_for_removal=True,
            deprecated_since="18.0.0",
            deprecated_reason="It has no effect any more: the agent never gives up. It says once "
            "that the provider is missing, goes on looking with each heartbeat, and publishes "
            "the devices as soon as the provider is there.",
        ),
        cfg.FloatOpt(
            "heartbeat_interval",
            default=10,
            min=0.1,
            help="Seconds between two heartbeats of the agent. What an operator changes reaches "
            "the host within this time even if the direct message to it was lost.",
        ),
        cfg.FloatOpt(
            "full_check_interval",
            default=600,
            min=1,
            help="Seconds between two full comparisons of this host's providers in Placement "
            "with what they should be. What was changed there by hand is put right then.",
        ),
        *_watching(),
    ]


def _watching() -> list[cfg.Opt]:
    return [
        cfg.FloatOpt(
            "usage_interval",
            default=60,
            min=0,
            help="Seconds between two questions to the drivers how busy, hot and hungry their "
            "devices are. The answers are broadcast as notifications accelerator.usage, unless "
            "[oslo_messaging_notifications] driver names none but noop, and told to a conductor, "
            "for its metrics. 0: nobody is asked.",
        ),
        cfg.FloatOpt(
            "health_interval",
            default=60,
            min=0,
            help="Interval, in seconds, between polls of the health of the devices. Each driver is "
            "polled in a thread of its own. A device that its driver reports as faulty is reserved "
            "in Placement within seconds, and is offered again when the driver reports it as "
            "healthy. A small value finds faults sooner and runs the health checks of drivers more "
            "often. 0 turns polling off: the health of all devices is unknown, and no device is "
            "reserved because of it.",
        ),
        metrics_listen(),
    ]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of [agent] on ``conf``; calling twice does no harm."""
    conf.register_opts(options(), group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by group, for the sample generator."""
    return [(GROUP, options())]
