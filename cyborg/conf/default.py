# SPDX-License-Identifier: Apache-2.0
"""Options that every process reads: [DEFAULT], [database], [tracing] and [upgrade_levels]."""

import os
import pathlib
import socket
from dataclasses import dataclass
from typing import ClassVar

from oslo_config import cfg

from cyborg import exception
from cyborg.conf.group import OptionGroup, computed_option, option

#: Largest value of MariaDB's variable wsrep_sync_wait, which is a bit mask.
_MAX_SYNC_WAIT = 15


def metrics_listen() -> str | None:
    """Declare the option ``metrics_listen`` of a group of a daemon."""
    address: str | None = option(
        cfg.StrOpt,
        default=None,
        regex=r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):[0-9]{1,5}$",
        help="Address and TCP port, as in 127.0.0.1:9100 or [::1]:9100, on which the process "
        "exposes its metrics in the Prometheus format at GET /metrics. Requests need no token and "
        "are not encrypted: every client that can reach the port can read the names of hosts, "
        "drivers and devices, and their numbers. If unset, the process does not listen.",
    )
    return address


@dataclass(frozen=True)
class DefaultOptions(OptionGroup):
    """Options of every process; times are in seconds."""

    GROUP: ClassVar[str] = "DEFAULT"

    # Not a host address type: host names may consist of digits, or contain underscores.
    host: str = computed_option(
        cfg.StrOpt,
        default=socket.gethostname,
        sample_default="compute-1",
        regex=r"^[\w.:-]{1,255}$",
        help="Name of this host. The agent receives messages under this name, and the names of "
        "most resource providers contain it. Each agent needs a unique name. Set it if the "
        "host name is not unique or changes: after a change of the name the agent creates new "
        "resource providers.",
    )
    periodic_interval: float = option(
        cfg.IntOpt,
        default=60,
        min=1,
        help="Interval, in seconds, between two scans of the hardware of a host by its agent. "
        "A small value detects new or lost devices sooner and calls the drivers more often.",
    )
    thread_pool_size: int = option(
        cfg.IntOpt,
        default=10,
        min=1,
        help="Maximum number of background tasks of each kind (preparing devices, releasing "
        "them, programming them, notifying Nova) that one conductor carries out at the same "
        "time. Raise it when many hosts prepare devices at once and the metric "
        "cyborg_work_oldest_seconds grows.",
    )
    bind_timeout: float = option(
        cfg.IntOpt,
        default=60,
        min=1,
        help="Time, in seconds, that a host may take to prepare a device for a bind. When it "
        "is over, the accelerator request becomes BindFailed and its attach handle is "
        "released. Raise it for devices that need more time, for example to load an image. "
        "Nova's option arq_binding_timeout must be longer.",
    )
    state_path: str = option(
        cfg.StrOpt,
        default="/var/lib/cyborg",
        help="Directory in which the agent stores its cache, its journal and the images that "
        "it loads. The user that runs the agent needs write permission. The systemd unit "
        "creates the default directory. Without a writable directory the agent runs, but it "
        "loses its state at a restart and cannot load images.",
    )
    message_signing: str = option(
        cfg.StrOpt,
        default="off",
        choices=[
            ("off", "Accept every message. Messages are signed if there is a key file."),
            ("warn", "Log messages without a valid signature, and accept them."),
            ("required", "Refuse messages without a valid signature."),
        ],
        help="What this process does with a message over the message bus that has no valid "
        "signature. Set it to required in every process. With off or warn, everyone who has "
        "the transport_url of one host controls the whole service, and this process logs "
        "a warning at its start. The default is off only because processes of earlier releases "
        "do not sign: a new installation begins with required. Otherwise upgrade all "
        "processes, give each of them its message_signing_key_file, change to warn, and when "
        "the log has no more warnings, change to required. With required, a process without a "
        "key file does not start, and the clocks of all hosts must agree within two minutes.",
    )
    message_signing_key_file: str | None = option(
        cfg.StrOpt,
        default=None,
        sample_default="/etc/cyborg/signing-keys.json",
        help="File of the keys that sign and verify messages, which cyborg-signing-key "
        "writes: on controllers the master keys, on a host with an agent only the keys "
        "derived for this host. Other users must not be able to read it. A changed file is "
        "read again within seconds, so keys are replaced without a restart; if it cannot be "
        "used, the process has no keys after ten minutes. Revoked keys are in a file of the "
        "same name with .revoked at its end. If unset, this "
        "process signs nothing.",
    )
    pybasedir: str = option(
        cfg.StrOpt,
        default=os.fspath(pathlib.Path(__file__).resolve().parent.parent),
        sample_default="/usr/lib/python3/site-packages/cyborg",
        help="Directory of the installed Python package; other paths may refer to it as "
        "$pybasedir.",
    )


@dataclass(frozen=True)
class TracingOptions(OptionGroup):
    """Options of the traces."""

    GROUP: ClassVar[str] = "tracing"

    endpoint: str | None = option(
        cfg.URIOpt,
        default=None,
        schemes=["http", "https"],
        sample_default="http://127.0.0.1:4318/v1/traces",
        help="URL, with its path, of the collector that receives OpenTelemetry traces as "
        "OTLP over HTTP. Tracing is off if it is unset. It requires the packages of the "
        "extra otel. OpenTelemetry's own environment variables (OTEL_TRACES_SAMPLER, "
        "OTEL_EXPORTER_OTLP_HEADERS and so on) set the sampling rate, the credentials for "
        "the collector and all other parameters.",
    )


@dataclass(frozen=True)
class UpgradeLevels(OptionGroup):
    """Limits of the versions of messages during an upgrade."""

    GROUP: ClassVar[str] = "upgrade_levels"

    conductor: str | None = option(
        cfg.StrOpt,
        default=None,
        help="Newest RPC version that this process sends to conductors, for example 1.0. "
        "During an upgrade, set it to the version of the oldest release whose conductors "
        "still run, and remove it when all conductors are upgraded. If unset, it is the "
        "version of this release. A request that needs a newer version is rejected with an "
        "error that names this option.",
    )
    agent: str | None = option(
        cfg.StrOpt,
        default=None,
        help="Newest RPC version that conductors send to agents, for example 1.0. During "
        "an upgrade, set it to the version of the oldest release whose agents still run, "
        "and remove it when all agents are upgraded. If unset, it is the version of this "
        "release. An operation that needs a newer version fails with an error that names "
        "this option.",
    )


def options() -> dict[str, list[cfg.Opt]]:
    """Return new option objects by group; the default of ``host`` is the name of this host.

    The options of oslo.db in [database] are not among them: oslo.db lists them itself.
    """
    groups = (DefaultOptions, TracingOptions, UpgradeLevels)
    return {group.GROUP: group.options() for group in groups}


def check(conf: cfg.ConfigOpts) -> None:
    """Check the range of ``mysql_wsrep_sync_wait``, which oslo.db does not check.

    With a value out of range Galera refuses every connection. Raises ``exception.ConfigError``.
    """
    wait = conf.database.mysql_wsrep_sync_wait
    if wait is not None and not 0 <= wait <= _MAX_SYNC_WAIT:
        raise exception.ConfigError(
            reason=f"Option [database] mysql_wsrep_sync_wait cannot be {wait}: it must be between "
            f"0 and {_MAX_SYNC_WAIT}. With 1 reads wait for the node to apply earlier writes."
        )
