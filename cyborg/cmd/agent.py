# SPDX-License-Identifier: Apache-2.0
"""The ``cyborg-agent`` process."""

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from oslo_config import cfg

from cyborg import conf as configuration
from cyborg import exception, tracing, version
from cyborg.agent import app
from cyborg.agent.state_store import ActionJournal, StateStore
from cyborg.clients.glance import Glance
from cyborg.clients.http import Sessions
from cyborg.clients.image_signature import ImageCertificates
from cyborg.clients.placement import Placement
from cyborg.cmd import clean, discover, functions, recovered
from cyborg.conf.agent import AgentOptions, PrivilegeOptions
from cyborg.conf.clients import GlanceOptions
from cyborg.conf.default import DefaultOptions
from cyborg.drivers import catalogue, health_policy, loader
from cyborg.drivers.host import Host, LocalHost
from cyborg.drivers.privileged.action import Context
from cyborg.drivers.privileged.client import Client, Export
from cyborg.metrics.meters import Meters
from cyborg.model.process import AGENT
from cyborg.rpc.notifications import Notifier
from cyborg.rpc.transport import Bus, warn_if_unsigned


def settings(conf: cfg.ConfigOpts) -> app.Settings:
    """Return the agent's settings from the configuration, in which a Bus has put its options."""
    options = AgentOptions.read(conf)
    return app.Settings(
        default=DefaultOptions.read(conf),
        agent=options,
        rpc_timeout=conf.rpc_response_timeout,
        version=version.installed(),
        health_policy=health_policy.read(options.health_policy_dirs),
        read_catalogue=lambda: catalogue.read(conf),
    )


def image_certificates(conf: cfg.ConfigOpts, machine: Host) -> ImageCertificates | None:
    """Return the certificates that must sign images; None if signatures are not verified.

    Raises exception.ConfigError if their directory cannot be used.
    """
    options = GlanceOptions.read(conf)
    if not options.verify_image_signatures:
        return None
    directory = Path(options.image_certificates)
    certificates = ImageCertificates(directory, machine.writable_by_others)
    certificates.check()
    return certificates


def privileged_exports() -> Mapping[Context, Export]:
    """Return the functions of the privileged process; this imports oslo.privsep."""
    from cyborg.drivers.privileged.contexts import EXPORTS

    return EXPORTS


def main() -> int:
    """Run until a signal to stop, or discover, or clean a device; return the exit status."""
    conf = cfg.CONF
    conf.register_cli_opts(discover.OPTIONS + clean.OPTIONS + functions.OPTIONS + recovered.OPTIONS)
    try:
        configuration.prepare(
            sys.argv[1:],
            prog=AGENT,
            conf=conf,
            logs=lambda conf: (
                not conf.discover
                and conf.clean is None
                and conf.list_functions is None
                and conf.recovered is None
            ),
        )
        discover.check(conf, listing=conf.list_functions is not None)
        if conf.discover:
            # Refusals and failures of drivers are in the output; only --debug prints them twice.
            handler = logging.StreamHandler() if conf.debug else logging.NullHandler()
            logging.basicConfig(level=logging.DEBUG, handlers=[handler], force=True)
            try:
                return discover.run(conf, sys.stdout)
            except BrokenPipeError:
                # Nobody reads the rest; keep the interpreter from failing on it at exit.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return 1
        if conf.list_functions is not None:
            return functions.run(conf, sys.stdout)
        if conf.clean is not None:
            return clean.run(conf, LocalHost(), sys.stdout)
        if conf.recovered is not None:
            return recovered.run(conf, sys.stdout)
        sessions = Sessions(conf)
        with configuration.checked(conf):
            default, options = DefaultOptions.read(conf), AgentOptions.read(conf)
            images = GlanceOptions.read(conf)
            journal = ActionJournal(StateStore(Path(default.state_path), default.host))
            privileged = Client(
                socket_path=options.privileged_socket,
                helper_command=PrivilegeOptions.read(conf).helper_command,
                exports=privileged_exports,
                journal=journal.record,
            )
            machine = LocalHost(privileged=privileged)
            tracing.start(conf, AGENT)
            meters = Meters(AGENT, version.installed(), address=options.metrics_listen)
            placement = meters.adapter("placement", sessions.placement())
            enabled = loader.load(options.enabled_drivers, machine, conf)
            others = loader.load_disabled([driver.name for driver in enabled], machine, conf)
            certificates = image_certificates(conf, machine)
            daemon = app.assemble(
                bus=Bus(conf, role="agent"),
                settings=settings(conf),
                loaded=enabled + others,
                placement=Placement(placement),
                load=lambda name, options: loader.load_with_options(
                    name, machine, conf, options=options
                ),
                glance=lambda: Glance(
                    meters.adapter("glance", sessions.glance()),
                    images.num_retries,
                    max_size=images.max_image_size,
                    certificates=certificates,
                ),
                notifier=Notifier(conf, f"{AGENT}:{default.host}"),
                meters=meters,
                machine=machine,
            )
    except exception.ConfigError as error:
        print(f"{AGENT}: {configuration.explained(error, conf)}", file=sys.stderr)
        return 1
    warn_if_unsigned(conf)
    daemon.at_reload(lambda: configuration.reread(conf))
    return daemon.run()
