# SPDX-License-Identifier: Apache-2.0
"""Options of [DEFAULT]: who this process is, where it keeps files, how patient it is."""

import os
import pathlib
import socket

from oslo_config import cfg

GROUP = "DEFAULT"

_NO_EFFECT = "It has no effect any more; it is accepted so that existing files stay valid."


def options() -> list[cfg.Opt]:
    """Return fresh option objects; the default of ``host`` is this machine's name."""
    return [
        # Not a host address type: machines may be called by digits or with underscores alone.
        cfg.StrOpt(
            "host",
            default=socket.gethostname(),
            sample_default="compute-1",
            regex=r"^[\w.:-]{1,255}$",
            help="Name of this node. The agent listens on the message bus under this name, and "
            "the resource providers of most drivers carry it. Every agent needs a name of its "
            "own; changing it makes new resource providers.",
        ),
        cfg.IntOpt(
            "periodic_interval",
            default=60,
            min=1,
            help="Seconds between two looks of the agent at the hardware of its host. Shorter "
            "intervals notice new or lost devices sooner.",
        ),
        cfg.IntOpt(
            "thread_pool_size",
            default=10,
            min=1,
            help="How many pieces of background work one conductor does at a time, of each kind "
            "(preparing devices, releasing them, programming them, telling Nova).",
        ),
        cfg.IntOpt(
            "bind_timeout",
            default=60,
            min=1,
            help="Seconds that a host may take to prepare a device for a bind. After that the "
            "accelerator request is BindFailed and its device is freed.",
        ),
        *_paths(),
        cfg.BoolOpt(
            "fatal_exception_format_errors",
            default=False,
            help="Raise errors in the format of messages instead of logging them.",
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
            help="Directory in which the agent keeps its cache, its journal and images that it "
            "loads. The user who runs the agent must be able to write there. The systemd unit "
            "creates the default directory. Without a writable directory the agent runs, but it "
            "forgets its state at a restart and cannot load images.",
        ),
        cfg.StrOpt(
            "pybasedir",
            default=os.fspath(package),
            sample_default="/usr/lib/python3/site-packages/cyborg",
            help="Directory of the installed Python package; other paths may refer to it.",
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
    """Register the options of [DEFAULT] on ``conf``; calling twice does no harm."""
    conf.register_opts(options())


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options by group, for the sample generator."""
    return [(GROUP, options())]
