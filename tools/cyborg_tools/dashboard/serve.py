# SPDX-License-Identifier: Apache-2.0
"""Serve Horizon and its static files on the loopback interface, until the parent process ends.

The Python of Horizon's environment runs this file, which therefore imports nothing of this project.
It prints its URL. The argument is the port, 0 for a free one.
"""

import mimetypes
import os
import sys
import threading
from pathlib import Path
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

os.environ["DJANGO_SETTINGS_MODULE"] = "openstack_dashboard.settings"
_STATIC = Path(sys.prefix, f"static-{os.environ['CYBORG_HORIZON_THEME']}").resolve()
_PREFIX = "/static/"


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128

    def server_bind(self):
        # The base class looks up the name of the host, which takes seconds without DNS.
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address
        self.setup_environ()


class _Handler(WSGIRequestHandler):
    def log_message(self, template, *values):
        """Log nothing: the browser records the requests."""


class _Application:
    """Horizon, with the files below ``/static/``, which a web server serves in a deployment."""

    def __init__(self, horizon):
        self._horizon = horizon

    def __call__(self, environ, start_response):
        path = environ.get("PATH_INFO", "")
        if not path.startswith(_PREFIX):
            return self._horizon(environ, start_response)
        file = (_STATIC / path.removeprefix(_PREFIX)).resolve()
        if not file.is_relative_to(_STATIC) or not file.is_file():
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"There is no such file."]
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        headers = [("Content-Type", kind), ("Cache-Control", "max-age=3600")]
        start_response("200 OK", headers)
        return [file.read_bytes()]


def main():
    """Serve until standard input closes."""
    address, read_fd = os.dup(sys.stdout.fileno()), sys.stdin
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    from openstack_dashboard.wsgi import application

    server = make_server(
        "127.0.0.1",
        int(sys.argv[1]),
        _Application(application),
        server_class=_Server,
        handler_class=_Handler,
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with os.fdopen(address, "w") as output:
        output.write(f"http://127.0.0.1:{server.server_port}\n")
    read_fd.read()


main()
