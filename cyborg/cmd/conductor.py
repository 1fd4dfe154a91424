# SPDX-License-Identifier: Apache-2.0
"""The ``cyborg-conductor`` process."""

import os
import sys

from oslo_config import cfg

from cyborg import conf as configuration
from cyborg import exception, version
from cyborg.clients.keystone import Sessions
from cyborg.clients.nova import Nova
from cyborg.cmd.audit import make_auditor
from cyborg.conductor import app
from cyborg.db.engine import Database
from cyborg.model.names import CONDUCTOR
from cyborg.rpc.transport import Bus


def settings(conf: cfg.ConfigOpts, *, process: str) -> app.Settings:
    """The conductor's values from the configuration."""
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
    )


def main() -> int:
    """Run until told to end; answers the exit status."""
    try:
        conf = configuration.prepare(sys.argv[1:], prog=CONDUCTOR)
        with configuration.checked(conf):
            db = Database.from_conf(conf)
            daemon = app.assemble(
                bus=Bus(conf),
                settings=settings(conf, process=str(os.getpid())),
                db=db,
                nova=Nova(Sessions(conf).nova()),
                auditor=lambda: make_auditor(conf, db),
            )
    except exception.ConfigError as error:
        print(f"{CONDUCTOR}: {error}", file=sys.stderr)
        return 1
    return daemon.run()
