# SPDX-License-Identifier: Apache-2.0
"""The ``cyborg-conductor`` process."""

import os
import sys

from oslo_config import cfg

from cyborg import conf as configuration
from cyborg import exception, tracing, version
from cyborg.clients.http import Sessions
from cyborg.clients.limits import UnifiedLimits
from cyborg.clients.nova import Nova
from cyborg.clients.placement import Allocations, Placement
from cyborg.clients.placement_sync import Publisher
from cyborg.cmd.audit import audit_ages, make_auditor
from cyborg.conductor import app
from cyborg.conf.agent import AgentOptions
from cyborg.conf.conductor import AuditOptions, ConductorOptions, QuotaOptions
from cyborg.conf.default import DefaultOptions
from cyborg.db.engine import Database
from cyborg.metrics.meters import Meters
from cyborg.model.probation import Rules
from cyborg.model.process import CONDUCTOR
from cyborg.model.provider import HostNames
from cyborg.rpc.notifications import Notifier
from cyborg.rpc.transport import Bus, warn_if_unsigned


def settings(conf: cfg.ConfigOpts, *, process: str) -> app.Settings:
    """Return the conductor's settings from the configuration."""
    default, options = DefaultOptions.read(conf), ConductorOptions.read(conf)
    return app.Settings(
        default=default,
        agent=AgentOptions.read(conf),
        conductor=options,
        audit=AuditOptions.read(conf),
        process=process,
        version=version.installed(),
        ages=audit_ages(conf),
        host_names=HostNames(
            checked=default.message_signing == "required", more=options.provider_names
        ),
        health_rules=Rules(
            probation=int(options.health_probation * 1000),
            faults=options.health_faults,
            window=int(options.health_fault_window * 1000),
        ),
    )


def main() -> int:
    """Run until the process receives a signal to stop; return the exit status."""
    conf = cfg.CONF
    try:
        configuration.prepare(sys.argv[1:], prog=CONDUCTOR, conf=conf)
        sessions = Sessions(conf)
        with configuration.checked(conf):
            tracing.start(conf, CONDUCTOR)
            db = Database.from_conf(conf)
            address = ConductorOptions.read(conf).metrics_listen
            meters = Meters(CONDUCTOR, version.installed(), address=address)
            nova = meters.adapter("nova", sessions.nova())
            limits = UnifiedLimits() if QuotaOptions.read(conf).enabled else None
            placement = meters.adapter("placement", sessions.placement())
            daemon = app.assemble(
                bus=Bus(conf, role="conductor"),
                settings=settings(conf, process=str(os.getpid())),
                db=db,
                nova=Nova(nova),
                placement=Allocations(placement),
                limits=limits,
                publisher=lambda: Publisher(Placement(placement)),
                auditor=lambda: make_auditor(conf, db),
                notifier=Notifier(conf, f"{CONDUCTOR}:{conf.host}"),
                meters=meters,
            )
    except exception.ConfigError as error:
        print(f"{CONDUCTOR}: {configuration.explained(error, conf)}", file=sys.stderr)
        return 1
    warn_if_unsigned(conf)
    daemon.at_reload(lambda: configuration.reread(conf))
    return daemon.run()
