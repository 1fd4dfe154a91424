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
from cyborg.conductor.audit.unattached import Repair
from cyborg.db.engine import Database
from cyborg.metrics.meters import Meters
from cyborg.model.probation import Rules
from cyborg.model.process import CONDUCTOR
from cyborg.model.provider import HostNames
from cyborg.rpc.notifications import Notifier
from cyborg.rpc.transport import Bus, warn_if_unsigned

_SECONDS_PER_DAY = 24 * 3600.0


def settings(conf: cfg.ConfigOpts, *, process: str) -> app.Settings:
    """Return the conductor's settings from the configuration."""
    return app.Settings(
        host=conf.host,
        process=process,
        version=version.installed(),
        heartbeat=conf.conductor.heartbeat,
        lease=conf.conductor.lease,
        bind_timeout=conf.bind_timeout,
        agent_down_after=3 * conf.agent.heartbeat_interval,
        threads=conf.thread_pool_size,
        audit_interval=conf.audit.interval,
        audit_changes=conf.audit.max_changes,
        repair_unattached=Repair(conf.conductor.repair_unattached),
        ages=audit_ages(conf),
        lost_retention=conf.conductor.lost_retention * _SECONDS_PER_DAY,
        history_retention=conf.conductor.history_retention * _SECONDS_PER_DAY,
        agent_grace=conf.conductor.agent_grace,
        auto_enable=frozenset(conf.conductor.auto_enable),
        clean_existing_units=conf.conductor.clean_existing_units,
        max_arqs_per_request=conf.conductor.max_arqs_per_request,
        max_unbound_arqs=conf.conductor.max_unbound_arqs,
        unbound_age=conf.audit.unbound_age,
        instance_refresh=conf.conductor.instance_refresh,
        one_topic=conf.message_signing != "required",
        host_names=HostNames(
            checked=conf.message_signing == "required", more=conf.conductor.provider_names
        ),
        health_rules=Rules(
            probation=int(conf.conductor.health_probation * 1000),
            faults=conf.conductor.health_faults,
            window=int(conf.conductor.health_fault_window * 1000),
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
            address = conf.conductor.metrics_listen
            meters = Meters(CONDUCTOR, version.installed(), address=address)
            nova = meters.adapter("nova", sessions.nova())
            limits = UnifiedLimits() if conf.quota.enabled else None
            placement = meters.adapter("placement", sessions.placement())
            daemon = app.assemble(
                bus=Bus(conf, role="conductor"),
                settings=settings(conf, process=str(os.getpid())),
                db=db,
                peers=app.Peers(Nova(nova), Allocations(placement), limits),
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
