# SPDX-License-Identifier: Apache-2.0
"""A small threaded server for the REST API: cheroot, CherryPy's.

cheroot is one process with a pool of threads, has TLS, and finishes active requests when it stops.
gunicorn forks, which stops the threads of oslo.messaging, and waitress has no TLS.
"""

import logging
import os
import ssl
import threading
from typing import Final

from cheroot import wsgi
from cheroot.ssl.builtin import BuiltinSSLAdapter
from oslo_config import cfg

from cyborg import exception
from cyborg.api.framework import WsgiApp

LOG = logging.getLogger(__name__)

#: Connections that may wait for the server to take them.
_BACKLOG: Final = 128
#: A request holds its thread during its RPC, so hosts with few processors need this many as well.
_MIN_THREADS: Final = 8
#: Seconds that active requests have to finish when the process stops.
_GRACE: Final = 20


class _Cheroot(wsgi.Server):
    def error_log(self, msg: str = "", level: int = logging.INFO, traceback: bool = False) -> None:
        """Write to the log of the service instead of standard error."""
        LOG.log(level, "%s", msg.strip(), exc_info=traceback)


class HttpServer:
    """cheroot as the server of a daemon; the constructor binds the port.

    Raises ConfigError if it cannot listen on the address or if the TLS settings are wrong.
    """

    def __init__(self, application: WsgiApp, conf: cfg.ConfigOpts) -> None:
        host, port = conf.api.host_ip, conf.api.port
        self._server = _Cheroot(
            (host, port),
            application,
            numthreads=conf.api.api_workers or max(os.cpu_count() or 1, _MIN_THREADS),
            server_name=host,
            request_queue_size=_BACKLOG,
            shutdown_timeout=_GRACE,
        )
        if conf.api.enable_ssl_api:
            self._server.ssl_adapter = _tls(conf)
        try:
            self._server.prepare()
        except OSError as error:
            raise exception.ConfigError(
                reason=f"[api] host_ip = {host}, port = {port} cannot be listened on: {error}"
            ) from error
        self._thread = threading.Thread(target=self._server.serve, name="http", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Return the bound host and port (``[api] port = 0`` binds a free port)."""
        host, port = self._server.bind_addr[:2]
        return str(host), int(port)

    @property
    def alive(self) -> bool:
        """Return whether the started server accepts connections."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start to answer requests; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Accept no further requests, and let active requests finish."""
        self._server.stop()

    def wait(self) -> None:
        """Wait until the last request is finished."""
        self._thread.join()


def _tls(conf: cfg.ConfigOpts) -> BuiltinSSLAdapter:
    files = conf.ssl
    if not files.cert_file or not files.key_file:
        raise exception.ConfigError(
            reason="[api] enable_ssl_api = true needs [ssl] cert_file and key_file."
        )
    try:
        adapter = BuiltinSSLAdapter(files.cert_file, files.key_file)
        if files.ca_file:
            adapter.context.load_verify_locations(files.ca_file)
            adapter.context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise exception.ConfigError(
            reason=f"[ssl] cert_file = {files.cert_file}, key_file = {files.key_file}, ca_file = "
            f"{files.ca_file} cannot be used: {error}"
        ) from error
    return adapter
