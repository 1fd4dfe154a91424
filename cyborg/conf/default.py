# SPDX-License-Identifier: Apache-2.0
"""Options of [DEFAULT]: the name of the host, directories, intervals and timeouts."""

import os
import pathlib
import socket

from oslo_config import cfg

GROUP = "DEFAULT"

_NO_EFFECT = "It no longer has any effect; it is accepted so that existing files stay valid."


def options() -> list[cfg.Opt]:
    """Return new option objects; the default of ``host`` is the name of this host."""
    return [
        # Not a host address type: host names may consist of digits, or contain underscores.
        cfg.StrOpt(
            "host",
            default=socket.gethostname(),
            sample_default="compute-1",
            regex=r"^[\w.:-]{1,255}$",
            help="Name of this host. The agent receives messages under this name, and the names of "
            "most resource providers contain it. Each agent needs a unique name. Set it if the "
            "host name is not unique or changes: after a change of the name the agent creates new "
            "resource providers.",
        ),
        cfg.IntOpt(
            "periodic_interval",
            default=60,
            min=1,
            help="Interval, in seconds, between two scans of the hardware of a host by its agent. "
            "A small value detects new or lost devices sooner and calls the drivers more often.",
        ),
        cfg.IntOpt(
            "thread_pool_size",
            default=10,
            min=1,
            help="Maximum number of background tasks of each kind (preparing devices, releasing "
            "them, programming them, notifying Nova) that one conductor carries out at the same "
            "time. Raise it when many hosts prepare devices at once and the metric "
            "cyborg_work_oldest_seconds grows.",
        ),
        cfg.IntOpt(
            "bind_timeout",
            default=60,
            min=1,
            help="Time, in seconds, that a host may take to prepare a device for a bind. When it "
            "is over, the accelerator request becomes BindFailed and its attach handle is "
            "released. Raise it for devices that need more time, for example to load an image. "
            "Nova's option arq_binding_timeout must be longer.",
        ),
        *_paths(),
        cfg.BoolOpt(
            "fatal_exception_format_errors",
            default=False,
            help="Raise errors in the format strings of messages instead of logging them.",
            deprecated_for_removal=True,
            deprecated_since="18.0.0",
            deprecated_reason=_NO_EFFECT,
        ),
    ]


def _paths() -> list[cfg.Opt]:
    package = pathlib.Path(__file__).resolve().parent.parent
    return [
        cfg.StrOpt(
            "state_path",
            default="/var/lib/cyborg",
            help="Directory in which the agent stores its cache, its journal and the images that "
            "it loads. The user that runs the agent needs write permission. The systemd unit "
            "creates the default directory. Without a writable directory the agent runs, but it "
            "loses its state at a restart and cannot load images.",
        ),
        cfg.StrOpt(
            "pybasedir",
            default=os.fspath(package),
            sample_default="/usr/lib/python3/site-packages/cyborg",
            help="Directory of the installed Python package; other paths may refer to it as "
            "$pybasedir.",
        ),
        cfg.StrOpt(
            "bindir",
            default=os.path.join("$pybasedir", "bin"),
            help="Directory of helper programs.",
            deprecated_for_removal=True,
            deprecated_since="18.0.0",
            deprecated_reason=_NO_EFFECT,
        ),
    ]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options of [DEFAULT] on ``conf``; a second call has no effect."""
    conf.register_opts(options())


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by group, for the sample generator."""
    return [(GROUP, options())]
