# SPDX-License-Identifier: Apache-2.0
"""The ``cyborg-api`` process: the REST API on a small threaded server, for small deployments.

Large deployments run ``cyborg.wsgi.api:application`` in another WSGI server.
"""

import logging
import sys

from oslo_config import cfg

from cyborg import conf as configuration
from cyborg import exception, service, tracing
from cyborg.api import app
from cyborg.api.server import HttpServer
from cyborg.model.process import API
from cyborg.rpc.transport import warn_if_unsigned

LOG = logging.getLogger(__name__)


def main() -> int:
    """Run until the process receives a signal to stop; return the exit status."""
    conf = cfg.CONF
    try:
        configuration.prepare(sys.argv[1:], prog=API, conf=conf)
        with configuration.checked(conf):
            tracing.start(conf, API)
            server = HttpServer(app.load(conf), conf)
    except exception.ConfigError as error:
        print(f"{API}: {configuration.explained(error, conf)}", file=sys.stderr)
        return 1
    daemon = service.Daemon(API)
    daemon.add_server(server, alive=lambda: server.alive)
    warn_if_unsigned(conf)
    daemon.at_reload(lambda: configuration.reread(conf))
    LOG.info("Listening on %s:%s", *server.address)
    return daemon.run()
